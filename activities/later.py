"""Work that begins after a while, and most often never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


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
