"""What one start of a job came to, as its workflow and its files are told."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.cells import Report
from activities.job_handover import REST_BYTES
from activities.job_start import JobStart
from activities.job_streams import Stream
from activities.supervise import ProcessExit
from perdure.core.job_state import Asked, judged
from perdure.job_messages import FailingLine, JobBeat, JobEnd, JobExit, JobUsage
from perdure.names import WORKER_LOST, WORKER_SHUTDOWN

CLEANUP_FAILED = "background execution cleanup failed"
"""The error of a job that ended well and may have left something that runs (B8)."""


@dataclass(frozen=True)
class Outcome:
    """What is left when nothing of a start runs any more."""

    process: ProcessExit | None = None
    """None: there was none, or nobody knows how it ended."""
    report: Report | None = None
    error: str | None = None
    """Why it could not be run."""
    is_clean: bool = True
    is_lost: bool = False
    """Its supervisor died."""


def is_handed_back(outcome: Outcome, start: JobStart) -> bool:
    """Whether another worker has to say what becomes of the job."""
    if outcome.is_lost:
        return True
    ended_by_us = outcome.process is None or outcome.process.ended_by == "cancelled"
    return start.is_handed_back and ended_by_us and not outcome.error


def handed_back(outcome: Outcome, beat: JobBeat) -> ApplicationError:
    """The failure that says so, with what was known last."""
    if outcome.is_lost:
        message, type, category = "the supervisor died under the job", WORKER_LOST, None
    else:
        message, type = "the worker is stopping", WORKER_SHUTDOWN
        category = ApplicationErrorCategory.BENIGN  # nothing to be logged
    return ApplicationError(
        message,
        beat,
        type=type,
        non_retryable=True,
        category=category or ApplicationErrorCategory.UNSPECIFIED,
    )


def exit_of(
    outcome: Outcome, start: JobStart, stdout: Stream, stderr: Stream, host: str
) -> JobExit:
    """What `run_job` returns, with the last of the output."""
    process, report = outcome.process, outcome.report
    ended_by = _ended_by(process, start)
    error, line = outcome.error, None
    interrupted = start.was_interrupted
    if ended_by == "exit" and report:
        error, interrupted = report.error and start.masked(report.error), report.interrupted
        line = report.failing_line
    if ended_by == "exit" and error is None and not outcome.is_clean:
        error = CLEANUP_FAILED
    err = stderr.waiting(REST_BYTES)
    out = stdout.waiting(REST_BYTES - err.size)
    return JobExit(
        attempt=start.task.attempt,
        host=host,
        exit_code=process.exit_code if process else None,
        ended_by=ended_by,
        error=error,
        failing_line=line and FailingLine(line.number, start.masked(line.text)),
        interrupted=interrupted and ended_by == "exit",
        usage=_usage(process),
        started_at=process.started_at if process else None,
        ended_at=process.started_at + process.duration_seconds if process else time.time(),
        stdout_from=stdout.handed_on,
        stdout=out.text,
        stderr_from=stderr.handed_on,
        stderr=err.text + _missing(process),
        tail_stdout=stdout.tail,
        tail_stderr=stderr.tail,
    )


def end_of(exit: JobExit, start: JobStart) -> JobEnd:
    """How the job has ended, if it has with this start: for its files."""
    asked = Asked(start.was_interrupted, 0.0 if start.was_killed else None)
    status, error = judged(exit, start.spec, asked, begun=True)
    return JobEnd(
        exec_id=start.task.job.exec_id,
        status=status,
        error=error,
        exit_code=exit.exit_code,
        failing_line=exit.failing_line,
        interrupted=start.was_interrupted or exit.interrupted,
        usage=exit.usage,
        attempts=exit.attempt,
        started_at=exit.started_at,
        ended_at=exit.ended_at,
    )


def lost_end(start: JobStart, beat: JobBeat) -> JobEnd:
    """How a job has ended that no other worker starts again."""
    return JobEnd(
        exec_id=start.task.job.exec_id,
        status="lost",
        error="its worker was stopped" if start.is_handed_back else "its worker was lost",
        interrupted=start.was_interrupted,
        usage=beat.usage,
        attempts=beat.attempt,
        started_at=beat.started_at,
        ended_at=time.time(),
    )


EndedBy = Literal["exit", "timeout", "killed", "cancelled", "unstarted"]


def _ended_by(process: ProcessExit | None, start: JobStart) -> EndedBy:
    if process is None:
        if start.was_killed:
            return "killed"
        return "cancelled" if start.is_unwanted else "unstarted"
    if process.ended_by == "exit":
        # In a container what is killed is the process inside; its client ends by itself then.
        return "killed" if start.was_killed and start.is_in_container else "exit"
    if process.ended_by == "timeout":
        return "timeout"
    return "killed" if process.ended_by == "killed" and not start.is_unwanted else "cancelled"


def _usage(process: ProcessExit | None) -> JobUsage:
    if process is None:
        return JobUsage()
    return JobUsage(
        wall_seconds=round(process.duration_seconds, 3),
        cpu_seconds=round(process.cpu_seconds, 3),
        peak_memory_bytes=process.peak_memory_bytes,
    )


def _missing(process: ProcessExit | None) -> str:
    """A line for people where a full disk has cost them output."""
    if process is None or process.output_error is None:
        return ""
    return f"\n[perdure: output is missing: {process.output_error}]\n"
