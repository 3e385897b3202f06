"""Asking a suite for something while it runs, and what may come instead of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.embedded import Embedded
from perdure.errors import PerdureError
from perdure.event_log import find_execution
from perdure.names import suite_workflow_id

ANSWER_SECONDS = 20.0
"""A worker answers within milliseconds; one that was just started, within seconds."""

_PAUSE_SECONDS = 0.2

_PASSING = (
    RPCStatusCode.FAILED_PRECONDITION,  # the suite was continuing as new (server 1.32)
    RPCStatusCode.ABORTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
)

T = TypeVar("T")


class SuiteRefused(PerdureError):
    """What was asked of a suite makes no sense as it is now; the text says why."""


class SuiteUpdates:
    """What one suite is asked for; a suite is any run of its chain that is open."""

    def __init__(
        self, client: Client, suite: str, first_run_id: str, queue: str, embedded: Embedded | None
    ) -> None:
        """`embedded`: None on a team's server, whose workers cannot be looked after from here."""
        self._handle = client.get_workflow_handle(
            suite_workflow_id(suite), first_execution_run_id=first_run_id
        )
        self._client = client
        self._suite = suite
        self._first_run_id = first_run_id
        self._queue = queue
        self._embedded = embedded

    async def ask(self, update: str, *arguments: Any, answer: type[T]) -> T:
        """Send the update and return the suite's answer.

        Raises SuiteRefused with the reason: the suite's own, that it is closed, that nobody serves
        it, or that no answer came in time. PerdureError if the service refuses.
        """
        await self._check_served()
        asking = asyncio.create_task(self._ask(update, arguments, answer))
        try:
            await asyncio.wait({asking}, timeout=ANSWER_SECONDS)
            if asking.done():
                return await asking
            await self._check_served()
            raise SuiteRefused(
                f"suite {self._suite!r} does not answer within {ANSWER_SECONDS:.0f} s: is a worker "
                f"up on the queue {self._queue!r} (`perdure worker`)? It may still do as asked; "
                f"look with `perdure suite {self._suite}`"
            )
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asking

    async def _ask(self, update: str, arguments: tuple[Any, ...], answer: type[T]) -> T:
        id = uuid.uuid4().hex  # the same for each try: what arrived twice is done once
        while True:
            try:
                told: T = await self._handle.execute_update(
                    update, args=arguments, id=id, result_type=answer
                )
                return told
            except WorkflowUpdateFailedError as error:
                raise SuiteRefused(_reason(error)) from error
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                asking = asyncio.current_task()
                if asking and asking.cancelling():  # the SDK (1.35) makes one of the other
                    raise asyncio.CancelledError from error
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise self._closed() from error
                if error.status not in _PASSING:
                    raise PerdureError(
                        f"suite {self._suite!r} cannot be asked: the Temporal service says "
                        f"{error.status.name} ({error.message})"
                    ) from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _check_served(self) -> None:
        """Refuse at once where an answer cannot come."""
        found = await find_execution(self._client, suite_workflow_id(self._suite))
        if found is None or not found.is_open or found.first_run_id != self._first_run_id:
            raise self._closed()
        if self._embedded and not self._embedded.is_served(self._queue):
            # A worker of this process would go on with the tasks, for as long as a question takes.
            raise SuiteRefused(
                f"no worker serves suite {self._suite!r}: its `perdure run` has ended or was "
                f"killed; type that again (with `--suite {self._suite}`) to go on with it, or end "
                f"it by `perdure cancel {self._suite}`"
            )

    def _closed(self) -> SuiteRefused:
        return SuiteRefused(
            f"suite {self._suite!r} is closed: nothing of it runs or waits; run again what did not "
            f"succeed with `perdure retry {self._suite}`"
        )


def _reason(error: WorkflowUpdateFailedError) -> str:
    cause = error.cause
    return cause.message if isinstance(cause, ApplicationError) else str(cause)
