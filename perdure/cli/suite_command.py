"""`perdure suite`: a suite's totals, and its control while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.console import emit, emit_json, printable
from perdure.cli.options import JsonOption, OptionError, ResultsOption, results_dir
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.client import SuiteRun

ACTIONS = {"pause": False, "resume": False, "requeue": True, "prioritise": True}
"""What can be asked of a suite that runs, and whether it is about one of its tasks."""


def suite(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="The suite's id.", show_default=False)
    ],
    action: Annotated[
        str | None,
        typer.Argument(
            metavar="ACTION",
            help="pause: start nothing more. resume: go on. requeue TASK: run again what failed "
            "or was cancelled of it. prioritise TASK: start it next.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="A task's id, or TASK/TRIAL for one trial.", show_default=False
        ),
    ] = None,
    max_parallel: Annotated[
        int | None,
        typer.Option(
            "--max-parallel",
            metavar="N",
            min=1,
            help="From now on, run N tasks at once.",
            show_default=False,
        ),
    ] = None,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Show a suite's totals; with an action or --max-parallel, control it while it runs.

    Control takes effect at once and lasts for this run of the suite, whatever is killed. Tasks
    that run are never stopped by it: for that there is `perdure cancel`. With --results DIR the
    totals are read from files alone, without a server.
    """
    from perdure.suite_input import check_id

    if "/" in suite:
        name, _, run = suite.partition("/")
        raise OptionError(
            f"{suite!r} names a run, and `perdure suite` is about suites: {name}; "
            f"the run is shown by: perdure show {name}/{run}"
        )
    check_id("SUITE", suite)
    _check_action(suite, action, task)
    kept = results_dir(results)
    if action is None and max_parallel is None:
        document = asyncio.run(_totals(suite, kept))
        _show(document, json=json)
        return
    if kept:
        raise OptionError("--results reads files; leave it out to control the suite itself")
    told = asyncio.run(_control(suite, action, task, max_parallel))
    if json:
        emit_json({"suite": suite, "told": told})
    else:
        for line in told:
            emit(printable(line, 1000))


def _check_action(suite: str, action: str | None, task: str | None) -> None:
    from perdure.core.problems import nearest, shown

    if action is None:
        return
    if action not in ACTIONS:
        near = nearest(action, ACTIONS)
        remedy = f"did you mean {near!r}?" if near else f"there are {', '.join(ACTIONS)}"
        raise OptionError(f"there is no action {shown(action)}; {remedy}")
    if ACTIONS[action] and not task:
        raise OptionError(f"{action} what? Name a task: perdure suite {suite} {action} TASK")
    if not ACTIONS[action] and task:
        raise OptionError(
            f"{action} is about the whole suite, not about {shown(task)}; "
            f"write: perdure suite {suite} {action}"
        )


# --- Control ----------------------------------------------------------------------------------


async def _control(
    suite: str, action: str | None, task: str | None, max_parallel: int | None
) -> list[str]:
    """What the suite answers, a line for each thing that was asked."""
    from perdure.cli.reading import server_to_act
    from perdure.config import Settings

    async with server_to_act(Settings.from_env(), "suite") as perdure:
        run = await perdure.suite(suite)
        told = []
        if max_parallel is not None:
            told.append(await run.set_max_parallel(max_parallel))
        if action == "pause":
            told.append(await run.pause())
        elif action == "resume":
            told.append(await run.resume())
        elif action == "requeue":
            told.append(await run.requeue(task or ""))
        elif action == "prioritise":
            told.append(await run.prioritise(task or ""))
        return told


# --- Totals -----------------------------------------------------------------------------------


async def _totals(suite: str, results: Path | None) -> dict[str, Any]:
    """The suite's document without its tasks, and how many of them run at once.

    From the server, else from files of results; from these alone if their directory is named.
    """
    from perdure.cli.reading import server_to_read, unknown_suite
    from perdure.client import UnknownSuite
    from perdure.config import Settings

    settings = Settings.from_env()
    root = results or settings.state.results
    unknown: PerdureError = unknown_suite(root, suite, results)
    if results is None:
        async with server_to_read(settings) as perdure:
            try:
                if perdure:
                    return await _totals_of(await perdure.suite(suite))
            except UnknownSuite as error:
                unknown = error
    found = await asyncio.to_thread(_stored, root, suite, results)
    if found is None:
        raise unknown
    return {**_head(found, None), "served": None}


async def _totals_of(run: SuiteRun) -> dict[str, Any]:
    outcome, progress = await run.outcome(), await run.progress()
    return _head(outcome, progress.max_parallel)


def _stored(directory: Path, suite: str, named: Path | None) -> dict[str, Any] | None:
    from perdure.cli.reading import outcome_on_disk
    from perdure.stored_results import require_results

    if named:
        require_results(named)
    return outcome_on_disk(directory, suite, named)


def _head(outcome: dict[str, Any], max_parallel: int | None) -> dict[str, Any]:
    head = {key: value for key, value in outcome.items() if key != "tasks"}
    return head if max_parallel is None else {**head, "max_parallel": max_parallel}


def _show(head: dict[str, Any], *, json: bool) -> None:
    from perdure.cli.summary import closing_lines
    from perdure.cli.tables import totals_line, unserved_line

    if json:
        emit_json(head)
        return
    emit(f"suite {printable(head['suite'])}: {_state(head)}")
    for line in [totals_line(head["totals"]), *closing_lines(head)]:
        emit(line)
    if told := unserved_line(head):
        emit(told)


def _state(head: dict[str, Any]) -> str:
    """`running, 5 at once`, `running, paused`, `failed`."""
    parts = [head["status"]]
    if head["status"] == "running":
        if head.get("served") is False:
            parts = ["open, but no worker serves it"]
        if head.get("max_parallel"):
            parts.append(f"{head['max_parallel']} at once")
        if head["paused"]:
            parts.append(f"paused (go on with: perdure suite {head['suite']} resume)")
    return ", ".join(parts)
