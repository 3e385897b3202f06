"""A pool that only listens, a real worker of a host, and a small server as environment."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.waiting import until
from worker import WorkerOptions, serving

with workflow.unsafe.imports_passed_through():
    from perdure.core.environments import Environment, Port, Process, Ready
    from perdure.core.pool_definitions import Definition
    from perdure.names import (
        HOST_BEAT,
        INSTANCE_ANSWERED,
        INSTANCE_WORKFLOW,
        ORDER,
        POOL_WORKFLOW,
        instance_workflow_id,
        instances_queue,
        pool_workflow_id,
    )
    from perdure.pool_messages import HostBeat, InstanceAnswer, InstanceInput, InstanceOrder

SERVER = '''
"""A counter with a reset: GET /, POST /add, POST /reset, POST /die."""
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

count = 0

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, str(count))
    def do_POST(self):
        global count
        if self.path == "/die":
            print("told to die", flush=True)
            os._exit(3)
        if self.path == "/reset" and os.path.exists(sys.argv[2]):
            self.answer(500, "no reset today")
            return
        count = 0 if self.path == "/reset" else count + 1
        self.answer(200, str(count))
    def answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''


@workflow.defn(name=POOL_WORKFLOW)
class ListeningPool:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self._answers: list[InstanceAnswer] = []
        self._beats: list[HostBeat] = []
        self._over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._over)

    @workflow.signal(name=INSTANCE_ANSWERED)
    def answered(self, answer: InstanceAnswer) -> None:
        self._answers.append(answer)

    @workflow.signal(name=HOST_BEAT)
    def beat(self, beat: HostBeat) -> None:
        self._beats.append(beat)

    @workflow.signal
    def end(self) -> None:
        self._over = True

    @workflow.query
    def answers(self) -> list[InstanceAnswer]:
        return self._answers

    @workflow.query
    def beats(self) -> list[HostBeat]:
        return self._beats


def counter(folder: Path, **more: Any) -> Definition:
    """An environment that runs the server; `more` for its Environment."""
    script = folder / "server.py"
    script.write_text(SERVER)
    process = Process(
        (sys.executable, str(script), "${APP_PORT}", str(folder / "no-reset")),
        ready=Ready(http="http://127.0.0.1:${APP_PORT}/", timeout_seconds=30),
    )
    more = {"process": process, "ports": {"APP_PORT": Port(8000)}, **more}
    return Definition(Environment("app", **more), "digest", root=str(folder))


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Host:
    """A worker's host, and the pool that its instances answer."""

    client: Client
    options: WorkerOptions
    folder: Path
    pool: WorkflowHandle[Any, Any]
    name: str
    worker: AsyncExitStack
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    orders: int = 0
    numbers: int = 0

    def definition(self, **more: Any) -> Definition:
        """The counter's; `more` for its Environment."""
        return counter(self.folder, **more)

    async def instance(self, definition: Definition, **more: Any) -> Instance:
        """Start the workflow of a new instance."""
        self.numbers += 1
        number = self.numbers
        start = InstanceInput(
            pool=self.name,
            pool_uuid=self.uuid,
            number=number,
            environment=definition.name,
            project=f"pool_app_{number}",
            definition=definition.to_json(),
            pool_workflow_id=self.pool.id,
            **more,
        )
        handle = await self.client.start_workflow(
            INSTANCE_WORKFLOW,
            start,
            id=instance_workflow_id(self.name, definition.name, number),
            task_queue=instances_queue(str(self.options.shared_queue), self.options.host),
        )
        return Instance(self, handle, number, {"APP_PORT": free_port()})

    async def worker_ends(self) -> None:
        """From now on nobody serves the host."""
        await self.worker.aclose()

    async def worker_comes(self) -> None:
        """Another one serves it."""
        await self.worker.enter_async_context(serving(self.client, self.options))

    async def answers(self) -> list[InstanceAnswer]:
        found: list[InstanceAnswer] = await self.pool.query(
            "answers", result_type=list[InstanceAnswer]
        )
        return found

    def folder_of(self, number: int) -> Path:
        return self.options.runs.with_name("instances") / self.uuid / str(number)


@dataclass
class Instance:
    """One instance, as its pool has it."""

    host: Host
    handle: WorkflowHandle[Any, Any]
    number: int
    ports: dict[str, int]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['APP_PORT']}"

    async def order(self, kind: str) -> int:
        """Give an order; its number."""
        self.host.orders += 1
        order = InstanceOrder(kind, self.host.orders, ports=self.ports)  # type: ignore[arg-type]
        await self.handle.signal(ORDER, order)
        return order.order

    async def does(self, kind: str) -> InstanceAnswer:
        """Give an order and wait for its answer."""
        return await self.answer(await self.order(kind))

    async def answer(self, order: int, count: int = 1) -> InstanceAnswer:
        """The `count`-th answer of this instance to an order."""
        found: list[InstanceAnswer] = []

        async def is_there() -> bool:
            mine = [a for a in await self.host.answers() if a.instance == self.number]
            found[:] = [a for a in mine if a.order == order]
            return len(found) >= count

        await until(is_there, f"answer {count} to order {order}")
        return found[count - 1]

    async def is_up(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(self.url)).is_success
        return False

    async def post(self, path: str) -> str:
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                return (await client.post(self.url + path)).text
            except httpx.HTTPError:
                return ""

    async def has_ended(self) -> None:
        async def is_so() -> bool:
            return (await self.handle.describe()).status is not WorkflowExecutionStatus.RUNNING

        await until(is_so, f"the end of {self.handle.id}")


@asynccontextmanager
async def host(client: Client, folder: Path, **options: Any) -> AsyncIterator[Host]:
    """A host with its worker, and a pool that listens; instances are ended at the end."""
    name = f"p{uuid.uuid4().hex[:8]}"
    shared = f"shared-{name}"
    made = WorkerOptions(
        queue=f"q-{name}",
        host="here",
        runs=folder / "runs",
        results=folder / "results",
        shared_queue=shared,
        **options,
    )
    async with (
        AsyncExitStack() as worker,
        Worker(
            client,
            task_queue=f"pool-{name}",
            workflows=[ListeningPool],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        pool = await client.start_workflow(
            POOL_WORKFLOW, id=pool_workflow_id(name), task_queue=f"pool-{name}"
        )
        await worker.enter_async_context(serving(client, made))
        here = Host(client, made, folder, pool, name, worker)
        try:
            yield here
        finally:
            await end_all(client, name)


async def end_all(client: Client, name: str) -> None:
    """Cancel the instances of a pool, which stop then, and the pool."""

    async def is_over() -> bool:
        found = False
        for number in range(1, 20):
            with contextlib.suppress(Exception):
                handle = client.get_workflow_handle(instance_workflow_id(name, "app", number))
                if (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
                    await handle.cancel()
                    found = True
        await asyncio.sleep(0.05)
        return not found

    await until(is_over, "the end of all instances")
    with contextlib.suppress(Exception):
        await client.get_workflow_handle(pool_workflow_id(name)).terminate()
