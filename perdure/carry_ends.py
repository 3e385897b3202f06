"""The files that a run takes over from an earlier one, as its history tells of them.

What their copy's end means is shared, as `perdure.attempt_ends` is, by the workflow and the reader
of histories.
"""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from perdure.core.run import TaskRun
from perdure.event_log import Decoder
from perdure.messages import CarriedWork

NOT_COPIED = CarriedWork(found=False, reason="no worker has copied them in time")
"""What is made of a copy that ended without a result."""


class CarryHistory:
    """Of one run of a chain, put to the run as `workflows.carry` puts it."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._scheduled = 0

    def begin(self, event: HistoryEvent) -> None:
        """Take the activity `carry_work` that was scheduled."""
        self._scheduled = event.event_id

    async def end(self, run: TaskRun, scheduled: int, event: HistoryEvent, now: float) -> None:
        """Take the end of an activity, if it is this one."""
        if scheduled != self._scheduled:
            return
        self._scheduled = 0
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            result = event.activity_task_completed_event_attributes.result
            run.work_carried(await self._decoder.value(result, CarriedWork), now)
        elif event.event_type != EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
            run.work_carried(NOT_COPIED, now)
