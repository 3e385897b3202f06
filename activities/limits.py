"""Activities that carry words between tasks and the limits whose slots they take.

All are idempotent: a limit counts a request, and its release, once.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from perdure.event_log import find_execution
from perdure.messages import (
    Holder,
    LimitInput,
    LimitOptions,
    ProbeHolders,
    RemindLimits,
    SlotRelease,
    SlotRequest,
)
from perdure.names import (
    ASK_SLOT,
    LIMIT_WORKFLOW,
    PROBE_HOLDERS,
    RELEASE_SLOT,
    REMIND_LIMITS,
    REQUEST_SLOT,
    SLOT_RELEASED,
    limit_workflow_id,
)

LOOKS_AT_ONCE = 20

ANSWER_WITHIN = timedelta(seconds=20)
"""A query waits for the limit's worker."""


class Slots:
    """What tasks do about slots, and what limits ask about tasks."""

    def __init__(
        self, client: Client, shared_queue: str, options: LimitOptions | None = None
    ) -> None:
        """`shared_queue`: where the workflows of limits run, which are started with `options`."""
        self._client = client
        self._queue = shared_queue
        self._options = options or LimitOptions()

    @activity.defn(name=ASK_SLOT)
    async def ask_slot(self, request: SlotRequest) -> None:
        """Queue a request with its limit, whose workflow starts if it is not there."""
        await self._client.start_workflow(
            LIMIT_WORKFLOW,
            LimitInput(request.limit, self._options),
            id=limit_workflow_id(request.limit),
            task_queue=self._queue,
            static_summary=f"limit {request.limit}",
            start_signal=REQUEST_SLOT,
            start_signal_args=[request],
        )

    @activity.defn(name=RELEASE_SLOT)
    async def release_slot(self, release: SlotRelease) -> None:
        """Give a slot back, or leave the queue; a limit that is not there holds nothing."""
        limit = self._client.get_workflow_handle(limit_workflow_id(release.limit))
        try:
            await limit.signal(SLOT_RELEASED, release)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    @activity.defn(name=REMIND_LIMITS)
    async def remind_limits(self, reminder: RemindLimits) -> None:
        """Ask again for what a limit does not know of: it was terminated by hand meanwhile."""
        for limit in sorted({request.limit for request in reminder.requests}):
            asked = [request for request in reminder.requests if request.limit == limit]
            unknown = await self._unknown(limit, [request.request_id for request in asked])
            for request in asked:
                if request.request_id in unknown:
                    await self.ask_slot(request)

    async def _unknown(self, limit: str, request_ids: list[str]) -> list[str]:
        handle = self._client.get_workflow_handle(limit_workflow_id(limit))
        try:
            unknown: list[str] = await handle.query(
                "unknown",
                request_ids,
                result_type=list[str],
                reject_condition=QueryRejectCondition.NOT_OPEN,
                rpc_timeout=ANSWER_WITHIN,
            )
        except WorkflowQueryRejectedError:
            return request_ids
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return request_ids
        return unknown

    @activity.defn(name=PROBE_HOLDERS)
    async def probe_holders(self, probe: ProbeHolders) -> list[Holder]:
        """Those of these chains of runs that are closed, in the same order.

        One without a run id is closed when no workflow of its id is open.
        """
        places = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def is_gone(holder: Holder) -> bool:
            async with places:
                found = await find_execution(self._client, holder.workflow_id)
            if found is None or not found.is_open:
                return True
            return holder.run_id not in ("", found.first_run_id)

        gone = await asyncio.gather(*map(is_gone, probe.holders))
        return [holder for holder, is_so in zip(probe.holders, gone, strict=True) if is_so]
