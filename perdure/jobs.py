"""Background jobs as clients and steps ask for them: launch, peek, interrupt, wait, list.

A peek of a running job costs two calls: what its worker says in its heartbeat, and a query of its
workflow for what is committed. Of one that has ended, or whose workers are gone, the server's
history tells the same without any worker; and when the server has forgotten it, the files of
results do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import QueryRejectCondition
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.core.job_checks import as_checked, is_exec_id
from perdure.core.problems import one_line
from perdure.errors import PerdureError
from perdure.event_log import PATIENCE_SECONDS, HistoryError, UnknownRun, find_execution
from perdure.history import record_of
from perdure.job_files import StoredJob, find_job
from perdure.job_history import job_from_history
from perdure.job_messages import (
    InterruptJob,
    JobBeat,
    JobLaunch,
    JobLaunched,
    PeekPage,
    PeekRequest,
)
from perdure.names import (
    INTERRUPT,
    JOB_REFUSED,
    LAUNCH_JOB,
    PEEK,
    RUN_JOB,
    job_workflow_id,
)
from perdure.peeks import Peek, of_page, of_record, with_beat
from perdure.results import suite_files

__all__ = ["JobRefused", "JobUnreadable", "JobsApi", "Peek", "UnknownJob"]

ANSWER = timedelta(seconds=5)
"""How long a query waits for a worker; the history answers without one."""

_QUICK_ANSWER = timedelta(seconds=1)
"""Likewise where the history has it all, too."""

LAUNCH = timedelta(seconds=20)
"""How long a task may take to say yes or no to a job."""

LOOK_SECONDS = 0.15
"""How often a follower looks. What a job prints reaches the server each 0.2 s."""

BEYOND = 2**40
"""An offset that no output reaches: for a stream that is not wanted."""

_JOBS = "jobs"
_PAUSE_SECONDS = 0.3
_AT_ONCE = 8
"""So many jobs of a list are read at a time."""

_PASSING = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
)
_NOBODY = (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT)


class JobRefused(PerdureError):
    """A job was not launched; the text says why, and what to do."""


class UnknownJob(PerdureError):
    """There is no job of this id."""


class JobUnreadable(PerdureError):
    """What is known of a job cannot be had now."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
        """Whether the same may work in a moment."""


class JobsApi:
    """The jobs of a server."""

    def __init__(self, client: Client, results: Path | None = None) -> None:
        """`results`: where files of results lie; None: what the server has forgotten is unknown."""
        self._client = client
        self._results = results
        self._silent: dict[
            str, float
        ] = {}  # queues without an answer, and until when none is sought

    # --- Orders -----------------------------------------------------------------------------

    async def launch(self, task_workflow_id: str, launch: JobLaunch) -> JobLaunched:
        """Have a task start a job; returns as soon as it is admitted.

        The same `exec_id` again starts nothing. Raises JobRefused with the reason, UnknownRun, and
        PerdureError if no worker answers.
        """
        if not is_exec_id(launch.exec_id):
            raise JobRefused(
                f"{launch.exec_id[:100]!r} cannot be a job's id; it is exec- and 12 hexadecimal "
                "digits"
            )
        spec, problems = as_checked(launch.spec)
        launch = replace(launch, spec=spec)
        if problems:
            raise JobRefused(f"the job cannot be launched: {'; '.join(problems)}")
        handle = self._client.get_workflow_handle(task_workflow_id)
        try:
            launched: JobLaunched = await handle.execute_update(
                LAUNCH_JOB, launch, id=launch.exec_id, result_type=JobLaunched, rpc_timeout=LAUNCH
            )
            return launched
        except WorkflowUpdateFailedError as error:
            raise _refused(task_workflow_id, error.cause) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            asking = asyncio.current_task()
            if asking and asking.cancelling():  # the SDK (1.35) makes one of the other
                raise asyncio.CancelledError from error
            raise _unanswered_launch(task_workflow_id) from error
        except RPCError as error:
            if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                raise _unanswered_launch(task_workflow_id) from error
            if error.status not in _NOBODY:
                raise _unreadable(task_workflow_id, error) from error
            if await find_execution(self._client, task_workflow_id) is None:
                raise UnknownRun(f"the server knows no run {task_workflow_id!r}") from error
            raise JobRefused(
                f"{task_workflow_id} has ended: no job can be launched; start the task again, or "
                "launch it in another"
            ) from error

    async def interrupt(self, exec_id: str, kill_after: float | None = None) -> None:
        """Ask for one SIGINT for a job's process; returns at once.

        `kill_after`: so many seconds later it is killed, if it still runs; 0: at once; None: never.
        Harmless when repeated, and for a job that has ended. Raises UnknownJob, JobUnreadable.
        """
        if kill_after is not None and not 0 <= kill_after < 1e9:
            raise PerdureError(f"kill_after is {kill_after}; give seconds, 0 or more")
        handle = self._handle(exec_id)
        try:
            await handle.signal(INTERRUPT, InterruptJob(kill_after))
        except RPCError as error:
            if error.status not in _NOBODY:
                raise _unreadable(exec_id, error) from error
            known = await self.peek(exec_id)  # it has ended, or there is none
            if not known.done:
                raise JobUnreadable(
                    f"{exec_id}: the Temporal service takes no more signals for it "
                    f"({one_line(error.message)[:200]}); cancel its workflow, which interrupts and "
                    f"then kills it: temporal workflow cancel --workflow-id {handle.id}"
                ) from error

    # --- Reading ----------------------------------------------------------------------------

    async def peek(self, exec_id: str, offset: int = 0, stderr_offset: int = 0) -> Peek:
        """A job as it is now, with its output from these offsets on, in characters.

        Raises UnknownJob, and JobUnreadable if neither the server nor a file tells of it.
        """
        if offset < 0 or stderr_offset < 0:
            raise PerdureError("an offset counts characters from the beginning; give 0 or more")
        found = await self._describe(exec_id)
        if found is None:
            kept = await self._on_disk(exec_id)
            if kept is None:
                raise _unknown(exec_id)
            return await asyncio.to_thread(kept.peek, offset, stderr_offset)
        if found.status is WorkflowExecutionStatus.RUNNING and not self._is_silent(found):
            with contextlib.suppress(_NoAnswer):
                beat = await self._beat(found)
                peek = await self._queried(found, offset, stderr_offset)
                return with_beat(peek, beat) if beat else peek
        return await self._without_worker(exec_id, found, offset, stderr_offset)

    async def wait(self, exec_id: str, timeout: float | None = None) -> Peek:
        """Wait until a job has ended, without asking again and again.

        `timeout`: in seconds; after it the peek says that the job is not done. Raises as `peek`.
        """
        handle = self._handle(exec_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._closed(handle)
        return await self._patiently(exec_id, 0, 0)

    async def list(self, task_workflow_id: str, *, output: bool = True) -> list[Peek]:
        """The jobs of a task, those that have ended included, in the order of their launch.

        Without `output`, which costs two calls a job, only what their task knows of them; then one
        that runs has its launch under `started_at`. Raises UnknownRun, and HistoryError if nobody
        can tell.
        """
        known = [of_record(entry, task_workflow_id) for entry in await self._book(task_workflow_id)]
        if not output:
            return known
        gate = asyncio.Semaphore(_AT_ONCE)

        async def read(job: Peek) -> Peek:
            async with gate:
                try:
                    return await self.peek(job.exec_id)
                except (UnknownJob, JobUnreadable):
                    return job  # what its task knows outlives the job's own history

        return [*await asyncio.gather(*map(read, known))]

    async def follow(
        self, exec_id: str, offset: int = 0, stderr_offset: int = 0
    ) -> AsyncGenerator[Peek]:
        """Peeks with what is new since the one before, until the job has ended.

        The last one is `done`, with or without news. Goes on over losses of the server. Raises as
        `peek`.
        """
        before: Peek | None = None
        while True:
            peek = await self._patiently(exec_id, offset, stderr_offset)
            if peek.done or _is_news(before, peek):
                yield peek
            if peek.done:
                return
            before = peek
            offset, stderr_offset = peek.next_offset, peek.stderr_next_offset
            await asyncio.sleep(LOOK_SECONDS)

    # --- Inside -----------------------------------------------------------------------------

    def _handle(self, exec_id: str) -> WorkflowHandle[Any, Any]:
        if not is_exec_id(exec_id):
            raise _unknown(exec_id)
        return self._client.get_workflow_handle(job_workflow_id(exec_id))

    async def _describe(self, exec_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._handle(exec_id).describe(rpc_timeout=ANSWER)
        except RPCError as error:
            if error.status in _NOBODY:
                return None
            raise _unreadable(exec_id, error) from error

    async def _beat(self, found: WorkflowExecutionDescription) -> JobBeat | None:
        """What the worker said last; None: nothing, or nothing that this version can read."""
        for pending in found.raw_description.pending_activities:
            if pending.activity_type.name == RUN_JOB and pending.HasField("heartbeat_details"):
                with contextlib.suppress(Exception):  # of another version, perhaps: the rest stands
                    values = await self._client.data_converter.decode(
                        pending.heartbeat_details.payloads, [JobBeat]
                    )
                    beat: JobBeat = values[0]
                    return beat
        return None

    async def _queried(
        self, found: WorkflowExecutionDescription, offset: int, stderr_offset: int
    ) -> Peek:
        """All that is committed from the offsets on, by queries. Raises _NoAnswer."""
        handle = self._client.get_workflow_handle(found.id, run_id=found.run_id)

        async def ask(request: PeekRequest) -> PeekPage:
            try:
                page: PeekPage = await handle.query(
                    PEEK, request, result_type=PeekPage, rpc_timeout=ANSWER
                )
                return page
            except RPCError as error:
                if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                    self._silent[found.task_queue] = time.monotonic() + ANSWER.total_seconds()
                raise _NoAnswer from error
            except Exception as error:  # refused, or answered by a worker of another version
                raise _NoAnswer from error

        return await _assembled(ask, offset, stderr_offset)

    def _is_silent(self, found: WorkflowExecutionDescription) -> bool:
        return time.monotonic() < self._silent.get(found.task_queue, 0.0)

    async def _without_worker(
        self, exec_id: str, found: WorkflowExecutionDescription, offset: int, stderr_offset: int
    ) -> Peek:
        """A job as the history has it, with the last beat; as the files have it otherwise."""
        try:
            life = await job_from_history(self._client, found.id, found.run_id)
        except (HistoryError, UnknownRun) as error:
            kept = await self._on_disk(exec_id)
            if kept is None:
                raise JobUnreadable(
                    f"{exec_id}: no worker answers, and {one_line(str(error))}; start a worker of "
                    "the version that launched it (`perdure worker`)"
                ) from error
            return await asyncio.to_thread(kept.peek, offset, stderr_offset)

        async def turn(request: PeekRequest) -> PeekPage:
            return life.page(request)

        peek = await _assembled(turn, offset, stderr_offset)
        beat = None if peek.done else await self._beat(found)
        return with_beat(peek, beat) if beat else peek

    async def _on_disk(self, exec_id: str) -> StoredJob | None:
        if self._results is None:
            return None
        return await asyncio.to_thread(find_job, self._results, exec_id)

    async def _patiently(self, exec_id: str, offset: int, stderr_offset: int) -> Peek:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self.peek(exec_id, offset, stderr_offset)
            except JobUnreadable as error:
                if not error.passing or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _closed(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Wait until the workflow is closed, or unknown."""
        silent_since: float | None = None
        while True:
            try:
                events = handle.fetch_history_events(
                    wait_new_event=True,
                    event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT,
                )
                async for _ in events:
                    return
                silent_since = None
            except RPCError as error:
                if error.status in _NOBODY:
                    return
                silent_since = silent_since or time.monotonic()
                is_patient = time.monotonic() - silent_since < PATIENCE_SECONDS
                if error.status not in _PASSING or not is_patient:
                    raise _unreadable(handle.id.removeprefix("job/"), error) from error
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _book(self, task_workflow_id: str) -> Sequence[dict[str, Any]]:
        """What a task knows of its jobs: by its query, from its history, or from its file."""
        handle = self._client.get_workflow_handle(task_workflow_id)
        with contextlib.suppress(Exception):  # no worker, or one of another version
            known = await handle.query(
                _JOBS,
                result_type=list[dict[str, Any]],
                reject_condition=QueryRejectCondition.NOT_OPEN,  # which a worker would replay
                rpc_timeout=_QUICK_ANSWER,
            )
            return cast(Sequence[dict[str, Any]], known)
        try:
            record = await record_of(self._client, task_workflow_id)
        except UnknownRun:
            kept = await asyncio.to_thread(self._record_on_disk, task_workflow_id)
            if kept is None:
                raise
            record = kept
        jobs = record.get("jobs") or []
        return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []

    def _record_on_disk(self, task_workflow_id: str) -> dict[str, Any] | None:
        match task_workflow_id.split("/"):
            case ["task", suite, task_id, trial] if self._results and trial.isdecimal():
                return suite_files(self._results, suite).read_record(task_id, int(trial))
        return None


class _NoAnswer(Exception):
    """No worker answers a query as this version would."""


def _is_news(before: Peek | None, peek: Peek) -> bool:
    if before is None or peek.stdout or peek.stderr:
        return True
    told = ("status", "waiting", "attempts", "interrupted", "interrupt_undelivered",
            "live_stdout", "live_stderr", "tail_stdout", "tail_stderr")  # fmt: skip
    return any(getattr(before, name) != getattr(peek, name) for name in told)


async def _assembled(
    page_of: Callable[[PeekRequest], Awaitable[PeekPage]], offset: int, stderr_offset: int
) -> Peek:
    """Everything from the offsets on, out of pages."""
    stdout: list[str] = []
    stderr: list[str] = []
    at, stderr_at = offset, stderr_offset
    while True:
        page = await page_of(PeekRequest(at, stderr_at))
        stdout.append(page.stdout)
        stderr.append(page.stderr)
        # An offset beyond what is committed comes of a beat, and stays as it is.
        at, stderr_at = max(at, page.next_offset), max(stderr_at, page.stderr_next_offset)
        is_whole = at >= page.committed and stderr_at >= page.stderr_committed
        if is_whole or not (page.stdout or page.stderr):
            break
    return replace(
        of_page(page),
        stdout="".join(stdout),
        stderr="".join(stderr),
        offset=offset,
        stderr_offset=stderr_offset,
        next_offset=at,
        stderr_next_offset=stderr_at,
    )


def _unknown(exec_id: str) -> UnknownJob:
    return UnknownJob(f"there is no job {exec_id[:256]!r}; `perdure jobs RUN` lists those of a run")


def _refused(task: str, cause: BaseException | None) -> PerdureError:
    """What a task's refusal means."""
    reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
    type = cause.type if isinstance(cause, ApplicationError) else None
    if type == JOB_REFUSED:
        return JobRefused(one_line(reason))
    if type == "AcceptedUpdateCompletedWorkflow":
        return JobRefused(f"{task} has ended: no job can be launched in it")
    if "expected but not found" in reason:
        return JobRefused(
            f"{task}: its worker knows no background jobs; start one of this version of perdure "
            "in its place"
        )
    return JobRefused(f"{task}: the job was not launched: {one_line(reason)[:500]}")


def _unanswered_launch(task: str) -> PerdureError:
    return PerdureError(
        f"{task} does not answer within {LAUNCH.total_seconds():.0f} s: is a worker up "
        "(`perdure worker`, or the suite's own `perdure run`)? The job may still be launched; look "
        "with `perdure jobs`"
    )


def _unreadable(what: str, error: RPCError) -> JobUnreadable:
    return JobUnreadable(
        f"{what}: the Temporal service says {error.status.name} "
        f"({one_line(error.message)[:200]}); try again when it answers",
        passing=error.status in _PASSING,
    )
