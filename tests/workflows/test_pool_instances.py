"""A pool, its hosts and real processes as environments, together on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.leases import Leases
from activities.secrets import WorkerEnvironment
from perdure.core.environments import Port
from perdure.core.pool_definitions import Definition
from perdure.messages import Holder
from perdure.names import WISH, pool_workflow_id
from perdure.pool_messages import LeaseRelease, LeaseRequest, PoolTimes, PoolWish
from tests.waiting import until
from tests.workflows.instance_kit import counter
from tests.workflows.pool_holder import HolderWorkflow
from worker import WorkerOptions, serving

QUICK = PoolTimes(probe_seconds=0.5, idle_seconds=0.5, host_away_seconds=6.0, host_gone_seconds=8.0)
"""A worker beats every 5 s."""


@dataclass
class Lease:
    """Somebody who asked a pool, and what he has heard."""

    here: Place
    handle: WorkflowHandle[Any, Any]
    request: LeaseRequest

    async def heard(self, kind: str) -> dict[str, Any]:
        """The newest word of this kind, once it is there."""
        found: list[dict[str, Any]] = []

        async def is_there() -> bool:
            said = await self.handle.query("heard")
            found[:] = [word for name, word in said if name == kind]
            return bool(found)

        await until(is_there, f"{kind} for {self.request.request_id}")
        return found[-1]

    async def granted(self) -> dict[str, Any]:
        return await self.heard("granted")

    async def release(self) -> None:
        request = self.request
        await self.here.leases.release_lease(
            LeaseRelease(request.pool, request.request_id, request.holder)
        )


@dataclass
class Place:
    """A pool's server, and workers of hosts, each with directories of its own."""

    client: Client
    folder: Path
    stack: AsyncExitStack
    pool: str = field(default_factory=lambda: f"p{uuid.uuid4().hex[:8]}")
    workers: dict[str, AsyncExitStack] = field(default_factory=dict)

    @property
    def shared(self) -> str:
        return f"shared-{self.folder.name}-{os.getpid()}"

    @property
    def leases(self) -> Leases:
        return Leases(self.client, self.shared, "here", times=QUICK)

    async def work(self, host: str, name: str | None = None, **more: Any) -> None:
        """Have a worker for a host; `name` tells several of one host apart."""
        options = WorkerOptions(
            queue=f"q-{uuid.uuid4().hex[:8]}",
            host=host,
            runs=self.folder / host / "runs",
            results=self.folder / host / "results",
            shared_queue=self.shared,
            pools=QUICK,
            **more,
        )
        # With a connection of its own, as each process has.
        config = self.client.config()
        own = await Client.connect(
            self.client.service_client.config.target_host, data_converter=config["data_converter"]
        )
        worker = self.workers[name or host] = AsyncExitStack()
        await worker.enter_async_context(serving(own, options))

    async def ask(self, *environments: Definition, host: str | None = None) -> Lease:
        """Ask for a lease."""
        handle = await self.client.start_workflow(
            HolderWorkflow.run, id=f"holder-{uuid.uuid4().hex}", task_queue=f"{self.shared}/holders"
        )
        run_id = str(handle.first_execution_run_id)
        request = LeaseRequest(
            self.pool,
            f"{run_id}:1",
            Holder(handle.id, run_id),
            [definition.to_json() for definition in environments],
            host=host,
        )
        await self.leases.acquire_lease(request)
        return Lease(self, handle, request)

    async def view(self) -> dict[str, Any]:
        handle = self.client.get_workflow_handle(pool_workflow_id(self.pool))
        found: dict[str, Any] = await handle.query("view")
        return found

    async def shut_down(self) -> None:
        """Stop everything that a pool has."""
        handle = self.client.get_workflow_handle(pool_workflow_id(self.pool))
        with contextlib.suppress(Exception):  # it has ended already
            await handle.execute_update(WISH, PoolWish("shutdown"), result_type=str)

            async def is_empty() -> bool:
                return not (await self.view())["instances"]

            await until(is_empty, "an empty pool")


@pytest.fixture
async def here(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        place = Place(temporal.client, tmp_path, stack)
        holders = f"{place.shared}/holders"
        await stack.enter_async_context(
            Worker(temporal.client, task_queue=holders, workflows=[HolderWorkflow])
        )
        yield place
        await place.shut_down()
        for worker in place.workers.values():
            await worker.aclose()


async def answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://127.0.0.1:{port}/")).is_success
    return False


def free_range(size: int) -> tuple[int, int]:
    """A range of ports that nobody has now, below those that connections take."""
    for low in range(12_000 + os.getpid() % 10_000, 30_000, size):
        with contextlib.suppress(OSError):
            for port in range(low, low + size):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return low, low + size - 1
    raise AssertionError("no free ports")


async def test_c03_parallel_starts_on_two_workers_never_share_a_port(here: Place) -> None:
    """C03, PD12, PD13: ports are reserved until the use, and come back."""
    low, high = free_range(40)
    environment = WorkerEnvironment({**os.environ, "DT_PORT_RANGE": f"{low}-{high}"})
    for name in ("one", "two"):
        await here.work("here", name, environment=environment)
    definition = counter(
        here.folder, ports={"APP_PORT": Port(low), "ADMIN_PORT": Port(container_port=low)}
    )
    with socket.create_server(("127.0.0.1", low + 3)):
        leases = [await here.ask(definition) for _ in range(6)]
        grants = await asyncio.gather(*(lease.granted() for lease in leases))
        ports = [port for grant in grants for port in grant["instances"][0]["ports"].values()]
        assert len(ports) == len(set(ports)) == 12
        assert all(low <= port <= high for port in ports)
        assert low + 3 not in ports
        for grant in grants:
            assert await answers(grant["instances"][0]["ports"]["APP_PORT"])
    for lease in leases:
        await lease.release()

    async def is_empty() -> bool:
        return not (await here.view())["instances"]

    await until(is_empty, "the end of all instances")


async def test_a_lease_goes_to_the_host_that_it_asks_for(here: Place) -> None:
    await here.work("a")
    await here.work("b")
    definition = counter(here.folder)
    on_a, on_b = await here.ask(definition, host="a"), await here.ask(definition, host="b")
    assert (await on_a.granted())["host"] == "a"
    assert (await on_b.granted())["host"] == "b"
    instances = here.folder / "b" / "instances"
    assert len(list(instances.glob("*/*"))) == 1


async def test_a_killed_hosts_instances_are_lost_and_swept_when_it_returns(here: Place) -> None:
    """PD25: what ran where nobody is any more is told as lost, and removed when somebody is."""
    await here.work("a")
    await here.work("b")
    definition = counter(here.folder)
    on_a, on_b = await here.ask(definition, host="a"), await here.ask(definition, host="b")
    (at_a,) = (await on_a.granted())["instances"]
    (at_b,) = (await on_b.granted())["instances"]
    await here.workers.pop("a").aclose()
    lost = await on_a.heard("lost")
    assert "host a is gone" in lost["reason"]
    assert lost["environments"] == ["app"]
    assert await answers(at_a["ports"]["APP_PORT"])
    await here.work("a")
    await until(lambda: _is_silent(at_a["ports"]["APP_PORT"]), "the sweep")
    assert await answers(at_b["ports"]["APP_PORT"])
    await on_a.release()
    again = await here.ask(definition, host="a")
    assert (await again.granted())["host"] == "a"


async def _is_silent(port: int) -> bool:
    return not await answers(port)


async def test_two_pools_on_one_host_leave_each_other_alone(here: Place) -> None:
    await here.work("here")
    definition = counter(here.folder)
    other = replace(here, pool=f"{here.pool}-other")
    mine, theirs = await here.ask(definition), await other.ask(definition)
    (at_mine,) = (await mine.granted())["instances"]
    (at_theirs,) = (await theirs.granted())["instances"]
    assert at_mine["ports"] != at_theirs["ports"]
    assert at_mine["project"] != at_theirs["project"]
    await here.shut_down()
    assert not await answers(at_mine["ports"]["APP_PORT"])
    await here.work("here", "second")  # a worker that is new to the pools: they sweep
    await asyncio.gather(*(lease.granted() for lease in (theirs, await other.ask(definition))))
    assert await answers(at_theirs["ports"]["APP_PORT"])
    await other.shut_down()
