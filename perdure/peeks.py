"""What is known of a background job at a moment: its record, and what it has printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from perdure.core.job_output import CAP_CHARACTERS, CAP_MARKER
from perdure.core.problems import one_line
from perdure.job_messages import FailingLine, JobBeat, JobEnd, JobStatus, JobUsage, PeekPage
from perdure.payloads import adapter
from perdure.results_shapes import ResultsError

_Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
"""Since 1970; no calendar shows what is beyond."""

GOOD_ENDS: tuple[JobStatus, ...] = ("done", "interrupted")
"""What a job may end as without anything having gone wrong."""


@dataclass(frozen=True)
class Peek:
    """A job as of a moment.

    `stdout` and `stderr` are the whole output so far, or what follows the offsets that were asked
    for: the first 1,000,000 characters of each are kept, then a marker. Times are in milliseconds
    since 1970.
    """

    exec_id: str
    status: JobStatus
    done: bool
    """Whether it has ended: its status is not `running`."""
    name: str | None = None
    waiting: bool = False
    """Whether no worker has begun it yet."""
    stdout: str = ""
    stderr: str = ""
    interrupted: bool = False
    """Whether an interrupt was delivered to it."""
    interrupt_undelivered: str | None = None
    """Why the newest interrupt reached nobody; None: it did, or there was none."""
    error: str | None = None
    exit_code: int | None = None
    """Negative: ended by that signal."""
    failing_line: FailingLine | None = None
    """Of a python cell that raised."""
    usage: JobUsage = field(default_factory=JobUsage)
    attempts: int = 1
    """How often it was started."""
    started_at: int | None = None
    """None: it has not begun, or never did."""
    ended_at: int | None = None
    """None: it runs."""
    offset: int = 0
    """Where `stdout` begins, in characters."""
    next_offset: int = 0
    """What to ask for next time to go on where `stdout` ends."""
    stderr_offset: int = 0
    stderr_next_offset: int = 0
    live_stdout: str = ""
    """The line that is being redrawn, such as a progress bar; not part of `stdout` before it is
    finished."""
    live_stderr: str = ""
    tail_stdout: str = ""
    """The newest output of a job that prints more than is kept; it does not follow on `stdout`."""
    tail_stderr: str = ""
    run_id: str = ""
    """The workflow id of its task."""
    step: str | None = None
    """Of the task, that launched it; None: a person did."""

    @property
    def screen(self) -> str:
        """`stdout` as a terminal would show it: with the line that is being redrawn."""
        return self.stdout + self.live_stdout

    @property
    def went_well(self) -> bool | None:
        """Whether it ended as `done` or `interrupted`; None: it runs."""
        return self.status in GOOD_ENDS if self.done else None

    def as_json(self) -> dict[str, Any]:
        """As `perdure peek --json` prints it; `interrupt_undelivered` only if it is so."""
        told = asdict(self)
        if self.interrupt_undelivered is None:
            del told["interrupt_undelivered"]
        return told


@dataclass(frozen=True)
class JobEntry:
    """A job in the record of its task; more than this is left as it is."""

    exec_id: Annotated[str, Field(pattern=r"^exec-[0-9a-f]{12}$")]
    status: JobStatus
    name: str | None = None
    step: str | None = None
    error: str | None = None
    exit_code: int | None = None
    interrupted: bool = False
    usage: JobUsage = field(default_factory=JobUsage)
    attempts: int = 1
    failing_line: FailingLine | None = None
    launched_at: _Seconds | None = None
    started_at: _Seconds | None = None
    ended_at: _Seconds | None = None


_SHARED = {known.name for known in fields(Peek)} & {known.name for known in fields(PeekPage)}


def of_page(page: PeekPage) -> Peek:
    """A page of a job's workflow, with nothing beside it."""
    known = {name: getattr(page, name) for name in _SHARED}
    return Peek(**known, step=page.origin.step)


def of_record(entry: Mapping[str, Any], run_id: str) -> Peek:
    """A job as its task's record tells of it: without its output; of one that runs it knows when it
    was launched, and not when it began.

    Raises ResultsError for what is no such entry, as a file may hold.
    """
    try:
        job: JobEntry = adapter(JobEntry).validate_python(entry)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ResultsError(
            f"the record of {one_line(run_id)} tells of a job in a way that this version cannot "
            f"read ({where}: {one_line(first['msg'])}); read it with the version that wrote it"
        ) from error
    return Peek(
        exec_id=job.exec_id,
        status=job.status,
        done=job.status != "running",
        name=job.name,
        interrupted=job.interrupted,
        error=job.error,
        exit_code=job.exit_code,
        usage=job.usage,
        attempts=job.attempts,
        started_at=milliseconds(job.launched_at if job.ended_at is None else job.started_at),
        ended_at=milliseconds(job.ended_at),
        failing_line=job.failing_line,
        run_id=run_id,
        step=job.step,
    )


def with_end(peek: Peek, end: JobEnd) -> Peek:
    """A job that has ended, as its end tells of it."""
    return replace(
        peek,
        status=end.status,
        done=True,
        waiting=False,
        error=end.error,
        exit_code=end.exit_code,
        failing_line=end.failing_line,
        interrupted=end.interrupted,
        usage=end.usage,
        attempts=end.attempts,
        started_at=milliseconds(end.started_at),
        ended_at=milliseconds(end.ended_at),
        live_stdout="",
        live_stderr="",
    )


def with_beat(peek: Peek, beat: JobBeat) -> Peek:
    """A running job whose committed output was read to its end, with what its worker says beside.

    A beat of another start of it tells nothing.
    """
    if peek.done or beat.attempt != peek.attempts:
        return peek
    stdout, stdout_rest = _continued(peek.next_offset, beat.stdout_from, beat.stdout)
    stderr, stderr_rest = _continued(peek.stderr_next_offset, beat.stderr_from, beat.stderr)
    return replace(
        peek,
        waiting=False,
        started_at=peek.started_at or milliseconds(beat.started_at),
        usage=beat.usage,
        stdout=peek.stdout + stdout,
        next_offset=peek.next_offset + len(stdout),
        stderr=peek.stderr + stderr,
        stderr_next_offset=peek.stderr_next_offset + len(stderr),
        live_stdout=beat.live_stdout,
        live_stderr=beat.live_stderr,
        tail_stdout=beat.tail_stdout or stdout_rest,
        tail_stderr=beat.tail_stderr or stderr_rest,
    )


def _continued(at: int, begins: int, text: str) -> tuple[str, str]:
    """What of `text`, which begins at `begins`, goes on at `at`; and what of it does not follow."""
    if begins > at:  # it printed more than a beat takes since the last commit
        return "", text
    if at > CAP_CHARACTERS:  # the marker is there
        return "", ""
    new = text[at - begins :]
    if at + len(new) > CAP_CHARACTERS:
        new = new[: CAP_CHARACTERS - at] + CAP_MARKER
    return new, ""


def milliseconds(seconds: float | None) -> int | None:
    """A time of a message, in the unit of a peek."""
    return None if seconds is None else round(seconds * 1000)
