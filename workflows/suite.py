"""SuiteWorkflow: any number of tasks, `max_parallel` at once, in a bounded history.

It may continue as new while its tasks run, so they are started with the policy ABANDON. The run of
the suite that started a task hears of its end by the child's handle, whatever that end is; to a
later run the task sends the signal `trial_ended`, and a probe looks after those that cannot
(terminated by hand, or ended in the moment of the continue-as-new).

What people ask of a suite while it runs are updates, refused in their validators, which leaves no
trace in the history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from perdure.core import suite_control as control
    from perdure.core.suite import CANCELLED_UNSTARTED, Suite, Trial
    from perdure.messages import (
        ClosedTrial,
        ProbeTrials,
        ProgressRequest,
        Requeued,
        SuiteInput,
        SuiteProgress,
        SuiteResult,
        TrialSummary,
        WriteMissing,
        WriteSuite,
    )
    from perdure.names import (
        PAUSE,
        PRIORITISE,
        PROBE_TRIALS,
        REFUSED,
        REQUEUE,
        RESUME,
        SET_MAX_PARALLEL,
        SUITE_CANCELLED,
        SUITE_WORKFLOW,
        TRIAL_ENDED,
        WRITE_MISSING,
        WRITE_SUITE,
        control_queue,
    )
    from perdure.payloads import adapter
    from workflows.options import (
        FIRST_PROBE,
        PROBE,
        PROBE_INTERVAL,
        START_TRIAL_AGAIN,
        WRITE,
        WRITE_AGAIN,
        WRITE_AGAIN_AFTER,
    )
    from workflows.shield import heed_cancel, uncancelled
    from workflows.suite_pool import SuitePool
    from workflows.trial import TrialHandle, start_trial, why_closed

STARTS_AT_ONCE = 25
"""Starts under way: each carries a document of up to 128 KiB, and a message holds 4 MB."""

WAITERS_AT_ONCE = 3
"""Starts under way of tasks that will only wait in a pool: those that need not wait, and the
instances that are started for them, come first on a machine with few cores."""

REPLACED = "a new run of it takes its place"
"""Why a task is cancelled, for people; `SUITE_CANCELLED` is the other reason."""


@workflow.defn(name=SUITE_WORKFLOW)
class SuiteWorkflow:
    """Runs the tasks of a suite, each as a workflow of its own."""

    @workflow.init
    def __init__(self, start: SuiteInput) -> None:
        self._start = start
        self._suite = Suite(start)
        self._started_at = workflow.time()
        self._starting: set[str] = set()
        self._pool = (
            SuitePool(start, start.pool, self._suite, self._starting) if start.pool else None
        )
        self._watched: set[str] = set()
        """Run ids of tasks that this run of the suite started, and that have not closed."""
        self._stirred = False
        self._probing = False
        self._probe_at = workflow.time() + FIRST_PROBE.total_seconds()
        if start.state:
            self._started_at = start.state["started_at"]
            # A suite that hands over again and again must come to its probe all the same.
            self._probe_at = min(self._probe_at, start.state.get("probe_at", self._probe_at))

    @workflow.run
    async def run(self, start: SuiteInput) -> SuiteResult:
        """Run every task; failed ones are counted, they do not fail the suite."""
        probe = asyncio.create_task(self._probe())
        if self._pool:
            asyncio.create_task(self._pool.tell(self._stir))  # noqa: RUF006
        try:
            if start.state is None:
                await self._write("running")
            await self._drive()
            if self._pool:  # what was called off closes after its word
                await workflow.wait_condition(lambda: not self._watched)
        except (asyncio.CancelledError, ActivityError) as error:
            if not is_cancelled_exception(error):
                raise
            self._suite.cancel()
            await self._cancel_running()
        probe.cancel()
        await uncancelled(self._write_end())
        if self._pool:
            await uncancelled(self._pool.end())
        suite = self._suite
        if suite.cancelled:
            raise asyncio.CancelledError("the suite was cancelled")
        progress = suite.progress(ProgressRequest(offset=len(suite.news)))
        return SuiteResult(
            suite=start.suite,
            total=progress.total,
            succeeded=progress.succeeded,
            failed=progress.failed,
            cancelled=progress.cancelled,
            not_run=progress.not_run,
            usage=progress.usage,
        )

    @workflow.signal(name=TRIAL_ENDED)
    def trial_ended(self, summary: TrialSummary) -> None:
        """A task tells its end; told twice, it counts once."""
        self._suite.hear(summary)
        self._stirred = True

    @workflow.query
    def progress(self, request: ProgressRequest) -> SuiteProgress:
        """Totals, what runs, and what ended since the asker last looked."""
        return self._suite.progress(request)

    # --- What people ask for ------------------------------------------------------------------
    @workflow.update(name=SET_MAX_PARALLEL)
    def set_max_parallel(self, number: int) -> str:
        """Run at most so many tasks at once, from now on."""
        self._stirred = True
        return control.set_max_parallel(self._suite, number)

    @set_max_parallel.validator
    def _may_set_max_parallel(self, number: int) -> None:
        _may(lambda: control.check_max_parallel(self._suite, number))

    @workflow.update(name=PAUSE)
    def pause(self) -> str:
        """Start nothing more until `resume`; what runs goes on."""
        self._make_room()
        return control.pause(self._suite)

    @pause.validator
    def _may_pause(self) -> None:
        _may(lambda: control.check_pause(self._suite))

    @workflow.update(name=RESUME)
    def resume(self) -> str:
        """Start tasks again."""
        self._stirred = True
        return control.resume(self._suite)

    @resume.validator
    def _may_resume(self) -> None:
        _may(lambda: control.check_resume(self._suite))

    @workflow.update(name=REQUEUE)
    def requeue(self, wanted: str) -> Requeued:
        """Run a task (`TASK`) or one trial of it (`TASK/TRIAL`) again."""
        self._stirred = True
        return control.requeue(self._suite, wanted)

    @requeue.validator
    def _may_requeue(self, wanted: str) -> None:
        _may(lambda: control.check_requeue(self._suite, wanted))

    @workflow.update(name=PRIORITISE)
    def prioritise(self, wanted: str) -> str:
        """Start a task, or one trial of it, before all others that wait."""
        self._make_room()
        return control.prioritise(self._suite, wanted)

    @prioritise.validator
    def _may_prioritise(self, wanted: str) -> None:
        _may(lambda: control.check_prioritise(self._suite, wanted))

    # --- Driving ----------------------------------------------------------------------------

    async def _drive(self) -> None:
        handing_over = False
        while not self._suite.over:
            handing_over = handing_over or self._history_is_long()
            if handing_over and self._may_hand_over():
                await heed_cancel()
                if self._may_hand_over():
                    workflow.continue_as_new(self._carried_over())
            if not handing_over:
                for trial in self._suite.take_startable(self._free_starts()):
                    self._starting.add(trial.workflow_id)
                    # Kept alive by the start that it awaits.
                    asyncio.create_task(self._begin(trial))  # noqa: RUF006
            if self._pool and self._suite.stopped:
                self._pool.withdraw_waiting()
            self._stirred = False
            await workflow.wait_condition(lambda: self._stirred or self._suite.over)

    def _free_starts(self) -> int:
        """How many more starts may be under way."""
        free, room = STARTS_AT_ONCE - len(self._starting), self._room()
        if room is None:
            return free
        return min(free, room) if room > 0 else WAITERS_AT_ONCE - len(self._starting)

    def _room(self) -> int | None:
        """How many more tasks need not wait in a pool at first; None: there is no pool."""
        suite = self._suite
        return suite.max_parallel - len(suite.running) if suite.has_pool else None

    async def _begin(self, trial: Trial) -> None:
        name = trial.workflow_id
        try:
            handle = await self._start_child(trial)
        except ApplicationError as error:
            self._suite.lose(name, "", f"could not be started: {error.message}")
        else:
            if handle is None:
                self._suite.lose(name, "", CANCELLED_UNSTARTED, cancelled=True)
            else:
                run_id = handle.first_execution_run_id or ""
                self._suite.started(name, run_id)
                asyncio.create_task(self._watch(name, run_id, handle))  # noqa: RUF006
        self._starting.discard(name)
        self._stirred = True

    async def _start_child(self, trial: Trial) -> TrialHandle | None:
        """Start a trial; None if the suite is cancelled meanwhile.

        Its id may still be held by a task of an earlier, terminated run of the suite, or by its own
        last run, which has told its end and is about to close: that one is cancelled, and the start
        tried again until it has cleaned up.
        """
        while not self._suite.cancelled:
            try:
                return await start_trial(self._start, trial)
            except WorkflowAlreadyStartedError:
                with contextlib.suppress(ApplicationError):  # it has just ended by itself
                    before = workflow.get_external_workflow_handle(trial.workflow_id)
                    await before.cancel(reason=REPLACED)
                await workflow.sleep(START_TRIAL_AGAIN)
        return None

    async def _watch(self, name: str, run_id: str, handle: TrialHandle) -> None:
        self._watched.add(run_id)
        try:
            self._suite.hear(await handle)
        except ChildWorkflowError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.details:
                self._suite.hear(adapter(TrialSummary).validate_python(cause.details[0]))
            else:
                cancelled = isinstance(cause, CancelledError)
                self._suite.lose(name, run_id, why_closed(cause), cancelled=cancelled)
        self._watched.discard(run_id)
        self._stirred = True

    async def _cancel_running(self) -> None:
        """Cancel every task under way and wait until each has cleaned up and told its end."""
        await workflow.wait_condition(lambda: not self._starting)
        cancels = [
            workflow.get_external_workflow_handle(name).cancel(reason=SUITE_CANCELLED)
            for name in self._suite.running
        ]
        # A task that closed in between cannot be cancelled, and need not be.
        await asyncio.gather(*cancels, return_exceptions=True)
        # One that has told its end is still to close, for which it needs the worker that may be
        # waiting for this suite alone.
        await workflow.wait_condition(lambda: self._suite.over and not self._watched)

    async def _probe(self) -> None:
        """Look after the tasks that an earlier run of this suite started, until they ended."""
        while self._suite.unheard:
            delay = timedelta(seconds=max(0.001, self._probe_at - workflow.time()))
            await workflow.sleep(delay, summary="next look at running tasks")
            unheard = self._suite.unheard
            self._probing = True
            on_control = PROBE | {"task_queue": control_queue(workflow.info().task_queue)}
            closed: list[ClosedTrial] = await workflow.execute_activity(
                PROBE_TRIALS,
                ProbeTrials(unheard, workflow.info().workflow_id),
                result_type=list[ClosedTrial],
                **on_control,
            )
            for trial in closed:
                self._suite.found_closed(trial)
            self._probing = False
            self._stirred = True
            self._probe_at = workflow.time() + PROBE_INTERVAL.total_seconds()

    # --- Handing over, writing down ---------------------------------------------------------

    def _may_hand_over(self) -> bool:
        """Whether nothing is under way whose end the next run of the suite would not hear."""
        if self._starting or not workflow.all_handlers_finished():
            return False
        if self._pool and not self._pool.is_quiet:
            return False
        # Suites of the first version did not wait for their probe.
        return not (self._probing and workflow.patched("hand over after the probe"))

    def _stir(self) -> None:
        self._stirred = True

    def _make_room(self) -> None:
        """Hand over if it is time, though nothing is to be started: a run takes 2,000 updates."""
        # Runs of the first version did not wake up for that.
        if self._history_is_long() and workflow.patched("hand over after any wish"):
            self._stirred = True

    def _history_is_long(self) -> bool:
        info, limit = workflow.info(), self._start.options.history_limit_events
        return info.is_continue_as_new_suggested() or (
            limit is not None and info.get_current_history_length() >= limit
        )

    def _carried_over(self) -> SuiteInput:
        return replace(
            self._start,
            finished=[],
            state={
                "suite": self._suite.state(),
                "started_at": self._started_at,
                "probe_at": self._probe_at,
            },
        )

    async def _write_end(self) -> None:
        """Write what is still to be written; a disk that stays full keeps no suite open."""
        suite = self._suite
        await self._write(self._status())
        if not suite.unwritten:
            return
        # Whoever pressed Ctrl-C is not kept waiting.
        for pause in WRITE_AGAIN_AFTER[: 1 if suite.cancelled else None]:
            await workflow.sleep(pause, summary="next try to write what is missing")
            with contextlib.suppress(ActivityError):
                missing: list[TrialSummary] = await workflow.execute_activity(
                    WRITE_MISSING,
                    WriteMissing(suite.suite, suite.unwritten, self._start.options.results_dir),
                    result_type=list[TrialSummary],
                    **WRITE_AGAIN,
                )
                suite.written(missing)
            if not suite.unwritten:
                break
        await self._write(self._status())  # its own file may have found no room, either

    def _status(self) -> Literal["succeeded", "failed", "cancelled"]:
        if self._suite.cancelled:
            return "cancelled"
        progress = self._suite.progress(ProgressRequest(offset=len(self._suite.news)))
        return "succeeded" if progress.succeeded == progress.total else "failed"

    async def _write(self, status: Literal["running", "succeeded", "failed", "cancelled"]) -> None:
        start = self._start
        await workflow.execute_local_activity(
            WRITE_SUITE,
            WriteSuite(
                suite=start.suite,
                run_id=workflow.info().first_execution_run_id,
                digest=start.digest,
                status=status,
                tasks=[
                    {
                        "id": task.task["id"],
                        "index": index,
                        "digest": task.digest,
                        "repeats": task.repeats,
                    }
                    for index, task in enumerate(start.tasks)
                ],
                started_at=self._started_at,
                results_dir=start.options.results_dir,
                trials=list(self._suite.ends.values()),
                stopped=self._suite.stopping if self._pool else self._suite.stopped,
            ),
            result_type=type(None),
            **WRITE,
        )


def _may(check: Callable[[], None]) -> None:
    """Refuse the update in whose validator this is, for the reason that the check gives."""
    try:
        check()
    except control.Refused as refusal:
        raise ApplicationError(str(refusal), type=REFUSED, non_retryable=True) from None
