"""A task as plain data: its steps, and how they may be retried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.problems import TOO_MANY, InvalidTask, Place, Problem, TooManyProblems
from perdure.core.task_checks import check_task

__all__ = ["InvalidTask", "Problem", "Retry", "RetryConfig", "Step", "Task", "parse_task"]


@dataclass(frozen=True)
class Retry:
    """How often a step is tried again after it failed."""

    max_attempts: int = 1
    initial_interval: float = 1.0
    """Seconds before the second attempt."""
    backoff: float = 2.0
    """Each further wait is this many times the one before."""
    non_retryable_errors: tuple[str, ...] = ()
    """Types of failures (`StepFailure.type`) after which no attempt is made."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "max_attempts": self.max_attempts,
            "initial_interval": self.initial_interval,
            "backoff": self.backoff,
            "non_retryable_errors": list(self.non_retryable_errors),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Retry:
        return cls(
            max_attempts=document.get("max_attempts", 1),
            initial_interval=document.get("initial_interval", 1.0),
            backoff=document.get("backoff", 2.0),
            non_retryable_errors=tuple(document.get("non_retryable_errors", ())),
        )


@dataclass(frozen=True)
class RetryConfig:
    """How a step's failure rolls back a span."""

    retry_from_step_id: str
    """The first step to run again: the step itself or one that it depends on (T7)."""
    max_retries: int = 1
    environments: str = "reset"
    """`reset`: the environments that the span used start clean; `keep`: as they are."""
    delay: float = 0.0
    """Seconds from the rollback to the span's next start."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "retry_from_step_id": self.retry_from_step_id,
            "max_retries": self.max_retries,
            "environments": self.environments,
            **({"delay": self.delay} if self.delay else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RetryConfig:
        return cls(**document)


_DEFAULT_RETRY = Retry()

DEFAULT_MAX_ROLLBACKS = 20
"""Of one task; each may answer several failures."""


@dataclass(frozen=True)
class Step:
    """One step of a task."""

    id: str
    type: str
    depends_on: tuple[str, ...] | None = None
    """Ids of earlier steps; None: all of them; empty: none (T6)."""
    fail_task_on_error: bool = True
    timeout_seconds: float = 3600.0
    idle_timeout_seconds: float | None = None
    """No output and no heartbeat for that long ends the attempt; None: never."""
    heartbeat_timeout_seconds: float = 10.0
    retry: Retry = _DEFAULT_RETRY
    retry_config: RetryConfig | None = None
    max_worker_losses: int = 3
    version: int | None = None
    uses: tuple[str, ...] | None = None
    """Environments whose state the step changes; None: by the type's own rule."""
    creates: tuple[str, ...] = ()
    """Paths below the run's directory that the step makes."""
    body: dict[str, Any] = field(default_factory=dict)
    """The step's whole document, in the form of `to_dict`: `body["command"]`, `body["env"]`."""

    @property
    def limit(self) -> str | None:
        """The named limit of which each attempt takes a slot."""
        return self.body.get("limit")

    def to_dict(self) -> dict[str, Any]:
        """The step as a JSON document (T2); what equals its default is left out."""
        document = {key: value for key, value in self.body.items() if key not in _FIELDS}
        document |= {
            "id": self.id,
            "type": self.type,
            "version": self.version,
            "fail_task_on_error": self.fail_task_on_error,
        }
        if self.depends_on is not None:
            document["depends_on"] = [{"task_step_id": id} for id in self.depends_on]
        if self.timeout_seconds != 3600.0:
            document["timeout"] = self.timeout_seconds
        if self.idle_timeout_seconds is not None:
            document["idle_timeout"] = self.idle_timeout_seconds
        if self.heartbeat_timeout_seconds != 10.0:
            document["heartbeat_timeout"] = self.heartbeat_timeout_seconds
        if self.retry != _DEFAULT_RETRY:
            document["retry"] = self.retry.to_dict()
        if self.retry_config is not None:
            document["retry_config"] = self.retry_config.to_dict()
        if self.max_worker_losses != 3:
            document["max_worker_losses"] = self.max_worker_losses
        if self.uses is not None:
            document["uses"] = list(self.uses)
        if self.creates:
            document["creates"] = list(self.creates)
        return document

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Step:
        """Inverse of `to_dict`; trusts the document."""
        depends_on = document.get("depends_on")
        retry, retry_config = document.get("retry"), document.get("retry_config")
        uses = document.get("uses")
        return cls(
            id=document["id"],
            type=document["type"],
            depends_on=None
            if depends_on is None
            else tuple(dependency["task_step_id"] for dependency in depends_on),
            fail_task_on_error=document.get("fail_task_on_error", True),
            timeout_seconds=document.get("timeout", 3600.0),
            idle_timeout_seconds=document.get("idle_timeout"),
            heartbeat_timeout_seconds=document.get("heartbeat_timeout", 10.0),
            retry=_DEFAULT_RETRY if retry is None else Retry.from_dict(retry),
            retry_config=None if retry_config is None else RetryConfig.from_dict(retry_config),
            max_worker_losses=document.get("max_worker_losses", 3),
            version=document.get("version"),
            uses=None if uses is None else tuple(uses),
            creates=tuple(document.get("creates", ())),
            body=document,
        )


_FIELDS = frozenset(
    {
        "id",
        "type",
        "version",
        "fail_task_on_error",
        "depends_on",
        "timeout",
        "idle_timeout",
        "heartbeat_timeout",
        "retry",
        "retry_config",
        "max_worker_losses",
        "uses",
        "creates",
    }
)
"""Keys of a step's document that have a field; the rest lives in `body` alone."""


@dataclass(frozen=True)
class Task:
    """A validated task."""

    id: str
    steps: tuple[Step, ...]
    version: int | None = None
    project_id: str | None = None
    environments: tuple[str, ...] = ()
    seed: dict[str, Any] = field(default_factory=dict)
    """Values for the placeholders `<key>`; already filled in when `documents` loaded the task."""
    repeats: int = 1
    timeout_seconds: float | None = None
    """For the whole task; None: no limit."""
    priority: str = "medium"
    """critical, high, medium or low."""
    on_instance_lost: str = "restart"
    """`restart`: once, from the first step, with other instances; or `fail`."""
    max_rollbacks: int = DEFAULT_MAX_ROLLBACKS
    """Over all its steps, whatever each one's `max_retries`."""
    redact: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The task as a JSON document (T1); what equals its default is left out."""
        document: dict[str, Any] = {"id": self.id, "type": "task", "version": self.version}
        if self.project_id is not None:
            document["project_id"] = self.project_id
        if self.environments:
            document["environments"] = list(self.environments)
        if self.seed:
            document["seed"] = self.seed
        if self.repeats != 1:
            document["repeats"] = self.repeats
        if self.timeout_seconds is not None:
            document["timeout"] = self.timeout_seconds
        if self.priority != "medium":
            document["priority"] = self.priority
        if self.on_instance_lost != "restart":
            document["on_instance_lost"] = self.on_instance_lost
        if self.max_rollbacks != DEFAULT_MAX_ROLLBACKS:
            document["max_rollbacks"] = self.max_rollbacks
        if self.redact:
            document["redact"] = list(self.redact)
        if self.metadata:
            document["metadata"] = self.metadata
        document["steps"] = [step.to_dict() for step in self.steps]
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Task:
        """Inverse of `to_dict`; trusts the document, so it is cheap enough for a workflow."""
        return cls(
            id=document["id"],
            steps=tuple(Step.from_dict(step) for step in document["steps"]),
            version=document.get("version"),
            project_id=document.get("project_id"),
            environments=tuple(document.get("environments", ())),
            seed=document.get("seed", {}),
            repeats=document.get("repeats", 1),
            timeout_seconds=document.get("timeout"),
            priority=document.get("priority", "medium"),
            on_instance_lost=document.get("on_instance_lost", "restart"),
            max_rollbacks=document.get("max_rollbacks", DEFAULT_MAX_ROLLBACKS),
            redact=tuple(document.get("redact", ())),
            metadata=document.get("metadata", {}),
        )


def parse_task(
    document: Any,
    *,
    default_id: str | None = None,
    custom_types: Mapping[str, frozenset[str]] | None = None,
) -> Task:
    """Check a task's document and make the task of it.

    `document` is the mapping of a task, or a bare list of steps; `default_id` names a task whose
    document has no id; `custom_types` are the names and own keys of the types of plugins.

    Raises InvalidTask with every problem of the document at once.
    """
    problems: list[Problem] = []
    checked = None
    try:
        checked = check_task(document, Place(problems), default_id, custom_types or {})
    except TooManyProblems:
        problems.append(Problem((), TOO_MANY, "correct these first"))
    if problems or checked is None:
        raise InvalidTask(problems)
    # Once more through `to_dict`: whatever spells out a default is the same task without it.
    return Task.from_dict(Task.from_dict(checked).to_dict())
