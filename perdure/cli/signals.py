"""Ctrl-C and its kin, in the words of a command: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

ASKING = (signal.SIGINT, signal.SIGTERM)
LEAVING = (signal.SIGTERM, signal.SIGHUP)


class Asked:
    """Whether the process was asked to end, and by which signal."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        """Set by the first signal."""
        self.signals: list[signal.Signals] = []

    async def within(self, seconds: float) -> bool:
        """Wait for the first signal, but no longer than this; says whether it came."""
        try:
            async with asyncio.timeout(seconds):
                await self.event.wait()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def asked_to_end(
    insist: Callable[[signal.Signals], None],
    *,
    asking: tuple[signal.Signals, ...] = ASKING,
    insisting: tuple[signal.Signals, ...] = (),
) -> AsyncIterator[Asked]:
    """Tell of the first signal of `asking` by an event; call `insist` for each further one.

    A signal of `insisting` insists at once, unless whoever started us has it ignored (`nohup`).
    Without this, asyncio would cancel whatever runs at the first Ctrl-C, clean-up included.
    """
    asked, loop = Asked(), asyncio.get_running_loop()
    insisting = tuple(n for n in insisting if signal.getsignal(n) is not signal.SIG_IGN)

    def hear(number: signal.Signals) -> None:
        asked.signals.append(number)
        if asked.event.is_set() or number in insisting:
            insist(number)
        asked.event.set()

    for number in (*asking, *insisting):
        loop.add_signal_handler(number, hear, number)
    try:
        yield asked
    finally:
        for number in (*asking, *insisting):
            loop.remove_signal_handler(number)
