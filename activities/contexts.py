"""The contexts of the runs that a worker serves, kept up to date by asking for diffs.

A context above 32 KiB does not ride in an activity's input: the worker keeps the last one it had
of a run and asks the workflow, by query, for the diffs it lacks. So a chain of 300 steps that each
add 20 kB moves 6 MB, not 900.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client

from perdure.core.context import apply
from perdure.messages import ContextDiffs, ContextRequest, StepTask

KEPT_RUNS = 200
"""Runs whose last context is kept; the oldest is forgotten first and asked for anew."""


class StaleAttempt(Exception):
    """The workflow is past this attempt: rolled back, or closed."""


@dataclass(frozen=True)
class _Kept:
    epoch: int
    version: int
    context: dict[str, Any]


class Contexts:
    """One worker's contexts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def of(self, task: StepTask) -> dict[str, Any]:
        """The context that this attempt is to see; never changed in place.

        Raises StaleAttempt if the workflow has moved to another epoch.
        """
        if task.context is not None:
            return task.context
        kept = self._kept.get(task.run.run_id)
        if kept is not None and (kept.epoch != task.epoch or kept.version > task.version):
            kept = None
        have = kept.version if kept else -1
        answer: ContextDiffs = await self._client.get_workflow_handle(task.run.workflow_id).query(
            "context_diffs",
            ContextRequest(epoch=task.epoch, have=have, want=task.version),
            result_type=ContextDiffs,
        )
        if answer.stale:
            raise StaleAttempt(f"{task.run.workflow_id} is past epoch {task.epoch}")
        context: dict[str, Any] = kept.context if kept else answer.seed or {}
        for ops in answer.diffs:
            context = apply(context, ops)
        self._kept[task.run.run_id] = _Kept(task.epoch, task.version, context)
        self._kept.move_to_end(task.run.run_id)
        while len(self._kept) > KEPT_RUNS:
            self._kept.popitem(last=False)
        return context

    def forget(self, run_id: str) -> None:
        """Drop what is kept of a run that has ended."""
        self._kept.pop(run_id, None)
