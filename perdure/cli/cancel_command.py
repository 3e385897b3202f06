"""`perdure cancel`: cancel a suite or one run, and see its clean-up through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.cli.console import emit, say
from perdure.cli.options import RunArgument

if TYPE_CHECKING:
    from perdure.cli.reading import Named
    from perdure.client import Perdure
    from perdure.event_log import Execution

TEAM_SECONDS = 60.0
"""How long the workers of a team's server are waited for."""

LOOK_SECONDS = 0.2


def cancel(run: RunArgument) -> None:
    """Cancel a suite with all of its tasks, or one run; clean-up is part of it.

    If the command that ran a suite is gone, a worker is started for the clean-up. What was
    cancelled counts as unfinished: `perdure run` with the same suite runs it again.
    """
    from perdure.cli.reading import named

    asyncio.run(_cancel(named(run)))


async def _cancel(wanted: Named) -> None:
    from perdure.cli.reading import server_to_act
    from perdure.client import UnknownRun
    from perdure.config import Settings
    from perdure.event_log import find_execution
    from perdure.names import suite_workflow_id, task_workflow_id

    if wanted.task_id is None:
        workflow_id = suite_workflow_id(wanted.suite)
    else:
        workflow_id = task_workflow_id(wanted.suite, wanted.task_id, wanted.trial)
    async with server_to_act(Settings.from_env(), "cancel") as perdure:
        found = await find_execution(perdure.client, workflow_id)
        if found is None:
            raise UnknownRun(f"there is no run {wanted}; `perdure list` shows those there are")
        if not found.is_open:
            emit(f"{wanted} has ended already; there is nothing to cancel")
            return
        if wanted.task_id is None:
            suite = await perdure.suite(wanted.suite)
            await suite.cancel("perdure cancel")  # has a worker started if there is none
            served = True
        else:
            await perdure.run(workflow_id).cancel("perdure cancel")
            served = _is_served(perdure, found)
        if not served:
            emit(f"{wanted} is cancelled as soon as its suite goes on: no worker serves it now")
            return
        say(f"cancelling {wanted}; waiting for its clean-up")
        if await _closed(perdure, found):
            emit(f"{wanted} is cancelled")
        else:
            emit(f"{wanted} is asked to stop, but no worker has cleaned up yet")


def _is_served(perdure: Perdure, found: Execution) -> bool:
    """Whether somebody is there to clean up; of a team's server that is expected."""
    from perdure.server import users
    from perdure.workers import log_pids

    if not perdure.embedded:
        return True
    state = perdure.settings.state
    workers = {user.pid for user in users(state) if user.role == "worker"}
    return bool(workers & log_pids(state, found.queue))


async def _closed(perdure: Perdure, found: Execution) -> bool:
    """Wait until the run is closed; False if nobody closes it in time."""
    from perdure.event_log import find_execution

    try:
        async with asyncio.timeout(None if perdure.embedded else TEAM_SECONDS):
            while True:
                now = await find_execution(perdure.client, found.workflow_id)
                if now is None or not now.is_open or now.first_run_id != found.first_run_id:
                    return True
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        return False
