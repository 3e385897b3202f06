"""Processes as /proc shows them, and signals that cannot hit a stranger.

Linux only, standard library only (the supervisor runs without site-packages).
"""

from __future__ import annotations

import errno
import os
import signal
from typing import NamedTuple

_ENDED = (b"Z", b"X")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_HAS_CHILDREN_FILE = os.path.exists("/proc/thread-self/children")


class Seen(NamedTuple):
    """A process at one moment: a pid alone may belong to another one a moment later."""

    pid: int
    parent: int
    group: int
    start_ticks: int
    """Of the clock since boot; with the pid it names one process for ever."""


def look_at(pid: int) -> Seen | None:
    """What /proc says of a process; None if there is none."""
    if not (fields := _stat(pid)):
        return None
    return Seen(pid, int(fields[1]), int(fields[2]), int(fields[19]))


def may_run(pid: int) -> bool:
    """Whether it is a process with a program that has not ended; no thread of the kernel."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in _ENDED and not int(fields[6]) & _KERNEL_THREAD


def _stat(pid: int) -> list[bytes]:
    """The fields of its `stat` after the name; none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    # The name stands in parentheses and may hold any byte, parentheses too.
    return stat[stat.rindex(b")") + 1 :].split()


def is_contained(pid: int) -> bool:
    """Whether a process is in another pid namespace than we are: in a container, as a rule."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:  # it is gone, or not to be looked at
        return False


def cpu_ticks(pid: int) -> int:
    """User and system time of a process and of the children that it has reaped; 0 if it is gone."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) if fields else 0


def peak_memory_bytes(pid: int) -> int:
    """The largest memory that a process has had; 0 if that is not known."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # it has ended
    return 0


def all_pids() -> list[int]:
    """Every process id, in ascending order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def children_of(pid: int) -> list[int]:
    """The children of a process, ended ones that nobody has reaped among them.

    One that is born or re-parented during the call may be missing: ask until there are none.
    """
    if not _HAS_CHILDREN_FILE:
        seen = (look_at(other) for other in all_pids())
        return [process.pid for process in seen if process and process.parent == pid]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # it ended meanwhile; its children have another parent now
    return found


def descendants_of(pid: int) -> list[Seen]:
    """The descendants of a process, parents before their children."""
    found: list[Seen] = []
    parents = [pid]
    while parents:
        parent = parents.pop(0)
        for child in map(look_at, children_of(parent)):
            if child and child.parent == parent:
                found.append(child)
                parents.append(child.pid)
    return found


def send_signal(target: Seen, signum: int) -> bool:
    """Signal exactly the process that was seen; False if it is gone or may not be signalled."""
    try:
        # The descriptor holds on to one process, so what is checked is what is signalled.
        descriptor = os.pidfd_open(target.pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # a kernel before 5.3
            return False
        descriptor = None
    try:
        now = look_at(target.pid)
        if now is None or now.start_ticks != target.start_ticks:
            return False
        if descriptor is None:
            os.kill(target.pid, signum)
        else:
            signal.pidfd_send_signal(descriptor, signum)
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True
