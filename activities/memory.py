"""How much memory a host has and has left (P29)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 1024.0**3

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """In GiB."""

    total_gb: float
    free_gb: float
    """What could be used without swapping."""


def memory(cgroups: Path = _CGROUPS) -> Memory:
    """That of this machine, or of the control group that this process may not outgrow.

    The limit of a group is below the machine's own where perdure itself runs in a container.
    """
    machine = psutil.virtual_memory()
    total, free = float(machine.total), float(machine.available)
    limit, used = _group(cgroups)
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0.0, limit - used))
    return Memory(round(total / GIB, 3), round(free / GIB, 3))


def _group(cgroups: Path) -> tuple[float | None, float]:
    """Limit and use of this process's control group, in bytes; None: no limit."""
    for limit, use, cache in (
        ("memory.max", "memory.current", "inactive_file"),  # version 2
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = _number(cgroups / limit), _number(cgroups / use)
        if most is not None and used is not None:
            # Files that were read fill the group, too, and give way to whatever needs room.
            return most, used - _statistic((cgroups / limit).parent / "memory.stat", cache)
    return None, 0.0


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):  # not there, or the word `max`
        return None


def _statistic(path: Path, name: str) -> float:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return float(next((pair[1] for pair in pairs if pair[:1] == [name]), 0))
    except (OSError, ValueError, IndexError):
        return 0.0
