"""A run that takes a span of steps back when one of them has failed, and runs it again.

The rollback begins with the failure (`_roll_back`). Then it goes through its phases as the workflow
asks what there is to do: running steps of the span are stopped (`to_stop`), what its attempts did
is undone, newest first, one after another (`take_compensation`), environments are reset
(`take_resets`), and the context becomes that of a run in which the span has never been, under the
next epoch. Until then nothing is started, and whatever ends outside the span keeps its work.

Up to the first compensation a fatal failure, a cancel or a loss of the instances takes the rollback
away as if it had not been begun. After that the compensations planned all run, and the run takes
its other way only then.
"""

from __future__ import annotations

from typing import Any

from perdure.core.context import apply
from perdure.core.journal import SCHEDULER, Entry
from perdure.core.record import Attempt, AttemptStatus, utc_iso
from perdure.core.rollback import Compensation, ResetEnd, Rollback, Undo, kinds_of
from perdure.core.rollback_marks import retried, retry_resets, rolled_back_sandboxes
from perdure.core.run_leased import LeasedRun
from perdure.core.run_state import RunFailure
from perdure.core.spans import ordered, reach, used_environments, widened
from perdure.core.task import RetryConfig, Step
from perdure.messages import StepFailure, StepOutcome

_ENDS = ("completed", "failed", "lost", "interrupted", "cancelled")
_ATTEMPT_ENDS = frozenset(f"step.{end}" for end in _ENDS)


class RollbackRun(LeasedRun):
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
        if current.is_undone and current.failed_undos and not (self.halted or self.is_parting):
            self._fail_with_the_cause(current)
        if self.halted or self.is_parting:
            self._leave_queues(now)
            self._part(now)

    def take_resets(self, now: float) -> list[str]:
        """The environments to be reset under the lease now; handed out once, all together."""
        self._go_on(now)
        current = self._rollbacks.current
        if current is None or current.phase != "resetting" or current.resets_taken:
            return []
        current.resets_taken = True
        return list(current.environments)

    def were_reset(self, end: ResetEnd, now: float) -> None:
        """What came of the resets.

        If one failed, all environments are given back for others, and whoever used one of them is
        taken back too.
        """
        current, lease = self._rollbacks.current, self._lease
        if current is None or lease is None or not current.resets_taken:
            return
        if current.phase != "resetting":
            return
        lease.replaced(end.instances)
        told = {"failed": end.failed} if end.failed else {}
        self._note("environments.reset", now, environments=current.environments, **told)
        lease.spoil(end.failed)
        current.phase = "clean"
        if self.halted or self.is_parting:
            self._leave_queues(now)
            self._part(now)
        elif end.failed:
            self._exchange_lease(current, now)

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
        """A short state: for a line on a terminal; `rolling_back`: the steps taken back."""
        current = self._rollbacks.current
        return {**super().progress(), "rolling_back": current.span if current else []}

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
        if current.phase == "stopping" and not self.to_stop:
            self._plan(current)
            current.phase = "undoing"
        if current.phase == "undoing" and current.is_undone:
            needs_reset = current.environments and not current.exchanges
            current.phase = "resetting" if needs_reset else "clean"

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
    def _is_at_work(self) -> bool:
        return self.is_rolling_back or super()._is_at_work

    # --- Inside: the beginning --------------------------------------------------------------

    def _begin_rollback(self, failed: list[str], now: float) -> None:
        current = Rollback(len(self._rollbacks.ended) + 1, started_at=now)
        self._rollbacks.current = current
        self._answer(current, failed)
        retry = max(self._steps[step_id].rollbacks for step_id in failed)
        self._note("rollback.started", now, steps=current.span, cause=failed, retry=retry)
        self._hold_back(current, now)

    def _join(self, current: Rollback, failed: list[str], now: float) -> None:
        """Several failures are one rollback of the union of their spans (TD3)."""
        self._answer(current, failed)
        self._note("rollback.widened", now, steps=current.span, cause=failed)
        self._hold_back(current, now)

    def _answer(self, current: Rollback, failed: list[str]) -> None:
        current.failed += failed
        started = self._started
        span, reset = reach(self.task, self._graph, self._configs(current), started)
        current.span = list(span)
        # Of environments that no lease holds there is nothing to be reset.
        held = self._lease.environments if self._lease else []
        current.environments = [name for name in reset if name in held]

    def _hold_back(self, current: Rollback, now: float) -> None:
        """Let no step of the span, nor who depends on it, wait for its next attempt."""
        inside = set(self._graph.span(*current.span)) - self._running.keys()
        for step_id in self._waiting:
            if step_id in inside:
                self._steps[step_id].not_before = None
        self._waiting = [s for s in self._waiting if s not in inside]
        if self._slots:
            for step_id in [*self._slots.waiting, *self._slots.granted]:
                if step_id in inside:
                    self._leave_queue(self._slots, step_id, now)
            self._set_clock(now)

    @property
    def _started(self) -> set[str]:
        """The steps of which anything can be taken back."""
        return {step_id for step_id, record in self._steps.items() if record.living}

    def _configs(self, current: Rollback) -> list[RetryConfig]:
        steps = (self._step(step_id) for step_id in current.failed)
        return [step.retry_config for step in steps if step.retry_config]

    def _step(self, step_id: str) -> Step:
        return self.task.steps[self._graph.index(step_id)]

    # --- Inside: the world ------------------------------------------------------------------

    def _plan(self, current: Rollback) -> None:
        """Line up the compensations that are not planned yet, what ended last first."""
        order = {
            (event["step"], event["attempt"]): event["seq"]
            for event in self.events
            if event["type"] in _ATTEMPT_ENDS
        }
        known = {(undo.step_id, undo.attempt) for undo in current.undos}
        attempts = [
            (order[step_id, attempt.number], step_id, attempt)
            for step_id in current.span
            for attempt in self._steps[step_id].living
            if (step_id, attempt.number) not in known
        ]
        number = self._rollbacks.undos
        for _, step_id, attempt in sorted(attempts, key=lambda known: -known[0]):
            for kind in kinds_of(self._step(step_id)):
                number += 1
                undo = Undo(number, step_id, attempt.number, attempt.epoch, kind)
                current.undos.append(undo)

    def _compensation(self, undo: Undo) -> Compensation:
        step = self._step(undo.step_id)
        attempt = self._steps[step.id].attempts[undo.attempt - 1]
        entry = self._context.entry(step.id)
        is_written = entry is not None and entry.attempt == attempt.number
        diff = entry.ops if entry and is_written else attempt.diff
        written = apply({}, (op for op in diff if op["path"][:2] == ["results", step.id]))
        return Compensation(
            step=step,
            attempt=undo.attempt,
            epoch=undo.epoch,
            kind=undo.kind,
            status=attempt.status,
            diff=diff,
            result=written.get("results", {}).get(step.id),
            creates=list(step.creates),
            number=undo.number,
            is_written=is_written,
        )

    def _spoil(self, step: Step, undo: Undo, failure: StepFailure) -> None:
        """What could not be undone is in the step's environments: nobody is to get them."""
        if self._lease is None:
            return
        names = [*used_environments(self.task, step)]
        if undo.kind == "declared":
            names.append(step.body["compensate"].get("environment"))
        why = f"what step {step.id!r} did there was not undone: {failure.message}"
        self._lease.spoil({name: why for name in names if name})

    def _fail_with_the_cause(self, current: Rollback) -> None:
        """End the run with the failure that the rollback was to answer."""
        step_id = current.failed[0]
        failure = self._steps[step_id].attempts[-1].failure or StepFailure("the step failed")
        self.failure = RunFailure(step_id, failure.message, failure.type, failure.kind)

    def _exchange_lease(self, current: Rollback, now: float) -> None:
        """Widen the rollback to whoever used one of the instances, which all go."""
        assert self._lease is not None
        names = self._lease.environments
        inside, _ = widened(self.task, self._graph, set(current.span), self._started, names)
        failed, self._rollbacks.next = self._rollbacks.next, []
        if failed:
            current.failed += failed
            span, _ = reach(self.task, self._graph, self._configs(current), self._started)
            inside |= set(span)
            inside, _ = widened(self.task, self._graph, inside, self._started, names)
        current.exchanges = True
        current.environments = names
        current.span = list(ordered(self._graph.ids, inside))
        current.phase = "stopping"
        self._note("rollback.widened", now, steps=current.span, cause=failed)
        self._hold_back(current, now)

    # --- Inside: the end --------------------------------------------------------------------

    def _finish_rollback(self, current: Rollback, now: float) -> None:
        """The context, the marks and the epoch change at once (T34)."""
        span, inside = set(current.span), self._graph.span(*current.span)
        marks = self._marks(current, now)
        if self._running:
            self._past[self.epoch] = self._context
        self.epoch += 1
        self.rev += 1
        self._context = self._context.without(span, marks)
        self._completed = [s for s in self._completed if s not in span]
        delay = max((c.delay for c in self._configs(current)), default=0.0)
        for step_id in inside:
            record = self._steps[step_id]
            record.start_over(done=False, epoch=self.epoch)
            record.not_before = now + delay if delay and step_id in span else None
        self._frontier.reopen(inside)
        current.end(now, epoch=self.epoch)
        self._rollbacks.ended.append(current)
        self._rollbacks.current = None
        self._note("rollback.completed", now, epoch=self.epoch, steps=current.span)
        if current.exchanges and self._lease:
            self._give_lease_back(now)
            self._lease.exchange(now)
            self._note_request(now)
        self._set_clock(now)

    def _marks(self, current: Rollback, now: float) -> list[Entry]:
        span = set(current.span)
        lost = rolled_back_sandboxes(
            self.context,
            [
                attempt.diff
                for step_id in current.span
                for attempt in self._steps[step_id].living
                if attempt.status != "succeeded"
            ],
            self._context.without(span).value,
        )
        resumed = self._graph.span(*(c.retry_from_step_id for c in self._configs(current)))
        replayed = ordered(self._graph.ids[: self.end_step], span.union(resumed))
        resets = [
            {
                "attempt": self._steps[step_id].rollbacks + 1,
                "step_id": step_id,
                "retry_from_step_id": config.retry_from_step_id,
                "replayed": list(replayed),
                "at_utc": utc_iso(now),
                "rolled_back_sandboxes": lost,
            }
            for step_id, config in zip(current.failed, self._configs(current), strict=True)
        ]
        ops = [*retried(self._context.base, span), *retry_resets(resets)]
        return [Entry(SCHEDULER, current.number, self.epoch + 1, "succeeded", ops)]

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
        for step_id in dict.fromkeys(left):  # T57: what they had half written stays visible
            record = self._steps[step_id]
            if record.status in ("failed", "cancelled") and step_id not in self._completed:
                last = record.attempts[-1]
                self._context.write(
                    Entry(step_id, last.number, last.epoch, record.status, last.diff)
                )

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
