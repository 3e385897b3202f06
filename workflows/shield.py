"""Ends of workflows and of their runs, and the cancellations that meet them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

T = TypeVar("T")


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end; a cancel that comes meanwhile finds nothing left to cancel."""
    try:
        task = asyncio.create_task(work)
    except BaseException:  # the workflow is being evicted: nothing is begun any more
        work.close()
        raise
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


async def heed_cancel() -> None:
    """Await this before a continue-as-new: raises CancelledError if the workflow is cancelled.

    What arrives together reaches the code in two parts, signals and updates before all else (SDK
    1.35). A run that hands over because of a signal would never see the cancel that came with it,
    and the next run is not told of it.
    """
    # Runs of the first version did not look.
    if workflow.patched("heed a cancel before handing over"):
        await workflow.sleep(timedelta(milliseconds=1), summary="about to continue as new")
        # The timer may have come with a cancel, which strikes at the next wait.
        await workflow.wait_condition(lambda: True)
