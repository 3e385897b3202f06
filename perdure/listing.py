"""What a server has run: its suites, and the runs of their tasks, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.errors import PerdureError
from perdure.names import SUITE_WORKFLOW, TASK_WORKFLOW
from perdure.suite_history import suite_of

ASKED_AT_ONCE = 20

_STATUS = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "succeeded",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
}

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class SuiteEntry:
    """A suite in a list."""

    suite: str
    status: str
    """running, succeeded, failed, cancelled or terminated"""
    run_id: str
    """The first of its chain."""
    started_at: float
    """Seconds since 1970."""
    total: int | None
    """Trials; None where the suite's history can no longer be read."""
    succeeded: int | None
    failed: int | None
    cancelled: int | None


@dataclass(frozen=True)
class RunEntry:
    """A run of a task in a list."""

    id: str
    """Its workflow id."""
    suite: str
    task_id: str
    trial: int
    run_id: str
    """The first of its chain."""
    status: str
    """running, succeeded, failed, cancelled or terminated"""
    started_at: float | None
    """Seconds since 1970."""
    duration: float | None
    """Seconds; None while it runs."""
    failure: str | None
    """Step and reason."""


async def list_suites(client: Client) -> list[SuiteEntry]:
    """Every suite, by its newest run.

    Raises PerdureError if the server does not answer.
    """
    found = [e async for e in _newest(client, f"WorkflowType = '{SUITE_WORKFLOW}'")]
    return await _ask([e for e in found if e.id.startswith("suite/")], lambda e: _suite(client, e))


async def list_runs(client: Client, suite: str | None = None) -> list[RunEntry]:
    """Every run of a task, or those of a suite; of each id the newest.

    Raises PerdureError if the server does not answer.
    """
    query = f"WorkflowType = '{TASK_WORKFLOW}'"
    if suite is not None:
        query += f" AND WorkflowId STARTS_WITH 'task/{suite}/'"
    found = [e async for e in _newest(client, query)]
    return await _ask([e for e in found if e.id.count("/") == 3], lambda e: _run(client, e))


async def _newest(client: Client, query: str) -> AsyncIterator[WorkflowExecution]:
    seen: set[str] = set()
    try:
        async for execution in client.list_workflows(query):
            if execution.id not in seen:  # the server lists the newest first
                seen.add(execution.id)
                yield execution
    except RPCError as error:
        raise PerdureError(
            f"the Temporal service cannot list runs ({error.message}); try again"
        ) from error


async def _ask(entries: Iterable[T], question: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers for all entries, some at a time."""
    places = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(entry: T) -> R:
        async with places:
            return await question(entry)

    return await asyncio.gather(*(ask(entry) for entry in entries))


async def _suite(client: Client, execution: WorkflowExecution) -> SuiteEntry:
    name = execution.id.removeprefix("suite/")
    status = _STATUS[execution.status or WorkflowExecutionStatus.RUNNING]
    try:
        history = await suite_of(client, execution.id, execution.run_id)
    except PerdureError:  # deleted just now, or its stored values are gone
        return SuiteEntry(
            name, status, _first_run(execution), execution.start_time.timestamp(),
            None, None, None, None,
        )  # fmt: skip
    totals = history.progress()
    if status == "succeeded" and totals.succeeded < totals.total:
        status = "failed" if totals.failed else "cancelled"
    return SuiteEntry(
        name, status, history.run_id, history.started_at,
        totals.total, totals.succeeded, totals.failed, totals.cancelled,
    )  # fmt: skip


async def _run(client: Client, execution: WorkflowExecution) -> RunEntry:
    _, suite, task_id, trial = execution.id.split("/")
    started = execution.start_time.timestamp()
    closed = execution.close_time.timestamp() if execution.close_time else None
    return RunEntry(
        id=execution.id,
        suite=suite,
        task_id=task_id,
        trial=int(trial) if trial.isdigit() else 0,
        run_id=_first_run(execution),
        status=_STATUS[execution.status or WorkflowExecutionStatus.RUNNING],
        started_at=started,
        duration=None if closed is None else round(closed - started, 3),
        failure=await _failure(client, execution),
    )


async def _failure(client: Client, execution: WorkflowExecution) -> str | None:
    if execution.status is not WorkflowExecutionStatus.FAILED:
        return None
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        await handle.result(follow_runs=False)
    except WorkflowFailureError as error:
        return (
            error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
        )
    except RPCError:
        pass  # deleted just now
    return None


def _first_run(execution: WorkflowExecution) -> str:
    return execution.raw_info.first_run_id or execution.run_id
