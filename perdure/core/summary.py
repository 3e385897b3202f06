"""What a task hands its suite: at most 2 KiB, since a parent's history keeps a copy."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from perdure.core.run import TaskRun
from perdure.messages import SUMMARY_LIMIT_BYTES, TrialSummary


def summarise(run: TaskRun) -> TrialSummary:
    """The summary of a closed run; texts are clipped until it fits the limit."""
    failure = run.failure
    status = run.status
    assert status != "running", "only a closed run is summarised"
    summary = TrialSummary(
        task_id=run.run.task_id,
        trial=run.run.trial,
        run_id=run.run.run_id,
        status=status,
        failure_kind=failure.kind if failure else None,
        failure_step=failure.step if failure else None,
        failure_reason=failure.message if failure else run.cancelled,
        steps_total=len(run.task.steps),
        steps_done=len(run.ended),
        attempts=run.attempts,
        started_at=run.started_at,
        duration_seconds=run.duration_seconds or 0.0,
        usage=run.usage,
        note=run.note,
        withdrawn=run.withdrawn,
        rollbacks=len(run.rolled_back),
    )
    return clip_summary(summary)


def clip_summary(summary: TrialSummary) -> TrialSummary:
    """The same summary, its reason, note and usage cut down to the limit."""
    for limit in (1000, 400, 100, 20):
        if _size(summary) <= SUMMARY_LIMIT_BYTES:
            break
        summary = replace(
            summary,
            failure_reason=clip(summary.failure_reason, limit),
            note=clip(summary.note, limit),
            usage=dict(_cost_first(summary.usage)[: limit // 20]),
        )
    return summary


def _cost_first(usage: dict[str, float]) -> list[tuple[str, float]]:
    """Suites are bounded by their cost: it is the last to go."""
    return sorted(usage.items(), key=lambda entry: entry[0] != "cost")


def clip(text: str | None, limit: int) -> str | None:
    """The first `limit` characters, with a mark where something was cut."""
    if text is None or len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def _size(summary: TrialSummary) -> int:
    return len(json.dumps(asdict(summary)))
