"""The worker's connection to one supervisor process, for as long as that lives."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from weakref import WeakValueDictionary

from activities.supervisor import NUMBER_BYTES

_PROGRAM = Path(__file__).with_name("supervisor.py")
_CLOSE_SECONDS = 10.0
_BETWEEN_LOOKS_SECONDS = 0.01


class SupervisorLink:
    """Starts a supervisor process, hands it sockets, and hears whom it lost."""

    def __init__(self) -> None:
        self.dead = asyncio.Event()
        """Set when the supervisor has ended, whatever ended it."""
        self._loop = asyncio.get_running_loop()
        # Forgotten when nobody waits for them any more.
        self._lost: WeakValueDictionary[int, asyncio.Event] = WeakValueDictionary()
        self._room = asyncio.Event()
        self._received = b""
        self._sending = asyncio.Lock()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            self._program = subprocess.Popen(
                # -I -S -E: neither site-packages nor the user's settings slow its start.
                [sys.executable, "-ISE", str(_PROGRAM), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C is the worker's to act on
            )
        self._loop.add_reader(self._socket, self._hear)

    @property
    def pid(self) -> int:
        """Of the supervisor process."""
        return self._program.pid

    async def hand_over(self, number: int, descriptor: int) -> asyncio.Event:
        """Have a keeper forked that talks over `descriptor`.

        The event is set when that keeper was killed and what it left is dead, as far as a living
        supervisor can see to it. Raises ConnectionError if the supervisor is gone already.
        """
        lost = self._lost[number] = asyncio.Event()
        name = number.to_bytes(NUMBER_BYTES, "big")
        async with self._sending:
            while not self.dead.is_set():
                try:
                    socket.send_fds(self._socket, [name], [descriptor])
                    return lost
                except BlockingIOError:
                    await self._writable()
                except ConnectionError:
                    self._end()
                except OSError as error:
                    if error.errno not in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
                        raise
                    await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)  # too many on their way
        raise ConnectionResetError("the supervisor is gone")

    async def close(self) -> None:
        """End the supervisor with all that it runs, and wait until it is gone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        deadline = self._loop.time() + _CLOSE_SECONDS
        while self._program.poll() is None:
            await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)
            if self._loop.time() > deadline:
                self._program.kill()
        self._end()

    def _hear(self) -> None:
        try:
            received = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._end()
            return
        self._received += received
        while len(self._received) >= NUMBER_BYTES:
            number = int.from_bytes(self._received[:NUMBER_BYTES], "big")
            self._received = self._received[NUMBER_BYTES:]
            if lost := self._lost.get(number):
                lost.set()

    def _end(self) -> None:
        if self.dead.is_set():
            return
        self.dead.set()
        self._room.set()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for lost in list(self._lost.values()):
            lost.set()
        self._reap()

    def _reap(self) -> None:
        if self._program.poll() is None:
            self._loop.call_later(_BETWEEN_LOOKS_SECONDS, self._reap)

    async def _writable(self) -> None:
        """Return when the socket may take more; hundreds of requests at once can fill it."""
        self._room.clear()
        self._loop.add_writer(self._socket, self._room.set)
        try:
            await self._room.wait()
        finally:
            if not self.dead.is_set():
                self._loop.remove_writer(self._socket)
