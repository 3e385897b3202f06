"""Work that begins after a while, and most often never; and work that a cancel does not stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Later:
    """A task that begins after a while; most steps end before, and then it costs next to nothing.

    It runs with the variables of the activity that made it.
    """

    def __init__(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `work` after `seconds`, unless `cancel` comes before."""
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._work())

    def cancel(self) -> None:
        """Do not begin, or stop."""
        self._timer.cancel()
        if self._task:
            self._task.cancel()


async def to_its_end(work: Awaitable[T]) -> T:
    """Await work although this task is being cancelled; the cancel is gone then."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
        except Exception:  # told below
            break
    return task.result()
