"""What a server has run: its suites, and the runs of their tasks, newest first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.errors import PerdureError
from perdure.later_runs import suite_by_now
from perdure.messages import FailureKind, TrialSummary
from perdure.names import BAD_INPUT, SUITE_WORKFLOW, TASK_WORKFLOW, suite_workflow_id, trial_name
from perdure.outcome import count_by_kind
from perdure.payloads import adapter

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
    running: int | None = None
    pending: int | None = None
    """Trials that wait for their turn."""
    not_run: int | None = None
    """Trials that were not started before the suite was over."""
    failed_by_kind: dict[str, int] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    paused: bool = False
    stopped: str | None = None
    """Why nothing more was started, for people."""
    served: bool | None = None
    """Whether a worker is there for it while it is open; None: it is closed, or on a team's
    server."""

    def to_dict(self) -> dict[str, Any]:
        """As `perdure list --json` prints it."""
        own = ("suite", "status", "paused", "stopped", "served", "run_id", "started_at")
        totals = {key: value for key, value in asdict(self).items() if key not in own}
        if self.status != "running":  # as all documents of suites, only open ones have these
            totals = {
                key: value
                for key, value in totals.items()
                if value or key not in ("running", "pending")
            }
        return {**{key: getattr(self, key) for key in own}, "totals": totals}


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
    failure_kind: FailureKind | None = None
    """None: it has not failed."""
    failure_step: str | None = None
    failure_reason: str | None = None
    note: str | None = None
    """What went wrong beside the task, if its suite heard of it."""
    several: bool = False
    """Whether its task has more than one trial, as far as the server knows."""

    def to_dict(self) -> dict[str, Any]:
        """As `perdure list SUITE --json` prints it."""
        failure = {
            "kind": self.failure_kind,
            "step": self.failure_step,
            "reason": self.failure_reason or "",
        }
        return {
            "run": f"{self.suite}/{trial_name(self.task_id, self.trial, several=self.several)}",
            "suite": self.suite,
            "task": self.task_id,
            "trial": self.trial,
            "run_id": self.run_id,
            "status": self.status,
            "started_at": self.started_at,
            "duration": self.duration,
            "failure": failure if self.failure_kind else None,
            "note": self.note,
        }


async def list_suites(
    client: Client, is_served: Callable[[str], bool] | None = None
) -> list[SuiteEntry]:
    """Every suite, by its newest run.

    `is_served`: whether a worker is on a queue; None if that cannot be known from here.
    Raises PerdureError if the server does not answer.
    """
    found = [e async for e in _newest(client, f"WorkflowType = '{SUITE_WORKFLOW}'")]
    return await _ask(
        [e for e in found if e.id.startswith("suite/")], lambda e: _suite(client, e, is_served)
    )


async def list_runs(client: Client, suite: str | None = None) -> list[RunEntry]:
    """Every run of a task, or those of a suite; of each id the newest.

    Raises PerdureError if the server does not answer.
    """
    query = f"WorkflowType = '{TASK_WORKFLOW}'"
    heard: dict[str, TrialSummary] = {}
    several: set[tuple[str, str]] = set()
    if suite is not None:
        query += f" AND WorkflowId STARTS_WITH 'task/{suite}/'"
        with contextlib.suppress(PerdureError):  # tasks started by themselves; a deleted suite
            history = await suite_by_now(client, suite_workflow_id(suite))
            heard = {trial.run_id: trial for trial in history.ended}
            several = {(suite, t.task["id"]) for t in history.definition.tasks if t.repeats > 1}
    found = [e async for e in _newest(client, query)]
    ours = [e for e in found if e.id.count("/") == 3]
    runs = await _ask(ours, lambda e: _run(client, e, heard.get(_first_run(e))))
    several |= {(run.suite, run.task_id) for run in runs if run.trial > 1}
    return [replace(run, several=(run.suite, run.task_id) in several) for run in runs]


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


async def _suite(
    client: Client, execution: WorkflowExecution, is_served: Callable[[str], bool] | None
) -> SuiteEntry:
    name = execution.id.removeprefix("suite/")
    status = _STATUS[execution.status or WorkflowExecutionStatus.RUNNING]
    try:
        history = await suite_by_now(client, execution.id, execution.run_id)
    except PerdureError:  # deleted just now, or its stored values are gone
        return SuiteEntry(
            name, status, _first_run(execution), execution.start_time.timestamp(),
            None, None, None, None,
        )  # fmt: skip
    totals = history.progress()
    if status == "succeeded" and totals.succeeded < totals.total:
        status = "failed" if totals.failed or totals.stopped else "cancelled"
    failed = [{"kind": t.failure_kind} for t in history.ended if t.status == "failed"]
    return SuiteEntry(
        name, status, history.run_id, history.started_at,
        totals.total, totals.succeeded, totals.failed, totals.cancelled,
        running=len(totals.running), pending=totals.pending, not_run=totals.not_run,
        failed_by_kind=count_by_kind(failed), usage=totals.usage,
        paused=totals.paused, stopped=totals.stopped,
        served=is_served(execution.task_queue) if is_served and status == "running" else None,
    )  # fmt: skip


async def _run(
    client: Client, execution: WorkflowExecution, heard: TrialSummary | None
) -> RunEntry:
    """`heard`: what its suite knows of its end."""
    _, suite, task_id, trial = execution.id.split("/")
    started = execution.start_time.timestamp()
    closed = execution.close_time.timestamp() if execution.close_time else None
    entry = RunEntry(
        id=execution.id,
        suite=suite,
        task_id=task_id,
        trial=int(trial) if trial.isdigit() else 0,
        run_id=_first_run(execution),
        status=_STATUS[execution.status or WorkflowExecutionStatus.RUNNING],
        started_at=started,
        duration=None if closed is None else round(closed - started, 3),
    )
    if heard is None and execution.status is WorkflowExecutionStatus.FAILED:
        heard = await _failure(client, execution, entry)
    if heard is None:
        return entry
    failed = heard.status == "failed"
    if heard.started_at:  # by the clock of the run itself, as its record tells it
        entry = replace(
            entry, started_at=heard.started_at, duration=round(heard.duration_seconds, 3)
        )
    return replace(
        entry,
        failure_kind=(heard.failure_kind or "infrastructure") if failed else None,
        failure_step=heard.failure_step if failed else None,
        failure_reason=heard.failure_reason if failed else None,
        note=heard.note,
    )


async def _failure(
    client: Client, execution: WorkflowExecution, entry: RunEntry
) -> TrialSummary | None:
    """What a failed run told itself; None if it was deleted just now."""
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        await handle.result(follow_runs=False)
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.details:
            told: TrialSummary = adapter(TrialSummary).validate_python(cause.details[0])
            return told
        message, refused = str(cause), False
        if isinstance(cause, ApplicationError):
            message, refused = cause.message, cause.type == BAD_INPUT
        return TrialSummary(
            entry.task_id, entry.trial, entry.run_id, "failed",
            failure_kind="bad_input" if refused else "infrastructure", failure_reason=message,
        )  # fmt: skip
    except RPCError:
        pass
    return None


def _first_run(execution: WorkflowExecution) -> str:
    return execution.raw_info.first_run_id or execution.run_id
