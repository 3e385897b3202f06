"""The backend for environments without Docker: an instance is a server process of this machine.

Each has a keeper (`activities/process_keeper.py`), which outlives the worker and is found again by
what it notes in the instance's folder, or, where that fails, by the marker that all its processes
carry.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import time
from collections.abc import Collection, Container, Sequence
from pathlib import Path
from typing import cast

from activities import listeners, marker, procfs
from activities.backend import Heartbeat, InnerCommand, definition_of, failed
from activities.ports import PortProbe
from activities.process_commands import inside_argv, run_beside
from activities.process_folder import ProcessFolder, folders_in
from activities.process_keeper import BUSY
from activities.process_ready import Probe, Unready
from activities.process_server import (
    PREFIX,
    Server,
    directory_of,
    identity_of,
    key_of,
    process_of,
    server_of,
)
from activities.secrets import WorkerEnvironment
from perdure.core.redaction import spellings
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall, InstanceResult

ORPHAN_VARIABLE = "PERDURE_ORPHAN_AFTER_SECONDS"
"""Of the worker's environment; how long its process environments wait for another worker."""

ORPHAN_AFTER_SECONDS = 1800.0
KILL_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""
LOG_LIMIT_BYTES = 1_000_000

_KEEPER = Path(__file__).with_name("process_keeper.py")
_LAUNCHES = 3
"""An attempt that is given up but still runs may be quicker; then its server is adopted."""
_LAUNCH_SECONDS = 30.0
_CHECK_SECONDS = 1.8
_WATCH_SECONDS = 1.0
_TOUCH_SECONDS = 15.0
_SWEEP_SECONDS = 5.0

_IN_USE = re.compile(r"address (is )?already in use|EADDRINUSE|port \S+ is (already )?in use", re.I)


class ProcessBackend:
    """Runs instances as processes of this machine."""

    def __init__(
        self, environment: WorkerEnvironment, orphan_after_seconds: float | None = None
    ) -> None:
        """`orphan_after_seconds`: None: as the worker's environment has it, else 30 minutes."""
        self._environment = environment
        self._orphan_after = orphan_after_seconds or _orphan_after(environment)

    # --- The life of an instance -----------------------------------------------------------------

    async def prepare(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Nothing to do; a program that is not there shows when it is started."""
        return InstanceResult(ok=True)

    async def start(
        self, call: InstanceCall, folder: Path, *, heartbeat: Heartbeat
    ) -> InstanceResult:
        """Start the server, or find the one already started, and wait until it is ready."""
        here = ProcessFolder(folder)
        definition = definition_of(call)
        try:
            server = server_of(call, definition, self._environment)
            probe = Probe.of(process_of(definition), call.ports)
        except PerdureError as error:
            return failed(call, str(error), is_final=True)
        here.touch()
        for _ in range(_LAUNCHES):
            if await here.keeps(identity_of(call)):
                break
            if not here.is_new:
                await self._end(call, here)
            heartbeat("starting the process")
            reason = await self._launch(call, here, server)
            if reason is None:
                break
            if reason != BUSY:
                await self._end(call, here)
                # A program that cannot be executed will not be so a moment later.
                return failed(call, reason, is_final=True)
        heartbeat(f"waiting until {probe} answers")
        try:
            await _until_ready(call, here, probe)
        except Unready as error:
            result = await _explained(call, here, error)
        else:
            return InstanceResult(ok=True)
        await self._end(call, here)
        return result

    async def check(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Whether the server lives and still answers where it showed that it was ready."""
        here = ProcessFolder(folder)
        if not here.is_kept:
            return _dead(call, here)
        here.touch()
        try:
            probe = Probe.of(process_of(definition_of(call)), call.ports)
            await probe.once(_CHECK_SECONDS)
        except PerdureError as error:
            return failed(call, str(error), log=here.log)
        return InstanceResult(ok=True)

    async def watch(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Return when the server has ended; until then its keeper knows that a worker is there."""
        here = ProcessFolder(folder)
        touch_seconds = min(_TOUCH_SECONDS, self._orphan_after / 4)
        pause_seconds = min(_WATCH_SECONDS, touch_seconds)
        untouched = touch_seconds
        while here.is_kept:
            if untouched >= touch_seconds:
                here.touch()
                untouched = 0.0
            await asyncio.sleep(pause_seconds)
            untouched += pause_seconds
        return _dead(call, here)

    async def stop(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """End the server and all that it started, wherever that went."""
        if left := await self._end(call, ProcessFolder(folder)):
            numbers = ", ".join(map(str, left))
            return failed(call, f"processes {numbers} cannot be killed; end them by hand")
        return InstanceResult(ok=True)

    async def sweep(self, pool_uuid: str, keep: Container[int], root: Path) -> list[str]:
        """End what a pool left on this machine, but for these instances."""
        removed: dict[int, str] = {}
        for number, here in folders_in(root).items():
            if number not in keep and here.is_kept:
                removed[number] = f"process {here.state.get('server')} of instance {number}"
                await here.end(KILL_GRACE_SECONDS)
        # Whose folder is gone, or whose keeper was killed.
        prefix = f"{PREFIX}{pool_uuid}/"
        for key in await asyncio.to_thread(marker.carriers, prefix):
            name = key.removeprefix(prefix).partition("/")[0]
            if name.isdecimal() and int(name) not in keep:
                killed = ", ".join(map(str, await asyncio.to_thread(marker.sweep, key)))
                removed.setdefault(int(name), f"processes {killed} of instance {name}")
        return [removed[number] for number in sorted(removed)]

    # --- Commands beside the server --------------------------------------------------------------

    async def exec_argv(self, call: InstanceCall, folder: Path, command: InnerCommand) -> list[str]:
        """The argv that runs a command where the server runs, and with its variables.

        The command's own are added by name only; the process that runs the argv has to have them.
        """
        here = ProcessFolder(folder)
        if command.user is not None:
            raise PerdureError(
                f"environment {call.environment} is a process, and what runs beside it has the "
                f"worker's own user; leave out user: {command.user}"
            )
        server = here.state.get("server")
        if server is None or not here.is_kept:
            raise PerdureError(_dead(call, here).reason)
        directory = os.path.join(directory_of(definition_of(call)), command.workdir or "")
        return inside_argv(server, directory, command.env, command.argv)

    async def exec(
        self,
        call: InstanceCall,
        folder: Path,
        service: str | None,
        command: str,
        timeout_seconds: float,
    ) -> tuple[int, str]:
        """Run a shell's command line where the server runs, with its variables."""
        server = server_of(call, definition_of(call), self._environment)
        return await run_beside(server, command, timeout_seconds)

    # --- Inside ----------------------------------------------------------------------------------

    async def _launch(self, call: InstanceCall, here: ProcessFolder, server: Server) -> str | None:
        """Have a keeper start the server; why it could not, or None."""
        spec = {
            "folder": str(here.path),
            "identity": identity_of(call),
            "argv": server.argv,
            "cwd": server.cwd,
            "env": server.env,
            "secrets": spellings(server.secrets),
            "orphan_after_seconds": self._orphan_after,
            "kill_grace_seconds": KILL_GRACE_SECONDS,
            "log_limit_bytes": LOG_LIMIT_BYTES,
        }
        # -I -S -E: neither site-packages nor the user's settings slow its start.
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-ISE", str(_KEEPER)),
            cwd="/",
            env={"PATH": os.defpath, marker.MARKER: key_of(call)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        answer = b""
        try:
            async with asyncio.timeout(_LAUNCH_SECONDS):
                answer, _ = await keeper.communicate(json.dumps(spec).encode())
        except TimeoutError:
            return f"its keeper did not start it within {_LAUNCH_SECONDS:g} s"
        if not answer:
            return "its keeper ended before the process ran"
        return cast("dict[str, str]", json.loads(answer)).get("failed")

    async def _end(self, call: InstanceCall, here: ProcessFolder) -> list[int]:
        """Leave no process of the instance; the pids of those that cannot be killed."""
        await here.end(KILL_GRACE_SECONDS)
        return await asyncio.to_thread(_swept, key_of(call))


async def _until_ready(call: InstanceCall, here: ProcessFolder, probe: Probe) -> None:
    """Raises Unready: it ended, or its time is over, or it is somebody else who answers."""
    async with probe.limit():
        while True:
            is_ready = await probe.is_ready()
            if not here.is_kept:
                raise Unready(here.how_it_ended())
            if is_ready:
                break
            await probe.pause()
    if not here.is_kept:  # one that has no way to say that it is ready
        raise Unready(here.how_it_ended())
    start = f"{marker.MARKER}="
    own, server = start + key_of(call), here.state.get("server")
    strangers = await asyncio.to_thread(
        listeners.strangers, call.ports.values(), start + PREFIX, own, server
    )
    if strangers:
        raise Unready("another instance has its ports", taken_ports=strangers)


async def _explained(call: InstanceCall, here: ProcessFolder, error: Unready) -> InstanceResult:
    """Why a start failed: most likely a port, if somebody has one of its ports now."""
    taken = list(error.taken_ports)
    if not taken and not here.is_kept:
        taken = await PortProbe().taken(call.ports.values())
        taken = taken or _complained_of(here.log, call.ports.values())
    numbers = ", ".join(map(str, taken))
    return failed(
        call,
        f"{error}; somebody else has port {numbers}" if taken else str(error),
        log=here.log,
        taken_ports=taken,
        at_start=bool(taken),
    )


def _dead(call: InstanceCall, here: ProcessFolder) -> InstanceResult:
    return failed(call, here.how_it_ended(), log=here.log)


def _swept(key: str) -> list[int]:
    """Kill all that carries the marker of an instance or one below it; those that are left."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    # Again and again: a child that was being started takes its own marker after a look.
    while (found := _markers(key)) and time.monotonic() < deadline:
        for each in found:
            marker.sweep(each)
    return [process.pid for there in found.values() for process in there]


def _markers(key: str) -> dict[str, list[procfs.Seen]]:
    found = marker.carriers(key)  # that of instance 12, too, for the one of instance 1
    return {name: there for name, there in found.items() if f"{name}/".startswith(f"{key}/")}


def _complained_of(log: Sequence[str], ports: Collection[int]) -> list[int]:
    """The ports that a server says are somebody else's."""
    complaints = " ".join(line for line in log if _IN_USE.search(line))
    named = set(map(int, re.findall(r"\d{1,5}", complaints)))
    return [port for port in ports if port in named]


def _orphan_after(environment: WorkerEnvironment) -> float:
    try:
        seconds = float(environment.get(ORPHAN_VARIABLE) or ORPHAN_AFTER_SECONDS)
    except ValueError:
        return ORPHAN_AFTER_SECONDS
    return seconds if 0 < seconds < math.inf else ORPHAN_AFTER_SECONDS
