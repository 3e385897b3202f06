"""The server's process: its flags and ports, where it is written down, and when it is ready."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil
from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.errors import PerdureError
from perdure.search_attributes import SEARCH_ATTRIBUTES
from perdure.state import StateDir, explained, start_ticks

NAMESPACE = "default"
LOOPBACK = "127.0.0.1"

FLAGS = (
    # Write-ahead log: 2.4 times the throughput; ten of ten SIGKILLs lost nothing.
    *("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"),
    # The one request of the UI that would leave this machine.
    "--ui-disable-news-fetch",
    *("--log-level", "error"),
    # One shard polled 20 times a second costs each step in a sequence 50 ms.
    *("--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"),
    *("--dynamic-config-value", "history.timerProcessorMaxPollRPS=1000"),
    *("--dynamic-config-value", "history.visibilityProcessorMaxPollRPS=1000"),
    # A queue in four parts is for clusters: here it doubles what a worker's start costs the server.
    *("--dynamic-config-value", "matching.numTaskqueueReadPartitions=1"),
    *("--dynamic-config-value", "matching.numTaskqueueWritePartitions=1"),
    # Timers and retry intervals have a floor of a second otherwise. The value is JSON.
    *("--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"'),
)

READY_WITHIN_SECONDS = 60.0
"""0.2 s on an idle machine; a loaded one, or a large log to replay, takes longer."""

LOG_LIMIT_BYTES = 16 * 1024 * 1024

# Below the range that the kernel gives to outgoing connections: a worker that reconnects to a
# dead server's port within that range can connect to itself, and holds the port.
_PORTS = range(20000, 32000)

_SAFE_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER"),
    *("GOGC", "GOMEMLIMIT", "GOMAXPROCS"),  # how much memory and how many cores it may use
)

# Kept so that a server that ended is reaped.
_children: list[subprocess.Popen[bytes]] = []


@atexit.register
def _let_go() -> None:
    """A server outlives who started it; Popen would warn of that when the interpreter ends."""
    for child in _children:
        child.returncode = child.poll() or 0


class ServerError(PerdureError):
    """The embedded server cannot be started or reached."""


@dataclass(frozen=True)
class ServerRecord:
    """What `server.json` says of the running server."""

    pid: int
    start_time: int
    """In the unit of `perdure.state.start_ticks`; tells a reused pid from the server's."""
    port: int
    ui_port: int
    started_at: float
    """Seconds since 1970."""

    @property
    def address(self) -> str:
        """Of the gRPC service."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def ui_url(self) -> str:
        """Where a browser finds the UI."""
        return f"http://{LOOPBACK}:{self.ui_port}"

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return start_ticks(self.pid) == self.start_time

    def write(self, state: StateDir) -> None:
        """Replace `server.json` as a whole."""
        temporary = state.server_file.with_suffix(".new")
        shown = {**asdict(self), "address": self.address, "ui": self.ui_url}
        with explained(state.server_file):
            temporary.write_text(json.dumps(shown, indent=1) + "\n")
            os.replace(temporary, state.server_file)

    @classmethod
    def read(cls, state: StateDir) -> ServerRecord | None:
        """The record as written, also of a server that is gone; None if there is none."""
        try:
            fields = json.loads(state.server_file.read_text())
            return cls(
                pid=int(fields["pid"]),
                start_time=int(fields["start_time"]),
                port=int(fields["port"]),
                ui_port=int(fields["ui_port"]),
                started_at=float(fields["started_at"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent or damaged: `find` looks at the processes

    @classmethod
    def find(cls, state: StateDir) -> ServerRecord | None:
        """The record of the server that runs, from `server.json` or else from the processes.

        The latter serves when the starter was killed before it could write the file.
        """
        if (record := cls.read(state)) and record.alive:
            return record
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                command = process.cmdline()
                if "start-dev" in command and os.path.samefile(process.cwd(), state.path):
                    return cls(
                        pid=process.pid,
                        start_time=start_ticks(process.pid) or 0,
                        port=int(command[command.index("--port") + 1]),
                        ui_port=int(command[command.index("--ui-port") + 1]),
                        started_at=process.create_time(),
                    )
        return None


def command_line(binary: Path, port: int, ui_port: int) -> list[str]:
    """The server's argv; its working directory is the state directory.

    The database is named relative to it: the server builds a URL from the name, in which a
    `?` or `%` of the directory's path would be read as syntax.
    """
    attributes = [
        part
        for name, kind in SEARCH_ATTRIBUTES.items()
        for part in ("--search-attribute", f"{name}={kind}")
    ]
    return [
        *(str(binary), "server", "start-dev", "--db-filename", "temporal.db"),
        *("--ip", LOOPBACK, "--port", str(port), "--ui-port", str(ui_port)),
        *FLAGS,
        *attributes,
    ]


async def spawn(
    binary: Path, state: StateDir, ports: tuple[int, int], lock_fd: int
) -> tuple[ServerRecord, subprocess.Popen[bytes]]:
    """Start the server in a session of its own, holding the open lock `lock_fd`."""
    with explained(state.server_log):
        mode = "ab"
        if state.server_log.exists() and state.server_log.stat().st_size > LOG_LIMIT_BYTES:
            mode = "wb"
        log = state.server_log.open(mode)
    with log:
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
                command_line(binary, *ports),
                cwd=state.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C must not reach it
                pass_fds=[lock_fd],
                # No secrets and no settings of the user that happened to start it.
                env={name: os.environ[name] for name in _SAFE_ENVIRONMENT if name in os.environ},
            )
        except OSError as error:
            raise ServerError(f"{binary} cannot be started ({error.strerror})") from error
    _children.append(process)
    return (
        ServerRecord(
            pid=process.pid,
            start_time=start_ticks(process.pid) or 0,
            port=ports[0],
            ui_port=ports[1],
            started_at=time.time(),
        ),
        process,
    )


def reap() -> None:
    """Let go of servers that this process started and that have ended."""
    _children[:] = [child for child in _children if child.poll() is None]


async def ready(record: ServerRecord, *, retention_days: int) -> bool:
    """Wait until the server answers, its namespace exists and keeps runs for `retention_days`.

    False: the process ended. Raises ServerError if it lives and does not become ready.
    """
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    reason = "no answer"
    while time.monotonic() < deadline:
        reap()
        if not record.alive:
            return False
        try:
            # A bare connection first: the client's own attempts are slower to fail.
            _, writer = await asyncio.open_connection(LOOPBACK, record.port)
            writer.close()
            async with asyncio.timeout(10):
                client = await Client.connect(record.address, namespace=NAMESPACE)
                await _set_retention(client, retention_days)
                await client.count_workflows()
            return True
        except (OSError, RuntimeError, RPCError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        await asyncio.sleep(0.02)
    raise ServerError(
        f"the embedded server (pid {record.pid}) does not answer at {record.address}: {reason}; "
        "see server.log in the state directory, or end it with `perdure server stop`"
    )


async def _set_retention(client: Client, days: int) -> None:
    """Keep closed runs for `days`; the dev server's own choice is 24 hours."""
    service = client.workflow_service
    described = await service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    wanted = timedelta(days=days)
    if described.config.workflow_execution_retention_ttl.ToTimedelta() == wanted:
        return
    retention = Duration()
    retention.FromTimedelta(wanted)
    await service.update_namespace(
        UpdateNamespaceRequest(
            namespace=NAMESPACE,
            config=NamespaceConfig(workflow_execution_retention_ttl=retention),
        )
    )


# --- Ports ------------------------------------------------------------------------------------


def port_is_free(port: int) -> bool:
    """Whether a server could listen on loopback at `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the server does it: connections of an earlier one that linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(*, beside: int | None = None) -> int:
    """A port that nobody listens on, other than `beside`."""
    for _ in range(200):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if port != beside and port_is_free(port):
            return port
    raise ServerError(f"no free port from {_PORTS.start} to {_PORTS.stop}; set PERDURE_PORT")


def port_user(port: int) -> str:
    """Who listens at `port`, for people; as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f"{name} (pid {connection.pid})"
    return "another program"
