"""`perdure list`: suites, or the runs of one, with their state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli.console import emit, emit_json, emit_table, printable, say
from perdure.cli.options import JsonOption, ResultsOption, results_dir
from perdure.errors import PerdureError


def list_runs(
    suite: Annotated[
        str | None, typer.Argument(metavar="[SUITE]", help="List the runs of this suite.")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="List runs of all suites.")] = False,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """List suites with their state, newest first; with SUITE, the runs of its tasks.

    Nothing is run: what a server knows is asked of it, the rest is read from files of results.
    With --results DIR only those files are read, from any machine, and no server is asked.
    """
    from perdure.cli.reading import named

    wanted = None if suite is None else named(suite).suite
    if wanted is None and not tasks:
        suites = asyncio.run(_suites(results_dir(results)))
        _show_suites(suites, json=json)
    else:
        runs = asyncio.run(_runs(wanted, results_dir(results)))
        _show_runs(runs, json=json)


def _show_suites(suites: list[dict[str, Any]], *, json: bool) -> None:
    from perdure.cli.tables import suites_table, unserved_line

    if json:
        emit_json(suites)
    elif suites:
        emit_table(suites_table(suites))
        told = [line for line in map(unserved_line, suites) if line]
        for line in ["", *told] if told else []:
            emit(line)
    else:
        say("no suite has run yet")


def _show_runs(runs: list[dict[str, Any]], *, json: bool) -> None:
    from perdure.cli.tables import runs_table

    if json:
        emit_json(runs)
        return
    if not runs:
        say("no task has run yet")
        return
    emit_table(runs_table(runs))
    notes = [f"note: {run['run']}: {run['note']}" for run in runs if run["note"]]
    for line in ["", *notes] if notes else []:
        emit(printable(line, 1000))


async def _suites(results: Path | None) -> list[dict[str, Any]]:
    """What the server knows, and what only files tell of any more."""
    from perdure.cli.reading import suites_on_disk, to_read

    found: list[dict[str, Any]] = []
    async with to_read(results) as (perdure, root):
        if perdure:
            found = [entry.to_dict() for entry in await perdure.suites()]
        known = {entry["suite"] for entry in found}
        found += [entry for entry in suites_on_disk(root) if entry["suite"] not in known]
    return sorted(found, key=lambda entry: entry["started_at"] or 0.0, reverse=True)


async def _runs(suite: str | None, results: Path | None) -> list[dict[str, Any]]:
    from perdure.cli.reading import runs_on_disk, shown_by_list, suites_on_disk, to_read

    found: list[dict[str, Any]] = []
    async with to_read(results) as (perdure, root):
        if perdure:
            found = [entry.to_dict() for entry in await perdure.runs(suite)]
        known = {entry["suite"] for entry in found}
        names = [entry["suite"] for entry in suites_on_disk(root)] if suite is None else [suite]
        for name in names:
            if name not in known:
                found += runs_on_disk(root, name)
    if suite is not None and not found:
        at = f" in {root}" if results else ""
        raise PerdureError(
            f"there is no suite {suite!r}{at}, or nothing of it has run yet; "
            f"{shown_by_list(None, results)}"
        )
    return found
