"""What a suite and its pool have to do with each other, beside what their tasks ask for.

The suite tells the pool how many of its tasks may have environments at once, and which will need
some; and when it has stopped, its tasks that still wait in the pool need not wait any longer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from perdure.core.suite import Suite
    from perdure.messages import Holder, PoolUse, SuiteInput
    from perdure.names import SET_DEMAND, WITHDRAW
    from perdure.pool_messages import CountedSet, SetDemand
    from workflows.options import (
        DEMAND_INTERVAL,
        LEASE_REMINDER,
        demand_options,
        local_demand_options,
    )


@dataclass(frozen=True)
class _Word:
    """What is told, without what never changes."""

    max_parallel: int
    prioritised: tuple[str, ...]
    coming: tuple[tuple[tuple[str, ...], int], ...]

    def is_as_urgent_as(self, other: _Word) -> bool:
        """Whether only the counts differ, of which nobody waits to hear."""
        here = (self.max_parallel, self.prioritised)
        return here == (other.max_parallel, other.prioritised)


class SuitePool:
    """A suite's side of its pool, in one run of the suite."""

    def __init__(
        self, start: SuiteInput, pool: PoolUse, suite: Suite, starting: Collection[str]
    ) -> None:
        """`starting`: those of the suite's trials that cannot have asked the pool yet."""
        self._start = start
        self._pool = pool
        self._suite = suite
        self._starting = starting
        self._told: _Word | None = None
        self._is_telling = False
        self._is_over = False
        self._withdrawn: set[str] = set()
        """Run ids of the tasks that were told."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way to the pool."""
        return not self._is_telling

    async def tell(self, stir: Callable[[], None]) -> None:
        """Keep the pool informed until `end`; `stir` is called when nothing is on its way."""
        reminder = asyncio.create_task(self._remind())
        while not self._is_over:
            word = self._word()
            if word != self._told:
                await self._send(word)
                stir()
            await workflow.wait_condition(lambda: self._is_over or self._word() != self._told)
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._is_over or self._is_urgent(),
                    timeout=DEMAND_INTERVAL,
                    timeout_summary="what the pool is told next",
                )
        reminder.cancel()

    async def end(self) -> None:
        """Tell the pool that the suite needs nothing more."""
        self._is_over = True
        await workflow.wait_condition(lambda: not self._is_telling)  # that word must not be last
        await self._tell(SetDemand(self._pool.pool, self._suite.suite, _myself(), over=True))

    def withdraw_waiting(self) -> None:
        """Tell the tasks under way, each once: one that waits for the pool need not begin."""
        for name, run_id in self._suite.run_ids.items():
            if run_id and run_id not in self._withdrawn:
                self._withdrawn.add(run_id)
                # Kept alive by the signal that it awaits.
                asyncio.create_task(_withdraw(name))  # noqa: RUF006

    # --- Inside -----------------------------------------------------------------------------

    async def _remind(self) -> None:
        """Tell again from time to time: a pool that is terminated by hand forgets all suites."""
        seconds = self._start.options.slot_reminder_seconds
        interval = LEASE_REMINDER if seconds is None else timedelta(seconds=seconds)
        while True:
            await workflow.sleep(interval, summary="does the pool know the suite?")
            self._told = None

    def _word(self) -> _Word:
        suite = self._suite
        goes_on = not (suite.paused or suite.cancelled or suite.stopped)
        # What has only been started has not asked yet, and would not be counted at all.
        coming = suite.coming(self._starting) if not (suite.cancelled or suite.stopped) else {}
        return _Word(
            suite.max_parallel if goes_on else 0,
            tuple(suite.prioritised),
            tuple(coming.items()),
        )

    def _is_urgent(self) -> bool:
        return self._told is None or not self._word().is_as_urgent_as(self._told)

    async def _send(self, word: _Word) -> None:
        self._is_telling, self._told = True, word
        await self._tell(
            SetDemand(
                pool=self._pool.pool,
                suite=self._suite.suite,
                holder=_myself(),
                max_parallel=word.max_parallel,
                coming=[CountedSet(list(names), count) for names, count in word.coming],
                keep_envs=self._pool.keep_envs,
                environments=self._start.environments,
                prioritised=list(word.prioritised),
            )
        )
        self._is_telling = False

    async def _tell(self, demand: SetDemand) -> None:
        if self._pool.local_words:
            await workflow.execute_local_activity(
                SET_DEMAND, demand, result_type=type(None), **local_demand_options(demand)
            )
            return
        await workflow.execute_activity(
            SET_DEMAND, demand, result_type=type(None), **demand_options(demand)
        )


async def _withdraw(workflow_id: str) -> None:
    task = workflow.get_external_workflow_handle(workflow_id)
    with contextlib.suppress(FailureError):  # it has ended by itself
        await task.signal(WITHDRAW)


def _myself() -> Holder:
    info = workflow.info()
    return Holder(info.workflow_id, info.first_execution_run_id)
