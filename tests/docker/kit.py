"""Compose environments for tests: images from scratch, and calls as the pool makes them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import textwrap
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.compose import ComposeBackend
from activities.docker_cli import DockerCli
from activities.secrets import WorkerEnvironment
from perdure.core.environments import Environment, Port
from perdure.core.pool_definitions import Definition
from perdure.core.pool_names import project_name
from perdure.pool_messages import InstanceCall, InstanceResult

IMAGE = "perdure-test/busybox:3"

# It ends when it is asked to, so that no test waits until it is killed for not doing so.
COMMAND = ["sh", "-c", "trap 'exit 143' TERM; sleep 600 & wait"]

PROGRAMS = (
    *("sh", "sleep", "true", "false", "echo", "cat", "printenv", "httpd", "wget", "ps", "seq"),
    *("kill", "test", "nc", "printf", "env", "mkdir", "ls", "rm", "touch", "head", "tail", "grep"),
    *("sed", "date", "id", "wc", "yes", "dd"),
)


def docker(*words: str, stdin: bytes | None = None, host: str | None = None) -> str:
    """What a call of docker prints; a failed call fails the test. `host`: as DOCKER_HOST."""
    environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
    done = subprocess.run(
        ["docker", *words], input=stdin, capture_output=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


def build_image(busybox: str, host: str | None = None) -> None:
    """An image that holds busybox and nothing else: no registry is needed."""
    if docker("images", "--quiet", IMAGE, host=host).strip():
        return
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        program = Path(busybox).read_bytes()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
        for name in PROGRAMS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for name in ("tmp", "etc", "proc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(folder)
    command = ("import", "--change", f"CMD {json.dumps(COMMAND)}", "-", IMAGE)
    docker(*command, stdin=content.getvalue(), host=host)


def left_of(*labels: str, host: str | None = None) -> list[str]:
    """Containers, networks and volumes with these labels, whatever their state."""
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    found: list[str] = []
    for words in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        column = "{{.Names}}" if words[0] == "ps" else "{{.Name}}"
        found += docker(*words, "--format", column, *filters, host=host).split()
    return found


@dataclass
class Stand:
    """A project's root with a compose file, and a backend that runs its instances."""

    root: Path
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    variables: dict[str, str] = field(default_factory=dict)
    """Of the worker, beside what docker needs."""
    backend: ComposeBackend = field(init=False)
    host: str | None = None
    """Of the engine, as DOCKER_HOST; None: the machine's."""

    def __post_init__(self) -> None:
        if self.host:
            self.variables["DOCKER_HOST"] = self.host
        self.backend = self.another_worker()

    def another_worker(self, cli: DockerCli | None = None) -> ComposeBackend:
        """A backend that knows nothing of what the first one did."""
        return ComposeBackend(WorkerEnvironment({**os.environ, **self.variables}), cli)

    def call(
        self, compose: str, number: int = 1, *, ports: dict[str, int] | None = None, **facts: Any
    ) -> InstanceCall:
        """A call for an instance of a compose file's text; `facts` of its Environment."""
        name = str(facts.pop("name", "shop"))
        folder = self.root / "envs" / name
        folder.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(compose).replace("IMAGE", IMAGE)
        (folder / "docker-compose.yml").write_text(text)
        environment = Environment(
            name,
            docker_compose=f"envs/{name}/docker-compose.yml",
            ports={variable: Port(number) for variable, number in (ports or {}).items()},
            **{"health_timeout_seconds": 20.0, "start_timeout_seconds": 60.0, **facts},
        )
        digest = uuid.uuid5(uuid.NAMESPACE_OID, text + str(self.root)).hex
        definition = Definition(environment, digest, str(self.root)).to_json()
        return InstanceCall(
            pool="tests",
            pool_uuid=self.uuid,
            number=number,
            environment=name,
            project=project_name(name, number, self.uuid),
            definition=json.loads(json.dumps(definition)),
            ports=ports or {},
        )

    def folder(self, call: InstanceCall) -> Path:
        """An instance's own folder, made."""
        folder = self.root / "instances" / call.pool_uuid / str(call.number)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    async def start(self, call: InstanceCall) -> InstanceResult:
        """Prepare and start it."""
        prepared = await self.backend.prepare(call, self.folder(call))
        if not prepared.ok:
            return prepared
        return await self.backend.start(call, self.folder(call), heartbeat=lambda note: None)

    async def stop(self, call: InstanceCall) -> InstanceResult:
        """Stop it."""
        return await self.backend.stop(call, self.folder(call))

    def containers(self) -> list[str]:
        """Ids of this pool's running containers."""
        words = ("ps", "--quiet", "--no-trunc", "--filter", f"label=perdure.pool={self.uuid}")
        return docker(*words, host=self.host).split()

    def clear(self) -> None:
        """Remove all of this pool by force."""
        label = f"label=perdure.pool={self.uuid}"
        for kind, listed in (
            ("container", ("ps", "--all")),
            ("network", ("network", "ls")),
            ("volume", ("volume", "ls")),
        ):
            found = docker(*listed, "--quiet", "--filter", label, host=self.host).split()
            force = () if kind == "network" else ("--force",)
            if found:
                docker(kind, "rm", *force, *found, host=self.host)

    def left(self) -> list[str]:
        """What is there of this pool."""
        return left_of(f"perdure.pool={self.uuid}", host=self.host)
