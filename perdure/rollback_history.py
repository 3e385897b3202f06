"""The compensations and resets of a task's rollbacks, as its history tells them."""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.exceptions import CancelledError

from perdure.core.rollback import Compensation, ResetEnd
from perdure.core.run import TaskRun
from perdure.event_log import Decoder, HistoryError
from perdure.names import COMPENSATE_STEP, RESET_INSTANCE
from perdure.pool_messages import InstanceResult
from perdure.undo_ends import ResetRound, reset_result, undo_failure

ACTIVITIES = (COMPENSATE_STEP, RESET_INSTANCE)

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
        """By the id of its scheduled event, as below."""
        self._round: ResetRound | None = None
        self._waiting: list[str] = []
        """Environments of the round whose events are not met yet."""
        self._resetting: dict[int, str] = {}

    def carry(self, run: TaskRun, now: float) -> None:
        """Begin what is due, as the workflow does in each of its turns."""
        self._due = self._due or run.take_compensation(now)
        if environments := run.take_resets(now):
            self._waiting = environments
            self._round = ResetRound(environments)

    def begin(self, run: TaskRun, event: HistoryEvent, now: float) -> None:
        """Take an activity that was scheduled, one of ACTIVITIES."""
        self.carry(run, now)
        attributes = event.activity_task_scheduled_event_attributes
        due = self._due
        if attributes.activity_type.name == RESET_INSTANCE and self._waiting:
            self._resetting[event.event_id] = self._waiting.pop(0)
        elif due and due.activity_id == attributes.activity_id:
            self._undoing[event.event_id], self._due = due, None
        else:
            raise HistoryError(
                "the history was written by another version of perdure: it starts "
                f"{attributes.activity_id!r} where this one would not"
            )

    async def end(self, run: TaskRun, scheduled: int, event: HistoryEvent, now: float) -> None:
        """Take the end of an activity, if it is one of these."""
        if compensation := self._undoing.pop(scheduled, None):
            error = await self._error(event)
            run.compensated(compensation, undo_failure(error) if error else None, now)
        elif environment := self._resetting.pop(scheduled, None):
            assert self._round
            if error := await self._error(event):
                result = reset_result(error)
            else:
                told = event.activity_task_completed_event_attributes.result
                result = await self._decoder.value(told, InstanceResult)
            if self._round.answer(environment, result):
                run.were_reset(ResetEnd(failed=self._round.failures), now)

    async def _error(self, event: HistoryEvent) -> BaseException | None:
        """What the workflow sees in place of a result; None if there is one."""
        if event.event_type == _CANCELED:
            return CancelledError()
        if name := _FAILURES.get(event.event_type):
            return await self._decoder.error(getattr(event, name).failure)
        return None
