"""What tasks, jobs, activities and clients say to each other about background jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.messages import Json, RunRef

JobStatus = Literal["running", "done", "failed", "interrupted", "killed", "lost"]
"""`killed`: asked to stop, and did not; `lost`: its worker was lost, or its workflow terminated."""


@dataclass(frozen=True)
class JobSpec:
    """What a job is to run: a python cell or a command, and under which limits."""

    code: str | None = None
    """A python cell; the value of a last expression is echoed. Either this or `argv`."""
    argv: list[str] | None = None
    entrypoint: str | None = None
    """Of a cell: a function in it that is called with `{"args", "results", "context"}`."""
    args: Json = None
    cwd: str | None = None
    """Relative to the run's directory, which is the default."""
    env: dict[str, Json] = field(default_factory=dict)
    """Texts, or references to secrets."""
    stdin: str | None = None
    """None: end of file at once."""
    ok_exit_codes: list[int] = field(default_factory=lambda: [0])
    environment: str | None = None
    """None: beside the worker; else inside of this environment of the task."""
    service: str | None = None
    user: str | None = None
    workdir: str | None = None
    name: str | None = None
    """Another word for its id within the task."""
    restartable: bool = False
    """Whether it starts again when its worker was lost."""
    max_worker_losses: int = 3
    time_limit_seconds: float | None = None
    kill_after_seconds: float = 5.0
    """After an interrupt that is to be followed by a kill."""


@dataclass(frozen=True)
class JobOrigin:
    """Who asked for a job."""

    kind: Literal["step", "person"] = "person"
    step: str | None = None
    epoch: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class JobLaunch:
    """Update of a task: start a job. The same `exec_id` again changes nothing."""

    exec_id: str
    """`exec-` and 12 hexadecimal digits, drawn by whoever asks."""
    spec: JobSpec
    origin: JobOrigin = field(default_factory=JobOrigin)


@dataclass(frozen=True)
class JobLaunched:
    """The answer to that."""

    exec_id: str
    status: JobStatus


@dataclass(frozen=True)
class JobUsage:
    """What a job has used so far, all its starts together."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """User and system time of its processes."""
    peak_memory_bytes: int = 0
    """Of the largest single process."""


@dataclass(frozen=True)
class FailingLine:
    """Where in a cell an error was raised."""

    number: int
    """From 1."""
    text: str


@dataclass(frozen=True)
class JobEnd:
    """How a job ended; its output is not in here."""

    exec_id: str
    status: JobStatus
    error: str | None = None
    exit_code: int | None = None
    """Negative: ended by that signal."""
    failing_line: FailingLine | None = None
    interrupted: bool = False
    """Whether an interrupt was delivered to it."""
    usage: JobUsage = field(default_factory=JobUsage)
    attempts: int = 1
    """How often it was started."""
    started_at: float | None = None
    """Seconds since 1970; None: it never ran."""
    ended_at: float = 0.0
    """Seconds since 1970."""


@dataclass(frozen=True)
class JobInput:
    """Start of a job's workflow."""

    exec_id: str
    spec: JobSpec
    origin: JobOrigin
    run: RunRef
    """Of its task."""
    host: str | None = None
    """None: one host serves the queue."""
    folder: str | None = None
    """Where the task's document lies."""
    results_dir: str | None = None
    suite_workflow_id: str | None = None
    instances: list[dict[str, Any]] = field(default_factory=list)
    """Of the task's lease, as a step is given them (`StepTask.instances`)."""
    environments: list[str] = field(default_factory=list)
    redact: list[str] = field(default_factory=list)
    context: Json = None
    """For an `entrypoint`: what it is called with (`results` and the context)."""
    restarts: int = 0


@dataclass(frozen=True)
class JobTask:
    """One start of a job: what `run_job` is given."""

    job: JobInput
    attempt: int = 1
    """From 1; above that an earlier start was lost."""
    stdout_from: int = 0
    """Characters committed by earlier starts."""
    stderr_from: int = 0
    commits: int = 0
    """How often earlier starts have committed: what a job may cost is for all of them together."""


@dataclass(frozen=True)
class OutputBatch:
    """Signal to a job: output of its process, in order.

    The first one of a start is sent as soon as it has begun, with whatever there is.
    """

    attempt: int
    stdout_from: int
    """Where `stdout` begins, in characters of the whole job; what is there already is skipped."""
    stdout: str
    stderr_from: int
    stderr: str
    started_at: float | None = None
    """When this start began, in seconds since 1970."""


@dataclass(frozen=True)
class JobBeat:
    """What rides in the heartbeat of `run_job`: what is not committed yet."""

    attempt: int
    host: str
    pid: int | None = None
    """None: it has not begun."""
    started_at: float | None = None
    stdout_from: int = 0
    stdout: str = ""
    """At most 16 KiB, the newest; a whole character at each end."""
    stderr_from: int = 0
    stderr: str = ""
    live_stdout: str = ""
    """The state of a line that is being redrawn."""
    live_stderr: str = ""
    tail_stdout: str = ""
    """The last 16 KiB of what is beyond the cap."""
    tail_stderr: str = ""
    usage: JobUsage = field(default_factory=JobUsage)


@dataclass(frozen=True)
class JobExit:
    """How one start of a job ended: what `run_job` returns."""

    attempt: int
    host: str
    exit_code: int | None
    """None: it could not be started, or was told to stop before it began."""
    ended_by: Literal["exit", "timeout", "killed", "cancelled", "unstarted"]
    error: str | None = None
    failing_line: FailingLine | None = None
    interrupted: bool = False
    """Whether the process itself says that it ended for an interrupt."""
    usage: JobUsage = field(default_factory=JobUsage)
    started_at: float | None = None
    ended_at: float = 0.0
    stdout_from: int = 0
    stdout: str = ""
    """What was not committed, at most 64 KiB."""
    stderr_from: int = 0
    stderr: str = ""
    tail_stdout: str = ""
    tail_stderr: str = ""


@dataclass(frozen=True)
class InterruptJob:
    """Signal to a job: one SIGINT for its process."""

    kill_after_seconds: float | None = None
    """Then it is killed, if it still runs; 0: at once; None: never."""


@dataclass(frozen=True)
class InterruptOrder:
    """What the activity `interrupt_job` is given."""

    exec_id: str
    attempt: int
    kill: bool = False
    leftovers: bool = False
    """Whether only what a lost worker may have left is killed: of the job nothing is asked."""


@dataclass(frozen=True)
class InterruptAnswer:
    """Whether the signal reached a process."""

    delivered: bool
    reason: str | None = None


@dataclass(frozen=True)
class StopJobs:
    """What the activity `stop_jobs` is given: interrupt these, and kill what is left."""

    exec_ids: list[str]
    grace_seconds: float = 5.0


@dataclass(frozen=True)
class PeekRequest:
    """Query of a job: a page of what is committed."""

    offset: int = 0
    """In characters of stdout."""
    stderr_offset: int = 0
    limit_bytes: int = 65_536
    """Of both together, as UTF-8; more is not given."""


@dataclass(frozen=True)
class PeekPage:
    """The answer: what is known of the job, and a page of its output."""

    exec_id: str
    name: str | None
    origin: JobOrigin
    run_id: str
    """The workflow id of its task."""
    status: JobStatus
    done: bool
    waiting: bool
    """Whether no worker has begun it yet."""
    interrupted: bool
    interrupt_undelivered: str | None
    error: str | None
    exit_code: int | None
    failing_line: FailingLine | None
    usage: JobUsage
    attempts: int
    started_at: int | None
    """Milliseconds since 1970."""
    ended_at: int | None
    """Milliseconds since 1970; None while it runs."""
    stdout: str
    offset: int
    next_offset: int
    stderr: str
    stderr_offset: int
    stderr_next_offset: int
    committed: int
    """Characters of stdout that are committed: a page that ends there is the last one."""
    stderr_committed: int
    tail_stdout: str = ""
    """Once it has ended: the last of what is beyond the cap."""
    tail_stderr: str = ""
