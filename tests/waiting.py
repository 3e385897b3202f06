"""How tests wait for what comes in its own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

PATIENCE_SECONDS = 60.0
"""For what takes milliseconds on a quiet machine; a test that waits this long has failed."""


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], what: str = "the condition"
) -> None:
    """Return when a condition holds; fail with `what` if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = condition()
        if (await answer) if isinstance(answer, Awaitable) else answer:
            return
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.01)


async def written(path: Path) -> None:
    """Return when somebody has written to a file; a shell makes it before that."""
    await until(lambda: path.exists() and path.stat().st_size, str(path))
