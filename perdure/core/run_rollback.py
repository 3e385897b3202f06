"""A run that takes a span of steps back when one of them has failed, and runs it again.

The rollback begins with the failure (`_roll_back`). Then it goes through its phases as the workflow
asks what there is to do: running steps of the span are stopped (`to_stop`), what its attempts did
is undone, newest first, one after another (`take_compensation`), the pool resets environments
(`take_lease_words`), and the context becomes that of a run in which the span has never been, under
the next epoch. Until then nothing is started, and whatever ends outside the span keeps its work.

Up to the first compensation a fatal failure, a cancel or a loss of the instances takes the rollback
away as if it had not been begun. After that the compensations planned all run, and the run takes
its other way only then.
"""

from __future__ import annotations

from typing import Any

from perdure.core.journal import Entry
from perdure.core.pool_decisions import Renew
from perdure.core.record import Attempt, AttemptStatus
from perdure.core.rollback import Compensation, Rollback, Undo
from perdure.core.run_leased import LeaseWord
from perdure.core.run_span import SpanRun
from perdure.core.run_state import RunFailure
from perdure.core.task import Step
from perdure.messages import StepFailure, StepOutcome
from perdure.pool_messages import LeaseReset


class RollbackRun(SpanRun):
    """A run as it deals with failures that take steps back."""

    # --- What the workflow does about it ----------------------------------------------------

    @property
    def is_rolling_back(self) -> bool:
        """Whether a rollback is under way, or about to follow."""
        return self._rollbacks.current is not None or bool(self._rollbacks.next)

    @property
    def to_stop(self) -> list[str]:
        """The running steps that are to be cancelled and to report back, in step order."""
        current = self._rollbacks.current
        if current is None or current.phase != "stopping":
            return []
        return [step_id for step_id in current.span if step_id in self._running]

    def take_compensation(self, now: float) -> Compensation | None:
        """The next thing to be done, when its turn has come and none is under way; each once."""
        self._go_on(now)
        current = self._rollbacks.current
        undo = current.next_undo if current and current.phase == "undoing" else None
        if undo is None:
            return None
        undo.started_at = now
        self._note_undo("started", undo, now)
        return self._compensation(undo)

    def compensated(self, done: Compensation, failure: StepFailure | None, now: float) -> None:
        """A compensation has ended; `failure`: it kept failing, and is not tried again."""
        current = self._rollbacks.current
        undo = current.undo(done.number) if current else None
        if current is None or undo is None or undo.ended_at is not None:
            return
        undo.ended_at, undo.failure = now, failure
        if failure is None:
            self._note_undo("completed", undo, now)
        else:
            told = {"error": failure.message, "error_type": failure.type}
            self._note_undo("failed", undo, now, **told)
            self._spoil(done.step, undo, failure)
            current.is_failed |= not self.is_parting
        if current.is_undone and current.is_failed and not self.halted:
            self._fail_with_the_cause(current)
        if self.halted or self.is_parting:
            self._leave_queues(now)
            self._part(now)

    def take_lease_words(self) -> list[LeaseWord]:
        """What is to be sent to the pool, each handed out once; a reset once all is undone."""
        words = super().take_lease_words()
        current = self._rollbacks.current
        if current and not current.asked_for_reset and (reset := self._due_reset):
            current.asked_for_reset = True
            words.append(reset)
        return words

    @property
    def open_reset(self) -> LeaseReset | None:
        """What of its lease the run asked its pool to reset, and has no answer to yet."""
        current = self._rollbacks.current
        return self._due_reset if current and current.asked_for_reset else None

    def lease_renewed(self, renewal: Renew, now: float) -> bool:
        """The environments of a rollback are as new; False if the run does not wait for that."""
        current, lease = self._rollbacks.current, self._lease
        self._go_on(now)
        due = self._due_reset
        if current is None or lease is None or due is None:
            return False
        if (renewal.request_id, renewal.number) != (due.request_id, due.number):
            return False
        current.replaced = lease.replace(renewal.instances)
        told = {"replaced": current.replaced} if current.replaced else {}
        self._note("environments.reset", now, environments=current.environments, **told)
        current.phase = "clean"
        return True

    # --- What is seen -----------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True when nothing runs any more and nothing is to be started or undone."""
        return not self.is_rolling_back and super().over

    @property
    def note(self) -> str | None:
        """What went wrong beside the task's failure, for its summary."""
        failures = self._rollbacks.failures()
        if not failures:
            return None
        told = "; ".join(
            f"step {f['step_id']!r}, attempt {f['attempt']} ({f['kind']}): {f['error']}"
            for f in failures
        )
        return f"not undone: {told}"

    def progress(self) -> dict[str, Any]:
        """A short state: for a line on a terminal.

        `rolling_back`: the steps that are being taken back; `rollbacks`: those that ended well,
        each with where it went back `to`, and which `retry` that was `of` how many.
        """
        current = self._rollbacks.current
        return {
            **super().progress(),
            "rolling_back": current.span if current else [],
            "rollbacks": [{"number": known.number, **known.told()} for known in self.rolled_back],
        }

    @property
    def rolled_back(self) -> list[Rollback]:
        """The rollbacks that were brought to their end."""
        return [rollback for rollback in self._rollbacks.ended if rollback.epoch is not None]

    # --- For the rules ----------------------------------------------------------------------

    def _may_roll_back(self, step: Step) -> bool:
        """Whether a failure of the step is answered by a rollback: it has retries left (T25)."""
        config = step.retry_config
        if config is None or self.halted or self.is_parting:  # T23
            return False
        if self._steps[step.id].rollbacks >= config.max_retries:
            return False
        return self._rollbacks.takes_more or self._rollbacks.count < self.task.max_rollbacks

    def _roll_back(self, step: Step, now: float) -> None:
        """Answer the failure of a step: now, or after the rollback that is under way."""
        record = self._steps[step.id]
        record.status = "failed"
        record.rollbacks += 1
        current = self._rollbacks.current
        if current is None:
            self._begin_rollback([step.id], now)
        elif current.phase == "stopping":
            self._join(current, [step.id], now)
        else:
            self._rollbacks.next.append(step.id)

    def _is_taken_back(self, step_id: str) -> bool:
        """Whether the step is asked to stop, since it will run again anyway."""
        current = self._rollbacks.current
        return current is not None and current.phase == "stopping" and step_id in current.span

    def _cut_off(
        self,
        step_id: str,
        attempt: Attempt,
        status: AttemptStatus,
        outcome: StepOutcome | None,
        now: float,
    ) -> None:
        """An attempt that was asked to stop has ended, and is not judged."""
        current = self._rollbacks.current
        assert current is not None
        self._end(step_id, attempt, status, outcome, now)
        self._steps[step_id].status = "cancelled"
        if step_id not in current.cancelled:
            current.cancelled.append(step_id)

    def _go_on(self, now: float) -> None:
        """Enter the next phase, when what this one waits for has happened."""
        current = self._rollbacks.current
        if current is None:
            return
        if current.phase == "stopping" and not self.to_stop and not self._is_launching(current):
            self._plan(current)
            current.phase = "undoing"
        if current.phase == "undoing" and current.is_undone:
            current.phase = "resetting" if current.environments else "clean"

    def _finish_rollbacks(self, now: float) -> None:
        """Take the context back as soon as the world is, and begin the rollback that follows."""
        self._go_on(now)
        while (current := self._rollbacks.current) and current.phase == "clean":
            self._finish_rollback(current, now)
            if waiting := self._rollbacks.next:
                self._rollbacks.next = []
                self._begin_rollback(waiting, now)
                self._go_on(now)

    def _end(
        self,
        step_id: str,
        attempt: Attempt,
        status: AttemptStatus,
        outcome: StepOutcome | None,
        now: float,
    ) -> None:
        super()._end(step_id, attempt, status, outcome, now)
        if self._past:
            needed = {running.epoch for running in self._running.values()}
            self._past = {e: known for e, known in self._past.items() if e in needed}

    def _leave_queues(self, now: float) -> None:
        super()._leave_queues(now)
        current = self._rollbacks.current
        if (self.halted or self.is_parting) and not (current and current.is_busy):
            self._abandon(now)

    def _part(self, now: float) -> None:
        if not self.is_rolling_back:
            super()._part(now)

    @property
    def _due_reset(self) -> LeaseReset | None:
        """What the rollback that is under way needs of the pool now."""
        current, lease = self._rollbacks.current, self._lease
        if current is None or current.phase != "resetting" or lease is None:
            return None
        return lease.reset(current.number, current.environments)

    @property
    def _is_at_work(self) -> bool:
        return self.is_rolling_back or super()._is_at_work

    # --- Inside: the beginning --------------------------------------------------------------

    def _begin_rollback(self, failed: list[str], now: float) -> None:
        current = Rollback(len(self._rollbacks.ended) + 1, started_at=now)
        self._rollbacks.current = current
        self._answer(current, failed)
        self._note("rollback.started", now, steps=current.span, cause=failed, **current.told())
        self._hold_back(current, now)

    def _join(self, current: Rollback, failed: list[str], now: float) -> None:
        """Several failures are one rollback of the union of their spans (TD3)."""
        self._answer(current, failed)
        self._note("rollback.widened", now, steps=current.span, cause=failed, **current.told())
        self._hold_back(current, now)

    # --- Inside: the end --------------------------------------------------------------------

    def _finish_rollback(self, current: Rollback, now: float) -> None:
        self._take_back(current, now)
        current.end(now, epoch=self.epoch)
        self._rollbacks.ended.append(current)
        self._rollbacks.current = None
        told = current.told()
        self._note("rollback.completed", now, epoch=self.epoch, steps=current.span, **told)
        self._set_clock(now)

    def _fail_with_the_cause(self, current: Rollback) -> None:
        """End the run with the failure that the rollback was to answer."""
        step_id = current.failed[0]
        failure = self._steps[step_id].attempts[-1].failure or StepFailure("the step failed")
        self.failure = RunFailure(step_id, failure.message, failure.type, failure.kind)

    def _abandon(self, now: float) -> None:
        """Bring the rollbacks to no end; the run halts, or begins anew with other instances."""
        current = self._rollbacks.current
        if current:
            current.end(now, abandoned=self._why_it_ends)
            self._rollbacks.ended.append(current)
            self._note("rollback.abandoned", now, reason=current.abandoned)
        left = [*(current.span if current else []), *self._rollbacks.next]
        self._rollbacks.current, self._rollbacks.next = None, []
        if not self.halted:
            return
        for step_id in dict.fromkeys(left):
            self._keep_visible(step_id)

    def _keep_visible(self, step_id: str) -> None:
        """What a step had half written stays in the context of a run that ends (T57)."""
        record, known = self._steps[step_id], self._context.entry(step_id)
        if record.status in ("failed", "cancelled") and known is None:
            last = record.attempts[-1]
            self._context.write(Entry(step_id, last.number, last.epoch, record.status, last.diff))

    @property
    def _why_it_ends(self) -> str:
        if self.failure:
            return self.failure.message
        return self.cancelled if self.cancelled is not None else "its environments were lost"

    def _note_undo(self, what: str, undo: Undo, now: float, **more: Any) -> None:
        self._note(
            f"compensation.{what}",
            now,
            step=undo.step_id,
            attempt=undo.attempt,
            undo=undo.kind,
            number=undo.number,
            **more,
        )
