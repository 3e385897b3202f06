"""What a task tells the limits whose slots its steps take, and how it makes sure to be heard.

By activities on the control queue, where no step is in the way: they are in the history until they
are done, and a limit's workflow is started if it is not there. Limits answer by a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from perdure.core.run import TaskRun
    from perdure.messages import RemindLimits
    from perdure.names import ASK_SLOT, RELEASE_SLOT, REMIND_LIMITS, control_queue
    from workflows.options import REMIND, SLOT_REMINDER, slot_options


class SlotWords:
    """The words of one run to the limits of its server."""

    def __init__(
        self,
        run: TaskRun,
        stir: Callable[[], None],
        reminder_seconds: float | None,
        history_is_long: Callable[[], bool],
    ) -> None:
        """`stir` is called when a word has arrived, or a long wait has grown a long history."""
        self._run = run
        self._stir = stir
        self._history_is_long = history_is_long
        self._interval = (
            SLOT_REMINDER if reminder_seconds is None else timedelta(seconds=reminder_seconds)
        )
        self._reminder: asyncio.Task[None] | None = None
        self._asks = 0
        self.releases = 0
        """Words by which something is given back, on their way."""

    @property
    def under_way(self) -> int:
        """Words that their limits have not got yet."""
        return self._asks + self.releases

    def tell(self) -> None:
        """Send what the run has to say."""
        if self._reminder is None and self._run.open_requests:
            self._reminder = asyncio.create_task(self._remind())
        # Kept alive by the activities that they await.
        for request in self._run.take_asks():
            self._asks += 1
            asking = workflow.start_activity(ASK_SLOT, request, **slot_options("ask", request))
            asyncio.create_task(self._await_ask(asking))  # noqa: RUF006
        for release in self._run.take_releases():
            self.releases += 1
            giving = workflow.start_activity(
                RELEASE_SLOT, release, **slot_options("give back", release)
            )
            asyncio.create_task(self._await_release(giving))  # noqa: RUF006

    async def given_back(self) -> None:
        """Return when all that was given back has arrived."""
        await workflow.wait_condition(lambda: not self.releases)

    def close(self) -> None:
        """Remind nobody any more."""
        if self._reminder:
            self._reminder.cancel()

    async def _await_ask(self, asking: workflow.ActivityHandle[None]) -> None:
        await asking
        self._asks -= 1
        self._stir()

    async def _await_release(self, giving: workflow.ActivityHandle[None]) -> None:
        await giving
        self.releases -= 1
        self._stir()

    async def _remind(self) -> None:
        """See to it, while steps wait for slots, that the limits know of them."""
        on_control = REMIND | {"task_queue": control_queue(workflow.info().task_queue)}
        while True:
            await workflow.wait_condition(lambda: bool(self._run.open_requests))
            await workflow.sleep(self._interval, summary="do the limits know who waits?")
            if requests := self._run.open_requests:
                with contextlib.suppress(ActivityError):  # another one follows
                    await workflow.execute_activity(
                        REMIND_LIMITS, RemindLimits(requests), **on_control
                    )
                # By the reminders of a long wait; runs of the first version did not look.
                if self._history_is_long() and workflow.patched("hand over in a long wait"):
                    self._stir()
