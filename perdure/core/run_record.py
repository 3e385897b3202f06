"""A run as `perdure show --json` prints it, and as `record.json` keeps it (T48)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perdure.core.record import Attempt, StepRecord, utc_iso, utc_minute
from perdure.core.rollback import Rollbacks
from perdure.core.task import Step
from perdure.messages import RunRef, StepFailure

if TYPE_CHECKING:
    from perdure.core.run_lease import RunLease
    from perdure.core.run_state import RunState


def instance_id(run: RunRef) -> str:
    """The run's name in its context: `<task id>-` and eight characters (T48)."""
    return f"{run.task_id}-{run.run_id.replace('-', '')[:8]}"


def record_of(
    run: RunState,
    steps: Mapping[str, StepRecord],
    ended: Sequence[str],
    lease: RunLease | None,
    rollbacks: Rollbacks,
) -> dict[str, Any]:
    """Everything about a run: `steps` by id, and the ids of those that `ended`, in that order."""
    return {
        **asdict(run.run),
        "instance_id": instance_id(run.run),
        "task_version": run.task.version,
        "project_id": run.task.project_id,
        "resumed_from": _resumed_from(run),
        "status": run.status,
        "failure": asdict(run.failure) if run.failure else None,
        "cancelled": run.cancelled,
        "current_step": len(ended),
        "total_steps": len(run.task.steps),
        "start_step": run.start_step,
        "end_step": run.end_step,
        "rev": run.rev,
        "attempt_epoch": run.epoch,
        "created_at_utc": utc_minute(run.started_at),
        "completed_at_utc": utc_minute(run.ended_at),
        "started_at": run.started_at,
        "duration": run.duration_seconds,
        "completed_steps": [
            {"step_id": s, "status": "failure" if steps[s].status == "failed" else "success"}
            for s in ended
        ],
        "step_attempt_failures": [
            {
                "attempt": attempt.number,
                "step_id": record.id,
                "step_type": record.type,
                "error_class": attempt.failure.type,
                "error_message": attempt.failure.message,
                "duration_s": attempt.duration_seconds,
                "occurred_at_utc": utc_iso(attempt.ended_at or attempt.started_at),
            }
            for record in steps.values()
            for attempt in record.attempts
            if attempt.failure
        ],
        "steps": [steps[s.id].to_dict() for s in run.task.steps],
        "rollbacks": [rollback.recorded() for rollback in rollbacks.all],
        "compensation_failures": rollbacks.failures(),
        "retry_resets": run.context["metadata"].get("retry_resets", []),
        "usage": run.usage,
        "artifacts": [
            {"step": record.id, "attempt": attempt.number, **asdict(artifact)}
            for record in steps.values()
            for attempt in record.attempts
            for artifact in attempt.artifacts
        ],
        "environments": list(run.task.environments),
        "instances": lease.recorded_instances() if lease else [],
        "lease": lease.recorded() if lease else None,
        "leases_lost": [asdict(loss) for loss in lease.losses] if lease else [],
        "withdrawn": run.withdrawn,
        "context": run.context,
    }


def _resumed_from(run: RunState) -> dict[str, Any] | None:
    """The run that it went on from, and what came of that one's files; None of most runs."""
    if run.resumed is None:
        return None
    told = {"run_id": run.resumed.run_id, "step": run.resumed.step}
    return told | {"work": asdict(run.work) if run.work else None}


def failed_step(step: Step, attempt: Attempt, failure: StepFailure) -> dict[str, Any]:
    """What `metadata.failed_steps` says of an attempt (T20)."""
    return {
        "step_id": step.id,
        "step_type": step.type,
        "error": failure.message,
        "error_type": failure.type,
        "started_at_utc": utc_iso(attempt.started_at),
        "duration_seconds": attempt.duration_seconds,
        "is_fatal": step.fail_task_on_error,
    }
