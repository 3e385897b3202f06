"""A real pool with real instance workflows on hosts whose activities play a script."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.leases import Leases
from activities.limits import Slots
from perdure.core.environments import Environment, Port, ResetEndpoint
from perdure.core.pool_definitions import Definition
from perdure.messages import Holder
from perdure.names import (
    CHECK_INSTANCE,
    HOST_BEAT,
    PREPARE_ENVIRONMENT,
    RESET_INSTANCE,
    START_INSTANCE,
    STOP_INSTANCE,
    SWEEP_HOST,
    WATCH_INSTANCE,
    WISH,
    instances_queue,
    pool_workflow_id,
)
from perdure.pool_messages import (
    HostBeat,
    InstanceCall,
    InstanceResult,
    LeaseRelease,
    LeaseRequest,
    LeaseReset,
    PoolTimes,
    PoolWish,
    SetDemand,
    SweepCall,
)
from perdure.sandbox import sandbox
from tests.waiting import until
from tests.workflows.pool_holder import BusyHolderWorkflow, HolderWorkflow
from worker import BEAT_THROTTLE, HOST_WORKFLOWS, SHARED_WORKFLOWS, STICKY_TIMEOUT

QUICK = PoolTimes(probe_seconds=0.3, idle_seconds=0.3)
BEAT_SECONDS = 1.0


def env(name: str, max_instances: int | None = 1, **more: Any) -> Definition:
    """An environment with a reset and no ports."""
    endpoints = (ResetEndpoint("r", "http://x"),)
    return Definition(
        Environment(name, **{"max_instances": max_instances, "reset_endpoints": endpoints, **more}),
        "1",
    )


def with_port(name: str, port: int, **more: Any) -> Definition:
    """An environment that wants one port."""
    return env(name, ports={f"{name.upper()}_PORT": Port(port)}, **more)


@dataclass
class Engine:
    """What a host's instances do, without any."""

    host: str
    beat: HostBeat
    calls: list[tuple[str, int]] = field(default_factory=list)
    """What was asked of which instance, in order."""
    started_for: dict[int, str] = field(default_factory=dict)
    """The task for which an instance was started, by the instance's number."""
    up: dict[int, str] = field(default_factory=dict)
    """Environments that are up, by the number of the instance."""
    most_up: Counter[str] = field(default_factory=Counter)
    """By environment: the most that were there at a time, starting and stopping ones included."""
    fail: dict[str, InstanceResult] = field(default_factory=dict)
    """By activity: what it answers, in place of success."""
    hold: set[str] = field(default_factory=set)
    """Activities that do not end."""
    dead: set[int] = field(default_factory=set)
    """Instances whose watch ends."""
    swept: list[SweepCall] = field(default_factory=list)
    is_silent: bool = False

    @activity.defn(name=PREPARE_ENVIRONMENT)
    async def prepare(self, call: InstanceCall) -> InstanceResult:
        return InstanceResult(ok=True)

    @activity.defn(name=START_INSTANCE)
    async def start(self, call: InstanceCall) -> InstanceResult:
        self.up[call.number] = call.environment
        self.started_for[call.number] = call.task
        for name, count in Counter(self.up.values()).items():
            self.most_up[name] = max(self.most_up[name], count)
        started = await self._play("start", call)
        return await self._play("reset", call) if started.ok and call.reset else started

    @activity.defn(name=RESET_INSTANCE)
    async def reset(self, call: InstanceCall) -> InstanceResult:
        return await self._play("reset", call)

    @activity.defn(name=CHECK_INSTANCE)
    async def check(self, call: InstanceCall) -> InstanceResult:
        return await self._play("check", call)

    @activity.defn(name=STOP_INSTANCE)
    async def stop(self, call: InstanceCall) -> InstanceResult:
        result = await self._play("stop", call)
        if result.ok:
            self.up.pop(call.number, None)
        return result

    @activity.defn(name=WATCH_INSTANCE)
    async def watch(self, call: InstanceCall) -> InstanceResult:
        while call.number not in self.dead:
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return InstanceResult(ok=False, reason="service web exited with 137")

    @activity.defn(name=SWEEP_HOST)
    async def sweep(self, call: SweepCall) -> list[str]:
        self.swept.append(call)
        return []

    async def _play(self, what: str, call: InstanceCall) -> InstanceResult:
        self.calls.append((what, call.number))
        while what in self.hold:
            activity.heartbeat()
            await asyncio.sleep(0.02)
        return self.fail.get(what, InstanceResult(ok=True))


@dataclass
class Task:
    """Somebody who asks the pool for leases."""

    here: Place
    handle: WorkflowHandle[Any, Any]
    holder: Holder
    asked: LeaseRequest

    async def heard(self) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = await self.handle.query("heard")
        return [(kind, what) for kind, what in found]

    async def hears(self, kind: str) -> dict[str, Any]:
        """The newest word, which must be of this kind."""
        words: list[tuple[str, dict[str, Any]]] = []

        async def is_there() -> bool:
            words[:] = await self.heard()
            return any(word == kind for word, _ in words)

        await until(is_there, f"{self.holder.workflow_id} hears {kind}; it heard {words}")
        return next(what for word, what in reversed(words) if word == kind)

    async def release(self, **broken: str) -> None:
        name = self.asked.request_id
        await self.here.leases.release_lease(
            LeaseRelease(self.here.pool, name, self.holder, broken)
        )

    async def reset(self, number: int, *environments: str) -> None:
        """Have environments of its lease reset."""
        asked = LeaseReset(
            self.here.pool, self.asked.request_id, self.holder, number, [*environments]
        )
        await self.here.leases.reset_lease(asked)

    async def waits(self) -> str:
        """Return what it waits for, once the pool knows that it does."""
        found: list[str] = []

        async def is_so() -> bool:
            waiting = (await self.here.view())["waiting"]
            found[:] = [w["waits_for"] for w in waiting if w["request_id"] == self.asked.request_id]
            return bool(found)

        await until(is_so, f"{self.asked.request_id} waits")
        return found[0]


@dataclass
class Place:
    """A pool of its own, its hosts, and those who ask."""

    client: Client
    pool: str
    queue: str
    leases: Leases
    stack: AsyncExitStack
    hosts: dict[str, Engine] = field(default_factory=dict)
    tasks: int = 0
    suites: dict[str, WorkflowHandle[Any, Any]] = field(default_factory=dict)

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(pool_workflow_id(self.pool))

    @property
    def engine(self) -> Engine:
        """Of the first host."""
        return next(iter(self.hosts.values()))

    async def tell(self, _: str) -> None:
        """All hosts beat."""
        for engine in self.hosts.values():
            await self.beat(engine)

    async def go_on_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for engine in [*self.hosts.values()]:
                if not engine.is_silent:
                    await self.beat(engine)

    async def beat(self, engine: Engine) -> None:
        with contextlib.suppress(RPCError):
            await self.handle.signal(HOST_BEAT, engine.beat)

    async def host(self, name: str, **facts: Any) -> Engine:
        """A host that is served from now on."""
        engine = Engine(name, HostBeat(name, uuid.uuid4().hex, **{"machine": name, **facts}))
        await self.stack.enter_async_context(
            Worker(
                self.client,
                task_queue=instances_queue(self.queue, name),
                workflows=HOST_WORKFLOWS,
                activities=[
                    engine.prepare,
                    engine.start,
                    engine.reset,
                    engine.check,
                    engine.watch,
                    engine.stop,
                    engine.sweep,
                    self.leases.answer_pool,
                ],
                workflow_runner=sandbox(),
                max_concurrent_activities=1_000,
                max_heartbeat_throttle_interval=BEAT_THROTTLE,
                default_heartbeat_throttle_interval=BEAT_THROTTLE,
            )
        )
        self.hosts[name] = engine
        await self.beat(engine)
        return engine

    async def ask(self, *environments: Definition, **more: Any) -> Task:
        """A new holder asks for a lease."""
        self.tasks += 1
        handle = await self.client.start_workflow(
            HolderWorkflow.run, id=f"holder/{self.pool}/{self.tasks}", task_queue=f"{self.queue}/t"
        )
        holder = Holder(handle.id, handle.first_execution_run_id or "")
        request = LeaseRequest(
            self.pool,
            f"{holder.run_id}:1",
            holder,
            [definition.to_json() for definition in environments],
            **{"suite": "s", **more},
        )
        await self.leases.acquire_lease(request)
        return Task(self, handle, holder, request)

    async def work_through(self, count: int, *environments: Definition, **more: Any) -> list[str]:
        """A new holder takes so many leases; the numbers of its grants."""
        self.tasks += 1
        request = LeaseRequest(
            self.pool, "", Holder("", ""), [d.to_json() for d in environments], **more
        )
        granted: list[str] = await self.client.execute_workflow(
            BusyHolderWorkflow.run,
            args=[count, request, None],  # types are told only if all are given
            id=f"holder/{self.pool}/{self.tasks}",
            task_queue=f"{self.queue}/t",
        )
        return granted

    async def again(self, task: Task) -> Task:
        """The same holder asks for its next lease."""
        run, _, number = task.asked.request_id.partition(":")
        asked = replace(task.asked, request_id=f"{run}:{int(number) + 1}")
        await self.leases.acquire_lease(asked)
        return replace(task, asked=asked)

    async def declare(self, suite: str, **more: Any) -> None:
        """A suite, whose workflow starts if it is not there, says what it needs."""
        if suite not in self.suites:
            self.suites[suite] = await self.client.start_workflow(
                HolderWorkflow.run,
                id=f"suite/{self.pool}/{suite}",
                task_queue=f"{self.queue}/t",
            )
        handle = self.suites[suite]
        holder = Holder(handle.id, handle.first_execution_run_id or "")
        await self.leases.set_demand(SetDemand(self.pool, suite, holder, **more))

    async def wish(self, kind: Any, environment: str | None = None, **more: Any) -> str:
        answer: str = await self.handle.execute_update(WISH, PoolWish(kind, environment, **more))
        return answer

    async def view(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.handle.query("view")
        return found

    async def counts(self) -> tuple[int, int, int]:
        """Leases, requests that wait, instances."""
        view = await self.view()
        return len(view["leases"]), len(view["waiting"]), len(view["instances"])

    async def reaches(self, *counts: int) -> None:
        """So many leases, requests that wait, and instances."""

        async def is_so() -> bool:
            return await self.counts() == counts

        await until(is_so, f"leases, waiting, instances = {counts}")

    async def ends(self) -> None:
        """The pool closes."""

        async def is_so() -> bool:
            found = await self.handle.describe()
            return found.status is WorkflowExecutionStatus.COMPLETED

        await until(is_so, "the end of the pool")


@asynccontextmanager
async def place(
    client: Client, times: PoolTimes = QUICK, *, host: bool = True
) -> AsyncIterator[Place]:
    """A pool of its own that is served, with a host unless told otherwise."""
    name = f"p{uuid.uuid4().hex[:8]}"
    queue = f"shared-{name}"
    async with AsyncExitStack() as stack:
        made = Place(client, name, queue, Leases(client, queue, "h", times=times), stack)
        made.leases._tell = made.tell
        await stack.enter_async_context(
            Worker(
                client,
                task_queue=queue,
                workflows=SHARED_WORKFLOWS,
                activities=[Slots(client, queue).probe_holders, made.leases.end_instances],
                workflow_runner=sandbox(),
                sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            )
        )
        await stack.enter_async_context(
            Worker(
                client,
                task_queue=f"{queue}/t",
                workflows=[HolderWorkflow, BusyHolderWorkflow],
                activities=[made.leases.acquire_lease, made.leases.release_lease],
                workflow_runner=sandbox(),
            )
        )
        if host:
            await made.host("h")
        beating = asyncio.create_task(made.go_on_beating())
        try:
            yield made
        finally:
            beating.cancel()
            with contextlib.suppress(RPCError):
                await made.handle.terminate()
