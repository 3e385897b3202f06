"""What the processes of a running job have used by now, as /proc tells."""

from __future__ import annotations

import os
import sys
import time

from activities import procfs
from perdure.job_messages import JobUsage

LOOK_SECONDS = 2.0
"""Between two looks, which cost some hundred microseconds for each process."""
LOOK_SHARE = 0.01
"""Of the time, what may go into looking at a job of very many processes."""

_TICKS = os.sysconf("SC_CLK_TCK")


class RunningUsage:
    """Looks now and then; never less than it was, since ended processes are seen no more."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._look_again = 0.0
        self._cpu_seconds = 0.0
        self._peak_memory_bytes = 0

    def of(self, pid: int | None) -> JobUsage:
        """What the tree of a job's first process has used; `pid`: None before its start."""
        now = time.monotonic()
        if pid is not None and now >= self._look_again and sys.platform == "linux":
            self._look(pid)
            ended = time.monotonic()
            self._look_again = ended + max(LOOK_SECONDS, (ended - now) / LOOK_SHARE)
        wall_seconds = round(now - self._began, 1)
        return JobUsage(wall_seconds, round(self._cpu_seconds, 2), self._peak_memory_bytes)

    def _look(self, pid: int) -> None:
        # From its keeper on: orphans among its descendants are the keeper's children.
        first = procfs.look_at(pid)
        if first is None:
            return
        ticks = 0
        for process in procfs.descendants_of(first.parent):
            ticks += procfs.cpu_ticks(process.pid)
            peak = procfs.peak_memory_bytes(process.pid)
            self._peak_memory_bytes = max(self._peak_memory_bytes, peak)
        self._cpu_seconds = max(self._cpu_seconds, ticks / _TICKS)
