"""Processes of process environments on this machine, by the pool whose instances they are.

Each carries a marker in its environment that names pool and instance. Those of other users are not
seen.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import psutil

_MARKER = "PERDURE_MARKER"
_INSTANCE = re.compile(r"instance/(?P<pool>[^/]+)/(?P<number>\d+)(?:/|$)")
_KILL_SECONDS = 10.0
_LAST_LOOKS = 2
"""So often nothing is found before it counts as gone: a process that was being forked has no
environment yet."""


@dataclass
class LeftInstance:
    """The processes of one instance."""

    uuid: str
    """Of its pool."""
    number: int
    project: str = ""
    """What the pool called it; empty if none of its processes says."""
    processes: list[psutil.Process] = field(default_factory=list)


def left_instances() -> list[LeftInstance]:
    """Those of which a process runs, of all pools; sorted by pool and number."""
    found: dict[tuple[str, int], LeftInstance] = {}
    for process, environment, uuid, number in _carriers():
        some = found.setdefault((uuid, number), LeftInstance(uuid, number))
        some.processes.append(process)
        named = (v for name, v in environment.items() if name.endswith("_PROJECT_NAME"))
        some.project = some.project or next(named, "")
    return [found[key] for key in sorted(found)]


def kill_instances(instances: Iterable[LeftInstance]) -> list[int]:
    """Kill all processes of these instances, until there are none; returns those that stay."""
    wanted = {(some.uuid, some.number) for some in instances}
    deadline, looks, left = time.monotonic() + _KILL_SECONDS, 0, []
    while wanted and looks < _LAST_LOOKS and time.monotonic() < deadline:
        left = [p for p, _, uuid, number in _carriers() if (uuid, number) in wanted]
        looks = 0 if left else looks + 1
        for process in left:
            try:
                process.kill()  # not one that has its number by now: psutil looks
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=0.2)
    return [process.pid for process in left]


def _carriers() -> Iterator[tuple[psutil.Process, dict[str, str], str, int]]:
    """Each process with a marker, its environment, and the pool and number of its instance."""
    for process in psutil.process_iter():
        try:
            environment = process.environ() if process.pid != os.getpid() else {}
        except (psutil.Error, OSError):
            continue
        if which := _INSTANCE.match(environment.get(_MARKER, "")):
            yield process, environment, which["pool"], int(which["number"])
