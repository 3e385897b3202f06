"""A suite as its history tells it: what it was started with, what ended, what runs.

As with tasks (`perdure.history`), this needs no worker, and works for a suite that was terminated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.core import suite_control as control
from perdure.core.suite import CANCELLED, CANCELLED_UNSTARTED, TERMINATED, TIMED_OUT, Suite
from perdure.event_log import Decoder, HistoryError, event_time, pages, pages_of_run
from perdure.messages import (
    ClosedTrial,
    ProgressRequest,
    Requeued,
    SuiteInput,
    SuiteProgress,
    TrialSummary,
)
from perdure.names import (
    PAUSE,
    PRIORITISE,
    PROBE_TRIALS,
    REQUEUE,
    RESUME,
    SET_MAX_PARALLEL,
    TRIAL_ENDED,
    WRITE_MISSING,
)
from perdure.payloads import adapter

_FORCED_ENDS = {
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: (
        "child_workflow_execution_canceled_event_attributes",
        CANCELLED,
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: (
        "child_workflow_execution_terminated_event_attributes",
        TERMINATED,
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: (
        "child_workflow_execution_timed_out_event_attributes",
        TIMED_OUT,
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

    Raises UnknownRun, and HistoryError if the history cannot be read.
    """
    async for page in pages_of_run(client, workflow_id, run_id, page_size=1):
        attributes = page[0].workflow_execution_started_event_attributes
        return await Decoder(client, workflow_id).value(attributes.input, SuiteInput)
    raise HistoryError(f"{workflow_id} has no history")


_UPDATES = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
)


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
        self.runs: list[tuple[str, str]] = []
        """Workflow id and first run id of each run of a trial that this run of the suite started,
        in order; a trial may have run again."""
        self.going_on: list[str] = []
        """Workflow ids of trials that are under way again by themselves, since it was over."""
        self._decoder = Decoder(client, workflow_id)
        self._workflow_id = workflow_id
        self._definition: SuiteInput | None = None
        self._suite: Suite | None = None
        self._children: dict[int, tuple[str, str]] = {}
        """By the event of its start, in the newest run of the chain: workflow id and run id."""
        self._activities: dict[int, str] = {}
        """Likewise: the name of an activity."""
        self._asked: dict[int, str] = {}
        """Likewise: the name of an update that was accepted."""
        self._decides = False
        """Whether the workflow has just drawn its conclusions, of which all updates are part."""
        self._takes: dict[int, Callable[[Suite, HistoryEvent], Awaitable[None]]] = {
            EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: self._take_child,
            EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED: self._take_started_child,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: self._take_signal,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: self._take_update,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: self._take_answer,
            EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: self._take_completed_child,
            EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: self._take_failed_child,
            EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: self._take_activity,
            EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: self._take_result,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: self._take_cancel,
            **dict.fromkeys(_FORCED_ENDS, self._take_forced_end),
        }

    @property
    def cancelled(self) -> bool:
        """Whether the suite itself was cancelled."""
        return self._suite is not None and self._suite.cancelled

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
        """The newest end of each trial that has ended, in order; those taken over come first.

        A trial that was asked for again, and has not ended again, is not among them.
        """
        return list(self._suite.ends.values()) if self._suite else []

    def progress(self, offset: int = 0) -> SuiteProgress:
        """As the workflow's query of that name; of one that was terminated, as it was left."""
        suite = self._suite
        if suite is None:
            raise HistoryError(f"{self._workflow_id} has no history")
        progress = suite.progress(ProgressRequest(offset=offset))
        if self.over and not suite.over:
            return replace(progress, pending=0, not_run=progress.pending)
        return progress

    async def take(self, event: HistoryEvent) -> None:
        """Take the next event."""
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            await self._take_start(event)
            return
        suite = self._suite
        if suite is None:
            return
        if self._decides and kind not in _UPDATES:
            suite.judge()
        self._decides = kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED or (
            self._decides and kind in _UPDATES
        )
        take = self._takes.get(kind)
        if take:
            await take(suite, event)
        else:
            self._take_close(suite, event)

    def run_of(self, workflow_id: str) -> str | None:
        """The run that counts of a trial, by its first run id; None: it is no trial, or never
        ran."""
        suite = self._suite
        if suite is None:
            return None
        end = suite.ends.get(workflow_id)
        return end.run_id if end else suite.run_ids.get(workflow_id)

    def replace_end(self, summary: TrialSummary) -> None:
        """A run that went on from the one that counts of its trial has ended; it counts now."""
        if self._suite:
            self._suite.replace_end(summary)

    # --- Inside -----------------------------------------------------------------------------

    async def _take_start(self, event: HistoryEvent) -> None:
        attributes = event.workflow_execution_started_event_attributes
        start = await self._decoder.value(attributes.input, SuiteInput)
        self._definition = start
        self.run_id = attributes.first_execution_run_id
        self.started_at = start.state["started_at"] if start.state else event_time(event)
        self._suite = Suite(start)
        if not self.runs:  # else they are known
            self.runs += [run for run in self._suite.run_ids.items() if run[1]]
        self._children, self._activities, self._asked = {}, {}, {}
        self._decides = False

    async def _take_child(self, suite: Suite, event: HistoryEvent) -> None:
        suite.take(event.start_child_workflow_execution_initiated_event_attributes.workflow_id)

    async def _take_started_child(self, suite: Suite, event: HistoryEvent) -> None:
        attributes = event.child_workflow_execution_started_event_attributes
        child = attributes.workflow_execution
        self.runs.append((child.workflow_id, child.run_id))
        self._children[attributes.initiated_event_id] = child.workflow_id, child.run_id
        suite.started(child.workflow_id, child.run_id)

    async def _take_completed_child(self, suite: Suite, event: HistoryEvent) -> None:
        result = event.child_workflow_execution_completed_event_attributes.result
        suite.hear(await self._decoder.value(result, TrialSummary))

    async def _take_failed_child(self, suite: Suite, event: HistoryEvent) -> None:
        attributes = event.child_workflow_execution_failed_event_attributes
        error = await self._decoder.error(attributes.failure)
        if isinstance(error, ApplicationError) and error.details:
            suite.hear(adapter(TrialSummary).validate_python(error.details[0]))
        else:
            name, run_id = self._children[attributes.initiated_event_id]
            suite.lose(name, run_id, str(error))

    async def _take_forced_end(self, suite: Suite, event: HistoryEvent) -> None:
        attributes, reason = _FORCED_ENDS[event.event_type]
        # The run that was closed may be a later one of the child's chain.
        name, run_id = self._children[getattr(event, attributes).initiated_event_id]
        cancelled = event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED
        suite.lose(name, run_id, reason, cancelled=cancelled)

    async def _take_signal(self, suite: Suite, event: HistoryEvent) -> None:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name == TRIAL_ENDED:
            suite.hear(await self._decoder.value(signal.input, TrialSummary))

    async def _take_update(self, suite: Suite, event: HistoryEvent) -> None:
        """What people asked for; those who were refused left no event."""
        asked = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        self._asked[event.event_id] = asked.name
        if asked.name == SET_MAX_PARALLEL:
            control.set_max_parallel(suite, await self._decoder.value(asked.args, int))
        elif asked.name == PAUSE:
            control.pause(suite)
        elif asked.name == RESUME:
            control.resume(suite)
        elif asked.name == PRIORITISE:
            control.prioritise(suite, await self._decoder.value(asked.args, str))

    async def _take_answer(self, suite: Suite, event: HistoryEvent) -> None:
        attributes = event.workflow_execution_update_completed_event_attributes
        if self._asked.pop(attributes.accepted_event_id, None) == REQUEUE:
            # By the answer: a trial may have ended just then, which the handler had not heard.
            answer = await self._decoder.value(attributes.outcome.success, Requeued)
            suite.requeue(answer.trials)

    async def _take_activity(self, suite: Suite, event: HistoryEvent) -> None:
        activity = event.activity_task_scheduled_event_attributes.activity_type.name
        self._activities[event.event_id] = activity

    async def _take_result(self, suite: Suite, event: HistoryEvent) -> None:
        attributes = event.activity_task_completed_event_attributes
        activity = self._activities.pop(attributes.scheduled_event_id, None)
        if activity == PROBE_TRIALS:
            for closed in await self._decoder.value(attributes.result, list[ClosedTrial]):
                suite.found_closed(closed)
        elif activity == WRITE_MISSING:
            suite.written(await self._decoder.value(attributes.result, list[TrialSummary]))

    async def _take_cancel(self, suite: Suite, event: HistoryEvent) -> None:
        suite.cancel()

    def _take_close(self, suite: Suite, event: HistoryEvent) -> None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            self.terminated = (
                event.workflow_execution_terminated_event_attributes.reason or "by hand"
            )
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            self.terminated = TIMED_OUT
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            failure = event.workflow_execution_failed_event_attributes.failure
            self.terminated = failure.message or "its workflow failed"
        elif kind in (
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        ):
            if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                suite.cancelled = False  # a cancel that came when nothing was left to cancel
            # It closes when nothing runs: what was not started by then never was.
            for name in [name for name, run_id in suite.run_ids.items() if not run_id]:
                suite.lose(name, "", CANCELLED_UNSTARTED, cancelled=True)
        else:
            return
        self.over, self.ended_at = True, event_time(event)
