"""The record of one task run: attempts, steps, events, as people and programs read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from perdure.messages import Artifact, StepFailure, StepOutcome

AttemptStatus = Literal["running", "succeeded", "failed", "cancelled", "lost", "interrupted"]
"""`lost`: its worker died. `interrupted`: its worker was asked to stop and handed it back."""

StepStatus = Literal["pending", "running", "waiting", "succeeded", "failed", "cancelled", "not_run"]
"""`waiting`: for the delay before its next attempt, or for a slot of its limit. `not_run`: the run
ended before its turn."""


@dataclass
class Attempt:
    """One start of a step."""

    number: int
    epoch: int
    started_at: float
    """Seconds since 1970, as all times here."""
    ended_at: float | None = None
    status: AttemptStatus = "running"
    failure: StepFailure | None = None
    host: str = ""
    diff: list[dict[str, Any]] = field(default_factory=list)
    """Kept for attempts that did not succeed: what they wrote is not in the journal."""
    usage: dict[str, float] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    creates: list[str] = field(default_factory=list)
    adopted: bool = False

    def end(self, status: AttemptStatus, outcome: StepOutcome | None, now: float) -> None:
        """Write down how it ended."""
        self.status = status
        self.ended_at = now
        if outcome is None:
            return
        self.failure = outcome.failure
        self.host = outcome.host or self.host
        self.usage = outcome.usage
        self.artifacts = outcome.artifacts
        self.creates = outcome.creates
        self.adopted = outcome.adopted
        if status != "succeeded":
            self.diff = outcome.diff

    @property
    def duration_seconds(self) -> float | None:
        """Wall time from dispatch to report; None while it runs."""
        return None if self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    def to_dict(self) -> dict[str, Any]:
        """Its part of the record; also its form over a continue-as-new."""
        # By hand: `asdict` copies every value, and is the dearest part of a small run's record.
        return {
            **vars(self),
            "failure": dict(vars(self.failure)) if self.failure else None,
            "artifacts": [dict(vars(artifact)) for artifact in self.artifacts],
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Attempt:
        """The inverse of `to_dict`."""
        failure = document.get("failure")
        artifacts = [Artifact(**a) for a in document.get("artifacts", [])]
        return cls(
            **{
                **document,
                "failure": StepFailure(**failure) if failure else None,
                "artifacts": artifacts,
            }
        )


@dataclass
class StepRecord:
    """What is known of one step of a run."""

    id: str
    type: str
    status: StepStatus = "pending"
    attempts: list[Attempt] = field(default_factory=list)
    failures: int = 0
    """Application failures, counted against `retry.max_attempts`."""
    losses: int = 0
    """Worker losses, counted against `max_worker_losses`."""
    not_before: float | None = None
    """Waiting for its delay: when the next attempt may start."""
    waited: float = 0.0
    """Seconds that its attempts have waited for slots, all together."""

    rollbacks: int = 0
    """Those that answered a failure of it, counted against `retry_config`."""
    since: int = 0
    """The epoch in which it began anew, or 0: what earlier attempts did was undone."""

    @property
    def living(self) -> list[Attempt]:
        """The attempts since it began anew."""
        return [attempt for attempt in self.attempts if attempt.epoch >= self.since]

    def lost_attempts(self) -> list[int]:
        """The newest attempts, as far as their outcomes may still lie on disk, unreported.

        What was left before the step began anew counts no more.
        """
        lost: list[int] = []
        for attempt in reversed(self.attempts):
            if attempt.status not in ("lost", "interrupted") or attempt.epoch < self.since:
                break
            lost.append(attempt.number)
        return lost[::-1]

    def start_over(self, *, done: bool, epoch: int) -> None:
        """Forget what its attempts came to, but not that they were made."""
        self.status = "succeeded" if done else "pending"
        self.failures = self.losses = 0
        self.not_before = None
        self.since = epoch

    def to_dict(self) -> dict[str, Any]:
        """Its part of the record."""
        duration = sum(a.duration_seconds or 0.0 for a in self.attempts)
        return {
            "id": self.id,
            "type": self.type,
            "status": self.status,
            "duration": round(duration, 3),
            "waited": round(self.waited, 3),
            "attempts": [a.to_dict() for a in self.attempts],
        }

    def to_state(self) -> dict[str, Any]:
        """Its form over a continue-as-new."""
        return {
            "status": self.status,
            "attempts": [a.to_dict() for a in self.attempts],
            "failures": self.failures,
            "losses": self.losses,
            "not_before": self.not_before,
            "waited": self.waited,
            "rollbacks": self.rollbacks,
            "since": self.since,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `to_state`."""
        self.status = state["status"]
        self.attempts = [Attempt.from_dict(a) for a in state["attempts"]]
        self.failures = state["failures"]
        self.losses = state["losses"]
        self.not_before = state["not_before"]
        self.waited = state.get("waited", 0.0)
        self.rollbacks = state.get("rollbacks", 0)
        self.since = state["since"]


def utc_minute(seconds: float | None) -> str | None:
    """Seconds since 1970 as `YYYY-MM-DD HH:MM UTC` (T48)."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def utc_iso(seconds: float) -> str:
    """Seconds since 1970 as an ISO 8601 text in UTC (T20)."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def summed(usages: list[dict[str, float]]) -> dict[str, float]:
    """Usage added up by key, in order of first appearance."""
    total: dict[str, float] = {}
    for usage in usages:
        for key, amount in usage.items():
            total[key] = total.get(key, 0) + amount
    return total
