"""JobWorkflow: one background job of a task; it carries what `perdure.core.job_state` keeps.

It never continues as new: what a job hands on is bounded, and so is its history.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from perdure.core.job_state import UNDELIVERED, JobLife
    from perdure.job_ends import is_silent, take_error
    from perdure.job_messages import (
        InterruptAnswer,
        InterruptJob,
        InterruptOrder,
        JobEnd,
        JobExit,
        JobInput,
        OutputBatch,
        PeekPage,
        PeekRequest,
    )
    from perdure.names import (
        INTERRUPT,
        INTERRUPT_JOB,
        JOB_ENDED,
        JOB_FAILED,
        JOB_OUTPUT,
        JOB_WORKFLOW,
        PEEK,
        RUN_JOB,
    )
    from workflows.options import JOB_GRACE, KILL_PATIENCE, interrupt_options, job_options
    from workflows.shield import uncancelled

LONGEST_GRACE_SECONDS = 366 * 86_400.0
"""Between an interrupt and its kill, whatever a client asks for: timers have their limits."""


@workflow.defn(name=JOB_WORKFLOW)
class JobWorkflow:
    """Has one job run to its end, keeps what it prints, and passes on who wants it to stop."""

    @workflow.init
    def __init__(self, job: JobInput) -> None:
        self._job = job
        self._life = JobLife(job, job.run.workflow_id)
        self._start: workflow.ActivityHandle[JobExit] | None = None
        self._is_interrupting = False
        self._kill: asyncio.Task[None] | None = None
        self._kill_at: float | None = None

    @workflow.run
    async def run(self, job: JobInput) -> JobEnd:
        """Run the job to its end.

        Raises ApplicationError:
            JobFailed: it ended neither done nor interrupted; with the JobEnd as its detail.
        """
        living = asyncio.create_task(self._live())
        is_cancelled = False
        while not living.done():
            try:
                await workflow.wait_condition(living.done)
            except asyncio.CancelledError:
                if is_cancelled or workflow.cancellation_reason() is None:
                    raise  # the workflow is being evicted
                is_cancelled = True
                self.interrupt(InterruptJob(JOB_GRACE.total_seconds()))
        end = living.result()
        await uncancelled(self._tell(end))
        if end.status in ("done", "interrupted"):
            return end
        raise ApplicationError(end.error or end.status, end, type=JOB_FAILED, non_retryable=True)

    @workflow.signal(name=JOB_OUTPUT)
    def job_output(self, batch: OutputBatch) -> None:
        """The job's process has printed this."""
        self._life.take(batch, workflow.time())

    @workflow.signal(name=INTERRUPT)
    def interrupt(self, asked: InterruptJob) -> None:
        """One SIGINT for the job's process; while one is on its way, no other is sent."""
        if self._life.end:
            return
        # Kept alive by the activities and timers that they await.
        if asked.kill_after_seconds is not None:
            self._kill_after(min(max(0.0, asked.kill_after_seconds), LONGEST_GRACE_SECONDS))
        if (
            asked.kill_after_seconds != 0
            and not self._is_interrupting
            and self._life.may_interrupt()
        ):
            self._is_interrupting = True
            asyncio.create_task(self._interrupt())  # noqa: RUF006

    @workflow.query(name=PEEK)
    def peek(self, request: PeekRequest) -> PeekPage:
        """What is known of the job, and a page of what it has printed."""
        return self._life.page(request)

    @workflow.query
    def record(self) -> dict[str, Any]:
        """What is known of the job, without what it has printed."""
        page = self._life.page(PeekRequest(self._life.beyond, self._life.beyond))
        hidden = ("stdout", "stderr", "tail_stdout", "tail_stderr")
        return {key: value for key, value in vars(page).items() if key not in hidden}

    # --- Running ----------------------------------------------------------------------------

    async def _live(self) -> JobEnd:
        life = self._life
        while life.end is None:
            self._start = workflow.start_activity(
                RUN_JOB,
                life.task(),
                result_type=JobExit,
                **job_options(self._job, life.attempt),
            )
            try:
                exit = await self._start
            except ActivityError as error:
                if is_silent(error.cause):
                    await self._clear_inside()
                take_error(life, error.cause, workflow.time())
            else:
                life.exited(exit, workflow.time())
            if life.exit:
                # Who was sent to interrupt it may not be back yet to tell that it did.
                await workflow.wait_condition(lambda: life.end is not None)
        return life.end

    async def _clear_inside(self) -> None:
        """Have killed what a lost worker has left in a container; beside it, nothing is left."""
        job = self._job
        if job.spec.environment is None:
            return
        order = InterruptOrder(job.exec_id, self._life.attempt, kill=True, leftovers=True)
        with contextlib.suppress(ActivityError):  # nobody is there who could
            await workflow.execute_activity(
                INTERRUPT_JOB,
                order,
                result_type=InterruptAnswer,
                **interrupt_options(job, kill=True),
            )

    async def _tell(self, end: JobEnd) -> None:
        task = workflow.get_external_workflow_handle(self._job.run.workflow_id)
        with contextlib.suppress(FailureError):  # it is closed
            await task.signal(JOB_ENDED, end)

    # --- Stopping ---------------------------------------------------------------------------

    async def _interrupt(self) -> None:
        life, waited = self._life, self._life.is_waiting
        try:
            delivered = await self._send(kill=False)
            if not delivered and waited and life.begun and not life.end:
                # It has begun since somebody looked for it, and hears this one.
                delivered = await self._send(kill=False)
        finally:
            self._is_interrupting = False
        if not delivered and self._life.is_waiting:
            await self._call_off()

    def _kill_after(self, seconds: float) -> None:
        """Kill it then, or when it was to be killed already, if that is sooner."""
        at = workflow.time() + seconds
        if self._kill_at is not None and self._kill_at <= at:
            return
        if self._kill:
            self._kill.cancel()
        self._kill_at = at
        self._kill = asyncio.create_task(self._kill_at_last(seconds))

    async def _kill_at_last(self, seconds: float) -> None:
        if seconds > 0:
            await workflow.sleep(timedelta(seconds=seconds), summary="then it is killed")
        self._kill = None  # from here on nobody calls it back
        if self._life.end:
            return
        self._kill_at = 0.0
        delivered = await self._send(kill=True, after_seconds=seconds)
        if delivered:
            await self._ended_within(KILL_PATIENCE)
        if not self._life.end:
            await self._call_off()

    async def _send(self, *, kill: bool, after_seconds: float = 0.0) -> bool:
        """Have a signal sent to the process; False if it reached nobody."""
        order = self._life.order(kill=kill, after_seconds=after_seconds)
        try:
            answer = await workflow.execute_activity(
                INTERRUPT_JOB,
                order,
                result_type=InterruptAnswer,
                **interrupt_options(self._job, kill=kill),
            )
        except ActivityError:
            answer = InterruptAnswer(delivered=False, reason=UNDELIVERED)
        self._life.answered(order, answer, workflow.time())
        return bool(answer.delivered)

    async def _call_off(self) -> None:
        """Cancel the start that waits for a worker, or whose worker hears nothing else."""
        # What has ended by now is heard first: a handle that is cancelled in the same workflow
        # task in which its result arrives drops it (SDK 1.35).
        await workflow.wait_condition(lambda: True)
        if self._start and not self._start.done():
            self._start.cancel()

    async def _ended_within(self, patience: timedelta) -> None:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._life.end is not None, timeout=patience)
