"""A suite as its history tells it: what it was started with, what ended, what runs.

As with tasks (`perdure.history`), this needs no worker, and works for a suite that was terminated.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import TypeAdapter
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.core.suite import Suite
from perdure.event_log import Decoder, HistoryError, event_time, pages
from perdure.messages import ClosedTrial, ProgressRequest, SuiteInput, SuiteProgress, TrialSummary
from perdure.names import task_workflow_id

_SUMMARY: TypeAdapter[TrialSummary] = TypeAdapter(TrialSummary)

TRIAL_ENDED = "trial_ended"

_FORCED_ENDS = {
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: (
        "child_workflow_execution_canceled_event_attributes",
        "Child Workflow execution cancelled",
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: (
        "child_workflow_execution_terminated_event_attributes",
        "Child Workflow execution terminated",
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: (
        "child_workflow_execution_timed_out_event_attributes",
        "Child Workflow execution timed out",
    ),
}


async def suite_of(client: Client, workflow_id: str, run_id: str | None = None) -> SuiteHistory:
    """The suite as of now; `run_id`: any run of a chain, whose newest one is read.

    Raises UnknownRun, and HistoryError if the history cannot be read.
    """
    history = SuiteHistory(client, workflow_id)
    async for page in pages(client, workflow_id, run_id):
        for event in page:
            await history.take(event)
    return history


async def definition_of(client: Client, workflow_id: str, run_id: str) -> SuiteInput:
    """What one run of a suite was started with; reads its first event alone.

    Raises HistoryError.
    """
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        attributes = event.workflow_execution_started_event_attributes
        return await Decoder(client, workflow_id).value(attributes.input, SuiteInput)
    raise HistoryError(f"{workflow_id} has no history")


class SuiteHistory:
    """A suite, rebuilt event by event."""

    def __init__(self, client: Client, workflow_id: str) -> None:
        self.run_id = ""
        """The first of the chain."""
        self.started_at = 0.0
        """When the chain began, in seconds since 1970."""
        self.ended_at: float | None = None
        self.over = False
        """Whether the suite's workflow is closed."""
        self.terminated: str | None = None
        """Why, if it was closed from outside."""
        self._decoder = Decoder(client, workflow_id)
        self._workflow_id = workflow_id
        self._definition: SuiteInput | None = None
        self._suite: Suite | None = None
        self._run_ids: dict[str, str] = {}

    @property
    def definition(self) -> SuiteInput:
        """What the newest run was started with.

        Raises HistoryError if no event was taken.
        """
        if self._definition is None:
            raise HistoryError(f"{self._workflow_id} has no history")
        return self._definition

    @property
    def ended(self) -> list[TrialSummary]:
        """The trials that ended, in order of their end; those taken over come first."""
        return self._suite.ended if self._suite else []

    @property
    def started(self) -> dict[str, str]:
        """Workflow id and first run id of every trial that this run of the suite started."""
        return dict(self._run_ids)

    def progress(self, offset: int = 0) -> SuiteProgress:
        """As the workflow's query of that name."""
        definition = self.definition
        suite = self._suite
        assert suite is not None
        progress = suite.progress(ProgressRequest(offset=offset))
        return replace(progress, max_parallel=definition.max_parallel)

    async def take(self, event: HistoryEvent) -> None:
        """Take the next event."""
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            await self._take_start(event)
            return
        suite = self._suite
        if suite is None:
            return
        if kind == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            name = event.start_child_workflow_execution_initiated_event_attributes.workflow_id
            if name not in suite.running:
                suite.take_startable(1)
        elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            child = event.child_workflow_execution_started_event_attributes.workflow_execution
            self._run_ids[child.workflow_id] = child.run_id
            suite.started(child.workflow_id, child.run_id)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            if signal.signal_name == TRIAL_ENDED:
                suite.hear(await self._decoder.value(signal.input, TrialSummary))
        elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
            result = event.child_workflow_execution_completed_event_attributes.result
            suite.hear(await self._decoder.value(result, TrialSummary))
        elif kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
            await self._take_failed_child(suite, event)
        elif kind in _FORCED_ENDS:
            attributes, reason = _FORCED_ENDS[kind]
            name = getattr(event, attributes).workflow_execution.workflow_id
            cancelled = kind == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED
            suite.lose(name, reason, cancelled=cancelled)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:  # the probe's: it has no other
            found = event.activity_task_completed_event_attributes.result
            for closed in await self._decoder.value(found, list[ClosedTrial]):
                suite.found_closed(closed)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
            suite.cancel()
        else:
            self._take_close(event)

    async def _take_start(self, event: HistoryEvent) -> None:
        attributes = event.workflow_execution_started_event_attributes
        start = await self._decoder.value(attributes.input, SuiteInput)
        self._definition = start
        self.run_id = attributes.first_execution_run_id
        self.started_at = start.state["started_at"] if start.state else event_time(event)
        trials = sum(task.repeats for task in start.tasks)
        self._suite = Suite(
            start.suite,
            start.tasks,
            max_parallel=max(1, trials),  # whatever was started had a place
            digest=start.digest,
            finished=start.finished,
            workflow_id=task_workflow_id,
        )
        if start.state:
            self._suite.restore({**start.state["suite"], "max_parallel": max(1, trials)})
            self._run_ids |= start.state["suite"]["running"]

    async def _take_failed_child(self, suite: Suite, event: HistoryEvent) -> None:
        attributes = event.child_workflow_execution_failed_event_attributes
        error = await self._decoder.error(attributes.failure)
        if isinstance(error, ApplicationError) and error.details:
            suite.hear(_SUMMARY.validate_python(error.details[0]))
        else:
            suite.lose(attributes.workflow_execution.workflow_id, str(error))

    def _take_close(self, event: HistoryEvent) -> None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            self.terminated = (
                event.workflow_execution_terminated_event_attributes.reason or "by hand"
            )
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            self.terminated = "its workflow timed out"
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            failure = event.workflow_execution_failed_event_attributes.failure
            self.terminated = failure.message or "its workflow failed"
        elif kind not in (
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        ):
            return
        self.over, self.ended_at = True, event_time(event)
