"""What a lease costs: perdure's pool against an entity workflow written by hand.

Both serve the same requesters with the same number of messages on one server, in turns. *Cycles*
are acquire, grant and release, by fifty requesters for eight slots; the *latency* is that of a
grant which nobody else is in the way of. Once for slots alone, and once for instances that are
looked at before each grant.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from entity import ByHand, Entity, EntityInput, Instance, look
from ground import Ground
from requester import Cycles, Requester
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.leases import Leases
from activities.limits import Slots
from perdure.core.environments import Environment
from perdure.core.pool_definitions import Definition
from perdure.messages import Holder
from perdure.names import (
    CHECK_INSTANCE,
    HOST_BEAT,
    PREPARE_ENVIRONMENT,
    START_INSTANCE,
    STOP_INSTANCE,
    SWEEP_HOST,
    WATCH_INSTANCE,
    instances_queue,
    pool_workflow_id,
)
from perdure.pool_messages import (
    HostBeat,
    InstanceCall,
    InstanceResult,
    LeaseRequest,
    SetDemand,
    SweepCall,
)
from perdure.sandbox import sandbox
from worker import HOST_WORKFLOWS, SHARED_WORKFLOWS, STICKY_TIMEOUT

GOAL = 1.5
SLOTS = 8
REQUESTERS, CYCLES = 50, 8
ALONE = 40
_HOST = "bench"
_QUEUES = {"shared": "cycles/shared", "requesters": "cycles", "entity": "cycles/entity"}


@activity.defn(name=WATCH_INSTANCE)
async def watch(call: InstanceCall) -> InstanceResult:
    """Nothing ever happens."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(1)


@activity.defn(name=SWEEP_HOST)
async def sweep(call: SweepCall) -> list[str]:
    """Nothing is there."""
    return []


def at_once(name: str) -> object:
    """An activity of an instance that takes no time."""

    @activity.defn(name=name)
    async def answer(call: InstanceCall) -> InstanceResult:
        return InstanceResult(ok=True)

    return answer


@dataclass(frozen=True)
class Measured:
    """One round of one side."""

    per_second: float
    latency_ms: float


@asynccontextmanager
async def workers(client: Client) -> AsyncIterator[None]:
    """Those of both sides."""
    shared = _QUEUES["shared"]
    leases, hand = Leases(client, shared, _HOST), ByHand(client)
    own = {"workflow_runner": sandbox(), "sticky_queue_schedule_to_start_timeout": STICKY_TIMEOUT}
    of_instances = [PREPARE_ENVIRONMENT, START_INSTANCE, CHECK_INSTANCE, STOP_INSTANCE]
    async with (
        Worker(
            client,
            task_queue=_QUEUES["requesters"],
            workflows=[Requester],
            activities=[leases.acquire_lease, leases.release_lease, hand.acquire, hand.release],
            **own,  # type: ignore[arg-type]
        ),
        Worker(
            client,
            task_queue=shared,
            workflows=SHARED_WORKFLOWS,
            activities=[Slots(client, shared).probe_holders, leases.end_instances],
            **own,  # type: ignore[arg-type]
        ),
        Worker(
            client,
            task_queue=instances_queue(shared, _HOST),
            workflows=HOST_WORKFLOWS,
            activities=[
                leases.answer_pool,
                watch,
                sweep,
                *map(at_once, of_instances),  # type: ignore[list-item]
            ],
            **own,  # type: ignore[arg-type]
        ),
        Worker(
            client,
            task_queue=_QUEUES["entity"],
            workflows=[Entity, Instance],
            activities=[look],
            **own,  # type: ignore[arg-type]
        ),
    ):
        yield


async def requests(client: Client, cycles: Cycles, requesters: int) -> tuple[float, list[float]]:
    """Seconds until all requesters had all their leases, and how long each grant took."""
    mark = uuid.uuid4().hex[:8]
    began = time.perf_counter()
    waited = await asyncio.gather(
        *(
            client.execute_workflow(
                Requester.run,
                cycles,
                id=f"requester/{mark}/{number}",
                task_queue=_QUEUES["requesters"],
            )
            for number in range(requesters)
        )
    )
    return time.perf_counter() - began, [seconds for some in waited for seconds in some]


async def both(client: Client, cycles: Cycles) -> Measured:
    """Cycles a second under load, and the latency without."""
    seconds, _ = await requests(client, cycles, REQUESTERS)
    _, waited = await requests(client, Cycles(ALONE, cycles.request, cycles.entity), 1)
    per_second = REQUESTERS * CYCLES / seconds
    return Measured(per_second, statistics.median(waited) * 1_000)


async def perdure(client: Client, environments: list[Definition]) -> Measured:
    """The pool's."""
    pool = f"bench-{uuid.uuid4().hex[:8]}"
    request = LeaseRequest(
        pool,
        "",
        Holder("", ""),
        [definition.to_json() for definition in environments],
        suite="bench",
        max_parallel=None if environments else SLOTS,
    )
    leases = Leases(client, _QUEUES["shared"], _HOST)
    definitions = {definition.name: definition.to_json() for definition in environments}
    suite = SetDemand(
        pool,
        "bench",
        Holder("nobody", ""),
        max_parallel=SLOTS,
        keep_envs=True,  # the start of instances is not what is measured
        environments=definitions,
    )
    await leases.set_demand(suite)
    handle = client.get_workflow_handle(pool_workflow_id(pool))
    beating = asyncio.create_task(_beat(client, pool))
    try:
        await requests(client, Cycles(1, request), SLOTS)  # all instances are up
        return await both(client, Cycles(CYCLES, request))
    finally:
        beating.cancel()
        await handle.terminate()


async def _beat(client: Client, pool: str) -> None:
    handle = client.get_workflow_handle(pool_workflow_id(pool))
    while True:
        await handle.signal(HOST_BEAT, HostBeat(_HOST, "bench"))
        await asyncio.sleep(5)


async def by_hand(client: Client, environments: list[Definition]) -> Measured:
    """The entity's."""
    mark = uuid.uuid4().hex[:8]
    instances = [f"by-hand/{mark}/{n}" for n in range(SLOTS)] if environments else []
    for workflow_id in instances:
        await client.start_workflow(Instance.run, id=workflow_id, task_queue=_QUEUES["entity"])
    entity = await client.start_workflow(
        Entity.run,
        EntityInput(SLOTS, instances),
        id=f"entity/{mark}",
        task_queue=_QUEUES["entity"],
    )
    request = LeaseRequest("", "", Holder("", ""), [d.to_json() for d in environments])
    try:
        await requests(client, Cycles(1, request, entity.id), SLOTS)
        return await both(client, Cycles(CYCLES, request, entity.id))
    finally:
        await entity.terminate()
        for workflow_id in instances:
            await client.get_workflow_handle(workflow_id).terminate()


async def compare(here: Ground, rounds: int) -> bool:
    """Alternate both, print medians and ratios; True if the goal is reached."""
    reached = True
    slot = ("slots alone", [])
    instance = ("an instance", [Definition(Environment("e", max_instances=SLOTS), "1")])
    async with workers(here.client):
        for what, environments in (slot, instance):
            ours, theirs = list[Measured](), list[Measured]()
            for number in range(rounds + 1):
                # Each goes first in turn: the server is still busy with what closed last.
                if number % 2:
                    mine = await perdure(here.client, environments)
                hand = await by_hand(here.client, environments)
                if not number % 2:
                    mine = await perdure(here.client, environments)
                print(f"  round {number}: by hand {hand}, perdure {mine}", file=sys.stderr)
                if number:  # the first round warms up
                    ours.append(mine)
                    theirs.append(hand)
            pairs = list(zip(ours, theirs, strict=True))
            cycles = statistics.median(h.per_second / m.per_second for m, h in pairs)
            latency = statistics.median(m.latency_ms / h.latency_ms for m, h in pairs)
            per_second, latency_ms = (
                statistics.median(m.per_second for m in ours),
                statistics.median(m.latency_ms for m in ours),
            )
            print(
                f"{what:15} {per_second:.0f} cycles/s, by hand {per_second * cycles:.0f}: ratio "
                f"{cycles:.3f}; a grant in {latency_ms:.0f} ms: ratio {latency:.3f}",
                flush=True,
            )
            reached &= cycles <= GOAL and latency <= GOAL
    return reached
