"""Lives of instances whose histories are kept; the activities of their host are faked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.core.environments import Environment
from perdure.core.pool_definitions import Definition
from perdure.names import (
    CHECK_INSTANCE,
    INSTANCE_WORKFLOW,
    ORDER,
    POOL_WORKFLOW,
    PREPARE_ENVIRONMENT,
    RESET_INSTANCE,
    START_INSTANCE,
    STOP_INSTANCE,
    WATCH_INSTANCE,
)
from perdure.pool_messages import (
    InstanceAnswer,
    InstanceCall,
    InstanceInput,
    InstanceOrder,
    InstanceResult,
)
from perdure.sandbox import sandbox
from tests.waiting import until
from tests.workflows.instance_kit import ListeningPool
from worker import BEAT_THROTTLE, HOST_WORKFLOWS

QUEUE = "recorded-host"

Handle = WorkflowHandle[Any, Any]


class FakeHost:
    """A host whose instances do as they are told."""

    def __init__(self) -> None:
        self.results: dict[str, list[InstanceResult]] = {}
        """By activity: what it answers next; then, success."""
        self.hangs = asyncio.Event()
        """Set when an activity waits for its cancellation."""
        self.hanging: set[str] = set()
        self.dead = asyncio.Event()

    async def _play(self, name: str) -> InstanceResult:
        if name in self.hanging:
            self.hangs.set()
            await _beat_until(asyncio.Event())
        results = self.results.get(name)
        return results.pop(0) if results else InstanceResult(ok=True)

    @activity.defn(name=PREPARE_ENVIRONMENT)
    async def prepare(self, call: InstanceCall) -> InstanceResult:
        return await self._play(PREPARE_ENVIRONMENT)

    @activity.defn(name=START_INSTANCE)
    async def start(self, call: InstanceCall) -> InstanceResult:
        return await self._play(START_INSTANCE)

    @activity.defn(name=RESET_INSTANCE)
    async def reset(self, call: InstanceCall) -> InstanceResult:
        return await self._play(RESET_INSTANCE)

    @activity.defn(name=CHECK_INSTANCE)
    async def check(self, call: InstanceCall) -> InstanceResult:
        return await self._play(CHECK_INSTANCE)

    @activity.defn(name=STOP_INSTANCE)
    async def stop(self, call: InstanceCall) -> InstanceResult:
        return await self._play(STOP_INSTANCE)

    @activity.defn(name=WATCH_INSTANCE)
    async def watch(self, call: InstanceCall) -> InstanceResult:
        await _beat_until(self.dead)
        return InstanceResult(ok=False, reason="environment shop, service app: it ended")


async def _beat_until(event: asyncio.Event) -> None:
    while not event.is_set():
        activity.heartbeat()
        await asyncio.sleep(0.1)


class Stage:
    """One instance on a fake host, and the pool that orders."""

    def __init__(self, client: Client, name: str, host: FakeHost) -> None:
        self.client = client
        self.name = name
        self.host = host
        self._orders = 0

    async def begin(self, history_limit_events: int | None = None) -> Handle:
        """Start the workflows of the pool and of the instance."""
        self.pool = await self.client.start_workflow(
            POOL_WORKFLOW, id=f"pool/{self.name}", task_queue=f"{QUEUE}-pool"
        )
        definition = Definition(Environment("shop", docker_compose="compose.yml"), "digest")
        start = InstanceInput(
            pool=self.name,
            pool_uuid="0123abcd",
            number=1,
            environment="shop",
            project="pool_shop_1",
            definition=definition.to_json(),
            pool_workflow_id=self.pool.id,
            history_limit_events=history_limit_events,
        )
        self.handle = await self.client.start_workflow(
            INSTANCE_WORKFLOW, start, id=f"instance/{self.name}/shop/1", task_queue=QUEUE
        )
        return self.handle

    async def order(self, kind: Any) -> int:
        self._orders += 1
        await self.handle.signal(ORDER, InstanceOrder(kind, self._orders, ports={"PORT": 8000}))
        return self._orders

    async def does(self, kind: Any) -> str:
        return await self.answer(await self.order(kind))

    async def answer(self, order: int, count: int = 1) -> str:
        found: list[InstanceAnswer] = []

        async def is_there() -> bool:
            said = await self.pool.query("answers", result_type=list[InstanceAnswer])
            found[:] = [answer for answer in said if answer.order == order]
            return len(found) >= count

        await until(is_there, f"answer {count} to {order}")
        return found[count - 1].kind


@asynccontextmanager
async def stage(client: Client, name: str) -> AsyncIterator[Stage]:
    """Workers of a fake host and of a pool that listens."""
    host = FakeHost()
    async with (
        Worker(
            client,
            task_queue=f"{QUEUE}-pool",
            workflows=[ListeningPool],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
        Worker(
            client,
            task_queue=QUEUE,
            workflows=HOST_WORKFLOWS,
            activities=[host.prepare, host.start, host.reset, host.check, host.watch, host.stop],
            workflow_runner=sandbox(),
            max_heartbeat_throttle_interval=BEAT_THROTTLE,
            default_heartbeat_throttle_interval=BEAT_THROTTLE,
        ),
    ):
        made = Stage(client, name, host)
        yield made
        with suppress(RPCError):  # some plays have ended it
            await made.pool.terminate()


Play = Callable[[Stage], Awaitable[None]]


async def _usual(here: Stage) -> None:
    await here.begin()
    for kind in ("start", "reset", "check", "stop"):
        await here.does(kind)


async def _ports(here: Stage) -> None:
    taken = InstanceResult(False, "port 8000 is somebody else's", taken_ports=[8000])
    broken = InstanceResult(False, "environment shop: no image", log=["no such image"])
    here.host.results = {START_INSTANCE: [taken], RESET_INSTANCE: [broken]}
    await here.begin()
    for kind in ("start", "start", "reset", "stop"):
        await here.does(kind)


async def _unprepared(here: Stage) -> None:
    here.host.results = {
        PREPARE_ENVIRONMENT: [InstanceResult(False, "environment shop: no image", is_final=True)],
        STOP_INSTANCE: [InstanceResult(False, "the engine is away")],
    }
    await here.begin()
    for kind in ("start", "stop", "stop"):
        await here.does(kind)


async def _overtaken(here: Stage) -> None:
    here.host.hanging = {START_INSTANCE}
    await here.begin()
    await here.order("start")
    await here.host.hangs.wait()
    await here.does("stop")


async def _lost(here: Stage) -> None:
    await here.begin()
    order = await here.order("start")
    await here.answer(order)
    here.host.dead.set()
    await here.answer(order, count=2)
    await here.does("stop")


async def _new_runs(here: Stage) -> None:
    await here.begin(history_limit_events=30)
    for kind in ("start", "reset", "check", "reset", "check", "reset", "stop"):
        await here.does(kind)


async def _orphan(here: Stage) -> None:
    await here.begin()
    await here.does("start")
    await here.pool.terminate()
    await here.order("check")  # its answer meets nobody


async def _cancelled(here: Stage) -> None:
    await here.begin()
    order = await here.order("start")
    await here.answer(order)
    await here.handle.cancel()
    await here.answer(order, count=2)


PLAYS: dict[str, Play] = {
    "instance/started_reset_checked_and_stopped": _usual,
    "instance/ports_taken_and_reset_failed": _ports,
    "instance/unprepared_and_stopped_twice": _unprepared,
    "instance/stopped_while_it_started": _overtaken,
    "instance/lost": _lost,
    "instance/continued_as_new": _new_runs,
    "instance/pool_terminated": _orphan,
    "instance/cancelled": _cancelled,
}
"""By the name of the history."""
