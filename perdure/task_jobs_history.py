"""The background jobs of a task, as its history tells of them."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from perdure.core.run import TaskRun
from perdure.core.run_jobs import TERMINATED
from perdure.event_log import Decoder
from perdure.job_messages import JobEnd, JobInput, JobLaunch
from perdure.names import JOB_WORKFLOW, STOP_JOBS, job_workflow_id

INITIATED = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
STARTED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
NOT_STARTED = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED
JOB_TERMINATED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED
_COMPLETED = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED

_PREFIX = job_workflow_id("")


class TaskJobsHistory:
    """Those of one run of a chain, put to the run as `workflows.jobs` puts them."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._claimed: set[int] = set()
        """Events that were looked at ahead of their turn."""
        self._stops: dict[int, list[str]] = {}
        """By the id of its scheduled event, which jobs an activity stops."""
        self._again: list[str] = []
        """Those that an activity has failed to stop, which is followed by another one."""

    async def claim_ahead(
        self, run: TaskRun, completed: int, ahead: Iterable[HistoryEvent], now: float
    ) -> None:
        """Take the launches of the workflow task that event `completed` has ended.

        A launch comes first in the workflow, and its event among those that follow.
        """
        for event in ahead:
            if event.event_type == INITIATED:
                initiated = event.start_child_workflow_execution_initiated_event_attributes
                if initiated.workflow_task_completed_event_id == completed:
                    await self.claim(run, event, now)

    async def claim(self, run: TaskRun, event: HistoryEvent, now: float) -> None:
        """Take a launch, unless it was looked at before."""
        initiated = event.start_child_workflow_execution_initiated_event_attributes
        if initiated.workflow_type.name != JOB_WORKFLOW or event.event_id in self._claimed:
            return
        self._claimed.add(event.event_id)
        job = await self._decoder.value(initiated.input, JobInput)
        run.claim_job(JobLaunch(job.exec_id, job.spec, job.origin), now)

    def hear(self, run: TaskRun, event: HistoryEvent, now: float) -> None:
        """Take what the server says of a launch, or of a job that could not tell its own end."""
        if event.event_type == STARTED:
            started = event.child_workflow_execution_started_event_attributes
            run.job_started(started.workflow_execution.workflow_id.removeprefix(_PREFIX), now)
        elif event.event_type == NOT_STARTED:
            failed = event.start_child_workflow_execution_failed_event_attributes
            run.job_not_started(failed.workflow_id.removeprefix(_PREFIX), now)
        elif event.event_type == JOB_TERMINATED:
            ended = event.child_workflow_execution_terminated_event_attributes
            exec_id = ended.workflow_execution.workflow_id.removeprefix(_PREFIX)
            run.job_ended(JobEnd(exec_id, "lost", TERMINATED, ended_at=now), now)

    def begin_stop(self, run: TaskRun, event: HistoryEvent) -> None:
        """Take an activity that was scheduled to stop jobs that would outlive the lease."""
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == STOP_JOBS:
            exec_ids, self._again = self._again or run.take_jobs_to_stop(), []
            self._stops[event.event_id] = exec_ids

    async def end(self, run: TaskRun, scheduled: int, event: HistoryEvent, now: float) -> None:
        """Take the end of an activity, if it is one of these."""
        exec_ids = self._stops.pop(scheduled, None)
        if exec_ids is not None and event.event_type != _COMPLETED:
            self._again = exec_ids
        elif exec_ids is not None:
            result = event.activity_task_completed_event_attributes.result
            run.jobs_stopped(exec_ids, await self._decoder.value(result, list[JobEnd]), now)
