"""`perdure cancel`: cancel a suite or one run, and see its clean-up through."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from perdure.cli.console import emit, say
from perdure.cli.options import RunArgument

if TYPE_CHECKING:
    from perdure.cli.reading import Named
    from perdure.client import Perdure
    from perdure.event_log import Execution

TEAM_SECONDS = 60.0
"""How long the workers of a team's server are waited for."""


def cancel(run: RunArgument) -> None:
    """Cancel a suite with all of its tasks, or one run; clean-up is part of it.

    SUITE/TASK is every trial of the task that runs; SUITE/TASK/TRIAL is one.

    If the command that ran a suite is gone, a worker is started for the clean-up. What was
    cancelled counts as unfinished: `perdure run` with the same suite runs it again.
    """
    from perdure.cli.reading import named

    wanted = named(run)
    all_trials = wanted.task_id is not None and run.strip("/").count("/") < 2
    asyncio.run(_cancel(wanted, all_trials=all_trials))


async def _cancel(wanted: Named, *, all_trials: bool) -> None:
    from perdure.cli.pool_clearing import clear_pool
    from perdure.cli.reading import server_to_act
    from perdure.config import Settings

    async with server_to_act(Settings.from_env(), "cancel") as perdure:
        found = await _named(perdure, wanted, all_trials=all_trials)
        at_work = [execution for execution in found if execution.is_open]
        if not at_work:
            await _explain(perdure, wanted, found, all_trials=all_trials)
            return
        if wanted.task_id is None:
            suite = await perdure.suite(wanted.suite)
            await suite.cancel("perdure cancel")  # has a worker started if there is none
            served = at_work
        else:
            if all_trials:
                await _tell_waiting(perdure, wanted, at_work)
            for execution in at_work:
                await perdure.run(execution.workflow_id).cancel("perdure cancel")
            served = [execution for execution in at_work if perdure.is_served(execution.queue)]
        names = {execution: _name(wanted, execution, len(at_work)) for execution in at_work}
        for execution, name in names.items():
            if execution in served:
                say(f"cancelling {name}; waiting for its clean-up")
            else:
                emit(f"{name} is cancelled as soon as its suite goes on: no worker serves it now")
        for execution in served:
            if await _closed(perdure, execution):
                if wanted.task_id is None:
                    await clear_pool(perdure, suite, say)
                emit(f"{names[execution]} is cancelled")
            else:
                emit(f"{names[execution]} is asked to stop, but no worker has cleaned up yet")


async def _named(perdure: Perdure, wanted: Named, *, all_trials: bool) -> list[Execution]:
    """The suite, the run, or what runs of a task beside its first trial; empty if there is none."""
    from temporalio.service import RPCError

    from perdure.event_log import find_execution
    from perdure.names import suite_workflow_id, task_workflow_id

    if wanted.task_id is None:
        ids = [suite_workflow_id(wanted.suite)]
    else:
        ids = [task_workflow_id(wanted.suite, wanted.task_id, wanted.trial)]
    if all_trials:
        prefix = ids[0].removesuffix("1")
        query = f"WorkflowId STARTS_WITH '{prefix}' AND ExecutionStatus = 'Running'"
        others: set[str] = set()
        with contextlib.suppress(RPCError):  # a server without such queries: the first trial then
            others = {found.id async for found in perdure.client.list_workflows(query)}
        ids += sorted(others - set(ids), key=lambda id: (len(id), id))
    found = [await find_execution(perdure.client, id) for id in ids]
    return [execution for execution in found if execution]


async def _explain(
    perdure: Perdure, wanted: Named, found: list[Execution], *, all_trials: bool
) -> None:
    """Say why there is nothing to cancel.

    Raises PerdureError: it has not started yet, or there is no such run.
    """
    from perdure.client import UnknownRun
    from perdure.errors import PerdureError

    waiting = [n for n in await _waiting(perdure, wanted) if all_trials or n == wanted.trial]
    if waiting:
        what = f"{wanted} has not started yet"
        if found and all_trials:
            what = f"nothing of {wanted} runs; trials that have not started yet: {len(waiting)}"
        raise PerdureError(
            f"{what}; have nothing more started with: perdure suite {wanted.suite} pause, "
            f"or end the whole suite with: perdure cancel {wanted.suite}"
        )
    if not found:
        raise UnknownRun(f"there is no run {wanted}; `perdure list` shows those there are")
    emit(f"{wanted} has ended already; there is nothing to cancel")


async def _tell_waiting(perdure: Perdure, wanted: Named, at_work: list[Execution]) -> None:
    """Say that other trials of the task will start all the same."""
    running = {int(execution.workflow_id.rpartition("/")[2]) for execution in at_work}
    if left := len(set(await _waiting(perdure, wanted)) - running):
        say(
            f"note: trials of {wanted} that have not started yet will start: {left}; "
            f"end the whole suite with: perdure cancel {wanted.suite}"
        )


async def _waiting(perdure: Perdure, wanted: Named) -> list[int]:
    """The trials of a task that its suite, if that is open, is still to start."""
    from perdure.client import UnknownSuite

    if wanted.task_id is None:
        return []
    try:
        document = await (await perdure.suite(wanted.suite)).outcome()
    except UnknownSuite:
        return []
    if document["status"] != "running" or document["stopped"]:
        return []
    for task in document["tasks"]:
        if task["id"] == wanted.task_id:
            ended = {trial["trial"] for trial in task["trials"]}
            return [n for n in range(1, task["repeats"] + 1) if n not in ended]
    return []


def _name(wanted: Named, execution: Execution, count: int) -> str:
    """What people call a run: as they did, but with its trial where it is one of several."""
    if wanted.task_id is None or (count == 1 and execution.workflow_id.endswith("/1")):
        return str(wanted)
    return execution.workflow_id.removeprefix("task/")


async def _closed(perdure: Perdure, found: Execution) -> bool:
    """Wait until the run is closed; False if nobody closes it in time."""
    from perdure.event_log import until_closed

    try:
        async with asyncio.timeout(None if perdure.embedded else TEAM_SECONDS):
            await until_closed(perdure.client, found)
    except TimeoutError:
        return False
    return True
