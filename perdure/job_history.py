"""A background job as its history tells of it: what its queries would say, without a worker."""

from __future__ import annotations

import contextlib

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, CancelledError

from perdure.core.job_state import JobLife
from perdure.event_log import Decoder, HistoryError, event_time, pages_of_run
from perdure.job_ends import take_error
from perdure.job_messages import (
    InterruptAnswer,
    InterruptOrder,
    JobEnd,
    JobExit,
    JobInput,
    OutputBatch,
)
from perdure.names import INTERRUPT_JOB, JOB_OUTPUT, RUN_JOB
from perdure.payloads import adapter

_CLOSES = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed out",
}


async def job_from_history(client: Client, workflow_id: str, run_id: str) -> JobLife:
    """A job as of now, with all that is committed of its output.

    Raises UnknownRun, and HistoryError if the history cannot be read.
    """
    history = JobHistory(client, workflow_id)
    async for page in pages_of_run(client, workflow_id, run_id):
        for event in page:
            await history.take(event)
    return history.life


class JobHistory:
    """A job, rebuilt event by event: they go through `JobLife` as the workflow put them there.

    A kill's place in the error of an end is not rebuilt; that comes with the end itself.
    """

    def __init__(self, client: Client, workflow_id: str) -> None:
        self._decoder = Decoder(client, workflow_id)
        self._workflow_id = workflow_id
        self._life: JobLife | None = None
        self._exec_id = ""
        self._runs: set[int] = set()  # scheduled events of the job's starts
        self._orders: dict[int, InterruptOrder] = {}

    @property
    def life(self) -> JobLife:
        """The job as of the last event taken. Raises HistoryError if there was none."""
        if self._life is None:
            raise HistoryError(f"{self._workflow_id} has no history")
        return self._life

    async def take(self, event: HistoryEvent) -> None:
        """Take the next event. Raises HistoryError."""
        kind, now = event.event_type, event_time(event)
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            job = await self._decoder.value(started.input, JobInput)
            self._exec_id = job.exec_id
            self._life = JobLife(job, job.run.workflow_id)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            if signal.signal_name == JOB_OUTPUT:
                with contextlib.suppress(HistoryError):  # dropped by the SDK, too
                    self.life.take(await self._decoder.value(signal.input, OutputBatch), now)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == RUN_JOB:
                self._runs.add(event.event_id)
            elif scheduled.activity_type.name == INTERRUPT_JOB:
                order = await self._decoder.value(scheduled.input, InterruptOrder)
                if not order.leftovers:
                    self._orders[event.event_id] = order
                    self.life.order(kill=order.kill)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            await self._take_completed(done.scheduled_event_id, done.result, now)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            late = event.activity_task_timed_out_event_attributes
            error = await self._decoder.error(late.failure)
            self._take_failed(late.scheduled_event_id, error, now)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
            failed = event.activity_task_failed_event_attributes
            error = await self._decoder.error(failed.failure)
            self._take_failed(failed.scheduled_event_id, error, now)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
            ended = event.activity_task_canceled_event_attributes
            self._take_failed(ended.scheduled_event_id, CancelledError(), now)
        elif kind in _CLOSES:
            await self._take_close(event, now)

    async def _take_completed(self, scheduled: int, result: Payloads, now: float) -> None:
        if scheduled in self._runs:
            self.life.exited(await self._decoder.value(result, JobExit), now)
        elif order := self._orders.pop(scheduled, None):
            self.life.answered(order, await self._decoder.value(result, InterruptAnswer), now)

    def _take_failed(self, scheduled: int, error: BaseException, now: float) -> None:
        if scheduled in self._runs:
            take_error(self.life, error, now)
        elif order := self._orders.pop(scheduled, None):
            self.life.answered(order, InterruptAnswer(delivered=False), now)

    async def _take_close(self, event: HistoryEvent, now: float) -> None:
        """How it ended is what the workflow itself made of it."""
        life = self.life
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            done = event.workflow_execution_completed_event_attributes
            life.end = await self._decoder.value(done.result, JobEnd)
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            failed = event.workflow_execution_failed_event_attributes
            error = await self._decoder.error(failed.failure)
            if isinstance(error, ApplicationError) and error.details:
                with contextlib.suppress(ValueError):  # a failure that is not a job's own
                    life.end = adapter(JobEnd).validate_python(error.details[0])
        if life.end is None:
            life.end = JobEnd(
                self._exec_id,
                "lost",
                error=f"its workflow was {_CLOSES[event.event_type]}",
                attempts=life.attempt,
                started_at=life.started_at,
                ended_at=now,
            )
