"""Each kind of failure comes from what deserves it, and is told alike by all who tell it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure.history import record_of
from perdure.messages import TaskInput, TaskOptions
from perdure.names import task_workflow_id
from perdure.results import suite_files
from tests.kit import Bench, bench


def command(text: str | list[str], **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "command", "command": text, **more}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SLEEP = "sleep 60"
PYTHON = {"id": "a", "type": "python"}
STUCK = "import time\ndef run(input):\n    time.sleep(60)\n"

FAILURES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "an exit code": ("task", "", command("exit 3"), {}),
    "a check that fails": (
        "task", "",
        {"id": "a", "type": "verify", "checks": [{"path": "metadata.x", "exists": True}]}, {},
    ),
    "a script that raises": ("task", "", {**PYTHON, "code": "def run(input): 1 / 0"}, {}),
    "a signal": ("task", "", command("kill -9 $$"), {}),
    "the step's timeout": ("timeout", "Timeout", command(SLEEP, timeout=0.5), {}),
    "the step's idle timeout": ("timeout", "IdleTimeout", command(SLEEP, idle_timeout=0.5), {}),
    "a script's timeout": ("timeout", "Timeout", {**PYTHON, "code": STUCK, "timeout": 1}, {}),
    "the task's timeout": ("timeout", "TaskTimeout", command(SLEEP), {"timeout": 1}),
    "a secret that is not there": (
        "bad_input", "MissingSecret", command("true", env={"K": {"from_env": "NOT_THERE_AT_ALL"}}),
        {},
    ),
    "a program that is not there": (
        "bad_input", "SpawnFailed", command(["no-such-program-anywhere"]), {},
    ),
    "nobody at the address": (
        "infrastructure", "ConnectionFailed", {"id": "a", "type": "http", "url": "PORT"}, {},
    ),
}  # fmt: skip


@pytest.fixture
async def here(temporal: WorkflowEnvironment, tmp_path: Path) -> Any:
    async with bench(temporal.client, tmp_path) as made:
        yield made


async def test_each_failure_has_the_kind_that_it_deserves(here: Bench) -> None:
    async def kind_of(step: dict[str, Any], task: dict[str, Any]) -> tuple[str, str]:
        if step.get("url") == "PORT":
            step = {**step, "url": f"http://127.0.0.1:{closed_port()}/"}
        record = await here.run(step, **task)
        lines = suite_files(here.options.results, here.suite).lines()
        (line,) = (line for line in lines if line["run_id"] == record["run_id"])
        assert line["failure"]["kind"] == record["failure"]["kind"]
        return record["failure"]["kind"], record["failure"]["type"]

    found = await asyncio.gather(*(kind_of(step, task) for _, _, step, task in FAILURES.values()))
    told = dict(zip(FAILURES, found, strict=True))
    assert told == {
        name: (kind, type or told[name][1]) for name, (kind, type, _, _) in FAILURES.items()
    }


async def test_a_refused_range_is_told_to_the_suite_as_bad_input(here: Bench) -> None:
    handle = await here.start(command("true"), options=TaskOptions(start_step=7))
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.details[0]["failure_kind"]) == ("BadInput", "bad_input")


@pytest.mark.parametrize(
    ("step", "type"),
    [
        ({"id": "a", "type": "unheard_of"}, "UnknownStepType"),
        ({"id": "../../a", "type": "command", "command": "true"}, "BadInput"),
    ],
)
async def test_what_no_check_saw_before_the_start_is_bad_input(
    here: Bench, step: dict[str, Any], type: str
) -> None:
    id = task_workflow_id(here.suite, "t", 1)
    with suppress(WorkflowFailureError):
        await here.client.execute_workflow(
            "TaskWorkflow",
            TaskInput({"id": "t", "steps": [step]}, here.suite),
            id=id,
            task_queue=here.options.queue,
        )
    failure = (await record_of(here.client, id))["failure"]
    assert (failure["kind"], failure["type"]) == ("bad_input", type)
