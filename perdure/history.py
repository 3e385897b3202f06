"""A task run as its history tells it: the record, and what happened, in order.

The events go through `perdure.core.run` exactly as the workflow put them through it, so this gives
what the workflow's own queries give, without a worker: nothing runs because somebody looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionSignaledEventAttributes,
)
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.attempt_ends import take_error
from perdure.carry_ends import CarryHistory
from perdure.core.pool_decisions import Grant, LoseLease, Refuse, Renew
from perdure.core.run import TASK_TIMEOUT, BadStart, Dispatch, RunFailure, TaskRun
from perdure.core.task import Task
from perdure.event_log import Decoder, HistoryError, event_time, pages
from perdure.job_messages import JobEnd
from perdure.messages import FailureKind, Json, RunRef, SlotGrant, StepOutcome, TaskInput
from perdure.names import (
    ASK_SLOT,
    BAD_INPUT,
    CARRY_WORK,
    COMPENSATE_STEP,
    JOB_ENDED,
    LEASE_GRANTED,
    LEASE_LOST,
    LEASE_REFUSED,
    LEASE_RENEWED,
    RUN_STEP,
    SLOT_GRANTED,
    STOP_JOBS,
    TIME_LIMIT_TIMER,
    WITHDRAW,
)
from perdure.rollback_history import RollbackHistory
from perdure.task_jobs_history import (
    INITIATED,
    JOB_TERMINATED,
    NOT_STARTED,
    STARTED,
    TaskJobsHistory,
)

RunEvent = dict[str, Any]
Context = dict[str, Json]

_CANCEL = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
_SIGNAL = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED

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
        for index, event in enumerate(page):
            await history.take(event, page[index + 1 :])
    return history


async def happenings(
    client: Client, workflow_id: str, run_id: str | None = None, *, follow: bool = True
) -> AsyncIterator[tuple[RunEvent, Context]]:
    """The events of a task run, each with the context as it was then; needs no worker.

    With `follow`, waits for those to come until the run ends. Raises as `record_of`.
    """
    history = TaskHistory(client, workflow_id)
    async for page in pages(client, workflow_id, run_id, follow=follow):
        for index, event in enumerate(page):
            for told in await history.take(event, page[index + 1 :]):
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
        self._suggested = False
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
        self._asked = 0  # requests for slots whose events are not met yet
        self._attempts: dict[int, Dispatch] = {}  # by the id of its scheduled event
        self._rollbacks = RollbackHistory(self._decoder)
        self._carrying = CarryHistory(self._decoder)
        self._jobs = TaskJobsHistory(self._decoder)
        self._deadlines: dict[str, float | None] = {}  # the task's time limit, by timer
        self._handing_over = False
        self._is_first = True  # whether the newest workflow task is its first one
        self._closed = False  # one that hands over in the moment of its end ends in the next run

    @property
    def start(self) -> TaskInput:
        """What the newest run of the chain was started with.

        Raises HistoryError if no event was taken.
        """
        if self._start is None:
            raise HistoryError(f"{self._workflow_id} has no history")
        return self._start

    @property
    def run(self) -> TaskRun:
        """The run as of the last event taken.

        Raises HistoryError if there was none.
        """
        return self._run or self._new_run(self._started_at)

    def record(self) -> dict[str, Any]:
        """The record as of the last event taken.

        Raises HistoryError if there was none.
        """
        return self.run.record()

    def progress(self) -> dict[str, Any]:
        """Status, steps done and the steps under way, as of the last event taken.

        Raises HistoryError if there was none.
        """
        return self.run.progress()

    async def take(
        self, event: HistoryEvent, ahead: Sequence[HistoryEvent] = ()
    ) -> list[tuple[RunEvent, Context]]:
        """Take the next event; returns what happened in the run, with the context of then.

        `ahead`: events that follow, as far as they are known.
        """
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            await self._take_start(event)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            self._task_times = {event.event_id: event_time(event)}
            self._suggested = event.workflow_task_started_event_attributes.suggest_continue_as_new
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            started = event.workflow_task_completed_event_attributes.started_event_id
            now = self._task_times.get(started, event_time(event))
            run = self._begin_run(now)
            await self._jobs.claim_ahead(run, event.event_id, ahead, now)
            await self._activate(run, started, now)
        elif kind == INITIATED and self._run:
            await self._jobs.claim(self._run, event, self._now)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            self._take_dispatch(event)
        elif kind == EventType.EVENT_TYPE_TIMER_STARTED:
            await self._take_timer(event)
        elif kind in _ATTEMPT_ENDS or kind in (
            EventType.EVENT_TYPE_TIMER_FIRED,
            _CANCEL,
            _SIGNAL,
            STARTED,
            NOT_STARTED,
            JOB_TERMINATED,
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
        start = self.start
        assert self._ref is not None
        try:
            return TaskRun.of(start, self._ref, now)
        except BadStart as error:
            task = Task.from_dict(start.task)
            limits = {step.limit: 1 for step in task.steps if step.limit}
            run = TaskRun(task, self._ref, now=now, limits=limits)
            run.failure = RunFailure(None, str(error), BAD_INPUT, "bad_input")
            return run

    def _begin_run(self, now: float) -> TaskRun:
        """The run, made anew in the first workflow task of each run of the chain."""
        self._is_first = self._run is None
        if self._run is None:
            self._run = self._new_run(now)
            self._tell()
        return self._run

    async def _activate(self, run: TaskRun, started: int, now: float) -> None:
        """Do what the workflow did in the task that began with event `started`."""
        self._now, self._dispatched = now, False
        due = [event for event in self._waiting if event.event_id < started]
        self._waiting = self._waiting[len(due) :]
        await self._take_signals(run, started, due)
        is_cancelled = any(event.event_type == _CANCEL for event in due)
        if self._is_first and is_cancelled and self._drives_at_once():
            # A cancel that is there from the start finds the code at its first wait, not before.
            self._take_ready(run)
        # Within one task of the SDK (1.35) a cancel and a timer reach the code before an outcome
        # does: an activity's result passes a shield, and so takes one more turn of the loop.
        for event in sorted(due, key=lambda event: event.event_type in _ATTEMPT_ENDS):
            if not self._closed:
                await self._apply(run, event)
                self._tell()
        failure = run.failure
        self._drop_unsent(run, run.to_stop)
        if run.is_rolling_back and not run.halted and not self._handing_over:
            # It may end without a step that begins: the span waits for its delay, or for a lease.
            self._take_ready(run)
        is_stopped = run.cancelled is not None or run.is_parting
        if is_stopped or (failure and failure.type == TASK_TIMEOUT):
            self._drop_unsent(run, [d.step.id for d in self._ready.values()])
        if run.over and not run.has_jobs and not run.is_stopping_jobs and not self._closed:
            self._close(now)

    def _drop_unsent(self, run: TaskRun, steps: list[str]) -> None:
        """Steps begun with the signals and cancelled by what came with them: the server never
        knew."""
        for name, dispatch in [*self._ready.items()]:
            if dispatch.step.id in steps:
                run.finish(dispatch, StepOutcome(status="cancelled"), self._now)
                del self._ready[name]
        self._tell()

    def _drives_at_once(self) -> bool:
        """Whether this run of the chain starts steps before it waits for anything."""
        assert self._start is not None
        if self._run is not None and self._run.work_due:
            return False
        is_bound = self._start.state is not None and self._start.state["host"]
        return bool(is_bound or not self._start.options.multi_host)

    async def _take_signals(self, run: TaskRun, started: int, events: list[HistoryEvent]) -> None:
        """Take the grants of slots and what the pool and the suite say of the lease.

        The SDK (1.35) lets the code run once with the signals alone, before anything else that
        came with them: so what they let begin began before that.
        """
        start = self._start
        assert start is not None
        limit = start.options.history_limit_events
        is_long = self._suggested or (limit is not None and started >= limit)
        is_granted = False
        for event in events:
            if event.event_type == _SIGNAL:
                signal = event.workflow_execution_signaled_event_attributes
                if not self._closed:
                    with contextlib.suppress(HistoryError):  # dropped by the SDK, too
                        is_granted = await self._take_signal(run, signal) or is_granted
        self._handing_over = self._handing_over or is_long
        # With a choice of hosts, one that the grant does not name is chosen first.
        is_bound = self._drives_at_once() or run.lease_host is not None
        if is_granted and is_bound and not run.work_due and not self._handing_over:
            self._take_ready(run)

    async def _take_signal(
        self, run: TaskRun, signal: WorkflowExecutionSignaledEventAttributes
    ) -> bool:
        """Tell the run what a signal says; True if steps may begin by it."""
        name, value = signal.signal_name, signal.input
        if name == SLOT_GRANTED:
            return run.grant(await self._decoder.value(value, SlotGrant))
        if name == LEASE_GRANTED:
            return run.lease_granted(await self._decoder.value(value, Grant), self._now)
        if name == LEASE_RENEWED:
            return run.lease_renewed(await self._decoder.value(value, Renew), self._now)
        if name == LEASE_REFUSED:
            run.lease_refused(await self._decoder.value(value, Refuse), self._now)
        elif name == LEASE_LOST:
            run.lease_lost(await self._decoder.value(value, LoseLease), self._now)
        elif name == WITHDRAW:
            run.withdraw(self._now)
        elif name == JOB_ENDED:
            run.job_ended(await self._decoder.value(value, JobEnd), self._now)
        return False

    async def _apply(self, run: TaskRun, event: HistoryEvent) -> None:
        if event.event_type == _CANCEL:
            reason = event.workflow_execution_cancel_requested_event_attributes.cause
            run.cancel(reason or "cancelled", self._now)
        elif event.event_type == EventType.EVENT_TYPE_TIMER_FIRED:
            limit = run.timeout_seconds
            deadline = self._deadlines.pop(event.timer_fired_event_attributes.timer_id, None)
            if limit and deadline and deadline == run.deadline and not run.over:
                run.time_out(limit, self._now)
        elif event.event_type in (STARTED, NOT_STARTED, JOB_TERMINATED):
            self._jobs.hear(run, event, self._now)
        elif event.event_type in _ATTEMPT_ENDS:
            attributes = getattr(event, _ATTEMPT_ENDS[event.event_type])
            dispatch = self._attempts.pop(attributes.scheduled_event_id, None)
            if dispatch is not None:
                await self._end_attempt(run, dispatch, event)
            await self._rollbacks.end(run, attributes.scheduled_event_id, event, self._now)
            await self._carrying.end(run, attributes.scheduled_event_id, event, self._now)
            await self._jobs.end(run, attributes.scheduled_event_id, event, self._now)

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
        """A step was started, or asked for its slot: so the workflow took what was ready."""
        attributes = event.activity_task_scheduled_event_attributes
        kind, run = attributes.activity_type.name, self._run
        if kind == CARRY_WORK:
            self._carrying.begin(event)
        is_undoing = kind == COMPENSATE_STEP or (
            kind == STOP_JOBS and attributes.activity_id.startswith("undo ")
        )
        if run is not None and kind == STOP_JOBS and not is_undoing:
            self._jobs.begin_stop(run, event)
        if run is None or not (is_undoing or kind in (RUN_STEP, ASK_SLOT)):
            return
        is_known = attributes.activity_id in self._ready or (kind == ASK_SLOT and self._asked)
        if not self._dispatched and not is_known:
            self._dispatched = True
            self._take_ready(run)
        if is_undoing:
            self._rollbacks.begin(run, event, self._now)
            self._tell()
            return
        if kind == ASK_SLOT:
            self._asked -= 1
            return
        dispatched = self._ready.pop(attributes.activity_id, None)
        if dispatched is None:
            raise HistoryError(
                f"the history of {self._workflow_id} was written by another version of perdure: "
                f"it starts {attributes.activity_id} where this one would not"
            )
        self._attempts[event.event_id] = dispatched

    def _take_ready(self, run: TaskRun) -> None:
        for dispatch in run.take_ready(self._now):
            name = f"{dispatch.step.id}#{dispatch.epoch}.{dispatch.attempt}"
            self._ready[name] = dispatch
        self._asked += len(run.take_asks())
        self._rollbacks.carry(run, self._now)
        self._tell()

    async def _take_timer(self, event: HistoryEvent) -> None:
        if self._run is None or not event.user_metadata.HasField("summary"):
            return
        summary = await self._decoder.value(Payloads(payloads=[event.user_metadata.summary]), str)
        if summary == TIME_LIMIT_TIMER:
            timer = event.timer_started_event_attributes.timer_id
            self._deadlines[timer] = self._run.deadline

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
