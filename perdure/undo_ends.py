"""What the ends of a rollback's activities mean for its run.

Shared, as `perdure.attempt_ends` is, by the workflow and the reader of histories: both must make
the same of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.exceptions import ApplicationError, CancelledError, TimeoutError, TimeoutType

from perdure.messages import StepFailure
from perdure.names import WORKER_LOST
from perdure.payloads import adapter
from perdure.pool_messages import InstanceResult


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


def reset_result(error: BaseException | None) -> InstanceResult:
    """The result of a reset that ended without one."""
    failure = undo_failure(error)
    return InstanceResult(ok=False, reason=f"it could not be reset: {failure.message}")


class ResetRound:
    """The resets of one rollback, side by side, each of one environment."""

    def __init__(self, environments: Sequence[str]) -> None:
        self._left = list(environments)
        self.failures: dict[str, str] = {}
        """By environment: why it could not be reset."""

    def answer(self, environment: str, result: InstanceResult) -> bool:
        """Take the end of one; True if it was the last."""
        self._left.remove(environment)
        if not result.ok:
            self.failures[environment] = "\n".join([result.reason, *result.log])
        return not self._left
