"""What the ends of compensations mean for their run.

Shared, as `perdure.attempt_ends` is, by the workflow and the reader of histories: both must make
the same of them.
"""

from __future__ import annotations

from temporalio.exceptions import ApplicationError, CancelledError, TimeoutError, TimeoutType

from perdure.messages import StepFailure
from perdure.names import WORKER_LOST
from perdure.payloads import adapter


def undo_failure(cause: BaseException | None) -> StepFailure:
    """Why a compensation did not succeed, after all its tries. `cause` is what the SDK makes of
    it."""
    if isinstance(cause, ApplicationError):
        if cause.details:
            told: StepFailure = adapter(StepFailure).validate_python(cause.details[0])
            return told
        return StepFailure(cause.message, cause.type or "InternalError", "infrastructure")
    if isinstance(cause, TimeoutError):
        if cause.type == TimeoutType.HEARTBEAT:
            message = "its worker was lost too often"
            return StepFailure(message, type=WORKER_LOST, kind="infrastructure")
        return StepFailure("it did not end within its limit", type="Timeout", kind="timeout")
    if isinstance(cause, CancelledError):
        return StepFailure("it was cancelled", type="Cancelled", kind="infrastructure")
    return StepFailure(str(cause), type=type(cause).__name__, kind="infrastructure")
