"""What a job is as of now: how its starts went, what was asked of it, what it has printed.

Its workflow tells it what happens, and so does whoever reads the workflow's history; both get the
same answers. Times are seconds since 1970, handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perdure.core.job_output import PAGE_BYTES, Committed
from perdure.job_messages import (
    InterruptAnswer,
    InterruptOrder,
    JobBeat,
    JobEnd,
    JobExit,
    JobInput,
    JobSpec,
    JobStatus,
    JobTask,
    JobUsage,
    OutputBatch,
    PeekPage,
    PeekRequest,
)

EXECUTION_FAILED = "background execution failed"
"""The error of a job that perdure itself could not run; the cause is in the worker's log (B8)."""

INTERRUPTED = "Interrupted"
"""The error of a job that ended for an interrupt (B20, BD5)."""

STARTED_AGAIN = "[perdure: the worker was lost; started again]"
"""The line between the output of two starts."""

UNDELIVERED = "the stop request did not reach the worker"
"""Why an interrupt reached nobody, where nobody knows better (B13)."""

MAX_INTERRUPTS = 250
"""Of a job, at ten events each. A kill is heeded after that, too."""

WORN = f"it was interrupted {MAX_INTERRUPTS} times; kill it"
"""Why an interrupt after those reaches nobody."""

MAX_ERROR_CHARACTERS = 4_000
"""Of an error's text: a job's end is told to its task."""


@dataclass(frozen=True)
class Asked:
    """What was asked of a job, as its end is judged by it."""

    interrupted: bool = False
    """An interrupt was delivered to it, or asked for before it began."""
    kill_after_seconds: float | None = None
    """So long after an interrupt a kill was ordered; None: none was."""


class JobLife:
    """One job, from its launch to its end."""

    def __init__(self, job: JobInput, run_id: str) -> None:
        """`run_id`: the workflow id of its task."""
        self._job = job
        self._run_id = run_id
        self.attempt = 1
        """The newest start; it may not have begun."""
        self.begun = False
        """Whether a worker is known to have begun the newest start."""
        self.losses = 0
        self.started_at: float | None = None
        self.stop_asked = False
        """Whether an interrupt or a kill was asked for: then it does not start again."""
        self.undelivered: str | None = None
        """Why the newest interrupt reached nobody."""
        self.end: JobEnd | None = None
        self._asked = Asked()
        self._orders = 0
        self._interrupts = 0
        self._batches = 0
        self._exit: JobExit | None = None
        self._usage = JobUsage()
        self._stdout, self._stderr = Committed(), Committed()
        self._tails = ("", "")

    # --- What is to be done -----------------------------------------------------------------

    def task(self) -> JobTask:
        """What the worker of the newest start is given."""
        return JobTask(
            self._job, self.attempt, self._stdout.end, self._stderr.end, commits=self._batches
        )

    def may_interrupt(self) -> bool:
        """Whether one more interrupt may be sent: somebody may ask for them without an end."""
        if self._interrupts < MAX_INTERRUPTS:
            return True
        self.undelivered = WORN
        return False

    def order(self, *, kill: bool = False, after_seconds: float = 0.0) -> InterruptOrder:
        """Ask for a signal to the process; call `answered` when that has ended.

        `after_seconds`: of a kill, how long after the interrupt.
        """
        self.stop_asked = True
        self._orders += 1
        self._interrupts += not kill
        if kill:
            self._asked = replace(self._asked, kill_after_seconds=after_seconds)
        return InterruptOrder(self._job.exec_id, self.attempt, kill)

    # --- What happened ----------------------------------------------------------------------

    def take(self, batch: OutputBatch, now: float) -> None:
        """Output of the newest start; that of an earlier one, which comes late, is dropped."""
        if batch.attempt != self.attempt or self.end:
            return
        self._batches += 1
        self._begin(batch.started_at or now)
        self._stdout.take(batch.stdout_from, batch.stdout)
        self._stderr.take(batch.stderr_from, batch.stderr)

    def answered(self, order: InterruptOrder, answer: InterruptAnswer, now: float) -> None:
        """A signal has reached the process, or nobody."""
        self._orders -= 1
        if answer.delivered:
            self._begin(now)
            if not order.kill:
                self._asked = replace(self._asked, interrupted=True)
            self.undelivered = None
        elif not self.end and order.attempt == self.attempt:
            self.undelivered = answer.reason or UNDELIVERED
        self._settle(now)

    def exited(self, exit: JobExit, now: float) -> None:
        """The newest start has ended by itself, or by what was asked of it."""
        if exit.attempt != self.attempt or self.end:
            return
        if exit.started_at is not None:
            self._begin(exit.started_at)
        self._stdout.take(exit.stdout_from, exit.stdout)
        self._stderr.take(exit.stderr_from, exit.stderr)
        self._tails = (exit.tail_stdout, exit.tail_stderr)
        self._count(exit.usage)
        # Who was told to signal it may still be on the way with the news that it did.
        self._exit = exit
        self._settle(now)

    def lost(self, beat: JobBeat | None, now: float, *, handed_back: bool = False) -> bool:
        """The worker of the newest start is gone; `beat` is what it told last.

        `handed_back`: it was asked to stop, which counts against nothing. True: it starts again.
        """
        if beat and beat.attempt != self.attempt:
            beat = None
        self._begin((beat and beat.started_at) or now)
        if beat:
            self._stdout.take(beat.stdout_from, beat.stdout + beat.live_stdout)
            self._stderr.take(beat.stderr_from, beat.stderr + beat.live_stderr)
            self._tails = (beat.tail_stdout, beat.tail_stderr)
            self._count(beat.usage)
        self.losses += not handed_back
        spec = self._job.spec
        if spec.restartable and not self.stop_asked and self.losses <= spec.max_worker_losses:
            self.attempt += 1
            self.begun = False
            self._stdout.begin_again(STARTED_AGAIN)
            self._stderr.begin_again()
            return True
        why = "its worker was stopped" if handed_back else "its worker was lost"
        if spec.restartable and self.losses > spec.max_worker_losses:
            times = "once" if self.losses == 1 else f"{self.losses} times"
            why = f"its worker was lost {times} (max_worker_losses: {spec.max_worker_losses})"
        self._close("lost", why, now)
        return False

    def never_began(self, now: float) -> None:
        """The newest start was called off while it waited for a worker."""
        again = " again" if self.attempt > 1 else ""
        self._asked = replace(self._asked, interrupted=True)
        self._close("interrupted", f"{INTERRUPTED} before it began{again}", now)

    def broke(self, now: float) -> None:
        """Perdure itself has failed."""
        self._begin(now)
        self._close("failed", EXECUTION_FAILED, now)

    def overran(self, now: float) -> None:
        """It did not end at its time limit, nor some time after."""
        self._begin(now)
        self._close("failed", _overtime(self._job.spec), now)

    # --- What is seen -----------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        return self.end.status if self.end else "running"

    @property
    def is_waiting(self) -> bool:
        """Whether no worker has begun the newest start, as far as anybody knows."""
        return not self.end and not self.begun

    @property
    def beyond(self) -> int:
        """An offset behind all that is committed."""
        return max(self._stdout.size, self._stderr.size)

    @property
    def exit(self) -> JobExit | None:
        """How the newest start ended, once it has."""
        return self._exit

    def page(self, request: PeekRequest) -> PeekPage:
        """What is known, and a page of what is committed.

        Offsets beyond what is committed are answered with nothing, and as they are.
        """
        limit = min(max(request.limit_bytes, 4), PAGE_BYTES)
        offset, stderr_offset = max(0, request.offset), max(0, request.stderr_offset)
        stdout, next_offset = self._stdout.page(offset, limit)
        left = limit - len(stdout.encode())
        stderr, stderr_next = self._stderr.page(stderr_offset, left)
        end, job = self.end, self._job
        started_at = end.started_at if end else self.started_at
        return PeekPage(
            exec_id=job.exec_id,
            name=job.spec.name,
            origin=job.origin,
            run_id=self._run_id,
            status=self.status,
            done=end is not None,
            waiting=self.is_waiting,
            interrupted=self._asked.interrupted,
            interrupt_undelivered=self.undelivered,
            error=end.error if end else None,
            exit_code=end.exit_code if end else None,
            failing_line=end.failing_line if end else None,
            usage=end.usage if end else self._usage,
            attempts=end.attempts if end else self.attempt,
            started_at=None if started_at is None else round(started_at * 1000),
            ended_at=round(end.ended_at * 1000) if end else None,
            stdout=stdout,
            offset=offset,
            next_offset=next_offset,
            stderr=stderr,
            stderr_offset=stderr_offset,
            stderr_next_offset=stderr_next,
            committed=self._stdout.size,
            stderr_committed=self._stderr.size,
            tail_stdout=self._tails[0],
            tail_stderr=self._tails[1],
        )

    # --- Inside -----------------------------------------------------------------------------

    def _begin(self, at: float) -> None:
        self.begun = True
        if self.started_at is None:
            self.started_at = at

    def _count(self, used: JobUsage) -> None:
        before = self._usage
        self._usage = JobUsage(
            wall_seconds=round(before.wall_seconds + used.wall_seconds, 6),
            cpu_seconds=round(before.cpu_seconds + used.cpu_seconds, 6),
            peak_memory_bytes=max(before.peak_memory_bytes, used.peak_memory_bytes),
        )

    def _settle(self, now: float) -> None:
        exit = self._exit
        if exit is None or self._orders or self.end:
            return
        status, error = judged(exit, self._job.spec, self._asked, begun=self.begun)
        interrupted = self._asked.interrupted or exit.interrupted or status == "interrupted"
        self._asked = replace(self._asked, interrupted=interrupted)
        self._close(status, error, exit.ended_at or now, exit)

    def _close(
        self, status: JobStatus, error: str | None, at: float, exit: JobExit | None = None
    ) -> None:
        """Everything that is told of the end, at once (B9)."""
        if self.end:
            return
        if self._asked.interrupted:
            self.undelivered = None
        self.end = JobEnd(
            exec_id=self._job.exec_id,
            status=status,
            error=error and error[:MAX_ERROR_CHARACTERS],
            exit_code=exit.exit_code if exit else None,
            failing_line=exit.failing_line if exit else None,
            interrupted=self._asked.interrupted,
            usage=self._usage,
            attempts=self.attempt if self.begun else self.attempt - 1,
            started_at=self.started_at,
            ended_at=at,
        )


def judged(
    exit: JobExit, spec: JobSpec, asked: Asked, *, begun: bool
) -> tuple[JobStatus, str | None]:
    """How a start that ended is told (B7, BD5): a status, and an error for people.

    `begun`: whether a worker had taken it up; it may have been called off before its process was.
    """
    # Who killed it may have been another worker of its host, of which its own knows nothing.
    is_killed = asked.kill_after_seconds is not None and exit.exit_code in _killed_codes(spec)
    match "killed" if is_killed and exit.ended_by == "exit" else exit.ended_by:
        case "timeout":
            return "failed", _overtime(spec)
        case "killed" | "cancelled" if begun and _has_run(exit):
            if not asked.kill_after_seconds:
                return "killed", "killed"
            late = f"killed: it still ran {asked.kill_after_seconds:g} s after its interrupt"
            return "killed", late
        case "killed" | "cancelled":
            return "interrupted", f"{INTERRUPTED} before it began"
        case "unstarted" if exit.error is None and asked.interrupted:
            return "interrupted", f"{INTERRUPTED} before it began"
        case "unstarted":
            return "failed", exit.error or EXECUTION_FAILED
    # A command knows nothing of errors: whatever it ends with after an interrupt is for that.
    if exit.interrupted or (asked.interrupted and spec.argv is not None):
        return "interrupted", INTERRUPTED
    if exit.error is not None:
        return "failed", exit.error
    if exit.exit_code is not None and exit.exit_code in spec.ok_exit_codes:
        return "done", None
    if exit.exit_code is not None and exit.exit_code < 0:
        return "failed", f"ended by signal {-exit.exit_code}"
    return "failed", f"exit code {exit.exit_code}"


def _killed_codes(spec: JobSpec) -> tuple[int, ...]:
    """What a job ends with that was killed; of one in a container, its client tells another."""
    return (-9,) if spec.environment is None else (-9, 137)


def _has_run(exit: JobExit) -> bool:
    return exit.started_at is not None or exit.exit_code is not None


def _overtime(spec: JobSpec) -> str:
    return f"the job ran longer than its limit of {spec.time_limit_seconds or 0:g} s"
