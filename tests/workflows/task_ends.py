"""How a task under test ended, and whether all who tell of it tell the same."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from perdure.history import happenings, history_of, record_of
from perdure.messages import TrialSummary


async def closed(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until it is over, however it ends."""
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()


async def failure_of(handle: WorkflowHandle[Any, Any]) -> TrialSummary:
    """Of a task that fails, what it says of that."""
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    return TrialSummary(**caught.value.cause.details[0])


async def same_record(client: Client, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """The record of the query, which is that of the history."""
    record: dict[str, Any] = await handle.query("record")
    assert await record_of(client, handle.id, handle.run_id) == record
    told = happenings(client, handle.id, handle.run_id, follow=False)
    assert [event async for event, _ in told] == await handle.query("events", 0)
    history = await history_of(client, handle.id, handle.run_id)
    assert history.progress() == await handle.query("progress")
    return record
