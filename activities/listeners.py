"""Who listens on a port: told by the marker in the environment of the processes. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

_LISTENS = " 0A "
"""The state of a socket that takes connections."""


def strangers(
    ports: Collection[int], prefix: str, own: str, server: int | None = None
) -> list[int]:
    """Those of the ports on which an instance listens that is not the own one.

    Instances' processes have a variable that begins with `prefix`; the own ones have `own`, or one
    that goes on from there with `/`. Whoever has none, or belongs to another user, is no stranger:
    a server may have a helper without a marker listen for it. `server`: the own process that most
    likely listens; if it does, nobody else has to be looked at.
    """
    sockets = _listening(ports)
    for name in _sockets_of(server) if server else ():
        sockets.pop(name, None)
    if not sockets:
        return []
    found: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = os.fsdecode(file.read()).split("\0")
            marks = [entry for entry in environment if entry.startswith(prefix)]
            if marks and not any(mark == own or mark.startswith(f"{own}/") for mark in marks):
                found.update(sockets[held] for held in _sockets_of(name) if held in sockets)
    return sorted(found)


def _sockets_of(pid: int | str) -> Iterator[str]:
    """Names in /proc of what a process has open."""
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def _listening(ports: Collection[int]) -> dict[str, int]:
    """The ports of the sockets that listen on them, by the sockets' names in /proc."""
    sockets: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            for line in file:
                if _LISTENS in line:  # few of what may be thousands
                    fields = line.split()
                    port = int(fields[1].rpartition(":")[2], 16)
                    if port in ports:
                        sockets[f"socket:[{fields[9]}]"] = port
    return sockets
