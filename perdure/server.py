"""The embedded server: one Temporal dev server for each state directory, shared by its users.

Two servers on one SQLite file would both start and destroy it, so three locks rule:
`start.lock` is held through every transition; `server.lock` is inherited by the server process
and lives exactly as long; `users.lock` is held shared by every user, and a leaver who can have
it alone was the last and stops the server. All three are gone with their processes, so a crash
leaves nothing to clean up. `server.lock` is only ever tried under `start.lock`: a passing try
would look like a server to somebody who starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.config import Settings
from perdure.server_binary import find_binary
from perdure.server_process import (
    ServerError,
    ServerRecord,
    free_port,
    port_is_free,
    port_user,
    ready,
    reap,
    spawn,
)
from perdure.state import FileLock, StateDir, explained, start_ticks

__all__ = [
    "Server",
    "ServerError",
    "ServerStopped",
    "Status",
    "User",
    "embedded_server",
    "status",
    "stop",
]

TRANSITION_SECONDS = 120.0
"""How long a user waits for the others to join or leave."""

STOP_SECONDS = 0.25
"""After it, a server that was asked to end is killed. Its own end takes 1.3 s, most of it waiting
for load balancers that are not here; a kill loses nothing, as its write-ahead log is in files."""

WORKER_STOP_SECONDS = 30.0

DYING_SECONDS = 5.0
"""How long a lock without a server is waited for before it is an error."""

_START_ATTEMPTS = 4


class ServerStopped(ServerError):
    """Somebody stopped the server on purpose (`perdure server stop`)."""


class _PortTaken(Exception):
    """Somebody else was faster at a port that had been free."""


@dataclass(frozen=True)
class User:
    """A process that uses the embedded server."""

    pid: int
    role: str
    """`run`, `worker`, `server`, ..."""


@dataclass(frozen=True)
class Status:
    """Answer to `status`."""

    running: bool
    address: str | None = None
    ui_url: str | None = None
    pid: int | None = None
    started_at: float | None = None
    """Seconds since 1970."""
    users: tuple[User, ...] = ()


class Server:
    """One process's use of the embedded server of a state directory.

    `role` tells others what the process is; one with the role `worker` is ended (SIGTERM) by
    `perdure server stop`.
    """

    def __init__(self, settings: Settings, *, role: str = "run") -> None:
        self.state = settings.state
        self.address = ""
        """`127.0.0.1:port`, once joined."""
        self.ui_url = ""
        self._settings = settings
        self._role = role
        self._use = FileLock(self.state.users_lock)
        self._user_file: Path | None = None

    async def join(self) -> None:
        """Use the server; start it if there is none.

        Raises StateError (the directory or its database is bad) or ServerError (no binary, a
        port in use, no answer), each with the remedy.
        """
        self.state.prepare()
        async with self._transition():
            self._use.take(shared=True)
            try:
                self._user_file = _register(self.state, self._role)
                await self._ensure_running(None)
            except BaseException:
                self._forget()
                raise

    async def leave(self) -> None:
        """Use the server no longer; stop it if nobody else does. Harmless when repeated."""
        if self._user_file is None:
            return
        async with self._transition():
            self._forget()
            alone = FileLock(self.state.users_lock)
            if alone.take():
                try:
                    await _end_server(self.state)
                finally:
                    alone.drop()

    async def restart_if_dead(self) -> bool:
        """Start the server again if it was killed; True if the caller's server was replaced.

        It gets the same ports, so that workers and clients reconnect by themselves. (If a
        foreign program took one meanwhile, others are chosen and `address` changes.)
        Raises ServerStopped if it was stopped on purpose. Cheap while the server lives.
        """
        record = ServerRecord.read(self.state)
        if record and record.alive and record.address == self.address:
            return False
        async with self._transition():
            record = ServerRecord.read(self.state)
            if record is None:
                raise ServerStopped(
                    f"the embedded server of {self.state.path} was stopped; "
                    "type the same command again to go on"
                )
            await self._ensure_running(record)
        return True

    def _transition(self) -> contextlib.AbstractAsyncContextManager[None]:
        return FileLock(self.state.start_lock).held(within_seconds=TRANSITION_SECONDS)

    def _forget(self) -> None:
        self._use.drop()
        if self._user_file:
            self._user_file.unlink(missing_ok=True)
            self._user_file = None

    async def _ensure_running(self, previous: ServerRecord | None) -> None:
        """Have a server that is ready, under `start.lock`."""
        previous = previous or ServerRecord.read(self.state)
        for _ in range(_START_ATTEMPTS):
            record: ServerRecord | None
            found = await _lock_or_server(self.state)
            if isinstance(found, FileLock):
                try:
                    record = await self._start(found, previous)
                except _PortTaken:
                    record = previous = None
                finally:
                    found.drop()  # ours only: the server holds it by its own handle
            elif await ready(found, retention_days=self._settings.retention_days):
                record = found
            else:
                record = None  # it died just now
            if record:
                record.write(self.state)
                self.address, self.ui_url = record.address, record.ui_url
                return
        raise ServerError(f"the embedded server does not stay up; see {self.state.server_log}")

    async def _start(self, lock: FileLock, previous: ServerRecord | None) -> ServerRecord | None:
        """Start a server and wait for it; None if it was killed meanwhile.

        Raises _PortTaken if a port was lost to somebody else.
        """
        self.state.check_database()
        binary = await find_binary(self.state)
        ports = self._choose_ports(previous)
        log_start = self.state.server_log.stat().st_size if self.state.server_log.exists() else 0
        record, process = await spawn(binary, self.state, ports, lock.fileno())
        try:
            record.write(self.state)
            if await ready(record, retention_days=self._settings.retention_days):
                return record
        except BaseException:
            process.kill()
            process.wait()
            raise
        log = _tail(self.state.server_log, log_start)
        if "address already in use" in log:
            raise _PortTaken
        status = process.wait()
        if status == -signal.SIGKILL:
            return None
        self.state.check_whole_database()
        raise ServerError(
            f"the embedded server ended at its start (exit status {status}): "
            f"{log or 'it printed nothing'}; see {self.state.server_log}"
        )

    def _choose_ports(self, previous: ServerRecord | None) -> tuple[int, int]:
        """The set ports; else those of a server that was killed; else free ones."""
        for name, port in (
            ("PERDURE_PORT", self._settings.port),
            ("PERDURE_UI_PORT", self._settings.ui_port),
        ):
            if port and not port_is_free(port):
                raise ServerError(
                    f"{name}={port} is in use by {port_user(port)}; end it, or set another port"
                )
        port, ui_port = self._settings.port, self._settings.ui_port
        if previous:
            port = port or (previous.port if port_is_free(previous.port) else None)
            ui_port = ui_port or (previous.ui_port if port_is_free(previous.ui_port) else None)
        port = port or free_port(beside=ui_port)
        return port, ui_port or free_port(beside=port)


@asynccontextmanager
async def embedded_server(settings: Settings, *, role: str = "run") -> AsyncIterator[Server]:
    """Use the embedded server: start it if there is none, stop it if nobody else uses it.

    Raises as `Server.join`.
    """
    server = Server(settings, role=role)
    await server.join()
    try:
        yield server
    finally:
        await server.leave()


async def stop(state: StateDir) -> bool:
    """End the workers that use the server, then the server; False if none ran.

    Other users find out by `Server.restart_if_dead`. Raises StateError or ServerError.
    """
    if not state.path.is_dir():
        return False
    workers = [u for u in users(state) if u.role == "worker" and u.pid != os.getpid()]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(worker.pid, signal.SIGTERM)
    ran = status(state).running
    deadline = time.monotonic() + WORKER_STOP_SECONDS
    while time.monotonic() < deadline and set(workers) & set(users(state)):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    async with FileLock(state.start_lock).held(within_seconds=TRANSITION_SECONDS):
        return await _end_server(state) or ran


def status(state: StateDir) -> Status:
    """Whether a server runs, where, and who uses it. Starts nothing, waits for nothing."""
    record = ServerRecord.find(state) if state.path.is_dir() else None
    if record is None:
        return Status(running=False, users=tuple(users(state)))
    return Status(
        running=True,
        address=record.address,
        ui_url=record.ui_url,
        pid=record.pid,
        started_at=record.started_at,
        users=tuple(users(state)),
    )


def users(state: StateDir) -> list[User]:
    """The processes that use the server, by pid."""
    found = []
    for file in state.users.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads(file.read_text())
            if start_ticks(int(fields["pid"])) == fields["start_time"]:
                found.append(User(int(fields["pid"]), str(fields["role"])))
            else:
                file.unlink(missing_ok=True)  # it was killed
    return sorted(found, key=lambda user: user.pid)


def _register(state: StateDir, role: str) -> Path:
    pid = os.getpid()
    file = state.users / f"{pid}-{secrets.token_hex(4)}.json"
    with explained(file):
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps({"pid": pid, "start_time": start_ticks(pid), "role": role}))
        os.replace(temporary, file)
    return file


async def _lock_or_server(state: StateDir) -> FileLock | ServerRecord:
    """The server's lock, taken, or else the server that holds it. Under `start.lock`.

    Raises ServerError if it is held and no server can be found.
    """
    lock = FileLock(state.server_lock)
    deadline = time.monotonic() + DYING_SECONDS
    while not lock.take():
        if record := ServerRecord.find(state):
            return record
        # A killed server is a zombie before the last of its threads lets go of the lock.
        if time.monotonic() > deadline:
            raise ServerError(
                f"{state.server_lock} is held, but no server of this machine and user is found "
                f"that holds it; end the program that does (`fuser {state.server_lock}` names "
                "it), or set PERDURE_STATE_DIR"
            )
        await asyncio.sleep(0.05)
    return lock


async def _end_server(state: StateDir) -> bool:
    """Stop the server, under `start.lock`; False if none ran."""
    found = await _lock_or_server(state)
    state.server_file.unlink(missing_ok=True)  # first: users must not take it for a crash
    if isinstance(found, FileLock):
        found.drop()
        return False
    lock = FileLock(state.server_lock)
    for number, patience_seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0)):
        try:
            os.kill(found.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise ServerError(
                f"the server (pid {found.pid}) belongs to another user; let that user stop it"
            ) from error
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            reap()
            if lock.take():
                lock.drop()
                return True
            await asyncio.sleep(0.01)
    raise ServerError(f"the server (pid {found.pid}) cannot be ended")


def _tail(file: Path, start: int) -> str:
    """The last lines that were written to the log since `start`."""
    with contextlib.suppress(OSError), file.open("rb") as log:
        log.seek(start)
        text = log.read()[-4000:].decode(errors="replace")
        return " | ".join(line.strip() for line in text.splitlines() if line.strip())[-600:]
    return ""
