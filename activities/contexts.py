"""The contexts of the runs that a worker serves, kept up to date by asking for diffs.

A context above 32 KiB does not ride in an activity's input: the worker keeps the last one it had
of a run and asks the workflow, by query, for the diffs it lacks. So a chain of 300 steps that each
add 20 kB moves 6 MB, not 900.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.core.context import apply
from perdure.errors import PerdureError
from perdure.messages import ContextDiffs, ContextRequest, StepTask

KEPT_RUNS = 200
"""Runs whose last context is kept; the oldest is forgotten first and asked for anew."""

PATIENCE_SECONDS = 120.0
"""For a server, or a worker that serves the workflow, that is away."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
QUERY_SECONDS = 30.0
"""For one query; a workflow that is replayed first takes some seconds."""


class StaleAttempt(Exception):
    """The workflow is past this attempt: rolled back, or closed."""


class ContextUnavailable(PerdureError):
    """Nobody answered for the workflow; that is no fault of the step."""


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

        Raises:
            StaleAttempt: the workflow has moved to another epoch, or is gone.
            ContextUnavailable: no answer within PATIENCE_SECONDS.
        """
        if task.context is not None:
            return task.context
        kept = self._kept.get(task.run.run_id)
        if kept is not None and (kept.epoch != task.epoch or kept.version > task.version):
            kept = None
        have = kept.version if kept else -1
        request = ContextRequest(epoch=task.epoch, have=have, want=task.version)
        answer = await self._ask(task.run.workflow_id, request)
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

    async def _ask(self, workflow_id: str, request: ContextRequest) -> ContextDiffs:
        """The workflow's answer, asked for again while the server or its worker is away."""
        handle = self._client.get_workflow_handle(workflow_id)
        until = time.monotonic() + PATIENCE_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            left = until - time.monotonic()
            try:
                answer: ContextDiffs = await handle.query(
                    "context_diffs",
                    request,
                    result_type=ContextDiffs,
                    rpc_timeout=timedelta(seconds=min(QUERY_SECONDS, max(left, 1.0))),
                )
                return answer
            except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
                if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                    raise StaleAttempt(f"{workflow_id} is unknown to the server") from error
                if left <= pause:
                    raise ContextUnavailable(
                        f"{workflow_id} did not tell the step's context within "
                        f"{PATIENCE_SECONDS:g} s: {error}"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def forget(self, run_id: str) -> None:
        """Drop what is kept of a run that has ended."""
        self._kept.pop(run_id, None)
