"""How tests wait for what comes in its own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

PATIENCE_SECONDS = 60.0
"""For what takes milliseconds on a quiet machine; a test that waits this long has failed."""

HASTY = """\
import functools
from datetime import timedelta

import activities.host
import worker
import workflows.suite

activities.host.KILL_GRACE_SECONDS = 1.0
worker.WorkerOptions = functools.partial(worker.WorkerOptions, drain=timedelta(seconds=1))
workflows.suite.WRITE_AGAIN_AFTER = (timedelta(seconds=1),)
"""
"""A module for `--steps`, of a worker that waits seconds where others wait tens of them."""


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], what: str = "the condition"
) -> None:
    """Return when a condition holds; fail with `what` if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause_seconds = 0.01
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            # It asks the server, which has other things to do for whoever is waited for.
            answer, pause_seconds = await answer, min(1.5 * pause_seconds, 0.05)
        if answer:
            return
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(pause_seconds)


async def written(path: Path) -> None:
    """Return when somebody has written to a file; a shell makes it before that."""
    await until(lambda: path.exists() and path.stat().st_size, str(path))
