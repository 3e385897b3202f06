"""The compensations of a task's rollbacks, as its history tells them."""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.exceptions import CancelledError

from perdure.core.rollback import JOB_KINDS, Compensation
from perdure.core.run import TaskRun
from perdure.event_log import Decoder, HistoryError
from perdure.job_messages import JobEnd
from perdure.undo_ends import undo_failure

_FAILURES = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity_task_failed_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity_task_timed_out_event_attributes",
}
_CANCELED = EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED


class RollbackHistory:
    """Those of one run of a chain, put to the run as `workflows.rollback` puts them."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._due: Compensation | None = None
        """Begun, and its event is not met yet."""
        self._undoing: dict[int, Compensation] = {}
        """By the id of its scheduled event."""

    def carry(self, run: TaskRun, now: float) -> None:
        """Begin what is due, as the workflow does in each of its turns."""
        self._due = self._due or run.take_compensation(now)

    def begin(self, run: TaskRun, event: HistoryEvent, now: float) -> None:
        """Take a compensation that was scheduled."""
        self.carry(run, now)
        activity_id = event.activity_task_scheduled_event_attributes.activity_id
        due = self._due
        if due is None or due.activity_id != activity_id:
            raise HistoryError(
                "the history was written by another version of perdure: it starts "
                f"{activity_id!r} where this one would not"
            )
        self._undoing[event.event_id], self._due = due, None

    async def end(self, run: TaskRun, scheduled: int, event: HistoryEvent, now: float) -> None:
        """Take the end of an activity, if it is one of these."""
        if compensation := self._undoing.pop(scheduled, None):
            error = await self._error(event)
            if compensation.kind in JOB_KINDS and not error:
                result = event.activity_task_completed_event_attributes.result
                ends = await self._decoder.value(result, list[JobEnd])
                run.jobs_gone(compensation.exec_ids, ends, now)
            run.compensated(compensation, undo_failure(error) if error else None, now)

    async def _error(self, event: HistoryEvent) -> BaseException | None:
        """What the workflow sees in place of a result; None if there is one."""
        if event.event_type == _CANCELED:
            return CancelledError()
        if name := _FAILURES.get(event.event_type):
            return await self._decoder.error(getattr(event, name).failure)
        return None
