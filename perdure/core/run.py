"""The rules of one task run: what is ready, what an outcome means, when the run is over.

`TaskRun` takes events (an outcome, a lost worker, a cancel) and answers with dispatches. It has no
clock: `now` is seconds since 1970, handed in. The workflow around it only carries its decisions.

A step that takes a slot of a named limit waits for it before each attempt: the run says which
requests to send (`take_asks`), hears of grants (`grant`) and says what to give back
(`take_releases`). While nothing else of the task runs, its clock stands still.

Three counters of attempts are kept apart: application failures against the step's `retry`, worker
losses against `max_worker_losses`, rollbacks against `retry_config`. (Temporal has one counter
for all of them, so step activities are scheduled with a single attempt.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perdure.core.graph import Frontier, Graph
from perdure.core.journal import SCHEDULER, Entry, Journal
from perdure.core.record import Attempt, StepRecord, summed
from perdure.core.run_context import RunContext, first_context
from perdure.core.run_record import failed_step, instance_id, record_of
from perdure.core.run_slots import RunSlots
from perdure.core.run_start import BadRange, BadStart, UnknownLimit, check_limits, check_range
from perdure.core.task import Step, Task
from perdure.messages import (
    ContextDiffs,
    ContextRequest,
    FailureKind,
    RunRef,
    SlotGrant,
    SlotRelease,
    SlotRequest,
    StepFailure,
    StepOutcome,
    TaskInput,
)

__all__ = [
    "TASK_TIMEOUT",
    "WORKER_LOST",
    "BadRange",
    "BadStart",
    "Dispatch",
    "RunFailure",
    "RunStatus",
    "TaskRun",
    "UnknownLimit",
    "check_limits",
    "check_range",
    "events_since",
    "instance_id",
]

WORKER_LOST = "WorkerLost"
"""Type of the failure of a step whose worker was lost too often."""
TASK_TIMEOUT = "TaskTimeout"

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Dispatch:
    """One attempt to be made now."""

    step: Step
    index: int
    attempt: int
    epoch: int
    version: int
    """Number of diffs in the context that it is to see."""
    lost_attempts: tuple[int, ...]


@dataclass(frozen=True)
class RunFailure:
    """Why a run did not succeed: the first fatal error (T22)."""

    step: str | None
    message: str
    type: str
    kind: FailureKind


class TaskRun:
    """The state of one run and the rules that move it."""

    def __init__(
        self,
        task: Task,
        run: RunRef,
        *,
        now: float,
        seed: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        agent_model: str | None = None,
        agent_artifact_id: str | None = None,
        start_step: int = 0,
        end_step: int | None = None,
        limits: Mapping[str, int] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Begin a run of `task` at `now`.

        `limits`: slots by the limits' names. `timeout_seconds`: an upper bound of the task's own.
        Raises BadRange if `start_step` or `end_step` lies outside the task, and UnknownLimit if a
        step in that range takes a slot of a limit that is not among the `limits`.
        """
        total = len(task.steps)
        check_range(total, start_step, end_step)
        check_limits((step.body for step in task.steps[start_step:end_step]), limits or {})
        self.task = task
        self.run = run
        self.started_at = now
        self.ended_at: float | None = None
        self.epoch = 0
        self.rev = 0
        self.start_step = start_step
        self.end_step = total if end_step is None else end_step
        self.failure: RunFailure | None = None
        self.cancelled: str | None = None
        bounds = [s for s in (task.timeout_seconds, timeout_seconds) if s is not None]
        self.timeout_seconds = min(bounds, default=None)
        """Of the task's own limit and the one it was started with, the shorter."""
        self.events: list[dict[str, Any]] = []
        self._graph = Graph.of(task.steps)
        self._steps = {s.id: StepRecord(s.id, s.type) for s in task.steps}
        self._completed: list[str] = []
        for step in task.steps[:start_step]:  # T15: as done, and recorded from the start
            self._steps[step.id].status = "succeeded"
            self._completed.append(step.id)
        begun = first_context(task, run, seed, metadata, agent_model, agent_artifact_id)
        self._context = RunContext(Journal(begun))
        self._frontier = Frontier(self._graph, self._completed, self.end_step)
        self._running: dict[str, Attempt] = {}
        self._waiting: list[str] = []
        self._slots: RunSlots | None = None
        """None where no step takes a slot: then nothing below costs anything."""
        if limits and any(step.limit for step in task.steps):
            self._slots = RunSlots(run, limits, task.priority)
        self._note("task.started", now)

    @classmethod
    def of(cls, start: TaskInput, run: RunRef, now: float) -> TaskRun:
        """The run that was asked for, begun at `now`, or gone on with where it was.

        Raises as the constructor.
        """
        options = start.options
        made = cls(
            Task.from_dict(start.task),
            run,
            now=now,
            seed=start.seed,
            metadata=start.metadata,
            agent_model=options.agent_model,
            agent_artifact_id=options.agent_artifact_id,
            start_step=options.start_step,
            end_step=options.end_step,
            limits=options.limits,
            timeout_seconds=options.task_timeout_seconds,
        )
        if start.state:
            made.restore(start.state["run"])
        return made

    # --- What is to be done -----------------------------------------------------------------

    def take_ready(self, now: float) -> list[Dispatch]:
        """Every attempt that may start now, in step order, each handed out once (T16).

        A step that takes a slot asks for it first, and is among those of a later call.
        """
        if self.halted:
            return []
        due = [s for s in self._waiting if (self._steps[s].not_before or 0) <= now]
        self._waiting = [s for s in self._waiting if s not in due]
        ready = sorted([*due, *self._frontier.take_ready()], key=self._graph.index)
        if self._slots:
            ready = self._with_slots(self._slots, ready, now)
        dispatches = [self._dispatch(step_id, now) for step_id in ready]
        self._set_clock(now)
        return dispatches

    def wake_at(self) -> float | None:
        """When the next delayed attempt is due; None if none waits."""
        times = [self._steps[s].not_before or 0.0 for s in self._waiting]
        return None if self.halted or not times else min(times)

    @property
    def halted(self) -> bool:
        """True when nothing new is started: a fatal failure, a cancel or the task's time limit."""
        return self.failure is not None or self.cancelled is not None

    @property
    def over(self) -> bool:
        """True when nothing runs any more and nothing is to be started."""
        if self._running:
            return False
        return self.halted or len(self._completed) >= self.end_step

    @property
    def running(self) -> list[str]:
        """Ids of the steps under way, in step order."""
        return sorted(self._running, key=self._graph.index)

    @property
    def status(self) -> RunStatus:
        """`running` until the run is over."""
        if not self.over:
            return "running"
        if self.failure:
            return "failed"
        return "cancelled" if self.cancelled is not None else "succeeded"

    # --- What happened ----------------------------------------------------------------------

    def finish(self, dispatch: Dispatch, outcome: StepOutcome, now: float) -> None:
        """Take the outcome of an attempt. Those of earlier epochs or attempts are dropped (T35)."""
        attempt = self._current(dispatch)
        if attempt is None:
            return
        if outcome.status == "succeeded":
            self._end(dispatch, attempt, "succeeded", outcome, now)
            self._complete(dispatch, "succeeded", outcome)
        elif outcome.status == "cancelled":
            self._end(dispatch, attempt, "cancelled", outcome, now)
            self._record(dispatch, "cancelled", outcome)
            self._steps[dispatch.step.id].status = "cancelled"
        else:
            self._fail(dispatch, attempt, outcome, now)

    def lose(self, dispatch: Dispatch, outcome: StepOutcome | None, now: float) -> None:
        """The worker of an attempt is gone; `outcome` is what its last heartbeat told.

        The step starts again at once, until `max_worker_losses` are used up: then it fails with
        `WorkerLost`.
        """
        attempt = self._current(dispatch)
        if attempt is None:
            return
        step, record = dispatch.step, self._steps[dispatch.step.id]
        record.losses += 1
        if record.losses <= step.max_worker_losses and not self.halted:
            self._end(dispatch, attempt, "lost", outcome, now)
            self._again(step.id, now)
            return
        if self.cancelled is not None:
            self._end(dispatch, attempt, "lost", outcome, now)
            record.status = "cancelled"
            return
        lost = StepFailure(
            message=f"its worker was lost {record.losses} times "
            f"(max_worker_losses: {step.max_worker_losses})",
            type=WORKER_LOST,
            kind="infrastructure",
            retryable=False,
        )
        known = outcome or StepOutcome(status="failed")
        self._fail(
            dispatch,
            attempt,
            StepOutcome(status="failed", diff=known.diff, failure=lost, host=known.host),
            now,
        )

    def interrupt(self, dispatch: Dispatch, now: float) -> None:
        """A worker that was asked to stop hands an attempt back; this counts against nothing."""
        attempt = self._current(dispatch)
        if attempt is None:
            return
        self._end(dispatch, attempt, "interrupted", None, now)
        if self.cancelled is not None:
            self._steps[dispatch.step.id].status = "cancelled"
        elif self.halted:
            self._steps[dispatch.step.id].status = "not_run"
        else:
            self._again(dispatch.step.id, now)

    def cancel(self, reason: str, now: float) -> None:
        """Start nothing more; what runs is cancelled by the workflow and reports back (T24)."""
        if self.cancelled is None:
            self.cancelled = reason
            self._note("task.cancelling", now, reason=reason)
            self._leave_queues(now)

    def time_out(self, limit_seconds: float, now: float) -> None:
        """The task's own time limit has passed; what runs is cancelled by the workflow."""
        if not self.halted:
            self.failure = RunFailure(
                None, f"the task ran longer than its limit of {limit_seconds:g} s", TASK_TIMEOUT,
                "timeout",
            )  # fmt: skip
            self._note("task.timed_out", now)
            self._leave_queues(now)

    def close(self, now: float) -> None:
        """Write down the end; call once, when `over`."""
        self.ended_at = now
        self._leave_queues(now)
        for record in self._steps.values():
            if record.status in ("pending", "waiting"):
                record.status = "not_run"
        self._note(f"task.{'completed' if self.status == 'succeeded' else self.status}", now)

    # --- Slots of named limits, and the clock that waits for them ---------------------------

    def grant(self, grant: SlotGrant) -> bool:
        """Take a slot for the step that waits for it; True if one does.

        A slot that nobody here waits for any more is given back.
        """
        slots = self._slots
        if slots is None:
            # No step takes slots: it is meant for an earlier run of the same id.
            self._slots = slots = RunSlots(self.run, {}, self.task.priority)
        return slots.grant(grant.limit, grant.request_id)

    def take_asks(self) -> list[SlotRequest]:
        """The requests for slots to send, each handed out once."""
        return self._slots.take_asks() if self._slots else []

    def take_releases(self) -> list[SlotRelease]:
        """The slots to give back and the queues to leave, each handed out once."""
        return self._slots.take_releases() if self._slots else []

    @property
    def open_requests(self) -> list[SlotRequest]:
        """What was asked and has not been granted yet."""
        return self._slots.requests if self._slots else []

    @property
    def deadline(self) -> float | None:
        """When the task's time is up, as of now.

        None without a limit, and while the clock stands still: nothing runs, and something waits
        for a slot.
        """
        still = self._slots.still_seconds if self._slots else 0.0
        if self.timeout_seconds is None or still is None:
            return None
        return self.started_at + self.timeout_seconds + still

    # --- What can be seen -------------------------------------------------------------------

    @property
    def context(self) -> dict[str, Any]:
        """The context as of now; treat it as read-only."""
        return self._context.value

    @property
    def context_bytes(self) -> int:
        """An upper bound of the context's size as JSON, kept without walking it again."""
        return self._context.size_bytes

    @property
    def version(self) -> int:
        """Number of diffs applied in this epoch."""
        return self._context.version

    def diffs(self, request: ContextRequest) -> ContextDiffs:
        """What a worker's copy of the context lacks."""
        if request.epoch != self.epoch:
            return ContextDiffs(stale=True)
        return self._context.diffs(request)

    @property
    def completed(self) -> int:
        """Steps that are done, tolerated failures among them (T21)."""
        return len(self._completed)

    @property
    def attempts(self) -> int:
        """Attempts made so far, over all steps."""
        return sum(len(r.attempts) for r in self._steps.values())

    @property
    def duration_seconds(self) -> float | None:
        """Wall time from start to end; None while it runs."""
        return None if self.ended_at is None else round(self.ended_at - self.started_at, 3)

    @property
    def usage(self) -> dict[str, float]:
        """What all attempts together reported."""
        return summed([a.usage for r in self._steps.values() for a in r.attempts])

    def progress(self) -> dict[str, Any]:
        """A short state: for a line on a terminal.

        `waiting` holds the steps that wait for the delay before their next attempt or for a slot;
        `waiting_for` the latter alone, each with the name of its limit.
        """
        slots = self._slots.waiting if self._slots else {}
        return {
            "status": self.status,
            "completed": self.completed,
            "total": self.end_step,
            "running": self.running,
            "waiting": [*self._waiting, *slots],
            "waiting_for": slots,
        }

    def record(self) -> dict[str, Any]:
        """Everything about the run, as `show --json` prints it (T48)."""
        return record_of(self, self._steps, self._completed)

    # --- Over a continue-as-new -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a restored run needs; only while nothing runs, or is left to be sent."""
        return {
            "started_at": self.started_at,
            "epoch": self.epoch,
            "rev": self.rev,
            "failure": asdict(self.failure) if self.failure else None,
            "cancelled": self.cancelled,
            "completed": self._completed,
            "waiting": self._waiting,
            "steps": {
                s: r.to_state()
                for s, r in self._steps.items()
                if r.attempts or r.status == "waiting"
            },
            "journal": self._context.state(),
            "events": self.events,
            "slots": self._slots.state() if self._slots else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, taken from a run of the same task and range."""
        self.started_at = state["started_at"]
        self.epoch = state["epoch"]
        self.rev = state["rev"]
        self.failure = RunFailure(**state["failure"]) if state["failure"] else None
        self.cancelled = state["cancelled"]
        self._completed = list(state["completed"])
        self._waiting = list(state["waiting"])
        for step_id, known in state["steps"].items():
            self._steps[step_id].restore(known)
        self._context = RunContext.from_state(state["journal"])
        self._frontier = Frontier(self._graph, self._completed, self.end_step)
        known_waiting = set(self._waiting)
        if self._slots and state.get("slots"):
            self._slots.restore(state["slots"])
            known_waiting |= {*self._slots.waiting, *self._slots.granted}
        self._waiting += [s for s in self._frontier.take_ready() if s not in known_waiting]
        self.events = list(state["events"])

    # --- Inside -----------------------------------------------------------------------------

    def _dispatch(self, step_id: str, now: float) -> Dispatch:
        record = self._steps[step_id]
        lost = tuple(record.lost_attempts)
        attempt = Attempt(len(record.attempts) + 1, self.epoch, started_at=now)
        record.attempts.append(attempt)
        record.status, record.not_before = "running", None
        self._running[step_id] = attempt
        index = self._graph.index(step_id)
        self._note("step.started", now, step=step_id, attempt=attempt.number)
        return Dispatch(
            self.task.steps[index], index, attempt.number, self.epoch, self.version, lost
        )

    def _with_slots(self, slots: RunSlots, ready: list[str], now: float) -> list[str]:
        """Those of the ready steps that need no slot, and those whose slots have come."""
        starting = [s for s in slots.granted if s not in self._running]
        for step_id in starting:
            self._steps[step_id].waited += slots.waited(step_id, now)
        for step_id in ready:
            record = self._steps[step_id]
            limit = self.task.steps[self._graph.index(step_id)].limit
            if limit is None:
                starting.append(step_id)
                continue
            attempt = f"{step_id}#{self.epoch}.{len(record.attempts) + 1}"
            slots.ask(step_id, limit, attempt, now)
            record.status, record.not_before = "waiting", None
            self._note("step.waiting", now, step=step_id, limit=limit)
        return sorted(starting, key=self._graph.index)

    def _leave_queues(self, now: float) -> None:
        """Give back every slot that no running attempt holds, and wait for no more."""
        if self._slots:
            for step_id in [*self._slots.waiting, *self._slots.granted]:
                if step_id not in self._running:
                    self._steps[step_id].waited += self._slots.waited(step_id, now)
                    self._slots.give_back(step_id)
            self._set_clock(now)

    def _set_clock(self, now: float) -> None:
        if self._slots:
            self._slots.set_clock(running=bool(self._running), now=now)

    def _current(self, dispatch: Dispatch) -> Attempt | None:
        """The attempt behind a dispatch, unless it has been superseded."""
        attempt = self._running.get(dispatch.step.id)
        if attempt is None or (attempt.number, self.epoch) != (dispatch.attempt, dispatch.epoch):
            return None
        return attempt

    def _end(
        self,
        dispatch: Dispatch,
        attempt: Attempt,
        status: Literal["succeeded", "failed", "cancelled", "lost", "interrupted"],
        outcome: StepOutcome | None,
        now: float,
    ) -> None:
        del self._running[dispatch.step.id]
        attempt.end(status, outcome, now)
        if self._slots:
            self._slots.give_back(dispatch.step.id)
            self._set_clock(now)
        self.rev += 1
        told: dict[str, Any] = {"seconds": attempt.duration_seconds}
        if attempt.failure:
            told["error"] = attempt.failure.message
            told["error_type"] = attempt.failure.type
        name = {"succeeded": "completed"}.get(status, status)
        self._note(f"step.{name}", now, step=dispatch.step.id, attempt=attempt.number, **told)

    def _complete(self, dispatch: Dispatch, status: str, outcome: StepOutcome) -> None:
        step_id = dispatch.step.id
        self._record(dispatch, status, outcome)
        self._steps[step_id].status = "succeeded" if status == "succeeded" else "failed"
        self._completed.append(step_id)
        self._frontier.finish(step_id)

    def _record(self, dispatch: Dispatch, status: str, outcome: StepOutcome) -> None:
        self._context.write(
            Entry(dispatch.step.id, dispatch.attempt, dispatch.epoch, status, outcome.diff)
        )

    def _fail(self, dispatch: Dispatch, attempt: Attempt, outcome: StepOutcome, now: float) -> None:
        step, record = dispatch.step, self._steps[dispatch.step.id]
        failure = outcome.failure or StepFailure("the step failed without a reason")
        self._end(dispatch, attempt, "failed", outcome, now)
        record.failures += 1
        if self.cancelled is not None:  # T24: what was cancelled is not judged any more
            self._record(dispatch, "cancelled", outcome)
            record.status = "cancelled"
            return
        delay = None if self.halted else self._delay(step, record, failure)  # T23
        if delay is None:
            self._fail_for_good(dispatch, outcome, failure, now)
        self._mark_failed(step, attempt, failure)
        if delay is not None:
            self._again(step.id, now + delay)
            self._note("step.retry_scheduled", now, step=step.id, delay_seconds=delay)

    def _fail_for_good(
        self, dispatch: Dispatch, outcome: StepOutcome, failure: StepFailure, now: float
    ) -> None:
        if not dispatch.step.fail_task_on_error:  # T21: dependents go on
            self._complete(dispatch, "failed", outcome)
            return
        self._record(dispatch, "failed", outcome)  # T57: what it had half written stays visible
        self._steps[dispatch.step.id].status = "failed"
        if self.failure is None:  # T22: the first of several is the task's
            self.failure = RunFailure(dispatch.step.id, failure.message, failure.type, failure.kind)
            self._leave_queues(now)

    @staticmethod
    def _delay(step: Step, record: StepRecord, failure: StepFailure) -> float | None:
        """Seconds to the next attempt; None when the step has failed for good."""
        retry = step.retry
        if not failure.retryable or failure.type in retry.non_retryable_errors:
            return None
        if record.failures >= retry.max_attempts:
            return None
        # The exponent is bounded: 2.0 ** 1024 overflows, and nobody waits longer than a day.
        grown = retry.backoff ** min(record.failures - 1, 64)
        return min(retry.initial_interval * grown, 86_400.0)

    def _again(self, step_id: str, at: float) -> None:
        record = self._steps[step_id]
        record.status, record.not_before = "waiting", at
        self._waiting.append(step_id)

    def _mark_failed(self, step: Step, attempt: Attempt, failure: StepFailure) -> None:
        """Append the attempt to `metadata.failed_steps` (T20)."""
        op = {
            "op": "edit",
            "path": ["metadata", "failed_steps"],
            "remove": [],
            "append": [failed_step(step, attempt, failure)],
        }
        self._context.write(Entry(SCHEDULER, attempt.number, self.epoch, "succeeded", [op]))

    def _note(self, kind: str, now: float, **facts: Any) -> None:
        self.events.append({"seq": len(self.events) + 1, "type": kind, "at": now, **facts})


def events_since(events: Sequence[dict[str, Any]], offset: int, limit: int) -> list[dict[str, Any]]:
    """At most `limit` events after the first `offset` ones."""
    return list(events[offset : offset + limit])
