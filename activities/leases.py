"""Activities that carry words between tasks, suites, instances and their pools.

All are idempotent: a pool counts a request, and its release, once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from perdure.core.pool_decisions import LoseLease
from perdure.core.pool_options import RULES
from perdure.names import (
    ACQUIRE_LEASE,
    ANSWER_POOL,
    DEMAND_SET,
    END_INSTANCES,
    INSTANCE_ANSWERED,
    LEASE_LOST,
    LEASE_RELEASED,
    LEASE_SEEN,
    POOL_WORKFLOW,
    RELEASE_LEASE,
    REMIND_POOL,
    REQUEST_LEASE,
    RESET_ASKED,
    RESET_LEASE,
    SEE_LEASE,
    SET_DEMAND,
    pool_workflow_id,
)
from perdure.pool_messages import (
    AnswerCall,
    EndInstances,
    LeaseRelease,
    LeaseRequest,
    LeaseReset,
    LeaseSeen,
    PoolInput,
    PoolTimes,
    SetDemand,
)

ANSWER_WITHIN = timedelta(seconds=20)
"""A query waits for the pool's worker."""

ENDS_AT_ONCE = 20

PREFIX_VARIABLE = "DT_POOL_PREFIX"
"""Of the worker's environment."""


class Leases:
    """What tasks, suites and instances say to pools."""

    def __init__(
        self,
        client: Client,
        shared_queue: str,
        host: str,
        *,
        tell: Callable[[str], Awaitable[None]] | None = None,
        times: PoolTimes | None = None,
        prefix: str | None = None,
    ) -> None:
        """`shared_queue`: where pools run. `host`: that of this worker.

        `tell` tells a pool at once that this host is there; None: somebody else does. Pools are
        started with `times`; `prefix` is what the names of their projects begin with (P19), None
        or empty: `pool`.
        """
        self._client = client
        self._queue = shared_queue
        self._host = host
        self._tell = tell
        self._times = times or PoolTimes()
        self._prefix = (prefix or "").strip() or "pool"
        self._told: set[str] = set()
        """Pools that were told of this host."""

    # --- Tasks ------------------------------------------------------------------------------

    @activity.defn(name=ACQUIRE_LEASE)
    async def acquire_lease(self, request: LeaseRequest) -> None:
        """Queue a request with its pool, which starts if it is not there."""
        if request.bind:
            request = replace(request, host=self._host)
        await self._say(request.pool, REQUEST_LEASE, request)

    @activity.defn(name=RELEASE_LEASE)
    async def release_lease(self, release: LeaseRelease) -> None:
        """Give a lease back, or leave the queue; a pool that is not there has nothing."""
        await self._is_said(release.pool, LEASE_RELEASED, release)

    @activity.defn(name=SEE_LEASE)
    async def see_lease(self, seen: LeaseSeen) -> None:
        """Tell a pool that its word has arrived."""
        await self._is_said(seen.pool, LEASE_SEEN, seen)

    @activity.defn(name=RESET_LEASE)
    async def reset_lease(self, word: LeaseReset) -> None:
        """Have environments of a lease reset; by a pool that is not there, the lease is lost."""
        if not await self._is_said(word.pool, RESET_ASKED, word):
            reason = "its pool is not there any more"
            loss = LoseLease(word.request_id, word.holder, reason, word.environments)
            await self._is_told(word.holder.workflow_id, LEASE_LOST, loss)

    @activity.defn(name=REMIND_POOL)
    async def remind_pool(self, request: LeaseRequest) -> str:
        """Ask again for what a pool does not know of: it was terminated by hand meanwhile.

        Returns how it stood with the request before: the `state` of its `Ticket`.
        """
        pool = self._client.get_workflow_handle(pool_workflow_id(request.pool))
        state = await self._state(pool, request.request_id)
        if state == "unknown":
            await self.acquire_lease(request)
        return state

    # --- Suites -----------------------------------------------------------------------------

    @activity.defn(name=SET_DEMAND)
    async def set_demand(self, demand: SetDemand) -> None:
        """Tell a pool what a suite is going to need; it starts if it is not there."""
        if demand.over:
            await self._is_said(demand.pool, DEMAND_SET, demand)
        else:
            await self._say(demand.pool, DEMAND_SET, demand)

    # --- Pools and their instances ----------------------------------------------------------

    @activity.defn(name=ANSWER_POOL)
    async def answer_pool(self, call: AnswerCall) -> bool:
        """Tell a pool what became of an order to an instance; False: it is not there."""
        return await self._is_said(call.pool, INSTANCE_ANSWERED, call.answer)

    @activity.defn(name=END_INSTANCES)
    async def end_instances(self, end: EndInstances) -> None:
        """Terminate the workflows of instances whose host is gone: nobody is there to end them."""
        places = asyncio.Semaphore(ENDS_AT_ONCE)

        async def terminate(workflow_id: str) -> None:
            async with places:
                try:
                    await self._client.get_workflow_handle(workflow_id).terminate(reason=end.reason)
                except RPCError as error:
                    if error.status is not RPCStatusCode.NOT_FOUND:
                        raise

        await asyncio.gather(*map(terminate, end.workflow_ids))

    # --- Inside -----------------------------------------------------------------------------

    async def _say(self, pool: str, signal: str, word: Any) -> None:
        """Send a signal to a pool, which starts if it is not there."""
        is_new = not await self._is_said(pool, signal, word)  # most are there: that is cheaper
        if is_new:
            await self._client.start_workflow(
                POOL_WORKFLOW,
                PoolInput(
                    pool, uuid.uuid4().hex, self._prefix, self._times, early=True, rules=RULES
                ),
                id=pool_workflow_id(pool),
                task_queue=self._queue,
                static_summary=f"pool {pool}",
                start_signal=signal,
                start_signal_args=[word],
            )
        if self._tell and (is_new or pool not in self._told):
            # Else a new pool would hear of this host with its next beat, seconds later.
            self._told.add(pool)
            await self._tell(pool)

    async def _is_said(self, pool: str, signal: str, word: Any) -> bool:
        """Send a signal to a pool; False: it is not there."""
        return await self._is_told(pool_workflow_id(pool), signal, word)

    async def _is_told(self, workflow_id: str, signal: str, word: Any) -> bool:
        """Send a signal to a workflow; False: it is not there."""
        try:
            await self._client.get_workflow_handle(workflow_id).signal(signal, word)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def _state(self, pool: WorkflowHandle[Any, Any], request_id: str) -> str:
        try:
            ticket: dict[str, Any] = await pool.query(
                "ticket",
                request_id,
                reject_condition=QueryRejectCondition.NOT_OPEN,
                rpc_timeout=ANSWER_WITHIN,
            )
        except WorkflowQueryRejectedError:
            return "unknown"
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return "unknown"
        return str(ticket["state"])
