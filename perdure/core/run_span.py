"""A run as it takes a span of steps back: what that comes to, in the world and in the context.

When each part has its turn, and what happens meanwhile, is the concern of
`perdure.core.run_rollback`.
"""

from __future__ import annotations

from perdure.core.context import apply
from perdure.core.journal import SCHEDULER, Entry
from perdure.core.record import Attempt, utc_iso
from perdure.core.rollback import JOB_KINDS, Cause, Compensation, Rollback, Undo, kinds_of
from perdure.core.rollback_marks import retried, retry_resets, rolled_back_sandboxes
from perdure.core.run_jobs import JobsRun
from perdure.core.spans import ordered, reach, used_environments
from perdure.core.task import RetryConfig, Step
from perdure.messages import StepFailure

_ENDS = ("completed", "failed", "lost", "interrupted", "cancelled")
_ATTEMPT_ENDS = frozenset(f"step.{end}" for end in _ENDS)


class SpanRun(JobsRun):
    """A run whose steps can be taken back."""

    # --- Which steps ------------------------------------------------------------------------

    def _answer(self, current: Rollback, failed: list[str]) -> None:
        """Let the rollback take back what answers these failures too."""
        current.failed += failed
        current.causes += [cause for step_id in failed if (cause := self._cause(step_id))]
        configs, started = self._configs(current), self._started
        span, reset = reach(self.task, self._graph, configs, started)
        # Of environments that no lease holds there is nothing to be reset.
        held = self._lease.environments if self._lease else []
        current.span = list(span)
        current.environments = [name for name in reset if name in held]

    def _hold_back(self, current: Rollback, now: float) -> None:
        """Let no step of the span, nor who depends on it, wait for its next attempt."""
        inside = set(self._graph.span(*current.span)) - self._running.keys()
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

    def _cause(self, step_id: str) -> Cause | None:
        config, record = self._step(step_id).retry_config, self._steps[step_id]
        if config is None:
            return None
        return Cause(
            step_id,
            record.attempts[-1].number,
            config.retry_from_step_id,
            record.rollbacks,
            config.max_retries,
        )

    def _configs(self, current: Rollback) -> list[RetryConfig]:
        steps = (self._step(step_id) for step_id in current.failed)
        return [step.retry_config for step in steps if step.retry_config]

    def _step(self, step_id: str) -> Step:
        return self.task.steps[self._graph.index(step_id)]

    # --- In the world -----------------------------------------------------------------------

    def _plan(self, current: Rollback) -> None:
        """Line up the compensations that are not planned yet, what ended last first."""
        order = {
            (event["step"], event["attempt"]): event["seq"]
            for event in self.events
            if event["type"] in _ATTEMPT_ENDS
        }
        known = {(undo.step_id, undo.attempt) for undo in current.undos}
        attempts = [
            (_place(order.get((step_id, attempt.number)), attempt), step_id, attempt)
            for step_id in current.span
            for attempt in self._steps[step_id].living
            if (step_id, attempt.number) not in known
        ]
        number = self._rollbacks.undos
        own: set[str] = set()
        for _, step_id, attempt in sorted(attempts, key=lambda known: known[0], reverse=True):
            undo = Undo(number + 1, step_id, attempt.number, attempt.epoch, "jobs")
            jobs = self.jobs.of_attempt(step_id, attempt.epoch, attempt.number)
            if jobs:
                number += 1
                undo.exec_ids = [job.exec_id for job in jobs]
                own.update(undo.exec_ids)
                current.undos.append(undo)
            for kind in kinds_of(self._step(step_id)):
                number += 1
                undo = Undo(number, step_id, attempt.number, attempt.epoch, kind)
                current.undos.append(undo)
        inside = self.jobs.inside(current.environments)
        if guests := [job.exec_id for job in inside if job.exec_id not in own]:
            failed = self._steps[current.failed[0]]
            last = failed.attempts[-1]
            current.undos.append(
                Undo(number + 1, failed.id, last.number, last.epoch, "guests", exec_ids=guests)
            )

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
            exec_ids=list(undo.exec_ids),
        )

    def _spoil(self, step: Step, undo: Undo, failure: StepFailure) -> None:
        """What could not be undone is in the step's environments: nobody is to get them."""
        if self._lease is None:
            return
        names = [*used_environments(self.task, step)] if undo.kind != "guests" else []
        why = f"what step {step.id!r} did there was not undone: {failure.message}"
        if undo.kind == "declared":
            names.append(step.body["compensate"].get("environment"))
        elif undo.kind in JOB_KINDS:
            jobs = [job for exec_id in undo.exec_ids if (job := self.jobs.get(exec_id))]
            names += [job.environment for job in jobs if job.environment]
            why = f"jobs there were not stopped: {failure.message}"
        self._lease.spoil({name: why for name in names if name})

    # --- In the context ---------------------------------------------------------------------

    def _take_back(self, current: Rollback, now: float) -> None:
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
            # Who has not begun may still wait for the delay of an earlier rollback.
            at = (now + delay if delay else None) if step_id in span else record.not_before
            record.start_over(done=False, epoch=self.epoch)
            record.not_before = at
        self._frontier.reopen(inside)

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


def _place(seq: int | None, attempt: Attempt) -> tuple[int, float]:
    """Where the end of an attempt stands among all: those of an earlier run come first."""
    return (1, seq) if seq is not None else (0, attempt.ended_at or 0.0)
