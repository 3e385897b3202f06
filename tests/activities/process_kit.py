"""What the tests of the process backend share: instances of a tiny server, and what is left."""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from activities import marker
from activities.process import ProcessBackend
from activities.process_server import PREFIX
from activities.secrets import WorkerEnvironment
from perdure.core.environments import Environment, Port, Process, Ready
from perdure.core.pool_definitions import Definition
from perdure.pool_messages import InstanceCall, InstanceResult

SERVER = str(Path(__file__).with_name("tiny_server.py"))
READY = Ready(http="http://127.0.0.1:${APP_PORT}/", timeout_seconds=30)


def serve(*more: str) -> tuple[str, ...]:
    """The command of a tiny server."""
    return (sys.executable, "-IS", SERVER, "${APP_PORT}", *more)


def free_port() -> int:
    """One that nobody has now, and that the kernel gives nobody by itself."""
    while True:
        port = 20_000 + int.from_bytes(os.urandom(2), "big") % 10_000
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port


@dataclass
class App:
    """One instance, by the backend that a worker would have."""

    backend: ProcessBackend
    call: InstanceCall
    folder: Path

    @property
    def port(self) -> int:
        return self.call.ports["APP_PORT"]

    async def start(self) -> InstanceResult:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await self.backend.start(self.call, self.folder, heartbeat=lambda _: None)

    async def check(self) -> InstanceResult:
        return await self.backend.check(self.call, self.folder)

    async def watch(self) -> InstanceResult:
        return await self.backend.watch(self.call, self.folder)

    async def stop(self) -> InstanceResult:
        return await self.backend.stop(self.call, self.folder)

    async def get(self, path: str) -> str:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://127.0.0.1:{self.port}/{path}")).text

    async def pid(self) -> int:
        return int(await self.get("pid"))

    async def environ(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(await self.get("env"))
        return found

    def processes(self) -> list[int]:
        """All that carry the instance's marker, its keeper included."""
        key = f"{PREFIX}{self.call.pool_uuid}/{self.call.number}"
        there = marker.carriers(key)
        return [p.pid for name, ps in there.items() if f"{name}/".startswith(f"{key}/") for p in ps]

    @property
    def keeper(self) -> int:
        state = json.loads((self.folder / "process.json").read_bytes())
        return int(state["keeper"])


@dataclass
class Pool:
    """The instances of one test, in a folder of its own."""

    path: Path
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})
    orphan_after_seconds: float = 600.0
    count: int = 0

    @property
    def root(self) -> Path:
        return self.path / "instances" / self.uuid

    def backend(self, **more: Any) -> ProcessBackend:
        return ProcessBackend(
            WorkerEnvironment(self.variables, **more),
            orphan_after_seconds=self.orphan_after_seconds,
        )

    def app(
        self,
        command: tuple[str, ...] | str | None = None,
        ready: Ready | None = READY,
        port: int | None = None,
        **more: Any,
    ) -> App:
        """An instance that is not started yet."""
        self.count += 1
        environment = Environment(
            "mail",
            process=Process(serve() if command is None else command, more.pop("cwd", None), ready),
            ports={"APP_PORT": Port()},
            **more,
        )
        call = InstanceCall(
            pool="p",
            pool_uuid=self.uuid,
            number=self.count,
            environment="mail",
            project=f"pool_mail_{self.count}",
            definition=Definition(environment, "d", str(self.path)).to_json(),
            ports={"APP_PORT": port or free_port()},
        )
        return App(self.backend(), call, self.root / str(self.count))

    def end(self) -> None:
        """Kill whatever a failed test left."""
        for key in marker.carriers(f"{PREFIX}{self.uuid}/"):
            marker.sweep(key)
