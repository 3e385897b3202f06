"""The last thing that a command does for a suite: seeing out what it leaves in its pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.cli.clearing import Look, left_lines, of_suite, until_gone
from perdure.suite_input import suite_queue

if TYPE_CHECKING:
    from perdure.client import Perdure, SuiteRun


def pool_of(perdure: Perdure, suite: SuiteRun) -> Look | None:
    """How the suite's pool is looked at; None if it uses none."""
    use = suite.definition.pool
    return perdure.pool(use.pool).view if use else None


async def clear_pool(
    perdure: Perdure,
    suite: SuiteRun,
    tell: Callable[[str], None],
    leave: asyncio.Event | None = None,
) -> None:
    """Wait until what a closed suite leaves in its pool is gone; `leave` ends the wait.

    Only where it is this process's worker that has to stop it.
    """
    look, use = pool_of(perdure, suite), suite.definition.pool
    queue = suite_queue(perdure.settings.queue, suite.suite)
    if look is None or use is None or not perdure.embedded:
        return
    # Not whether one is there now: it may just have died, and is replaced in a moment.
    if not perdure.looks_after(queue) or perdure.is_served_by_others(queue):
        return  # whoever serves it sees it through
    find = of_suite(suite.suite, suite.definition.environments)
    left = await until_gone(look, find, tell, leave=leave)
    for line in left_lines(left, use.pool):
        tell(line)
