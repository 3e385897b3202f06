"""Reading a workflow's events from the server, with no worker's help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHistoryEventAsyncIterator,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import PerdureError

PATIENCE_SECONDS = 60.0
"""How long a follower waits for a server that does not answer; a restart takes one or two."""

LOOK_SECONDS = 0.2
"""How often a server is asked whether a run is closed."""

STALE_PAGES = 20
"""How often in a row a reader begins anew because the server takes its page's token no more."""

_PAUSE_SECONDS = 0.3

_PASSING = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
)

T = TypeVar("T")


class UnknownRun(PerdureError):
    """The server knows no such run."""


class HistoryError(PerdureError):
    """A run's history cannot be read."""


@dataclass(frozen=True)
class Execution:
    """A workflow as the server lists it."""

    workflow_id: str
    run_id: str
    first_run_id: str
    """The first of its chain; stable over continue-as-new."""
    status: WorkflowExecutionStatus
    queue: str
    started_at: float
    """Seconds since 1970; of the newest run of the chain."""
    closed_at: float | None

    @property
    def is_open(self) -> bool:
        """Whether it still runs."""
        return self.status is WorkflowExecutionStatus.RUNNING


async def find_execution(
    client: Client, workflow_id: str, run_id: str | None = None
) -> Execution | None:
    """The newest run of the chain of a workflow id, or the named one; None if there is none.

    Raises HistoryError if the server does not answer.
    """
    try:
        found = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        # An id that is too long, or a run id that is none, names nothing either.
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        raise _unanswered(workflow_id, error) from error
    return Execution(
        workflow_id=workflow_id,
        run_id=found.run_id,
        first_run_id=found.raw_info.first_run_id or found.run_id,
        status=found.status or WorkflowExecutionStatus.RUNNING,
        queue=found.task_queue,
        started_at=found.start_time.timestamp(),
        closed_at=_timestamp(found.close_time),
    )


async def until_closed(client: Client, execution: Execution) -> None:
    """Wait until the chain is closed, or another took its place. Raises as `find_execution`."""
    while True:
        now = await find_execution(client, execution.workflow_id)
        if now is None or not now.is_open or now.first_run_id != execution.first_run_id:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def pages(
    client: Client, workflow_id: str, run_id: str | None = None, *, follow: bool = False
) -> AsyncIterator[list[HistoryEvent]]:
    """The events of a chain of runs, from `run_id` (default: its newest run) to its end.

    With `follow`, waits for what is still to come until the workflow is closed, through losses
    of the server. Raises UnknownRun, and HistoryError if the server does not answer.
    """
    if run_id is None:
        found = await find_execution(client, workflow_id)
        if found is None:
            raise UnknownRun(f"the server knows no run {workflow_id!r}")
        run_id = found.run_id
    at: str | None = run_id
    while at is not None:
        following: str | None = None
        async for page in pages_of_run(client, workflow_id, at, follow=follow):
            if page[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                attributes = page[-1].workflow_execution_continued_as_new_event_attributes
                following = attributes.new_execution_run_id
            yield page
        at = following


async def pages_of_run(
    client: Client,
    workflow_id: str,
    run_id: str,
    *,
    follow: bool = False,
    page_size: int | None = None,
) -> AsyncIterator[list[HistoryEvent]]:
    """The events of one run of a chain, in pages of which none is empty. Raises as `pages`."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)

    def begin() -> WorkflowHistoryEventAsyncIterator:
        return handle.fetch_history_events(wait_new_event=follow, page_size=page_size)

    seen, stale, silence_began = 0, 0, None
    events, is_first = begin(), True
    loop = asyncio.get_running_loop()
    while True:
        try:
            await events.fetch_next_page()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise UnknownRun(f"the server knows no run {workflow_id!r} ({run_id})") from error
            if error.status is RPCStatusCode.INVALID_ARGUMENT and not is_first:
                # The page's token: the history was written on, or loaded anew, since it was given.
                stale += 1
                is_hopeless = stale > STALE_PAGES
            else:
                silence_began = silence_began or loop.time()
                patient = follow and loop.time() - silence_began < PATIENCE_SECONDS
                is_hopeless = not patient or error.status not in _PASSING
            if is_hopeless:
                raise _unanswered(workflow_id, error) from error
            await asyncio.sleep(_PAUSE_SECONDS)
            # A page's token may not outlive the server that gave it: from the start, then.
            events, is_first = begin(), True
            continue
        silence_began, is_first = None, False
        page = [event for event in events.current_page or () if event.event_id > seen]
        if page:
            seen, stale = page[-1].event_id, 0
            yield page
        if events.next_page_token is None:
            return


class Decoder:
    """Values and errors out of events."""

    def __init__(self, client: Client, workflow_id: str) -> None:
        self._converter = client.data_converter
        self._workflow_id = workflow_id

    async def value(self, payloads: Payloads, type: type[T]) -> T:
        """The first of the payloads.

        Raises HistoryError if it is not there, or is nothing of this type.
        """
        try:
            values: list[Any] = await self._converter.decode(payloads.payloads, [type])
            return values[0]  # type: ignore[no-any-return]
        except Exception as error:  # converters and drivers raise as they like
            raise self._unreadable(error) from error

    async def error(self, failure: Failure) -> BaseException:
        """The exception that a failure stands for, as a workflow would see it.

        Raises HistoryError if its details cannot be read.
        """
        copy = Failure()
        copy.CopyFrom(failure)  # decoding works in place
        try:
            return await self._converter.decode_failure(copy)
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> HistoryError:
        reason = error.message if isinstance(error, ApplicationError) else str(error)
        return HistoryError(f"the history of {self._workflow_id} cannot be read: {reason[:500]}")


def event_time(event: HistoryEvent) -> float:
    """When the event happened, in seconds since 1970."""
    # By way of nanoseconds, as workflows have it: `workflow.time()` gives the same number.
    return event.event_time.ToNanoseconds() / 1e9


def _timestamp(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def _unanswered(workflow_id: str, error: RPCError) -> HistoryError:
    return HistoryError(
        f"{workflow_id} cannot be read: the Temporal service says {error.status.name} "
        f"({error.message}); try again when it answers"
    )
