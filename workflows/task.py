"""TaskWorkflow: one run of one task; it carries what `perdure.core.run` decides."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from perdure.attempt_ends import take_error
    from perdure.core.pool_decisions import Grant, LoseLease, Refuse, Renew
    from perdure.core.run import BadStart, Dispatch, TaskRun, events_since
    from perdure.core.summary import summarise
    from perdure.job_messages import JobEnd, JobLaunch, JobLaunched
    from perdure.messages import (
        ContextDiffs,
        ContextRequest,
        FinishTask,
        RunRef,
        SlotGrant,
        StepOutcome,
        StepTask,
        TaskInput,
        TrialSummary,
    )
    from perdure.names import (
        BAD_INPUT,
        BIND_HOST,
        FINISH_TASK,
        JOB_ENDED,
        LAUNCH_JOB,
        LEASE_GRANTED,
        LEASE_LOST,
        LEASE_REFUSED,
        LEASE_RENEWED,
        RUN_STEP,
        SLOT_GRANTED,
        TASK_FAILED,
        TASK_WORKFLOW,
        TIME_LIMIT_TIMER,
        WITHDRAW,
        steps_queue,
    )
    from workflows.carry import carry_work
    from workflows.jobs import TaskJobs, refusal
    from workflows.lease import LeaseWords
    from workflows.options import (
        BIND,
        CONTEXT_INLINE_BYTES,
        WRITE,
        WRITE_ON_HOST,
        step_options,
    )
    from workflows.rollback import RollbackWork
    from workflows.shield import heed_cancel, uncancelled
    from workflows.slots import SlotWords

EVENTS_PAGE = 200


@workflow.defn(name=TASK_WORKFLOW)
class TaskWorkflow:
    """Drives the graph of one task, a step an activity, to its end."""

    @workflow.init
    def __init__(self, start: TaskInput) -> None:
        info = workflow.info()
        self._start = start
        self._ref = RunRef(
            workflow_id=info.workflow_id,
            run_id=info.first_execution_run_id,
            suite=start.suite,
            task_id=start.task["id"],
            trial=start.trial,
        )
        self._host = ""
        self._attempts: dict[str, workflow.ActivityHandle[StepOutcome]] = {}
        self._stopped: dict[str, workflow.ActivityHandle[StepOutcome]] = {}
        self._stirred = False
        self._alarm: asyncio.Task[None] | None = None
        self._refused: str | None = None
        try:
            self._run = TaskRun.of(start, self._ref, workflow.time())
        except BadStart as error:
            self._refused = str(error)
            return
        reminder = start.options.slot_reminder_seconds
        self._slots = SlotWords(self._run, self._stir, reminder, self._history_is_long)
        is_local = start.pool is not None and start.pool.local_words
        self._lease = LeaseWords(self._run, self._stir, reminder, local=is_local)
        self._rollback = RollbackWork(
            self._run, start, self._ref, lambda: self._bound_host, self._stir
        )
        self._jobs = TaskJobs(self._run, start, self._ref, lambda: self._bound_host, self._stir)
        self._parting = False
        if start.state:
            self._host = start.state["host"]

    @workflow.run
    async def run(self, start: TaskInput) -> TrialSummary:
        """Run the task to its end.

        Raises ApplicationError:
            TaskFailed: with the TrialSummary as its detail.
            BadInput: `start_step` or `end_step` outside the task, or a limit that is not set.
        """
        if self._refused:
            summary = TrialSummary(
                task_id=self._ref.task_id,
                trial=self._ref.trial,
                run_id=self._ref.run_id,
                status="failed",
                failure_kind="bad_input",
                failure_reason=self._refused,
                started_at=workflow.time(),
            )
            raise ApplicationError(self._refused, summary, type=BAD_INPUT, non_retryable=True)
        deadline = self._limit_time()
        try:
            await self._drive()
        except (asyncio.CancelledError, ActivityError) as error:
            if not is_cancelled_exception(error):
                raise
            self._run.cancel(workflow.cancellation_reason() or "cancelled", workflow.time())
            self._slots.tell()
            self._lease.tell()
            await self._cancel_attempts()
            await self._wind_down()
        for timer in (deadline, self._alarm):
            if timer:
                timer.cancel()
        self._slots.close()
        self._lease.close()
        return await self._end()

    @workflow.signal(name=SLOT_GRANTED)
    def slot_granted(self, grant: SlotGrant) -> None:
        """A step may take its slot; one that none waits for is given back."""
        if self._refused:
            return  # this run ends at once, and whoever looks finds the slot free
        if self._run.grant(grant):
            self._stirred = True
        self._slots.tell()

    @workflow.signal(name=LEASE_GRANTED)
    def lease_granted(self, grant: Grant) -> None:
        """The task has its environments; a lease that it does not wait for is given back."""
        if self._refused:
            return  # this run ends at once, and whoever looks finds the lease free
        if self._run.lease_granted(grant, workflow.time()):
            self._host = self._run.lease_host or self._host
        self._hear_of_lease()

    @workflow.signal(name=LEASE_REFUSED)
    def lease_refused(self, refusal: Refuse) -> None:
        """The task will never have its environments."""
        if not self._refused:
            self._run.lease_refused(refusal, workflow.time())
            self._hear_of_lease()

    @workflow.signal(name=LEASE_RENEWED)
    def lease_renewed(self, renewal: Renew) -> None:
        """Environments are as they were at the beginning."""
        if not self._refused:
            self._run.lease_renewed(renewal, workflow.time())
            self._hear_of_lease()

    @workflow.signal(name=LEASE_LOST)
    def lease_lost(self, loss: LoseLease) -> None:
        """Instances are gone under the task: it starts over, or fails."""
        if not self._refused:
            self._run.lease_lost(loss, workflow.time())
            self._hear_of_lease()

    @workflow.signal(name=WITHDRAW)
    def withdraw(self) -> None:
        """The suite needs the task no more: it ends, if it has not begun."""
        if not self._refused:
            self._run.withdraw(workflow.time())
            self._hear_of_lease()

    @workflow.update(name=LAUNCH_JOB)
    async def launch_job(self, launch: JobLaunch) -> JobLaunched:
        """Start a background job beside the task's steps. The same id again changes nothing.

        Raises ApplicationError:
            JobRefused: it cannot be launched now, or ever; the text says why, and what to do.
        """
        return await self._jobs.launch(launch)

    @launch_job.validator
    def _may_launch(self, launch: JobLaunch) -> None:
        if self._refused:
            raise refusal(f"the task cannot run: {self._refused}")
        self._jobs.check(launch)

    @workflow.signal(name=JOB_ENDED)
    def job_ended(self, end: JobEnd) -> None:
        """A background job has ended."""
        if not self._refused:
            self._jobs.ended(end)
            self._hear_of_lease()

    @workflow.query
    def jobs(self) -> list[dict[str, Any]]:
        """The background jobs of the task, in the order of their launch, as its record has them."""
        return [] if self._refused else self._run.jobs.record()

    @workflow.query
    def record(self) -> dict[str, Any]:
        """The whole record, as `perdure show --json` prints it."""
        return self._run.record()

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """Status, steps done and the steps under way."""
        return self._run.progress()

    @workflow.query
    def events(self, offset: int) -> list[dict[str, Any]]:
        """A page of events after the first `offset` ones."""
        return events_since(self._run.events, offset, EVENTS_PAGE)

    @workflow.query
    def context_diffs(self, request: ContextRequest) -> ContextDiffs:
        """What a worker's copy of the context lacks."""
        return self._run.diffs(request)

    # --- Driving ----------------------------------------------------------------------------

    async def _drive(self) -> None:
        if self._start.pool is None:
            await self._bind()
        handing_over = False
        while not self._run.over:
            handing_over = handing_over or self._history_is_long()
            if handing_over and self._may_hand_over():
                await heed_cancel()
                if self._may_hand_over():
                    workflow.continue_as_new(self._carried_over())
            if self._run.is_parting and not self._parting:
                await self._cancel_attempts()
                self._rollback.doubt_host()
            self._parting = self._run.is_parting
            self._jobs.carry()
            await self._stop_for_rollback()
            if not handing_over:
                if self._run.may_start:
                    await self._bind()
                    await carry_work(self._run, self._queue())
                for dispatch in self._run.take_ready(workflow.time()):
                    self._begin(dispatch)
                self._rollback.carry()
                self._set_alarm()
                self._slots.tell()
            self._lease.tell()
            self._stirred = False
            await workflow.wait_condition(lambda: self._stirred or self._run.over)

    async def _wind_down(self) -> None:
        """Wait for what runs; of a rollback, what was planned is done all the same."""
        while not self._run.over:
            self._rollback.carry()
            self._stirred = False
            await workflow.wait_condition(lambda: self._stirred or self._run.over)

    async def _bind(self) -> None:
        """Choose the host of the task's steps, if there are several and none is chosen."""
        if self._start.options.multi_host and not self._host:
            # Before any step: two that start side by side must find the same directory.
            self._host = await workflow.execute_activity(BIND_HOST, result_type=str, **BIND)

    def _begin(self, dispatch: Dispatch) -> None:
        run, step = self._run, dispatch.step
        inline = run.context_bytes <= CONTEXT_INLINE_BYTES
        handle = workflow.start_activity(
            RUN_STEP,
            StepTask(
                run=self._ref,
                step=step.to_dict(),
                index=dispatch.index,
                total=len(run.task.steps),
                attempt=dispatch.attempt,
                epoch=dispatch.epoch,
                version=dispatch.version,
                context=run.context if inline else None,
                lost_attempts=list(dispatch.lost_attempts),
                redact=list(run.task.redact),
                environments=list(run.task.environments),
                folder=self._start.folder,
                results_dir=self._start.options.results_dir,
                suite_workflow_id=self._start.suite_workflow_id,
                instances=run.instances,
                restarts=run.restarts,
            ),
            result_type=StepOutcome,
            **step_options(dispatch, self._queue()),
        )
        self._attempts[step.id] = handle
        # Kept alive by the handle it awaits.
        asyncio.create_task(self._await_outcome(dispatch, handle))  # noqa: RUF006

    async def _await_outcome(
        self, dispatch: Dispatch, handle: workflow.ActivityHandle[StepOutcome]
    ) -> None:
        try:
            outcome = await handle
        except ActivityError as error:
            host = take_error(self._run, dispatch, error.cause, workflow.time())
            self._host = host or self._host
        else:
            self._host = outcome.host or self._host
            self._run.finish(dispatch, outcome, workflow.time())
        self._slots.tell()
        self._lease.tell()
        if self._attempts.get(dispatch.step.id) is handle:
            del self._attempts[dispatch.step.id]
        self._stirred = True

    async def _cancel_attempts(self) -> None:
        # What has ended by now is heard first: a handle that is cancelled in the same workflow
        # task in which its result arrives drops it (SDK 1.35), and the run would wait for ever.
        await workflow.wait_condition(lambda: True)
        for handle in self._attempts.values():
            handle.cancel()

    async def _stop_for_rollback(self) -> None:
        """Cancel, once each, the running steps that a rollback takes back."""
        if not any(step in self._attempts for step in self._run.to_stop):
            return
        await workflow.wait_condition(lambda: True)  # as in `_cancel_attempts`
        for step in self._run.to_stop:
            handle = self._attempts.get(step)
            if handle and handle is not self._stopped.get(step):
                self._stopped[step] = handle
                handle.cancel()

    @property
    def _bound_host(self) -> str | None:
        """None: one host serves the workflow's queue."""
        return self._host if self._start.options.multi_host and self._host else None

    def _queue(self) -> str | None:
        """None: the workflow's own queue, where the SDK starts activities eagerly."""
        host = self._bound_host
        return host and steps_queue(workflow.info().task_queue, host)

    def _stir(self) -> None:
        self._stirred = True

    def _hear_of_lease(self) -> None:
        self._lease.tell()
        self._slots.tell()
        self._stirred = True

    # --- Time -------------------------------------------------------------------------------

    def _limit_time(self) -> asyncio.Task[None] | None:
        if self._run.timeout_seconds is None:
            return None
        return asyncio.create_task(self._expire(self._run.timeout_seconds))

    async def _expire(self, limit: float) -> None:
        """End the run when its time is up; it has more while it waits for slots alone."""
        run = self._run
        while not run.over:
            if (deadline := run.deadline) is None:
                await workflow.wait_condition(lambda: run.deadline is not None)
                continue
            await workflow.sleep(
                timedelta(seconds=max(0.0, deadline - workflow.time())), summary=TIME_LIMIT_TIMER
            )
            if run.deadline == deadline and not run.over:
                run.time_out(limit, workflow.time())
                self._slots.tell()
                await self._cancel_attempts()
                self._stirred = True
                return

    def _set_alarm(self) -> None:
        """Wake up when the next delayed attempt is due; one timer at a time."""
        at = self._run.wake_at()
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None
        if at is None:
            return

        async def ring() -> None:
            delay = timedelta(seconds=max(0.001, at - workflow.time()))
            await workflow.sleep(delay, summary="delay before the next attempt")
            self._alarm = None
            self._stirred = True

        self._alarm = asyncio.create_task(ring())

    def _may_hand_over(self) -> bool:
        words = self._slots.under_way or self._lease.under_way
        busy = self._rollback.under_way or self._jobs.under_way
        return not (self._run.running or words or busy)

    def _history_is_long(self) -> bool:
        info, limit = workflow.info(), self._start.options.history_limit_events
        return info.is_continue_as_new_suggested() or (
            limit is not None and info.get_current_history_length() >= limit
        )

    def _carried_over(self) -> TaskInput:
        return replace(
            self._start,
            state={"run": self._run.state(), "host": self._host},
            resumed=self._run.resumed,
        )

    # --- The end ----------------------------------------------------------------------------

    async def _end(self) -> TrialSummary:
        run = self._run
        if run.has_jobs or self._jobs.under_way:  # none outlives the lease, nor the task
            await uncancelled(self._jobs.stopped())
        run.close(workflow.time())
        self._lease.tell()
        self._slots.tell()
        # Whoever hears of the end may take the worker away, which is to be needed no more.
        if self._lease.releases:
            await uncancelled(self._lease.given_back())
        if self._slots.releases and workflow.patched("give back, then tell the end"):
            await uncancelled(self._slots.given_back())
        summary = await uncancelled(self._write(summarise(run)))
        # A request on its way need not be waited for: its release is known to the limit.
        if self._slots.releases:
            await uncancelled(self._slots.given_back())
        if self._lease.releases:
            await uncancelled(self._lease.given_back())
        if run.withdrawn and workflow.cancellation_reason() is None:
            # Whoever wrote the record has asked for it: only so may a workflow end as cancelled.
            await workflow.wait_condition(lambda: False)
        if run.status == "cancelled":
            raise asyncio.CancelledError(run.cancelled)
        if run.failure:
            step = f"step {run.failure.step!r}: " if run.failure.step else ""
            raise ApplicationError(
                f"{step}{summary.failure_reason}", summary, type=TASK_FAILED, non_retryable=True
            )
        return summary

    async def _write(self, summary: TrialSummary) -> TrialSummary:
        parent = workflow.info().parent
        finish = FinishTask(
            run=self._ref,
            record=self._run.record(),
            events=self._run.events,
            summary=summary,
            results_dir=self._start.options.results_dir,
            suite_workflow_id=self._start.suite_workflow_id,
            suite_run_id=parent.run_id if parent else None,
        )
        if self._host and self._queue() is not None and self._may_lie_there():
            on_host = WRITE_ON_HOST | {"task_queue": self._queue()}
            if patience := self._start.options.host_patience_seconds:
                on_host["schedule_to_start_timeout"] = timedelta(seconds=patience)
            with contextlib.suppress(ActivityError):
                there: TrialSummary = await workflow.execute_activity(
                    FINISH_TASK, finish, result_type=TrialSummary, **on_host
                )
                return there
        here: TrialSummary = await workflow.execute_local_activity(
            FINISH_TASK, finish, result_type=TrialSummary, **WRITE
        )
        return here

    def _may_lie_there(self) -> bool:
        """Whether something of the run may be on its host, which then writes the record."""
        # Runs of earlier versions waited for a host, too, on which nothing had begun.
        began = self._run.may_lie_on(self._host)
        return began or not workflow.patched("nothing lies where nothing began")
