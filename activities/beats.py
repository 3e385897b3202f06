"""Heartbeats of an activity that is at work, whatever that takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.names import WORKER_SHUTDOWN

BEAT_SECONDS = 1.0
"""A cancel arrives with the answer to a beat."""


@dataclass
class Beat:
    """Beats at once, too, with a note that tells where the work is."""

    note: str = ""

    def __call__(self, note: str) -> None:
        self.note = note
        activity.heartbeat(note)


@asynccontextmanager
async def beating(seconds: float = BEAT_SECONDS) -> AsyncIterator[Beat]:
    """Beat until the block is left, so that the server notices soon if the worker is killed.

    Not in a local activity: there nobody listens, and its worker has the workflow, too.

    Raises ApplicationError (WorkerShutdown) in place of a cancellation that only says that this
    worker is stopping: then the activity goes on at another.
    """
    beat = Beat()
    if activity.info().is_local:
        yield beat
        return

    async def go_on() -> None:
        while True:
            activity.heartbeat(beat.note)
            await asyncio.sleep(seconds)

    beats = asyncio.create_task(go_on())
    try:
        yield beat
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details and details.worker_shutdown and not details.cancel_requested:
            raise ApplicationError(
                "the worker is stopping",
                type=WORKER_SHUTDOWN,
                category=ApplicationErrorCategory.BENIGN,  # nothing to be logged
            ) from None
        raise
    finally:
        beats.cancel()
