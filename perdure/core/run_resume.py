"""A run that goes on, from one of its steps on, with what an earlier run of its task came to.

What the earlier run hands over (`resumption`): the steps that count as done, in the order in which
they ended; what they wrote; all attempts that were ever made, so that further ones are numbered on.
Everything else runs again, in the next epoch. Environments are new ones, so whoever used one runs
again too: a context that remembers what was done in a world that is gone would tell another story.
Nothing is undone by this; only a rollback undoes, in the world in which things were done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from perdure.core.journal import SCHEDULER, Entry
from perdure.core.problems import nearest
from perdure.core.redaction import STORED
from perdure.core.rollback import kinds_of
from perdure.core.rollback_marks import retried
from perdure.core.run_rollback import RollbackRun
from perdure.core.spans import ordered, widened
from perdure.messages import CarriedWork, Json, Resumed, RunRef, TaskInput


class CannotResume(ValueError):
    """A run cannot be gone on with from that step; the text says why, and what can be done."""


@dataclass(frozen=True)
class Resumption:
    """What a run that goes on from a step does again, each in step order."""

    start: Resumed
    """What the new run is given."""
    span: tuple[str, ...]
    """The step and what depends on it; the same of steps whose undoing was begun."""
    widened: tuple[str, ...]
    """Beside these, those that had ended and run again for the environments alone."""
    unfinished: tuple[str, ...]
    """Those that had not come to their end, and so run in any case."""
    kept: tuple[str, ...]
    """Those that count as done."""
    not_undone: tuple[str, ...]
    """Those of the steps that run again whose doings have an undoing, which is not done."""


class ResumableRun(RollbackRun):
    """A run as it hands over to a later one, and as it takes over from an earlier one."""

    # --- Of the earlier run -----------------------------------------------------------------

    def resumption(self, step_id: str) -> Resumption:
        """What a new run does that goes on from a step of this one, which is closed.

        Raises CannotResume: no step of the task, or none that this run was to run; or a secret is
        needed that went with this run.
        """
        self._check_step(step_id)
        skipped = set(self._graph.ids[: self.start_step])
        done = set(self._completed) - skipped
        span = set(self._graph.span(step_id, *self._half_undone)) - skipped
        inside = span & done
        if self._lease:
            leased = self._lease.environments
            inside, _ = widened(self.task, self._graph, inside, done, leased)
        again = span | inside
        kept = [known for known in self._completed if known not in again]
        self._check_secrets(kept)
        in_range = self._graph.ids[: self.end_step]
        tried = {known for known in in_range if self._steps[known].attempts}
        runs = set(in_range).difference(kept)
        return Resumption(
            start=self._handed_over(step_id, kept),
            span=ordered(in_range, span),
            widened=ordered(in_range, inside - span),
            unfinished=ordered(in_range, runs - again),
            kept=tuple(kept),
            not_undone=tuple(
                known for known in ordered(in_range, runs & tried) if self._is_undoable(known)
            ),
        )

    def _handed_over(self, step_id: str, kept: list[str]) -> Resumed:
        over = [known for known, record in self._steps.items() if known not in kept]
        marks = [*retried(self._context.base, set(over)), _mark(self.run, step_id)]
        entry = Entry(SCHEDULER, 1, self.epoch + 1, "succeeded", marks)
        attempts = [a for record in self._steps.values() for a in record.attempts]
        source = self.resumed if self.work_due else None
        return Resumed(
            run_id=self.run.run_id,
            step=step_id,
            epoch=self.epoch + 1,
            rev=self.rev + 1,
            completed=kept,
            steps={
                known: record.to_state() for known, record in self._steps.items() if record.attempts
            },
            entries=[dict(vars(e)) for e in self._context.without(set(over), [entry]).entries],
            files_of=(source.files_of or source.run_id) if source else None,
            restarts=source.restarts if source else self.restarts,
            hosts=sorted({attempt.host for attempt in attempts if attempt.host}),
        )

    def _check_step(self, step_id: str) -> None:
        ids = self._graph.ids
        if step_id not in self._steps:
            near = nearest(step_id, ids)
            hint = f"did you mean {near!r}?" if near else f"its steps are {', '.join(ids)}"
            raise CannotResume(f"task {self.task.id!r} has no step {step_id!r}; {hint}")
        if not self.start_step <= self._graph.index(step_id) < self.end_step:
            first, last = ids[self.start_step], ids[self.end_step - 1]
            raise CannotResume(
                f"step {step_id!r} was not among those that the run was to run; name one from "
                f"{first!r} to {last!r}"
            )

    def _check_secrets(self, kept: list[str]) -> None:
        """Values of secrets go with the run whose steps wrote them."""
        for step_id in kept:
            entry = self._context.entry(step_id)
            if entry and any(_holds_secret(op) for op in entry.ops):
                raise CannotResume(
                    f"step {step_id!r} left a secret in the context, and secrets are forgotten "
                    f"when their run ends; go on from {step_id!r}, or from a step before it"
                )

    @property
    def _half_undone(self) -> list[str]:
        """The steps whose undoing was begun by a rollback that was not brought to its end."""
        return [
            undo.step_id
            for rollback in self._rollbacks.ended
            for undo in rollback.undos
            if rollback.abandoned is not None and undo.started_at is not None
            if undo.epoch >= self._steps[undo.step_id].since
        ]

    def _is_undoable(self, step_id: str) -> bool:
        return "declared" in kinds_of(self._step(step_id))

    # --- Of the later run -------------------------------------------------------------------

    @classmethod
    def of(cls, start: TaskInput, run: RunRef, now: float) -> Self:
        """As `RunState.of`; of a task that goes on from an earlier run, that one's journal too."""
        made = super().of(start, run, now)
        if start.resumed and start.state:
            made.resumed = start.resumed
        elif start.resumed:
            made._take_over(start.resumed, now)
        return made

    def _take_over(self, earlier: Resumed, now: float) -> None:
        self.resumed = replace(earlier, completed=[], steps={}, entries=[])
        self.epoch, self.rev = earlier.epoch, earlier.rev
        for step_id, known in earlier.steps.items():
            self._steps[step_id].restore(known)
        self._completed = list(earlier.completed)
        for step_id, record in self._steps.items():
            if step_id not in self._completed:
                record.start_over(done=False, epoch=self.epoch)
                record.rollbacks = 0  # whoever resumes by hand grants them all anew
        entries = [Entry(**entry) for entry in earlier.entries]
        self._context = self._context.without(set(), entries)
        self._frontier = self._new_frontier()
        self._note("task.resumed", now, run_id=earlier.run_id, step=earlier.step, epoch=self.epoch)

    @property
    def work_due(self) -> bool:
        """Whether the earlier run's files are to be brought before a step is started."""
        return self.resumed is not None and self.work is None and not self.restarts

    @property
    def earlier_creates(self) -> list[str]:
        """What the steps that run again say that they create."""
        return [
            path
            for step in self.task.steps
            if step.id not in self._completed
            for path in step.creates
        ]

    def work_carried(self, end: CarriedWork, now: float) -> None:
        """The files of the earlier run are there, or cannot be had."""
        if self.halted or not self.work_due:
            return
        self.work = end
        if end.found:
            self._note("work.copied", now, host=end.host, files=end.files)
        else:
            self._note("work.missing", now, host=end.host, reason=end.reason)

    @property
    def note(self) -> str | None:
        """What went wrong beside the task's failure, for its summary."""
        known = super().note
        if self.work is None or self.work.found:
            return known
        told = f"without the files of the earlier run: {self.work.reason}"
        return f"{told}; {known}" if known else told

    # --- Over a continue-as-new -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """As of any run, and whether the earlier run's files were brought."""
        return super().state() | ({"work": asdict(self.work)} if self.work else {})

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        super().restore(state)
        work = state.get("work")
        self.work = CarriedWork(**work) if work else None


def _mark(run: RunRef, step_id: str) -> dict[str, Any]:
    value = {"run_id": run.run_id, "step": step_id}
    return {"op": "set", "path": ["metadata", "resumed_from"], "value": value}


def _holds_secret(value: Json) -> bool:
    if isinstance(value, dict):
        return STORED in value or any(map(_holds_secret, value.values()))
    return isinstance(value, list) and any(map(_holds_secret, value))
