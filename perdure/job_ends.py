"""What the end of one start of a job means for the job.

Shared, as `perdure.attempt_ends` is, by the workflow and the reader of histories: both must make
the same of it.
"""

from __future__ import annotations

from temporalio.exceptions import ApplicationError, CancelledError, TimeoutError, TimeoutType

from perdure.core.job_state import JobLife
from perdure.job_messages import JobBeat, JobExit
from perdure.names import WORKER_LOST, WORKER_SHUTDOWN
from perdure.payloads import adapter


def is_silent(cause: BaseException | None) -> bool:
    """Whether the start's worker is gone, as far as anybody knows, or cannot be heard."""
    return isinstance(cause, TimeoutError) and cause.type == TimeoutType.HEARTBEAT


def take_error(life: JobLife, cause: BaseException | None, now: float) -> None:
    """Tell a job of a start that returned no `JobExit`: lost, handed back, called off, failed.

    `cause` is what the SDK makes of the failure of `run_job`.
    """
    if isinstance(cause, ApplicationError):
        if cause.type in (WORKER_SHUTDOWN, WORKER_LOST):
            beat = _beat(cause.details[0]) if cause.details else None
            life.lost(beat, now, handed_back=cause.type == WORKER_SHUTDOWN)
        else:
            life.broke(now)
    elif isinstance(cause, TimeoutError) and is_silent(cause):
        told = cause.last_heartbeat_details
        life.lost(_beat(told[0]) if told else None, now)
    elif isinstance(cause, TimeoutError):
        life.overran(now)
    elif isinstance(cause, CancelledError) and not life.begun:
        life.never_began(now)
    elif isinstance(cause, CancelledError):
        life.exited(JobExit(life.attempt, "", None, "cancelled"), now)
    else:
        life.broke(now)


def _beat(detail: object) -> JobBeat | None:
    try:
        beat: JobBeat = adapter(JobBeat).validate_python(detail)
    except ValueError:
        return None  # of another version, perhaps: the end stands without it
    return beat
