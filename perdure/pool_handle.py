"""A pool of environments, as the Python client holds it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import QueryRejectCondition, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.config import Settings
from perdure.core.pool import PoolOptions
from perdure.core.pool_definitions import Definition
from perdure.core.pool_options import RULES
from perdure.core.pool_view import PoolStats
from perdure.core.problems import one_line
from perdure.errors import PerdureError
from perdure.event_log import find_execution
from perdure.link import Link
from perdure.names import (
    DEFAULT_QUEUE,
    POOL_WORKFLOW,
    WISH,
    pool_workflow_id,
    shared_queue,
)
from perdure.pool_messages import PoolInput, PoolWish
from perdure.suite_input import check_id
from perdure.workers import WorkerConfig

__all__ = ["PoolHandle", "PoolRefused"]

ANSWER_SECONDS = 20.0
"""A worker answers within milliseconds; one that was just started, within seconds."""

SILENT_SECONDS = PoolOptions.host_away_seconds
"""A worker is heard of every few seconds; a host that is not for so long has none."""

_ASK_WITHIN = timedelta(seconds=10)
_PAUSE_SECONDS = 0.2
_STICKY_TIMEOUT = timedelta(seconds=1)
"""What is asked next goes to another worker so soon."""

_FINAL = (
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)

T = TypeVar("T")


class PoolRefused(PerdureError):
    """What was asked of a pool makes no sense as it is now; the text says why."""


class PoolHandle:
    """A pool, open or not: it opens with the first task that needs it, and closes when idle.

    Reading it runs nothing. On the embedded server an order has a worker of this process started
    on every host that has none, until the client is closed: somebody must carry it out.
    """

    def __init__(
        self, link: Link, settings: Settings, name: str, worker: WorkerConfig | None = None
    ) -> None:
        """Use `Perdure.pool`. `worker`: for workers that orders need. Raises BadId."""
        self.name = check_id("pool", name)
        self._link = link
        self._settings = settings
        self._worker = worker or WorkerConfig()
        self._shared = shared_queue(DEFAULT_QUEUE)
        self._handle = link.client.get_workflow_handle(pool_workflow_id(name))

    # --- Reading ----------------------------------------------------------------------------

    async def view(self) -> dict[str, Any] | None:
        """Hosts, instances, leases and waiting requests, as `perdure pool --json` prints them.

        None: the pool is not open, so nothing is up and nobody waits. Raises PerdureError if
        nobody answers.
        """
        found = await self._query("view", dict)
        return found and {"pool": self.name, "open": True, **found}

    async def stats(self) -> PoolStats | None:
        """The pool in figures; None if it is not open. Raises PerdureError if nobody answers."""
        return await self._query("stats", PoolStats)

    # --- Orders: each returns what the pool answers, a sentence for people --------------------

    async def reset(self, environment: str | None = None) -> str:
        """Reset the idle instances of an environment, or all.

        Raises PoolRefused with the reason: also if the pool is not open.
        """
        return await self._wish(PoolWish("reset", environment))

    async def stop(self, environment: str | None = None) -> str:
        """Stop the instances of an environment, or all: those in use after their use.

        Raises as `reset`.
        """
        return await self._wish(PoolWish("stop", environment))

    async def shutdown(self) -> str:
        """Stop everything at once, and refuse everybody. Raises as `reset`."""
        return await self._wish(PoolWish("shutdown"))

    async def sweep(self) -> str:
        """Remove what this pool left behind on its hosts. Raises as `reset`."""
        return await self._wish(PoolWish("sweep"))

    async def prepare(self, definition: Definition, count: int = 1) -> str:
        """Have so many instances ready from now on, whoever needs them; 0: no longer.

        What they need is pulled or built first. The pool is opened if it is not. Raises
        PoolRefused with the reason.
        """
        await self._open()
        wish = PoolWish("prewarm", definition.name, count, definition.to_json())
        return await self._wish(wish)

    async def have_hosts(self, view: Mapping[str, Any]) -> None:
        """On the embedded server: a worker of this process for each silent host with instances.

        `view` is what `view` returned. Raises WorkerFailed.
        """
        for host in view["hosts"]:
            is_silent = time.time() - host["heard"] >= SILENT_SECONDS
            if is_silent and host["instances"]:
                await self._serve(host["name"])

    # --- Inside -----------------------------------------------------------------------------

    async def _query(self, query: str, answer: type[T]) -> T | None:
        async with self._answering():
            try:
                answered: T = await self._handle.query(
                    query,
                    result_type=answer,
                    reject_condition=QueryRejectCondition.NOT_OPEN,
                    rpc_timeout=_ASK_WITHIN,
                )
                return answered
            except WorkflowQueryRejectedError:
                return None
            except WorkflowQueryFailedError as error:
                raise PerdureError(f"pool {self.name!r} cannot be read: {error}") from error
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise PerdureError(
                    f"pool {self.name!r} does not answer ({error.status.name}: "
                    f"{one_line(error.message)[:200]}): is a worker up (`perdure worker`), and of "
                    "the version that the others have?"
                ) from error

    async def _wish(self, wish: PoolWish) -> str:
        found = await find_execution(self._link.client, self._handle.id)
        if found is None or not found.is_open:
            raise self._closed()
        if self._link.embedded and not self._link.embedded.has_worker:
            await self._serve(self._worker.host)
            if view := await self.view():
                await self.have_hosts(view)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._ask(wish)
        except TimeoutError:
            raise PoolRefused(
                f"pool {self.name!r} does not answer within {ANSWER_SECONDS:.0f} s: is a worker up "
                "(`perdure worker`)? It may still do as asked; look with `perdure pool`"
            ) from None

    async def _ask(self, wish: PoolWish) -> str:
        id = uuid.uuid4().hex  # the same for each try: what arrived twice is done once
        while True:
            try:
                told: str = await self._handle.execute_update(WISH, wish, id=id, result_type=str)
                return told
            except WorkflowUpdateFailedError as error:
                cause = error.cause
                reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
                raise PoolRefused(f"pool {self.name!r}: {reason}") from error
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                asking = asyncio.current_task()
                if asking and asking.cancelling():  # the SDK (1.35) makes one of the other
                    raise asyncio.CancelledError from error
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise self._closed() from error
                if error.status in _FINAL:
                    raise PerdureError(
                        f"pool {self.name!r} cannot be asked: the Temporal service says "
                        f"{error.status.name} ({error.message})"
                    ) from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _open(self) -> None:
        """Start the pool if it is not open."""
        await self._link.client.start_workflow(
            POOL_WORKFLOW,
            PoolInput(self.name, uuid.uuid4().hex, early=True, rules=RULES),
            id=self._handle.id,
            task_queue=self._shared,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

    def _closed(self) -> PoolRefused:
        return PoolRefused(
            f"pool {self.name!r} is not open: nothing is up, and nobody waits; it opens with the "
            "first task that needs an environment"
        )

    # --- Inside: workers, on the embedded server ----------------------------------------------

    async def _serve(self, host: str | None) -> None:
        if self._link.embedded:
            # No suite has a queue of such a name: no id holds a slash.
            queue = "/".join(filter(None, (self._settings.queue, "pools", host)))
            config = WorkerConfig(env_file=self._worker.env_file, host=host)
            await self._link.embedded.serve(queue, config)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Inside of this block there is a worker to answer queries, at least.

        One of workflows alone runs nothing; what a pool decides meanwhile waits for a host's. On a
        team's server that is its workers' work.
        """
        if self._link.embedded is None or self._link.embedded.has_worker:
            yield
            return
        from temporalio.worker import Worker  # here: reading seldom needs one, and it is large

        from perdure.sandbox import sandbox
        from workflows.limit import LimitWorkflow
        from workflows.pool import PoolWorkflow

        worker = Worker(
            self._link.client,
            task_queue=self._shared,
            # All types of this queue: a worker that knew only some would fail the others.
            workflows=[PoolWorkflow, LimitWorkflow],
            workflow_runner=sandbox(),
            sticky_queue_schedule_to_start_timeout=_STICKY_TIMEOUT,
        )
        async with worker:
            yield
