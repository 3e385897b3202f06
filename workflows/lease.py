"""What a task tells its pool about its lease, and how it makes sure that it is heard.

By local activities, of some milliseconds each: no step is in their way, a word costs one event and
no way through the server, and the pool's workflow is started if it is not there. The pool answers
by signals. Runs of the first version used activities on the control queue, and go on so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from perdure.core.run import TaskRun
    from perdure.names import (
        ACQUIRE_LEASE,
        RELEASE_LEASE,
        REMIND_POOL,
        RESET_LEASE,
        SEE_LEASE,
        control_queue,
    )
    from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseReset, LeaseSeen
    from workflows.options import (
        LEASE_REMINDER,
        REMIND_OF_LEASE,
        REMIND_OF_RESET,
        LeaseWord,
        lease_options,
        local_lease_options,
    )


class LeaseWords:
    """The words of one run to its pool."""

    def __init__(
        self,
        run: TaskRun,
        stir: Callable[[], None],
        reminder_seconds: float | None,
        *,
        local: bool,
    ) -> None:
        """`stir` is called when a word has arrived, or a long wait has grown a long history.

        `local`: see `PoolUse.local_words`.
        """
        self._local = local
        self._run = run
        self._stir = stir
        self._interval = (
            LEASE_REMINDER if reminder_seconds is None else timedelta(seconds=reminder_seconds)
        )
        self._reminder: asyncio.Task[None] | None = None
        self.under_way = 0
        """Words that the pool has not got yet."""
        self.releases = 0
        """Those of them that give something back."""

    def tell(self) -> None:
        """Send what the run has to say."""
        if self._reminder is None and self._is_waiting:
            self._reminder = asyncio.create_task(self._remind())
        # Kept alive by the activities that they await.
        for word in self._run.take_lease_words():
            if self._local and isinstance(word, LeaseSeen):
                continue  # a signal is not lost on its way: only a closed task does not hear it
            self.under_way += 1
            self.releases += isinstance(word, LeaseRelease)
            asyncio.create_task(self._await(word, self._send(word)))  # noqa: RUF006

    async def given_back(self) -> None:
        """Return when all that was given back has arrived."""
        await workflow.wait_condition(lambda: not self.releases)

    def close(self) -> None:
        """Remind nobody any more."""
        if self._reminder:
            self._reminder.cancel()

    @property
    def _is_waiting(self) -> bool:
        """Whether the pool owes the run an answer."""
        return self._run.open_lease is not None or self._run.open_reset is not None

    def _send(self, word: LeaseWord) -> workflow.ActivityHandle[Any]:
        if self._local:
            return workflow.start_local_activity(
                _activity_for(word), word, **local_lease_options(word)
            )
        return workflow.start_activity(_activity_for(word), word, **lease_options(word))

    async def _await(self, word: LeaseWord, sending: workflow.ActivityHandle[Any]) -> None:
        await sending
        self.under_way -= 1
        self.releases -= isinstance(word, LeaseRelease)
        self._stir()

    async def _remind(self) -> None:
        """See to it, while the run waits, that the pool knows of it."""
        on = workflow.ActivityConfig(task_queue=control_queue(workflow.info().task_queue))
        while True:
            await workflow.wait_condition(lambda: self._is_waiting)
            await workflow.sleep(self._interval, summary="does the pool know who waits?")
            with contextlib.suppress(ActivityError):  # another one follows
                if request := self._run.open_lease:
                    await workflow.execute_activity(REMIND_POOL, request, **(REMIND_OF_LEASE | on))
                elif reset := self._run.open_reset:
                    await workflow.execute_activity(RESET_LEASE, reset, **(REMIND_OF_RESET | on))
                else:
                    continue
            self._stir()


def _activity_for(word: LeaseWord) -> str:
    match word:
        case LeaseRequest():
            return ACQUIRE_LEASE
        case LeaseSeen():
            return SEE_LEASE
        case LeaseReset():
            return RESET_LEASE
        case LeaseRelease():
            return RELEASE_LEASE
