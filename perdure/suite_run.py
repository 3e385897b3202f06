"""A suite, as the Python client holds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from perdure.callbacks import StepCallbacks, StepCompleted, StepStarted
from perdure.errors import PerdureError
from perdure.event_log import pages
from perdure.history import record_of
from perdure.later_runs import suite_by_now
from perdure.link import Link
from perdure.messages import Requeued, SuiteInput, SuiteProgress, SuiteResult, TrialSummary
from perdure.names import PAUSE, PRIORITISE, REQUEUE, RESUME, SET_MAX_PARALLEL
from perdure.outcome import Trials, line_of_summary, outcome, with_marks
from perdure.results import ResultsError, result_line, suite_files
from perdure.suite_history import SuiteHistory
from perdure.suite_updates import SuiteRefused, SuiteUpdates
from perdure.suites import Begun, How
from perdure.task_handle import TaskHandle, parse_run

__all__ = ["SuiteRefused", "SuiteRun"]

RECORDS_AT_ONCE = 20
"""Histories read at a time, for trials whose line is not in the files of results."""


class SuiteRun:
    """A suite, open or closed; reading it needs no worker and runs nothing."""

    def __init__(self, link: Link, begun: Begun) -> None:
        self.suite: str = begun.definition.suite
        self.workflow_id: str = begun.execution.workflow_id
        self.run_id: str = begun.execution.first_run_id
        """The first of its chain; stable over continue-as-new."""
        self.definition: SuiteInput = begun.definition
        """What it was started with."""
        self.how: How = begun.how
        self.taken_over: int = begun.taken_over
        """Trials that had succeeded before and do not run again."""
        self.ignored: tuple[str, ...] = begun.ignored
        """Keywords of the call that the suite, which was open, does not heed."""
        self.started_at: float = begun.execution.started_at
        """When its newest run was started, in seconds since 1970."""
        self._queue = begun.execution.queue
        self._newest_run_id = begun.execution.run_id
        self._link = link
        self._updates = SuiteUpdates(
            link.client, self.suite, self.run_id, self._queue, link.embedded
        )

    async def progress(self, offset: int = 0) -> SuiteProgress:
        """Totals, what runs, and the trials that ended after the first `offset` ones."""
        return (await self._read()).progress(offset)

    async def follow(
        self,
        *,
        on_step_start: StepStarted | None = None,
        on_step_complete: StepCompleted | None = None,
        on_progress: Callable[[SuiteProgress], None] | None = None,
        poll_seconds: float = 0.5,
    ) -> None:
        """Call back until the suite is closed; nothing is lost between two calls.

        `on_progress` is called at once, when something changed (at most every `poll_seconds`), and
        at the end; `ended` holds what ended since its last call. For the others see
        `perdure.callbacks`: they hear of what happens from now on. Raises PerdureError if server
        or worker cannot be kept alive.
        """
        callbacks = None
        if on_step_start or on_step_complete:
            callbacks = StepCallbacks(
                self._link.client, self.definition, on_step_start, on_step_complete
            )
        try:
            await self._link.guard(self._follow(callbacks, on_progress, poll_seconds))
        finally:
            if callbacks:
                callbacks.stop()

    async def wait(self) -> SuiteResult:
        """Wait until the suite is closed, in whatever way. Raises as `follow`."""
        last: list[SuiteProgress] = []
        await self.follow(on_progress=last.append)
        totals = last[-1]
        return SuiteResult(
            suite=self.suite,
            total=totals.total,
            succeeded=totals.succeeded,
            failed=totals.failed,
            cancelled=totals.cancelled,
            not_run=totals.not_run,
            usage=totals.usage,
        )

    # --- Control while it runs: each returns what the suite answers, a sentence for people ----

    async def set_max_parallel(self, number: int) -> str:
        """Run at most `number` tasks at once, from now on; those that run go on.

        Raises SuiteRefused with the reason: also if the suite is closed, or nobody serves it.
        """
        return await self._updates.ask(SET_MAX_PARALLEL, number, answer=str)

    async def pause(self) -> str:
        """Start nothing more until `resume`; what runs goes on. Raises as `set_max_parallel`."""
        return await self._updates.ask(PAUSE, answer=str)

    async def resume(self) -> str:
        """Start tasks again. Raises as `set_max_parallel`."""
        return await self._updates.ask(RESUME, answer=str)

    async def requeue(self, task: str) -> str:
        """Run again what of a task (`TASK`), or of one trial (`TASK/TRIAL`), did not succeed.

        Raises as `set_max_parallel`.
        """
        return (await self._updates.ask(REQUEUE, task, answer=Requeued)).told

    async def prioritise(self, task: str) -> str:
        """Start what waits of a task (`TASK`), or one trial (`TASK/TRIAL`), before all others.

        Raises as `set_max_parallel`.
        """
        return await self._updates.ask(PRIORITISE, task, answer=str)

    # --- Reading and ending it --------------------------------------------------------------

    async def unwritten(self) -> list[TrialSummary]:
        """The trials whose record is not among the files of results; `note` says why."""
        return [trial for trial in (await self._read()).ended if trial.unwritten]

    async def cancel(self, reason: str = "cancelled") -> None:
        """Ask the suite and its tasks to cancel; they clean up before they close.

        Without effect on a suite that is closed. If it was left by a crash, the embedded server's
        suite gets a worker for its clean-up. Raises PerdureError.
        """
        await self._request_cancel(self.workflow_id, self.run_id, reason)
        if self._link.embedded is None:
            return
        history = await self._read()
        if history.over:
            return
        # A worker that comes now must find the tasks cancelled too: else it would start again the
        # steps that a crash cut off.
        run_ids = dict(history.runs)
        for name in history.progress().running:
            await self._request_cancel(name, run_ids.get(name), reason)
        await self._link.embedded.serve_if_nobody_does(self._queue)

    async def outcome(self) -> dict[str, Any]:
        """The document of `perdure run --json`, as of now."""
        history = await self._read()
        progress = history.progress()
        known = await asyncio.to_thread(self._lines)
        places = asyncio.Semaphore(RECORDS_AT_ONCE)

        async def line(trial: TrialSummary) -> dict[str, Any]:
            found = known.get(trial.run_id)
            if found is None:
                async with places:
                    found = await self._line_from_history(trial)
            return with_marks(found, trial)

        document = outcome(
            self.suite,
            history.run_id,
            history.definition.tasks,
            Trials(
                ended=await asyncio.gather(*(line(trial) for trial in history.ended)),
                running={parse_run(name)[1:] for name in progress.running},
                is_open=not history.over,
                stopped=progress.stopped,
                paused=progress.paused,
                cancelled=history.cancelled,
            ),
        )
        return {**document, "served": None if history.over else self._is_served()}

    def task(self, task_id: str, trial: int = 1) -> TaskHandle:
        """One of its tasks."""
        return TaskHandle(self._link, self.suite, task_id, trial, None)

    def detach(self) -> None:
        """Leave its worker behind when this process ends; the suite goes on."""
        if self._link.embedded:
            self._link.embedded.detach(self._queue)

    # --- Inside -----------------------------------------------------------------------------

    def _is_served(self) -> bool | None:
        """Whether a worker is on its queue; None on a team's server, where only it can tell."""
        embedded = self._link.embedded
        return embedded.is_served(self._queue) if embedded else None

    async def _read(self) -> SuiteHistory:
        return await suite_by_now(self._link.client, self.workflow_id, self._newest_run_id)

    async def _follow(
        self,
        callbacks: StepCallbacks | None,
        on_progress: Callable[[SuiteProgress], None] | None,
        poll_seconds: float,
    ) -> None:
        history = SuiteHistory(self._link.client, self.workflow_id)
        if callbacks and self.how in ("attached", "found"):
            before = await self._read()
            await callbacks.skip(before.runs, before.progress().running)
        news = asyncio.Event()

        async def read() -> None:
            try:
                run_id = self._newest_run_id
                async for page in pages(self._link.client, self.workflow_id, run_id, follow=True):
                    for event in page:
                        await history.take(event)
                    if callbacks:
                        callbacks.hear(history.runs)
                    news.set()
            finally:
                news.set()

        reading = asyncio.create_task(read())
        told = 0
        try:
            while not reading.done():
                await news.wait()
                news.clear()
                if on_progress and not reading.done():
                    progress = history.progress(told)
                    told = progress.next_offset
                    on_progress(progress)
                    await asyncio.wait({reading}, timeout=poll_seconds)
            await reading
            if callbacks:
                await callbacks.drain()
            if on_progress:
                on_progress(history.progress(told))
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, PerdureError):
                await reading

    async def _request_cancel(self, workflow_id: str, run_id: str | None, reason: str) -> None:
        handle = self._link.client.get_workflow_handle(workflow_id, first_execution_run_id=run_id)
        try:
            await handle.cancel(reason=reason)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # closed: nothing to cancel
                raise PerdureError(f"{workflow_id} cannot be cancelled: {error.message}") from error

    def _lines(self) -> dict[str, dict[str, Any]]:
        """The lines of the suite's trials in the files of results, by run id."""
        results = self._link.results_of(self.definition.options.results_dir)
        try:
            lines = suite_files(results, self.suite).lines()
        except ResultsError:
            return {}  # the histories know as well
        return {line["run_id"]: line for line in lines if "run_id" in line}

    async def _line_from_history(self, trial: TrialSummary) -> dict[str, Any]:
        """The line of a trial that left none here: its files are on another host, or gone."""
        told = line_of_summary(trial)
        name = self.task(trial.task_id, trial.trial).id
        try:
            line = result_line(await record_of(self._link.client, name, trial.run_id))
        except PerdureError:
            return told
        # One that was terminated told nothing itself; what the suite makes of it stands.
        return {**line, "status": told["status"], "failure": told["failure"]}
