"""A run of a task, as the Python client holds it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Unpack

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import PerdureError
from perdure.event_log import UnknownRun, find_execution
from perdure.history import happenings, history_of, record_of
from perdure.job_handle import JobHandle, JobSettings, draw_exec_id, spec_of
from perdure.job_messages import JobLaunch
from perdure.later_runs import open_tasks
from perdure.link import Link
from perdure.names import suite_workflow_id, task_workflow_id
from perdure.peeks import Peek
from perdure.results import suite_files
from perdure.suite_input import BadId, check_id

_ANSWER = timedelta(seconds=1)
"""How long a query waits for the worker; the history answers without one."""

_SHORT = re.compile(r"(?:task/)?([^/]+)/([^/]+)(?:/([0-9]{1,6}))?")


class TaskFailed(PerdureError):
    """A task did not succeed: it failed, or was cancelled."""

    exit_code = 1

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        """The run's whole record."""
        failure = record.get("failure")
        reason = record.get("cancelled") or ""
        if failure:
            step = f"step {failure['step']!r}: " if failure["step"] else ""
            reason = f"{step}{failure['message']}"
        told = f": {reason}" if reason else ""
        super().__init__(f"{record['workflow_id']} {record['status']}{told}")


@dataclass(frozen=True)
class TaskResult:
    """How a task that succeeded ended."""

    id: str
    """The run's workflow id."""
    run_id: str
    context: dict[str, Any]
    """`metadata`, `results` by step id, and the other fields of the context."""
    record: dict[str, Any] = field(repr=False)
    """The whole record, as `perdure show --json` prints it."""


class TaskHandle:
    """A run of a task, open or closed; reading it needs no worker and runs nothing."""

    def __init__(
        self, link: Link, suite: str, task_id: str, trial: int, run_id: str | None
    ) -> None:
        """`run_id`: that run, or the chain that it began; None: the newest of the id."""
        self.id = task_workflow_id(suite, task_id, trial)
        """The workflow id."""
        self.suite, self.task_id, self.trial = suite, task_id, trial
        self.run_id = run_id
        self._link = link

    async def record(self) -> dict[str, Any]:
        """The whole record: steps, attempts, failures, context.

        From the server's history; from the files of results if the server has forgotten the run.
        Raises UnknownRun.
        """
        try:
            record = await record_of(self._link.client, self.id, self.run_id)
        except UnknownRun:
            files = suite_files(self._link.results, self.suite)
            kept = await asyncio.to_thread(files.read_record, self.task_id, self.trial)
            if kept is None or self.run_id not in (None, kept.get("run_id")):
                raise
            return kept
        return record

    async def progress(self) -> dict[str, Any]:
        """`status`, `completed`, `total`, and the ids of the `running` and `waiting` steps.

        Raises UnknownRun.
        """
        handle = self._link.client.get_workflow_handle(self.id, run_id=self.run_id)
        execution = await find_execution(self._link.client, self.id, self.run_id)
        if execution and execution.is_open:
            try:
                answer: dict[str, Any] = await handle.query("progress", rpc_timeout=_ANSWER)
                return answer
            except (RPCError, WorkflowQueryFailedError):
                pass  # no worker lives, or a slow one; the history knows as well
        return (await history_of(self._link.client, self.id, self.run_id)).progress()

    async def events(self, *, follow: bool = True) -> AsyncIterator[dict[str, Any]]:
        """What happened in the run, in order: `seq`, `type`, `at`, and what belongs to the type.

        With `follow`, to the run's end, as it happens. Raises UnknownRun.
        """
        async for event, _ in happenings(self._link.client, self.id, self.run_id, follow=follow):
            yield event

    async def result(self) -> TaskResult:
        """Wait for the run's end.

        Raises TaskFailed with the record, UnknownRun.
        """
        await self._link.guard(self._end())
        record = await self.record()
        if record["status"] != "succeeded":
            raise TaskFailed(record)
        return TaskResult(self.id, record["run_id"], record["context"], record)

    async def launch_job(
        self,
        code: str | None = None,
        *,
        exec_id: str | None = None,
        **settings: Unpack[JobSettings],
    ) -> JobHandle:
        """Start a python cell (`code`) or a command (`argv`) beside the task.

        Returns once the task has admitted it. It runs on the task's host, in the run's directory,
        or inside an `environment` of the task; the task's end ends it. The keywords are those of
        `perdure.job_handle.JobSettings`. `exec_id`: for a launch that may be repeated; the same
        again starts nothing.

        Raises JobRefused with the reason: the task has ended or is ending, 16 of its jobs run, a
        running one has the name, there is no such environment, or the job cannot be as it is given;
        UnknownRun; and PerdureError if no worker serves the task.
        """
        launch = JobLaunch(exec_id or draw_exec_id(), spec_of(code, settings))
        launched = await self._link.jobs.launch(self.id, launch)
        return JobHandle(self._link.jobs, launched.exec_id)

    async def jobs(self, *, output: bool = True) -> list[Peek]:
        """A peek of each job of the run, those that have ended included, in order of launch.

        Without `output`, only what the run knows of them, in one call for all. Raises UnknownRun.
        """
        return await self._link.jobs.list(self.id, output=output)

    async def cancel(self, reason: str = "cancelled") -> None:
        """Ask the run to cancel; what runs is ended and cleaned up before it closes.

        Without effect on a run that has ended. If it was left by a crash, the embedded server's run
        gets a worker for its clean-up, unless that one would go on with others of its suite: then
        it takes effect when these go on. Raises UnknownRun, and PerdureError.
        """
        handle = self._link.client.get_workflow_handle(self.id, first_execution_run_id=self.run_id)
        try:
            await handle.cancel(reason=reason)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise PerdureError(f"{self.id} cannot be cancelled: {error.message}") from error
            if await find_execution(self._link.client, self.id, self.run_id) is None:
                raise UnknownRun(f"the server knows no run {self.id!r}") from error
        await self._have_cleaned_up()

    async def _have_cleaned_up(self) -> None:
        if self._link.embedded is None:
            return
        found = await find_execution(self._link.client, self.id, self.run_id)
        suite = await find_execution(self._link.client, suite_workflow_id(self.suite))
        if found is None or not found.is_open or (suite and suite.is_open):
            return
        if await open_tasks(self._link.client, self.suite) <= {self.id}:
            await self._link.embedded.serve_if_nobody_does(found.queue)

    async def _end(self) -> None:
        async for _ in self.events():
            pass


def parse_run(name: str) -> tuple[str, str, int]:
    """Suite, task id and trial of a workflow id, or of `<suite>/<task>[/<trial>]`.

    Raises BadId.
    """
    match = _SHORT.fullmatch(name)
    if match is None or match[3] == "0":
        raise BadId(f"{name[:200]!r} names no run of a task; write <suite>/<task> or "
                    "<suite>/<task>/<trial>")  # fmt: skip
    return check_id("suite", match[1]), check_id("task", match[2]), int(match[3] or 1)
