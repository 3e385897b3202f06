"""Numbers of ports that are spoken for on this machine, from their choice until a server listens.

They are held for all processes of the machine, whatever worker, pool or server they belong to, and
by the kernel: a name in the abstract namespace of Unix sockets is one holder's alone, is known as
far as the ports themselves are (in the network namespace), and is free again when the holder dies,
however that happens. Where there is no such namespace, only this process knows.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from types import TracebackType

_NAME = "\0perdure-port-{}"
_ABSTRACT = sys.platform == "linux"
_held_here: set[int] = set()


class Holds:
    """What one piece of work holds; given back at the end of the `with` block."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._ports: set[int] = set()

    def take(self, port: int) -> bool:
        """Hold a number; False: somebody else does. Asking again changes nothing."""
        if port in self._ports:
            return True
        if port in _held_here or not self._named(port):
            return False
        self._ports.add(port)
        _held_here.add(port)
        self._held.callback(_held_here.discard, port)
        return True

    def __contains__(self, port: int) -> bool:
        return port in self._ports

    def _named(self, port: int) -> bool:
        if not _ABSTRACT:
            return True
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(_NAME.format(port))
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._held.callback(name.close)
        return True

    def __enter__(self) -> Holds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()
        self._ports.clear()
