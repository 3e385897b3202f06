"""The rules of one task run: what is ready, what an outcome means, when the run is over.

`TaskRun` takes events (an outcome, a lost worker, a cancel) and answers with dispatches. It has no
clock: `now` is seconds since 1970, handed in. The workflow around it only carries its decisions.

What is known of a run lies in `perdure.core.run_state`; how its steps wait for slots of named
limits is the concern of `perdure.core.run_queues`.

Three counters of attempts are kept apart: application failures against the step's `retry`, worker
losses against `max_worker_losses`, rollbacks against `retry_config`. (Temporal has one counter
for all of them, so step activities are scheduled with a single attempt.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.journal import SCHEDULER, Entry
from perdure.core.record import Attempt, StepRecord
from perdure.core.run_leased import ENVIRONMENT_FAILED, INSTANCE_LOST
from perdure.core.run_record import failed_step, instance_id
from perdure.core.run_resume import ResumableRun
from perdure.core.run_start import BadRange, BadStart, UnknownLimit, check_limits, check_range
from perdure.core.run_state import RunFailure, RunStatus
from perdure.core.task import Step
from perdure.messages import StepFailure, StepOutcome
from perdure.names import SUITE_CANCELLED

__all__ = [
    "ENVIRONMENT_FAILED",
    "EVENT_TYPES",
    "INSTANCE_LOST",
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

EVENT_TYPES = (
    *("task.started", "task.cancelling", "task.timed_out"),
    *("task.completed", "task.failed", "task.cancelled"),
    *("step.waiting", "step.started", "step.completed", "step.failed"),
    *("step.retry_scheduled", "step.lost", "step.interrupted", "step.cancelled"),
    *("lease.requested", "lease.granted", "lease.refused", "lease.lost", "lease.released"),
    "task.restarted",
    *("rollback.started", "rollback.widened", "rollback.completed", "rollback.abandoned"),
    *("compensation.started", "compensation.completed", "compensation.failed"),
    "environments.reset",
    *("job.launched", "job.ended"),
    *("task.resumed", "work.copied", "work.missing"),
)
"""Of a run's events."""

WITHDRAWN = "its suite needs it no more"
"""Why a task ends that had not begun."""

_SERVERS_WORDS = re.compile(r"^Cancel requested by workflow with run id \S+( with reason: )?")
"""What a server puts before a suite's own reason (server 1.32)."""


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


class TaskRun(ResumableRun):
    """One run, and the rules that move it."""

    # --- What is to be done -----------------------------------------------------------------

    def take_ready(self, now: float) -> list[Dispatch]:
        """Every attempt that may start now, in step order, each handed out once (T16).

        A step that takes a slot asks for it first, and is among those of a later call.
        """
        self._finish_rollbacks(now)
        if self.halted or not self.may_start or self.is_rolling_back:
            return []
        due: list[str] = []
        early: list[str] = []
        for step_id in [*self._waiting, *self._frontier.take_ready()]:
            in_time = (self._steps[step_id].not_before or 0) <= now
            (due if in_time else early).append(step_id)
        for step_id in early:
            self._steps[step_id].status = "waiting"
        self._waiting = early
        ready = sorted(due, key=self._graph.index)
        if self._slots:
            ready = self._with_slots(self._slots, ready, now)
        dispatches = [self._dispatch(step_id, now) for step_id in ready]
        self._set_clock(now)
        return dispatches

    def wake_at(self) -> float | None:
        """When the next delayed attempt is due; None if none waits."""
        times = [self._steps[s].not_before or 0.0 for s in self._waiting]
        if self.halted or self.is_parting or self.is_rolling_back:
            return None
        return min(times, default=None)

    # --- What happened ----------------------------------------------------------------------

    def finish(self, dispatch: Dispatch, outcome: StepOutcome, now: float) -> None:
        """Take the outcome of an attempt. Those of earlier epochs or attempts are dropped (T35)."""
        attempt = self._current(dispatch)
        if attempt is None:
            return
        if outcome.status == "failed":
            self._miss(outcome, now)
        if self._is_parting_to_restart:
            self._drop(dispatch.step.id, attempt, outcome.status, outcome, now)
        elif outcome.status == "succeeded":
            self._end(dispatch.step.id, attempt, "succeeded", outcome, now)
            self._complete(dispatch, "succeeded", outcome)
        elif outcome.status == "cancelled" and self._is_taken_back(dispatch.step.id):
            self._cut_off(dispatch.step.id, attempt, "cancelled", outcome, now)
        elif outcome.status == "cancelled":
            self._end(dispatch.step.id, attempt, "cancelled", outcome, now)
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
        if self._is_parting_to_restart:
            self._drop(step.id, attempt, "lost", outcome, now)
            return
        if self._is_taken_back(step.id):
            self._cut_off(step.id, attempt, "lost", outcome, now)
            return
        record.losses += 1
        if record.losses <= step.max_worker_losses and not self.halted:
            self._end(step.id, attempt, "lost", outcome, now)
            self._again(step.id, now)
            return
        if self.cancelled is not None:
            self._end(step.id, attempt, "lost", outcome, now)
            record.status = "cancelled"
            return
        lost = StepFailure(
            message=f"its worker was lost {_times(record.losses)} "
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
        if self._is_parting_to_restart:
            self._drop(dispatch.step.id, attempt, "interrupted", None, now)
            return
        if self._is_taken_back(dispatch.step.id):
            self._cut_off(dispatch.step.id, attempt, "interrupted", None, now)
            return
        self._end(dispatch.step.id, attempt, "interrupted", None, now)
        if self.cancelled is not None:
            self._steps[dispatch.step.id].status = "cancelled"
        elif self.halted:
            self._steps[dispatch.step.id].status = "not_run"
        else:
            self._again(dispatch.step.id, now)

    def cancel(self, reason: str, now: float) -> None:
        """Start nothing more; what runs is cancelled by the workflow and reports back (T24).

        With its suite, a run that only waits for its lease is withdrawn. A run that is over stays
        what it is (T50).
        """
        if self.cancelled is None and not self.over:
            told, only_waits = _SERVERS_WORDS.sub("", reason), self._only_waits
            self.cancelled = told or "cancelled"
            self.withdrawn |= told == SUITE_CANCELLED and only_waits
            self._note("task.cancelling", now, reason=self.cancelled)
            self._leave_queues(now)

    def withdraw(self, now: float) -> bool:
        """End the run if it has not begun: its suite needs it no more. False if it goes on."""
        if not self._only_waits:
            return False
        self.withdrawn = True
        self.cancel(WITHDRAWN, now)
        return True

    @property
    def _only_waits(self) -> bool:
        """Whether it has never had a lease, and waits for its first one."""
        lease = self._lease
        waits = lease is not None and lease.state == "waiting" and not lease.losses
        return waits and not self.attempts and not self.halted

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
        self._abandon(now)
        self._give_lease_back(now)
        for record in self._steps.values():
            if record.status in ("pending", "waiting"):
                record.status = "not_run"
        self._note(f"task.{'completed' if self.status == 'succeeded' else self.status}", now)

    # --- Inside -----------------------------------------------------------------------------

    def _dispatch(self, step_id: str, now: float) -> Dispatch:
        record = self._steps[step_id]
        lost = tuple(record.lost_attempts())
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
        if attempt is None or (attempt.number, attempt.epoch) != (dispatch.attempt, dispatch.epoch):
            return None
        return attempt  # of an earlier epoch, if a rollback passed it by (TD18)

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
        self._end(step.id, attempt, "failed", outcome, now)
        record.failures += 1
        if self.cancelled is not None:  # T24: what was cancelled is not judged any more
            self._record(dispatch, "cancelled", outcome)
            record.status = "cancelled"
            return
        delay = None if self.halted else self._delay(step, record, failure)  # T23
        if delay is None and self._may_roll_back(step):
            self._roll_back(step, now)
        elif delay is None:
            self._fail_for_good(dispatch, outcome, failure, now)
        self._mark_failed(step, attempt, failure)
        if delay is not None and self._is_taken_back(step.id):
            record.status = "failed"
        elif delay is not None:
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


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def events_since(events: Sequence[dict[str, Any]], offset: int, limit: int) -> list[dict[str, Any]]:
    """At most `limit` events after the first `offset` ones."""
    return list(events[offset : offset + limit])
