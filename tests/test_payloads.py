"""Values to payloads and back: what travels, and what is left out of it."""

from __future__ import annotations

import dataclasses
import inspect
import json

import pytest

from perdure import messages
from perdure.messages import RunRef, StepFailure, StepOutcome, StepTask, TaskOptions
from perdure.payloads import PayloadConverter

RUN = RunRef("task/s/t/1", "run", "s", "t", 1)


@pytest.mark.parametrize(
    "value",
    [
        StepOutcome("succeeded"),
        StepOutcome("failed", [{"op": "set", "path": ["a"], "value": None}], result=[0, "", {}]),
        StepOutcome("failed", failure=StepFailure("no", kind="task", retryable=False)),
        StepTask(RUN, {"id": "s", "version": None}, 0, 1, 1, 0, 0, context={"metadata": {}}),
        TaskOptions(end_step=0, limits={"openai": 0}),
    ],
)
def test_a_message_comes_back_as_it_was(value: object) -> None:
    converter = PayloadConverter()
    payload = converter.to_payload(value)
    assert converter.from_payload(payload, type(value)) == value


def test_fields_with_their_default_do_not_travel() -> None:
    payload = PayloadConverter().to_payload(StepOutcome("succeeded", host="a"))
    assert json.loads(payload.data) == {"status": "succeeded", "host": "a"}


def test_an_empty_value_of_a_document_travels() -> None:
    """Only fields of messages are left out; what people wrote is kept to the letter."""
    payload = PayloadConverter().to_payload(TaskOptions(limits={"a": 0}))
    assert json.loads(payload.data) == {"limits": {"a": 0}}


def test_every_message_can_be_told_by_its_own_type() -> None:
    """A field that stands for two types would lose what a subclass adds: none does."""
    kinds = [kind for _, kind in inspect.getmembers(messages, inspect.isclass)]
    shapes = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    assert shapes
    assert all(kind.__mro__ == (kind, object) for kind in shapes)
