"""The marker that every process of a step carries, and the sweep that finds it again.

The last resort: it finds what is left when worker, supervisor and keepers were all killed at
once. A process that emptied its environment escapes it (not its keeper).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

from activities import procfs

MARKER = "PERDURE_MARKER"
"""Environment variable of every process that a keeper starts: the key of its attempt."""

_GIVE_UP_SECONDS = 5.0
"""A killed process that stays longer hangs in the kernel; nothing more can be done to it."""

_LOOKS = 3
_LOOK_SECONDS = 0.0005
"""For a process that is just replacing its program, which has no environment for a moment."""


def find(key: str, *, prefix: bool = False) -> list[procfs.Seen]:
    """The living processes that carry a marker, ours excepted.

    `prefix`: every key that begins with `key`; end it with `/` or `.` where `1` and `10` could
    be confused. Processes of other users are not seen.
    """
    wanted = f"{MARKER}={key}"
    return [
        process
        for process, environment in _environments()
        for variable in environment
        if (variable.startswith(wanted) if prefix else variable == wanted)
    ]


def carriers(prefix: str) -> dict[str, list[procfs.Seen]]:
    """The living processes whose marker begins with `prefix`, ours excepted, by their marker."""
    start = f"{MARKER}="
    found: dict[str, list[procfs.Seen]] = {}
    for process, environment in _environments():
        for variable in environment:
            if variable.startswith(start + prefix):
                found.setdefault(variable.removeprefix(start), []).append(process)
    return found


def sweep(key: str, *, prefix: bool = False) -> list[int]:
    """Kill every process that carries a marker, until there are none; return their pids.

    Reads every process's environment: some milliseconds for each hundred processes.
    """
    if not key:
        raise ValueError("an empty marker would match every process of every run")
    killed: list[int] = []
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while (found := find(key, prefix=prefix)) and time.monotonic() < deadline:
        for process in found:
            if _kill(process) and process.pid not in killed:
                killed.append(process.pid)
        time.sleep(0.002)
    return killed


def _environments() -> Iterator[tuple[procfs.Seen, list[str]]]:
    if sys.platform != "linux":
        yield from _environments_by_psutil()
        return
    for pid in procfs.all_pids():
        if pid == os.getpid():
            continue
        # Looked at before its environment is read: a pid that changes hands in between no
        # longer has this start time when the signal is sent.
        process = procfs.look_at(pid)
        environment = _environment(pid)
        if process and environment:  # an ended process has none
            yield process, os.fsdecode(environment).split("\0")


def _environment(pid: int) -> bytes:
    for _ in range(_LOOKS):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            return b""
        if environment or not procfs.may_run(pid):
            return environment
        time.sleep(_LOOK_SECONDS)
    return b""


def _environments_by_psutil() -> Iterator[tuple[procfs.Seen, list[str]]]:
    import psutil  # not on the supervisor's path, which runs without site-packages

    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            environment = [f"{name}={value}" for name, value in process.environ().items()]
        except psutil.Error:
            continue
        yield procfs.Seen(process.pid, 0, 0, int(process.create_time())), environment


def _kill(process: procfs.Seen) -> bool:
    if sys.platform == "linux":
        return procfs.send_signal(process, signal.SIGKILL)
    try:
        os.kill(process.pid, signal.SIGKILL)
    except OSError:
        return False
    return True
