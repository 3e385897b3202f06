"""A task run as its history tells it: the record, and what happened, in order.

The events go through `perdure.core.run` exactly as the workflow put them through it, so this gives
what the workflow's own queries give, without a worker: nothing runs because somebody looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.attempt_ends import take_error
from perdure.core.run import BadRange, Dispatch, RunFailure, TaskRun
from perdure.core.task import Task
from perdure.event_log import Decoder, HistoryError, event_time, pages
from perdure.messages import FailureKind, Json, RunRef, StepOutcome, TaskInput
from perdure.names import BAD_INPUT, RUN_STEP

RunEvent = dict[str, Any]
Context = dict[str, Json]

_ATTEMPT_ENDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "activity_task_completed_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity_task_failed_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity_task_timed_out_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "activity_task_canceled_event_attributes",
}


async def record_of(client: Client, workflow_id: str, run_id: str | None = None) -> dict[str, Any]:
    """The record of a task run, as the workflow's query `record` gives it; needs no worker.

    `run_id`: any run of a chain; its newest one is read. Default: the newest run of the id.
    Raises UnknownRun, and HistoryError if the history cannot be read.
    """
    return (await history_of(client, workflow_id, run_id)).record()


async def history_of(client: Client, workflow_id: str, run_id: str | None = None) -> TaskHistory:
    """A task run as of now. Raises as `record_of`."""
    history = TaskHistory(client, workflow_id)
    async for page in pages(client, workflow_id, run_id):
        for event in page:
            await history.take(event)
    return history


async def happenings(
    client: Client, workflow_id: str, run_id: str | None = None, *, follow: bool = True
) -> AsyncIterator[tuple[RunEvent, Context]]:
    """The events of a task run, each with the context as it was then; needs no worker.

    With `follow`, waits for those to come until the run ends. Raises as `record_of`.
    """
    history = TaskHistory(client, workflow_id)
    async for page in pages(client, workflow_id, run_id, follow=follow):
        for event in page:
            for told in await history.take(event):
                yield told


class TaskHistory:
    """A task run, rebuilt event by event."""

    def __init__(self, client: Client, workflow_id: str) -> None:
        self._decoder = Decoder(client, workflow_id)
        self._workflow_id = workflow_id
        self._start: TaskInput | None = None
        self._ref: RunRef | None = None
        self._run: TaskRun | None = None
        self._started_at = 0.0
        self._closed = False
        self._told = 0
        self._news: list[tuple[RunEvent, Context]] = []
        self._forget_run()

    def _forget_run(self) -> None:
        """Drop what belongs to one run of a chain alone."""
        self._waiting: list[HistoryEvent] = []  # until a workflow task takes them up
        self._task_times: dict[int, float] = {}
        self._now = 0.0
        self._dispatched = False  # whether the newest workflow task's dispatches are taken
        self._ready: dict[str, Dispatch] = {}  # by activity id, until its event is met
        self._attempts: dict[int, Dispatch] = {}  # by the id of its scheduled event
        self._deadline: str | None = None
        self._timers_met = 0

    def record(self) -> dict[str, Any]:
        """The record as of the last event taken.

        Raises HistoryError if there was none.
        """
        return (self._run or self._new_run(self._started_at)).record()

    def progress(self) -> dict[str, Any]:
        """Status, steps done and the steps under way, as of the last event taken.

        Raises HistoryError if there was none.
        """
        return (self._run or self._new_run(self._started_at)).progress()

    async def take(self, event: HistoryEvent) -> list[tuple[RunEvent, Context]]:
        """Take the next event; returns what happened in the run, with the context of then."""
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            await self._take_start(event)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            self._task_times = {event.event_id: event_time(event)}
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            started = event.workflow_task_completed_event_attributes.started_event_id
            await self._activate(started, self._task_times.get(started, event_time(event)))
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            self._take_dispatch(event)
        elif kind == EventType.EVENT_TYPE_TIMER_STARTED:
            self._take_timer(event)
        elif kind in _ATTEMPT_ENDS or kind in (
            EventType.EVENT_TYPE_TIMER_FIRED,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
        ):
            self._waiting.append(event)
        else:
            await self._take_close(event)
        news, self._news = self._news, []
        return news

    # --- The workflow's own events ----------------------------------------------------------

    async def _take_start(self, event: HistoryEvent) -> None:
        attributes = event.workflow_execution_started_event_attributes
        start = await self._decoder.value(attributes.input, TaskInput)
        self._forget_run()
        self._start = start
        self._ref = RunRef(
            workflow_id=self._workflow_id,
            run_id=attributes.first_execution_run_id,
            suite=start.suite,
            task_id=start.task["id"],
            trial=start.trial,
        )
        self._started_at = event_time(event)
        self._run = None  # made by the first workflow task, at its time

    def _new_run(self, now: float) -> TaskRun:
        start = self._start
        if start is None or self._ref is None:
            raise HistoryError(f"{self._workflow_id} has no history")
        options, task = start.options, Task.from_dict(start.task)
        try:
            run = TaskRun(
                task,
                self._ref,
                now=now,
                seed=start.seed,
                metadata=start.metadata,
                agent_model=options.agent_model,
                agent_artifact_id=options.agent_artifact_id,
                start_step=options.start_step,
                end_step=options.end_step,
            )
        except BadRange as error:
            run = TaskRun(task, self._ref, now=now)
            run.failure = RunFailure(None, str(error), BAD_INPUT, "bad_input")
        if start.state:
            run.restore(start.state["run"])
        return run

    async def _activate(self, started: int, now: float) -> None:
        """Do what the workflow did in the task that began with event `started`."""
        self._now, self._dispatched = now, False
        if self._run is None:
            self._run = self._new_run(now)
            self._tell()
        due = [event for event in self._waiting if event.event_id < started]
        self._waiting = self._waiting[len(due) :]
        # Within one task of the SDK (1.35) a cancel and a timer reach the code before an outcome
        # does: an activity's result passes a shield, and so takes one more turn of the loop.
        for event in sorted(due, key=lambda event: event.event_type in _ATTEMPT_ENDS):
            if not self._closed:
                await self._apply(self._run, event)
                self._tell()
        if self._run.over and not self._closed:
            self._close(now)

    async def _apply(self, run: TaskRun, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
            reason = event.workflow_execution_cancel_requested_event_attributes.cause
            run.cancel(reason or "cancelled", self._now)
        elif event.event_type == EventType.EVENT_TYPE_TIMER_FIRED:
            limit = run.task.timeout_seconds
            timer = event.timer_fired_event_attributes.timer_id
            if timer == self._deadline and limit is not None and not run.over:
                run.time_out(limit, self._now)
        else:
            attributes = getattr(event, _ATTEMPT_ENDS[event.event_type])
            dispatch = self._attempts.pop(attributes.scheduled_event_id, None)
            if dispatch is not None:
                await self._end_attempt(run, dispatch, event)

    async def _end_attempt(self, run: TaskRun, dispatch: Dispatch, event: HistoryEvent) -> None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            result = event.activity_task_completed_event_attributes.result
            run.finish(dispatch, await self._decoder.value(result, StepOutcome), self._now)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
            run.finish(dispatch, StepOutcome(status="cancelled"), self._now)
        else:
            failure = getattr(event, _ATTEMPT_ENDS[kind]).failure
            take_error(run, dispatch, await self._decoder.error(failure), self._now)

    def _take_dispatch(self, event: HistoryEvent) -> None:
        """A step was started: so the workflow took what was ready, and this is one of it."""
        attributes = event.activity_task_scheduled_event_attributes
        if attributes.activity_type.name != RUN_STEP or self._run is None:
            return
        if not self._dispatched:
            self._dispatched = True
            for dispatch in self._run.take_ready(self._now):
                name = f"{dispatch.step.id}#{dispatch.epoch}.{dispatch.attempt}"
                self._ready[name] = dispatch
            self._tell()
        dispatched = self._ready.pop(attributes.activity_id, None)
        if dispatched is None:
            raise HistoryError(
                f"the history of {self._workflow_id} was written by another version of perdure: "
                f"it starts {attributes.activity_id} where this one would not"
            )
        self._attempts[event.event_id] = dispatched

    def _take_timer(self, event: HistoryEvent) -> None:
        """The first timer of each run is the task's time limit, if it has one."""
        self._timers_met += 1
        limited = self._run is not None and self._run.task.timeout_seconds is not None
        if limited and self._timers_met == 1:
            self._deadline = event.timer_started_event_attributes.timer_id

    # --- The end ----------------------------------------------------------------------------

    async def _take_close(self, event: HistoryEvent) -> None:
        """Ends that the workflow did not decide on itself; those that it did are known by now."""
        if self._closed:
            return
        kind, now = event.event_type, event_time(event)
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            reason = event.workflow_execution_terminated_event_attributes.reason
            self._break_off(f"terminated: {reason}" if reason else "terminated", None, now)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
            self._break_off("cancelled", None, now)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            failure = RunFailure(None, "its workflow timed out", "Timeout", "timeout")
            self._break_off("timed out", failure, now)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            error = await self._decoder.error(
                event.workflow_execution_failed_event_attributes.failure
            )
            known = isinstance(error, ApplicationError)
            name = error.type if isinstance(error, ApplicationError) and error.type else "Error"
            message = error.message if isinstance(error, ApplicationError) else str(error)
            what: FailureKind = "bad_input" if known and name == BAD_INPUT else "infrastructure"
            self._break_off("failed", RunFailure(None, message, name, what), now)

    def _break_off(self, reason: str, failure: RunFailure | None, now: float) -> None:
        """The workflow closed before the run was over."""
        self._run = run = self._run or self._new_run(now)
        if failure:
            run.failure = run.failure or failure
        else:
            run.cancel(reason, now)
        for dispatch in [*self._ready.values(), *self._attempts.values()]:
            run.interrupt(dispatch, now)
        self._close(now)

    def _close(self, now: float) -> None:
        assert self._run is not None
        self._run.close(now)
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        """Note down what happened since the last call."""
        run = self._run
        assert run is not None
        self._news += [(event, run.context) for event in run.events[self._told :]]
        self._told = len(run.events)
