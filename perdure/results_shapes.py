"""What files of results must hold to be read; more than that is left as it is.

They may come from another machine, be cut off, or be somebody else's: who reads them looks first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from perdure.errors import PerdureError
from perdure.messages import FailureKind
from perdure.safe_names import UnsafeName, safe_part


def _safe(name: str) -> str:
    try:
        return safe_part(name)
    except UnsafeName as error:
        raise ValueError(str(error)) from None


_Number = Annotated[float, Field(allow_inf_nan=False)]
_Seconds = Annotated[_Number, Field(ge=-1e11, le=1e11)]
"""Far more than any calendar or clock that shows them can take would be a traceback."""
_Usage = dict[str, _Number]
_Part = Annotated[str, AfterValidator(_safe)]
"""What becomes part of a path."""
_Status = Literal["succeeded", "failed", "cancelled"]
# Strict: the values are used as they are, so a number in quotes is none. Checks are made when they
# are first used: every program imports this, and few read results.
_MORE = ConfigDict(extra="allow", strict=True, defer_build=True)


class ResultsError(PerdureError):
    """Files of results that cannot be read or written."""


@with_config(_MORE)
class _Failure(TypedDict):
    kind: FailureKind
    step: str | None
    reason: str


@with_config(_MORE)
class _LineStep(TypedDict):
    id: str
    status: str
    attempts: int
    duration: _Seconds


@with_config(_MORE)
class _End(TypedDict):
    """What suite.json tells of a trial."""

    task: str
    trial: Annotated[int, Field(gt=0)]
    run_id: str
    status: _Status
    failure: _Failure | None
    usage: _Usage
    started_at: _Seconds | None
    duration: _Seconds | None
    note: NotRequired[str]
    unwritten: NotRequired[bool]


@with_config(_MORE)
class _Line(_End):
    """A line of results.jsonl."""

    steps: list[_LineStep]
    retry_resets: list[Any]
    instances: list[Any]


@with_config(_MORE)
class _SuiteTask(TypedDict):
    id: _Part
    digest: str
    repeats: Annotated[int, Field(gt=0, le=1_000_000)]


def _each_once(tasks: list[_SuiteTask]) -> list[_SuiteTask]:
    if len({task["id"] for task in tasks}) < len(tasks):
        raise ValueError("two tasks have one id")
    return tasks


@with_config(_MORE)
class _Suite(TypedDict):
    """suite.json"""

    suite: str
    run_id: str
    status: Literal["running", "succeeded", "failed", "cancelled"]
    started_at: _Seconds
    ended_at: NotRequired[_Seconds | None]
    tasks: Annotated[list[_SuiteTask], AfterValidator(_each_once)]
    totals: dict[str, Any]
    stopped: NotRequired[str | None]
    server: NotRequired[str | None]
    trials: NotRequired[list[_End]]


@with_config(_MORE)
class _AttemptFailure(TypedDict):
    message: str


@with_config(_MORE)
class _Attempt(TypedDict):
    number: int
    epoch: NotRequired[int]
    status: str
    failure: _AttemptFailure | None


@with_config(_MORE)
class _Step(TypedDict):
    id: _Part
    type: str
    status: str
    duration: _Seconds
    attempts: list[_Attempt]


@with_config(_MORE)
class _RunFailure(TypedDict):
    kind: FailureKind
    step: str | None
    message: str


@with_config(_MORE)
class _Artifact(TypedDict):
    path: str
    step: str
    size_bytes: int
    kept: bool


@with_config(_MORE)
class _Cause(TypedDict):
    step_id: str
    attempt: int
    retry_from_step_id: str
    retry: int
    max_retries: int


@with_config(_MORE)
class _Undo(TypedDict):
    step_id: str
    attempt: int
    kind: str
    started_at: _Seconds | None
    ended_at: _Seconds | None
    failure: _AttemptFailure | None


@with_config(_MORE)
class _Rollback(TypedDict):
    number: int
    epoch: int | None
    causes: list[_Cause]
    span: list[str]
    cancelled: list[str]
    compensations: list[_Undo]
    environments: list[str]
    replaced: list[str]
    started_at: _Seconds
    ended_at: _Seconds | None
    abandoned: str | None


@with_config(_MORE)
class _NotUndone(TypedDict):
    step_id: str
    attempt: int
    error: str


@with_config(_MORE)
class _Carried(TypedDict):
    found: bool
    reason: str


@with_config(_MORE)
class _ResumedFrom(TypedDict):
    run_id: str
    step: str
    work: _Carried | None


@with_config(_MORE)
class _Record(TypedDict):
    """record.json"""

    suite: str
    task_id: str
    trial: int
    run_id: str
    resumed_from: NotRequired[_ResumedFrom | None]
    status: _Status
    failure: _RunFailure | None
    cancelled: NotRequired[str | None]
    steps: list[_Step]
    attempt_epoch: NotRequired[int]
    rollbacks: NotRequired[list[_Rollback]]
    compensation_failures: NotRequired[list[_NotUndone]]
    retry_resets: list[Any]
    instances: list[Any]
    usage: _Usage
    artifacts: NotRequired[list[_Artifact]]
    context: NotRequired[dict[str, Any]]
    started_at: _Seconds | None
    duration: _Seconds | None


SUITE: TypeAdapter[Any] = TypeAdapter(_Suite)
LINE: TypeAdapter[Any] = TypeAdapter(_Line)
RECORD: TypeAdapter[Any] = TypeAdapter(_Record)


def checked(value: object, shape: TypeAdapter[Any], path: Path, where: str = "") -> dict[str, Any]:
    """The value as it is, if it has the shape of what perdure writes.

    Raises ResultsError, which names the file and the first thing that is wrong with it.
    """
    try:
        shape.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ResultsError(
            f"{path}: {where}is not what perdure writes there "
            f"({at + ': ' if at else ''}{first['msg'].lower()}); move it away, or restore a copy"
        ) from None
    assert isinstance(value, dict)
    return value
