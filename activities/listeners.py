"""Who listens on a port: told by the marker in the environment of the processes. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

_LISTENS = " 0A "
"""The state of a socket that takes connections."""


def strangers(ports: Collection[int], prefix: str, own: str) -> list[int]:
    """Those of the ports on which an instance listens that is not the own one.

    Instances' processes have a variable that begins with `prefix`; the own ones have `own`, or one
    that goes on from there with `/`. Whoever has none, or belongs to another user, is no stranger:
    a server may have a helper without a marker listen for it.
    """
    sockets = _listening(ports)
    if not sockets:
        return []
    found: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = os.fsdecode(file.read()).split("\0")
            marks = [entry for entry in environment if entry.startswith(prefix)]
            if marks and not any(mark == own or mark.startswith(f"{own}/") for mark in marks):
                for number in os.listdir(f"/proc/{name}/fd"):
                    with contextlib.suppress(OSError):
                        if port := sockets.get(os.readlink(f"/proc/{name}/fd/{number}")):
                            found.add(port)
    return sorted(found)


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
