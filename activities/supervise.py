"""The worker's end of its supervisor: start a process, await its end, leave nothing behind.

Every process of a step or a job is started by one supervisor (`activities/supervisor.py`), which
gives each a keeper of its own (`activities/keeper.py`). The worker talks to a keeper through a
socket of its own, so a process's environment and secrets never pass through an argv or a file,
and the end of the worker, however it comes, is seen by every keeper at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from activities import marker
from activities.keeper_words import FRAME_HEADER, INTERRUPT, KILL, NUDGE, TERMINATE, TOUCH
from activities.process_spec import (
    ProcessExit,
    ProcessSpec,
    SpawnFailed,
    check_spec,
    exit_from,
    read_exit,
)
from activities.supervisor_link import SupervisorLink
from perdure.errors import PerdureError

__all__ = [
    "FAULT",
    "ProcessExit",
    "ProcessSpec",
    "SpawnFailed",
    "Supervisor",
    "SupervisorLost",
    "read_exit",
]

T = TypeVar("T")

FAULT = "PERDURE_FAULT"
"""For crash tests: `hold-report:<seconds>` in the worker's environment delays the report of every
process's end by that long, after its exit file is on disk."""

_log = logging.getLogger(__name__)


class SupervisorLost(PerdureError):
    """The supervisor or a keeper died under a process; what they ran is dead by now."""


class Supervisor:
    """The one parent of every process that this worker starts.

    Belongs to the event loop that started it; only `touch` may be called from other threads.
    """

    def __init__(self, link: SupervisorLink) -> None:
        """Not for use; see `start`."""
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._running: dict[str, _Process] = {}
        self._numbers = itertools.count(1)
        self._restarting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def start(cls) -> Supervisor:
        """Start the supervisor process.

        On other systems than Linux a process that leaves its process group is found by its
        marker only, when the group has ended; the log says so.
        """
        if sys.platform != "linux":
            _log.warning(
                "on %s, processes of steps are ended by process group and by the marker in their "
                "environment only; use Linux where none may be left behind",
                sys.platform,
            )
        return cls(_new_link())

    @property
    def pid(self) -> int:
        """Process id of the supervisor; another one after it was killed and replaced."""
        return self._link.pid

    async def run(self, spec: ProcessSpec) -> ProcessExit:
        """Run one process to its end; every descendant it has left is dead by then.

        Cancelling the awaiting task ends the process tree (SIGTERM, after `kill_grace_seconds`
        SIGKILL), waits until it is gone, then raises CancelledError.

        Raises:
            SpawnFailed: it cannot be started: no such program or directory, no permission, an
                argument list that is too long, a NUL in it, or a key that is running already.
            SupervisorLost: the supervisor or the keeper died, and what it ran is dead by now; or
                the exit file could not be written.
        """
        check_spec(spec)
        if self._closed:
            raise SupervisorLost(f"{spec.key}: not started, the worker is ending")
        if spec.key in self._running:
            raise SpawnFailed(f"cannot start {spec.argv[0]!r}: {spec.key} is running already")
        process = self._running[spec.key] = _Process(next(self._numbers), spec)
        try:
            await self._hand_over(process)
            ended = await process.outcome()
        except PerdureError as error:
            if process.cancelled:  # whoever cancelled waits for exactly that
                raise asyncio.CancelledError from error
            raise
        finally:
            process.close()
            del self._running[spec.key]
        if process.cancelled:
            raise asyncio.CancelledError
        return ended

    def pid_of(self, key: str) -> int | None:
        """The process id of a running process; None before its start and after its end."""
        process = self._running.get(key)
        return process.pid if process else None

    def touch(self, key: str) -> None:
        """Restart the idle clock of a process. Any thread; an unknown key is ignored."""
        if process := self._running.get(key):
            process.touch(self._loop)

    def end(self, key: str, signum: int = signal.SIGTERM) -> None:
        """End a process as cancelling `run` does, but let `run` return its `cancelled` exit.

        `signum` (SIGTERM or SIGINT) goes to the whole tree, SIGKILL after
        `kill_grace_seconds`. A second call, or one after the end, changes nothing.
        """
        if process := self._running.get(key):
            process.end(signum)

    async def interrupt(self, key: str) -> str | None:
        """Send one SIGINT to a process and its process group, as Ctrl-C does; no more follows.

        One that is just being started gets it as soon as it runs. None: it reached the process;
        else why it reached nobody.
        """
        process = self._running.get(key)
        if process is None or not await process.nudge():
            return "its process has ended"
        return None

    def kill(self, key: str) -> None:
        """Kill a process with all its descendants at once; `run` returns its `killed` exit.

        An unknown key is ignored.
        """
        if process := self._running.get(key):
            process.kill()

    async def close(self) -> None:
        """End every process and the supervisor itself; a second call changes nothing."""
        self._closed = True
        for process in self._running.values():
            process.end(signal.SIGTERM)
        for process in list(self._running.values()):
            await process.gone.wait()
        await self._link.close()

    async def _hand_over(self, process: _Process) -> None:
        """Have a keeper forked that takes over this process."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SpawnFailed(
                f"cannot start {process.spec.argv[0]!r}: {error.strerror}; "
                "raise the limit of open files (ulimit -n) or run fewer processes at once"
            ) from error
        with theirs:
            await process.connect(ours)
            for _ in range(2):  # it may have died a moment ago, with nothing started
                link = await self._living_link()
                with contextlib.suppress(ConnectionError):
                    process.lost = await link.hand_over(process.number, theirs.fileno())
                    return
        raise SupervisorLost(f"{process.spec.key}: not started, its supervisor was killed")

    async def _living_link(self) -> SupervisorLink:
        """The supervisor, or a new one if it died."""
        async with self._restarting:
            if self._link.dead.is_set() and not self._closed:
                await self._link.close()
                self._link = _new_link()
            return self._link


def _new_link() -> SupervisorLink:
    try:
        return SupervisorLink()
    except OSError as error:
        raise SupervisorLost(f"cannot start the supervisor: {error.strerror}") from error


class _Process:
    """One process and the conversation with its keeper."""

    def __init__(self, number: int, spec: ProcessSpec) -> None:
        self.number = number
        self.spec = spec
        self.pid: int | None = None
        self.cancelled = False
        self.gone = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when its keeper died, and all that the supervisor can see of it is dead."""
        self._touched = 0.0
        self._writer: asyncio.StreamWriter | None = None
        self._early = b""
        """Requests from before there is a connection."""
        self._nudges: deque[asyncio.Future[bool]] = deque()
        """Those of which the keeper has not told yet whether they reached anybody."""

    async def connect(self, ours: socket.socket) -> None:
        """Take the worker's end of the socket and send the request."""
        self._control = ours.dup()
        self._control.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(_request(self.spec) + self._early)

    async def outcome(self) -> ProcessExit:
        """Await the end; a cancellation meanwhile ends the process first, see `cancelled`."""
        while (line := await self._await_anyway(self._read_line)).endswith(b"\n"):
            message = json.loads(line)
            if "started" in message:
                self.pid = message["started"]
            elif "nudged" in message:
                self._nudges.popleft().set_result(message["nudged"])
            elif "failed" in message:
                raise SpawnFailed(message["failed"])
            elif "unrecorded" in message:
                raise SupervisorLost(f"{self.spec.key}: ended, but without {message['unrecorded']}")
            elif "exit" in message:
                if sys.platform != "linux":
                    await self._await_anyway(self._sweep)
                return exit_from(message["exit"])
        # Its last word did not arrive, or it died; the file comes before the word.
        if ended := read_exit(self.spec.exit_file):
            return ended
        await self._await_anyway(self.lost.wait)
        await self._await_anyway(self._sweep)
        raise SupervisorLost(f"{self.spec.key}: its supervisor was killed, and so it was")

    async def _read_line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""

    async def _sweep(self) -> list[int]:
        return await asyncio.to_thread(marker.sweep, self.spec.key)

    async def _await_anyway(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Await something that may be begun again, so that a cancellation only ends the process."""
        while True:
            try:
                return await wait()
            except asyncio.CancelledError:
                self.cancelled = True
                self.end(signal.SIGTERM)

    def end(self, signum: int) -> None:
        self._write(INTERRUPT if signum == signal.SIGINT else TERMINATE)

    def kill(self) -> None:
        self._write(KILL)

    async def nudge(self) -> bool:
        """Send one SIGINT; whether it reached the process."""
        answer = asyncio.get_running_loop().create_future()
        self._nudges.append(answer)
        self._write(NUDGE)
        gone = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        return answer.done() and answer.result()

    def touch(self, loop: asyncio.AbstractEventLoop) -> None:
        # A step may call this in a tight loop; a hundredth of the limit is exact enough.
        idle = self.spec.idle_timeout_seconds
        now = time.monotonic()
        if idle is not None and now - self._touched > idle / 100:
            self._touched = now
            loop.call_soon_threadsafe(self._write, TOUCH)

    def _write(self, request: bytes) -> None:
        if self._writer is None:
            self._early += request
        elif self._writer.transport.get_write_buffer_size():
            self._writer.write(request)  # behind the first message, which the keeper waits for
        else:
            # Not by the stream: a write that meets a keeper that has just ended would break it,
            # and the keeper's last word, still to be read, would be lost.
            with contextlib.suppress(OSError):
                self._control.send(request)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._control.close()
        self.gone.set()


def _request(spec: ProcessSpec) -> bytes:
    """The first message to a keeper (see `activities/keeper_words.py`)."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    fields |= {
        "env": {**spec.env, marker.MARKER: spec.key},
        "stdin": None,
        "has_stdin": spec.stdin is not None,
        "hold_report_seconds": _hold_report_seconds(),
    }
    body = json.dumps(fields, default=str).encode()  # str: paths
    stdin = spec.stdin or b""
    return FRAME_HEADER.pack(len(body), len(stdin)) + body + stdin


def _hold_report_seconds() -> float:
    name, _, seconds = os.environ.get(FAULT, "").partition(":")
    return float(seconds) if name == "hold-report" else 0.0
