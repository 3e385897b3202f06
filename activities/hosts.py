"""A worker tells every open pool of its server that its host is there, and how it is."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import psutil
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.memory import memory
from perdure.core.ports import PortRange
from perdure.names import HOST_BEAT, POOL_WORKFLOW, pool_workflow_id
from perdure.pool_messages import HostBeat

BEAT_SECONDS = 5.0

_CALL_WITHIN = timedelta(seconds=5)
"""The server may be away; the next beat tries again."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger("perdure.hosts")


class HostBeats:
    """The beats of one worker process.

    A pool that has not heard of this process takes it for a new worker of the host, and sweeps.
    """

    def __init__(
        self,
        client: Client,
        host: str,
        shared_queue: str,
        *,
        capacity: int | None = None,
        max_memory_gb: float | None = None,
        ports: PortRange | None = None,
    ) -> None:
        """`shared_queue`: where the pools run that are told; those of others are no concern.

        `capacity`: instances at a time on this host; None: as many as memory and ports allow.
        `max_memory_gb`: what they may need together; None: as much as the machine has.
        """
        self._client = client
        self._host = host
        self._capacity = capacity
        self._max_memory_gb = max_memory_gb
        self._ports = ports or PortRange()
        self._worker = uuid.uuid4().hex
        quoted = shared_queue.replace("\\", "\\\\").replace("'", "\\'")
        self._open = (
            f"WorkflowType='{POOL_WORKFLOW}' and ExecutionStatus='Running' and TaskQueue='{quoted}'"
        )
        self._known: dict[str, None] = {}
        """Workflow ids of pools that somebody of this worker asked."""

    def beat(self) -> HostBeat:
        """How the host is now."""
        now = memory()
        return HostBeat(
            host=self._host,
            worker=self._worker,
            capacity=self._capacity,
            free_gb=now.free_gb,
            total_gb=now.total_gb,
            port_low=self._ports.low,
            port_high=self._ports.high,
            machine=machine_id(),
            max_gb=self._max_memory_gb,
        )

    async def tell(self, pool: str) -> None:
        """Tell a pool at once, and from now on: it may be too new for the list of the open ones.

        A pool that is not there is not told.
        """
        workflow_id = pool_workflow_id(pool)
        self._known[workflow_id] = None
        await self._tell(workflow_id, self.beat())

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Beat until the block is left."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait({beating})

    async def _beat(self) -> None:
        while True:
            try:
                await self._tell_all()
            except RPCError as error:
                _log.debug("the pools could not be told of this host: %s", error)
            except Exception:
                _log.exception("the pools could not be told of this host")
            await asyncio.sleep(BEAT_SECONDS)

    async def _tell_all(self) -> None:
        listed = self._client.list_workflows(self._open, rpc_timeout=_CALL_WITHIN)
        pools = dict.fromkeys([execution.id async for execution in listed]) | self._known
        if pools:
            beat = self.beat()
            await asyncio.gather(*(self._tell(pool, beat) for pool in pools))

    async def _tell(self, workflow_id: str, beat: HostBeat) -> None:
        pool = self._client.get_workflow_handle(workflow_id)
        try:
            await pool.signal(HOST_BEAT, beat, rpc_timeout=_CALL_WITHIN)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                self._known.pop(workflow_id, None)
            else:
                _log.debug("%s could not be told of this host: %s", workflow_id, error)


@functools.cache
def machine_id() -> str:
    """What hosts on one machine have in common, until it starts anew."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return f"{uuid.getnode():x}-{psutil.boot_time():.0f}"
