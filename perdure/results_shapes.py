"""What files of results must hold to be read; more than that is left as it is.

They may come from another machine, be cut off, or be somebody else's: who reads them looks first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from perdure.errors import PerdureError
from perdure.messages import FailureKind

_Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
_Usage = dict[str, _Number]
_Part = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
_Status = Literal["succeeded", "failed", "cancelled"]
_MORE = ConfigDict(extra="allow")


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
    duration: _Number


@with_config(_MORE)
class _End(TypedDict):
    """What suite.json tells of a trial."""

    task: str
    trial: Annotated[int, Field(gt=0)]
    run_id: str
    status: _Status
    failure: _Failure | None
    usage: _Usage
    started_at: _Number | None
    duration: _Number | None
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


@with_config(_MORE)
class _Suite(TypedDict):
    """suite.json"""

    suite: str
    run_id: str
    status: Literal["running", "succeeded", "failed", "cancelled"]
    started_at: _Number
    tasks: list[_SuiteTask]
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
    status: str
    failure: _AttemptFailure | None


@with_config(_MORE)
class _Step(TypedDict):
    id: str
    type: str
    status: str
    duration: _Number
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
class _Record(TypedDict):
    """record.json"""

    suite: str
    task_id: str
    trial: int
    run_id: str
    status: _Status
    failure: _RunFailure | None
    cancelled: NotRequired[str | None]
    steps: list[_Step]
    retry_resets: list[Any]
    instances: list[Any]
    usage: _Usage
    artifacts: NotRequired[list[_Artifact]]
    context: NotRequired[dict[str, Any]]
    started_at: _Number | None
    duration: _Number | None


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
