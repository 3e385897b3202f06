"""One rollback: which steps it takes back, how their side effects are undone, how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.core.record import utc_iso
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.core.task import Step
from perdure.messages import Json, StepFailure

UndoKind = Literal["jobs", "type", "declared", "creates", "guests"]
"""By stopping the background jobs that the attempt launched; by the undoing of its own that the
step's type has; by the step's `compensate`; by removing the files that it `creates`. `guests` are
jobs of others inside environments that are reset: they are stopped last, in the name of the attempt
that failed."""

JOB_KINDS: tuple[UndoKind, ...] = ("jobs", "guests")

Phase = Literal["stopping", "undoing", "resetting", "clean", "over"]
"""`stopping`: steps of the span still run. `clean`: only the context is left to be taken back."""


@dataclass(frozen=True)
class Compensation:
    """One thing to be done that undoes what one attempt did."""

    step: Step
    attempt: int
    epoch: int
    """Under which the attempt was made."""
    kind: UndoKind
    status: str
    """How the attempt ended: one of `perdure.core.record.AttemptStatus`."""
    diff: list[dict[str, Any]]
    """What the attempt wrote; of a lost one, as far as its last heartbeat told."""
    result: Json
    creates: list[str]
    """What the step says that it creates, whether the attempt got that far or not."""
    number: int
    """1, 2, ... over all compensations of the run."""
    is_written: bool
    """Whether the context of before the rollback holds the diff: that of attempts that ended their
    step."""
    exec_ids: list[str] = field(default_factory=list)
    """The jobs to be stopped, if that is what is done."""

    @property
    def activity_id(self) -> str:
        """The one activity that carries it."""
        return f"undo {self.step.id}#{self.epoch}.{self.attempt} {self.kind}"


def kinds_of(step: Step) -> list[UndoKind]:
    """How attempts of the step are undone, in that order: files last, they may tell of the rest.

    Jobs that still run are stopped before all that.
    What a custom type declares is known to workers alone, so each is asked.
    """
    kinds: list[UndoKind] = []
    if step.body.get("compensate"):
        kinds.append("declared")
    if step.type not in BUILT_IN_TYPES:
        kinds.append("type")
    if step.creates:
        kinds.append("creates")
    return kinds


@dataclass
class Undo:
    """A compensation as it is planned, and as the record tells it."""

    number: int
    step_id: str
    attempt: int
    epoch: int
    kind: UndoKind
    started_at: float | None = None
    """Seconds since 1970, as all times here."""
    ended_at: float | None = None
    failure: StepFailure | None = None
    exec_ids: list[str] = field(default_factory=list)
    """The jobs that it stops."""

    def to_dict(self) -> dict[str, Any]:
        """Its part of the record; also its form over a continue-as-new."""
        told = {**vars(self), "failure": dict(vars(self.failure)) if self.failure else None}
        if self.kind not in JOB_KINDS:
            del told["exec_ids"]
        return told

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Undo:
        """The inverse of `to_dict`."""
        failure = document["failure"]
        return cls(**{**document, "failure": StepFailure(**failure) if failure else None})


@dataclass(frozen=True)
class Cause:
    """A failure that a rollback answers."""

    step_id: str
    attempt: int
    """The one that failed."""
    retry_from_step_id: str
    retry: int
    """1, 2, ... of the step's `max_retries`."""
    max_retries: int


@dataclass
class Rollback:
    """One rollback, planned, under way or over."""

    number: int
    """1, 2, ... over the run."""
    started_at: float
    failed: list[str] = field(default_factory=list)
    """The steps whose failures it answers, in the order of their failures."""
    causes: list[Cause] = field(default_factory=list)
    """The same failures, and what their steps say of retries."""
    span: list[str] = field(default_factory=list)
    """The steps that it takes back, in step order."""
    environments: list[str] = field(default_factory=list)
    """Those that it resets, in the task's order."""
    cancelled: list[str] = field(default_factory=list)
    """The steps whose attempts it cut off."""
    undos: list[Undo] = field(default_factory=list)
    phase: Phase = "stopping"
    is_failed: bool = False
    """True: something could not be undone, and no loss of the instances excuses it."""
    asked_for_reset: bool = False
    """Whether the pool was asked to reset the environments."""
    replaced: list[str] = field(default_factory=list)
    """Those of the environments that could not be reset: another instance took the place."""
    epoch: int | None = None
    """The one that it began; None while it lasts, and if it was abandoned."""
    abandoned: str | None = None
    """Why it was not brought to its end; what had been planned was undone all the same."""
    ended_at: float | None = None

    @property
    def next_undo(self) -> Undo | None:
        """The compensation whose turn it is; None while one is under way, and after the last."""
        for undo in self.undos:
            if undo.ended_at is None:
                return undo if undo.started_at is None else None
        return None

    @property
    def is_undone(self) -> bool:
        """Whether every compensation planned so far has ended."""
        return all(undo.ended_at is not None for undo in self.undos)

    @property
    def is_busy(self) -> bool:
        """Whether it has begun what it brings to an end, whatever happens to the run."""
        return self.phase == "undoing" and not self.is_undone

    def undo(self, number: int) -> Undo | None:
        """The compensation of that number."""
        return next((undo for undo in self.undos if undo.number == number), None)

    def end(self, now: float, *, epoch: int | None = None, abandoned: str | None = None) -> None:
        self.phase, self.ended_at = "over", now
        self.epoch, self.abandoned = epoch, abandoned

    def told(self) -> dict[str, Any]:
        """Where it goes back `to`, and which `retry` that is `of` how many: of the step with
        most."""
        most = max(self.causes, key=lambda cause: cause.retry, default=None)
        return {
            "to": list(dict.fromkeys(cause.retry_from_step_id for cause in self.causes)),
            "retry": most.retry if most else 0,
            "of": most.max_retries if most else 0,
        }

    def recorded(self) -> dict[str, Any]:
        """The rollback, as records have it."""
        return {
            "number": self.number,
            "epoch": self.epoch,
            "failed": self.failed,
            "causes": [dict(vars(cause)) for cause in self.causes],
            "span": self.span,
            "cancelled": self.cancelled,
            "compensations": [undo.to_dict() for undo in self.undos],
            "environments": self.environments,
            "replaced": self.replaced,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "abandoned": self.abandoned,
        }

    def to_state(self) -> dict[str, Any]:
        """Its form over a continue-as-new."""
        return {
            **vars(self),
            "causes": [dict(vars(cause)) for cause in self.causes],
            "undos": [undo.to_dict() for undo in self.undos],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Rollback:
        """The inverse of `to_state`."""
        undos = [Undo.from_dict(undo) for undo in state["undos"]]
        causes = [Cause(**cause) for cause in state.get("causes", [])]
        return cls(**{**state, "undos": undos, "causes": causes})


class Rollbacks:
    """The rollbacks of one run."""

    def __init__(self) -> None:
        self.ended: list[Rollback] = []
        self.current: Rollback | None = None
        self.next: list[str] = []
        """Steps that failed when the current one could take them in no more."""

    @property
    def all(self) -> list[Rollback]:
        """Those that were begun, in order."""
        return [*self.ended, *([self.current] if self.current else [])]

    @property
    def takes_more(self) -> bool:
        """Whether one more failure would need no rollback of its own."""
        current = self.current
        return bool(self.next) or (current is not None and current.phase == "stopping")

    @property
    def count(self) -> int:
        """Those begun, and the one that is sure to follow."""
        return len(self.all) + bool(self.next)

    @property
    def undos(self) -> int:
        """Compensations planned so far."""
        return sum(len(rollback.undos) for rollback in self.all)

    def failures(self) -> list[dict[str, Any]]:
        """The compensations that failed, as records have them."""
        return [
            {
                "step_id": undo.step_id,
                "attempt": undo.attempt,
                "kind": undo.kind,
                "error": undo.failure.message,
                "error_type": undo.failure.type,
                "at_utc": utc_iso(undo.ended_at or rollback.started_at),
            }
            for rollback in self.all
            for undo in rollback.undos
            if undo.failure
        ]

    # --- Over a continue-as-new -------------------------------------------------------------

    def to_state(self) -> dict[str, Any] | None:
        """What a restored run needs; None if there was no rollback."""
        if not self.all:
            return None
        return {
            "ended": [rollback.to_state() for rollback in self.ended],
            "current": self.current.to_state() if self.current else None,
            "next": self.next,
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """The inverse of `to_state`."""
        if state is None:
            return
        self.ended = [Rollback.from_state(known) for known in state["ended"]]
        self.current = Rollback.from_state(state["current"]) if state["current"] else None
        self.next = list(state["next"])
