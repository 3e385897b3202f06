"""Words to others, those to one in the order in which they were written."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Word = Callable[[], Awaitable[None]]


class Outbox:
    """Sends what is to be said, to everybody at the same time and to each in order.

    The server may deliver two signals in any order if the second is sent before it has taken the
    first.
    """

    def __init__(self, sent: Callable[[], None]) -> None:
        """`sent` is called when there is nothing more to be said to somebody."""
        self._sent = sent
        self._lines: dict[str, deque[Word]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether all has been said, and heard or found to be unheard."""
        return not self._lines

    @property
    def waiting(self) -> list[str]:
        """To whom something is still to be said."""
        return list(self._lines)

    def write(self, to: str, word: Word) -> None:
        """Send a word as soon as those before it to the same are sent. It must not raise."""
        if to in self._lines:
            self._lines[to].append(word)
            return
        self._lines[to] = deque([word])
        # Kept alive by the signals and activities that it awaits.
        asyncio.create_task(self._send(to))  # noqa: RUF006

    async def _send(self, to: str) -> None:
        line = self._lines[to]
        try:
            while line:
                await line.popleft()()
        finally:
            del self._lines[to]
            self._sent()
