"""What the end of a step's activity means for its run.

Shared by the workflow, which hears of it as an exception, and by the reader of histories, which
finds it as an event: both must make the same of it.
"""

from __future__ import annotations

from temporalio.exceptions import ApplicationError, CancelledError, TimeoutError, TimeoutType

from perdure.core.run import Dispatch, TaskRun
from perdure.messages import StepFailure, StepOutcome
from perdure.names import BAD_INPUT, WORKER_LOST, WORKER_SHUTDOWN
from perdure.payloads import adapter


def take_error(run: TaskRun, dispatch: Dispatch, cause: BaseException | None, now: float) -> str:
    """Tell the run of an attempt that returned no outcome: failed, lost, handed back, never begun.

    `cause` is what the SDK makes of the failure. Returns the host that made the attempt, as far
    as it is known; else an empty text.
    """
    if isinstance(cause, ApplicationError):
        if cause.type == WORKER_SHUTDOWN:
            run.interrupt(dispatch, now)
        elif cause.type == WORKER_LOST:
            run.lose(dispatch, None, now)
        else:
            run.finish(dispatch, failed_outcome(cause), now)
    elif isinstance(cause, TimeoutError) and cause.type == TimeoutType.HEARTBEAT:
        known = last_beat(cause)
        run.lose(dispatch, known, now)
        return known.host if known else ""
    elif isinstance(cause, CancelledError):
        run.finish(dispatch, StepOutcome(status="cancelled"), now)
    else:
        late = StepFailure(
            f"the step did not end within its limit of {dispatch.step.timeout_seconds:g} s",
            type="Timeout",
            kind="timeout",
        )
        run.finish(dispatch, StepOutcome(status="failed", failure=late), now)
    return ""


def failed_outcome(error: ApplicationError) -> StepOutcome:
    """The outcome that a failed activity carries in its details; else one made from the error."""
    if error.details:
        return _outcome(error.details[0])
    return StepOutcome(
        status="failed",
        failure=StepFailure(
            error.message,
            type=error.type or "InternalError",
            kind="bad_input" if error.type == BAD_INPUT else "infrastructure",
            retryable=not error.non_retryable,
        ),
    )


def last_beat(error: TimeoutError) -> StepOutcome | None:
    """What a lost worker told in its last heartbeat: its host, the diff so far."""
    if not error.last_heartbeat_details:
        return None
    return _outcome(error.last_heartbeat_details[0])


def _outcome(detail: object) -> StepOutcome:
    outcome: StepOutcome = adapter(StepOutcome).validate_python(detail)
    return outcome
