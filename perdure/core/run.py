"""The rules of one task run: what is ready, what an outcome means, when the run is over.

`TaskRun` takes events (an outcome, a lost worker, a cancel) and answers with dispatches. It has no
clock: `now` is seconds since 1970, handed in. The workflow around it only carries its decisions.

Three counters of attempts are kept apart: application failures against the step's `retry`, worker
losses against `max_worker_losses`, rollbacks against `retry_config`. (Temporal has one counter
for all of them, so step activities are scheduled with a single attempt.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perdure.core.context import new_context, size_bytes
from perdure.core.graph import Frontier, Graph
from perdure.core.journal import SCHEDULER, Entry, Journal
from perdure.core.record import Attempt, StepRecord, summed, utc_iso, utc_minute
from perdure.core.task import Step, Task
from perdure.messages import (
    ContextDiffs,
    ContextRequest,
    FailureKind,
    RunRef,
    StepFailure,
    StepOutcome,
)

WORKER_LOST = "WorkerLost"
"""Type of the failure of a step whose worker was lost too often."""
TASK_TIMEOUT = "TaskTimeout"

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]


class BadRange(ValueError):
    """`start_step` or `end_step` lies outside the task (T14)."""


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


def check_range(total: int, start_step: int, end_step: int | None) -> None:
    """Refuse a range outside the task (T14).

    Raises BadRange with the value and the range allowed.
    """
    if not 0 <= start_step < total:
        raise BadRange(f"start_step {start_step} is outside 0 to {total - 1}")
    if end_step is not None and not start_step < end_step <= total:
        raise BadRange(f"end_step {end_step} is outside {start_step + 1} to {total}")


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
    ) -> None:
        """Begin a run of `task` at `now`.

        Raises BadRange if `start_step` or `end_step` lies outside the task.
        """
        total = len(task.steps)
        check_range(total, start_step, end_step)
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
        self.events: list[dict[str, Any]] = []
        self._graph = Graph.of(task.steps)
        self._steps = {s.id: StepRecord(s.id, s.type) for s in task.steps}
        self._completed: list[str] = []
        for step in task.steps[:start_step]:  # T15: as done, and recorded from the start
            self._steps[step.id].status = "succeeded"
            self._completed.append(step.id)
        self._journal = Journal(
            new_context(
                metadata={
                    **task.metadata,
                    **(metadata or {}),
                    **({"seed": seed} if seed else {}),
                    "run_group_id": (metadata or {}).get("run_group_id")
                    or run.run_id.replace("-", ""),
                },
                agent_model=agent_model,
                agent_artifact_id=agent_artifact_id,
                instance_id=instance_id(run),
            )
        )
        self._context_bytes = size_bytes(self._journal.seed)
        self._frontier = Frontier(self._graph, self._completed, self.end_step)
        self._running: dict[str, Attempt] = {}
        self._waiting: list[str] = []
        self._note("task.started", now)

    # --- What is to be done -----------------------------------------------------------------

    def take_ready(self, now: float) -> list[Dispatch]:
        """Every attempt that may start now, in step order, each handed out once (T16)."""
        if self.halted:
            return []
        due = [s for s in self._waiting if (self._steps[s].not_before or 0) <= now]
        self._waiting = [s for s in self._waiting if s not in due]
        ready = sorted([*due, *self._frontier.take_ready()], key=self._graph.index)
        return [self._dispatch(step_id, now) for step_id in ready]

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

    def time_out(self, limit_seconds: float, now: float) -> None:
        """The task's own time limit has passed; what runs is cancelled by the workflow."""
        if not self.halted:
            self.failure = RunFailure(
                None, f"the task ran longer than its limit of {limit_seconds:g} s", TASK_TIMEOUT,
                "timeout",
            )  # fmt: skip
            self._note("task.timed_out", now)

    def close(self, now: float) -> None:
        """Write down the end; call once, when `over`."""
        self.ended_at = now
        for record in self._steps.values():
            if record.status in ("pending", "waiting"):
                record.status = "not_run"
        self._note(f"task.{'completed' if self.status == 'succeeded' else self.status}", now)

    # --- What can be seen -------------------------------------------------------------------

    @property
    def context(self) -> dict[str, Any]:
        """The context as of now; treat it as read-only."""
        return self._journal.context

    @property
    def context_bytes(self) -> int:
        """An upper bound of the context's size as JSON, kept without walking it again."""
        return self._context_bytes

    @property
    def version(self) -> int:
        """Number of diffs applied in this epoch."""
        return self._journal.version

    def diffs(self, request: ContextRequest) -> ContextDiffs:
        """What a worker's copy of the context lacks."""
        if request.epoch != self.epoch or not -1 <= request.have <= request.want <= self.version:
            return ContextDiffs(stale=True)
        applied = self._journal.since(max(request.have, 0))
        return ContextDiffs(
            seed=self._journal.seed if request.have < 0 else None,
            diffs=applied[: request.want - max(request.have, 0)],
        )

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
        """A short state: for a line on a terminal."""
        return {
            "status": self.status,
            "completed": self.completed,
            "total": self.end_step,
            "running": self.running,
            "waiting": list(self._waiting),
        }

    def record(self) -> dict[str, Any]:
        """Everything about the run, as `show --json` prints it (T48)."""
        failed = [
            (record, attempt)
            for record in self._steps.values()
            for attempt in record.attempts
            if attempt.failure
        ]
        return {
            **asdict(self.run),
            "instance_id": instance_id(self.run),
            "task_version": self.task.version,
            "project_id": self.task.project_id,
            "status": self.status,
            "failure": asdict(self.failure) if self.failure else None,
            "cancelled": self.cancelled,
            "current_step": self.completed,
            "total_steps": len(self.task.steps),
            "start_step": self.start_step,
            "end_step": self.end_step,
            "rev": self.rev,
            "attempt_epoch": self.epoch,
            "created_at_utc": utc_minute(self.started_at),
            "completed_at_utc": utc_minute(self.ended_at),
            "started_at": self.started_at,
            "duration": self.duration_seconds,
            "completed_steps": [
                {
                    "step_id": s,
                    "status": "failure" if self._steps[s].status == "failed" else "success",
                }
                for s in self._completed
            ],
            "step_attempt_failures": [
                {
                    "attempt": attempt.number,
                    "step_id": record.id,
                    "step_type": record.type,
                    "error_class": attempt.failure.type,
                    "error_message": attempt.failure.message,
                    "duration_s": attempt.duration_seconds,
                    "occurred_at_utc": utc_iso(attempt.ended_at or attempt.started_at),
                }
                for record, attempt in failed
                if attempt.failure
            ],
            "steps": [self._steps[s.id].to_dict() for s in self.task.steps],
            "retry_resets": self.context["metadata"].get("retry_resets", []),
            "usage": self.usage,
            "artifacts": [
                {"step": record.id, "attempt": attempt.number, **asdict(artifact)}
                for record in self._steps.values()
                for attempt in record.attempts
                for artifact in attempt.artifacts
            ],
            "environments": list(self.task.environments),
            "instances": [],
            "context": self.context,
        }

    # --- Over a continue-as-new -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a restored run needs; only while nothing runs."""
        return {
            "started_at": self.started_at,
            "epoch": self.epoch,
            "rev": self.rev,
            "failure": asdict(self.failure) if self.failure else None,
            "cancelled": self.cancelled,
            "completed": self._completed,
            "waiting": self._waiting,
            "steps": {s: r.to_state() for s, r in self._steps.items() if r.attempts},
            "journal": self._journal.to_dict(),
            "events": self.events,
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
        self._journal = Journal.from_dict(state["journal"])
        self._context_bytes = size_bytes(self._journal.context)
        self._frontier = Frontier(self._graph, self._completed, self.end_step)
        known_waiting = set(self._waiting)
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
        self._write(Entry(dispatch.step.id, dispatch.attempt, dispatch.epoch, status, outcome.diff))

    def _write(self, entry: Entry) -> None:
        self._journal.record(entry)
        self._context_bytes += size_bytes(entry.ops)

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
            self._fail_for_good(dispatch, outcome, failure)
        self._mark_failed(step, attempt, failure)
        if delay is not None:
            self._again(step.id, now + delay)
            self._note("step.retry_scheduled", now, step=step.id, delay_seconds=delay)

    def _fail_for_good(
        self, dispatch: Dispatch, outcome: StepOutcome, failure: StepFailure
    ) -> None:
        if not dispatch.step.fail_task_on_error:  # T21: dependents go on
            self._complete(dispatch, "failed", outcome)
            return
        self._record(dispatch, "failed", outcome)  # T57: what it had half written stays visible
        self._steps[dispatch.step.id].status = "failed"
        if self.failure is None:  # T22: the first of several is the task's
            self.failure = RunFailure(dispatch.step.id, failure.message, failure.type, failure.kind)

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
        entry = {
            "step_id": step.id,
            "step_type": step.type,
            "error": failure.message,
            "error_type": failure.type,
            "started_at_utc": utc_iso(attempt.started_at),
            "duration_seconds": attempt.duration_seconds,
            "is_fatal": step.fail_task_on_error,
        }
        op = {
            "op": "edit",
            "path": ["metadata", "failed_steps"],
            "remove": [],
            "append": [entry],
        }
        self._write(Entry(SCHEDULER, attempt.number, self.epoch, "succeeded", [op]))

    def _note(self, kind: str, now: float, **facts: Any) -> None:
        self.events.append({"seq": len(self.events) + 1, "type": kind, "at": now, **facts})


def instance_id(run: RunRef) -> str:
    """The run's name in its context: `<task id>-` and eight characters (T48)."""
    return f"{run.task_id}-{run.run_id.replace('-', '')[:8]}"


def events_since(events: Sequence[dict[str, Any]], offset: int, limit: int) -> list[dict[str, Any]]:
    """At most `limit` events after the first `offset` ones."""
    return list(events[offset : offset + limit])
