"""`perdure list`: suites, or the runs of one, with their state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli.console import emit_json, emit_table, say
from perdure.cli.options import JsonOption, ResultsOption, results_dir


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
    from perdure.cli.tables import suites_table

    if json:
        emit_json(suites)
    elif suites:
        emit_table(suites_table(suites))
    else:
        say("no suite has run yet")


def _show_runs(runs: list[dict[str, Any]], *, json: bool) -> None:
    from perdure.cli.tables import runs_table

    if json:
        emit_json(runs)
    elif runs:
        emit_table(runs_table(runs))
    else:
        say("no task has run yet")


async def _suites(results: Path | None) -> list[dict[str, Any]]:
    """What the server knows, and what only files tell of any more."""
    from perdure.cli.reading import results_root, server_to_read, suites_on_disk
    from perdure.config import Settings

    settings = Settings.from_env()
    found: list[dict[str, Any]] = []
    async with server_to_read(settings) as perdure:
        if perdure:
            found = [
                {
                    "suite": entry.suite,
                    "status": entry.status,
                    "run_id": entry.run_id,
                    "started_at": entry.started_at,
                    "totals": {
                        "total": entry.total,
                        "succeeded": entry.succeeded,
                        "failed": entry.failed,
                        "cancelled": entry.cancelled,
                    },
                }
                for entry in await perdure.suites()
            ]
    known = {entry["suite"] for entry in found}
    for entry in suites_on_disk(results_root(settings, results)):
        if entry["suite"] not in known:
            found.append(
                {key: entry[key] for key in ("suite", "status", "run_id", "started_at", "totals")}
            )
    return sorted(found, key=lambda entry: entry["started_at"] or 0.0, reverse=True)


async def _runs(suite: str | None, results: Path | None) -> list[dict[str, Any]]:
    from perdure.cli.reading import (
        results_root,
        runs_on_disk,
        server_to_read,
        suites_on_disk,
    )
    from perdure.config import Settings
    from perdure.errors import PerdureError

    settings = Settings.from_env()
    found: list[dict[str, Any]] = []
    async with server_to_read(settings) as perdure:
        if perdure:
            found = [
                {
                    "run": f"{entry.suite}/{entry.task_id}"
                    + (f"/{entry.trial}" if entry.trial > 1 else ""),
                    "suite": entry.suite,
                    "task": entry.task_id,
                    "trial": entry.trial,
                    "run_id": entry.run_id,
                    "status": entry.status,
                    "started_at": entry.started_at,
                    "duration": entry.duration,
                    "failure": entry.failure,
                }
                for entry in await perdure.runs(suite)
            ]
    root = results_root(settings, results)
    known = {entry["suite"] for entry in found}
    for entry in suites_on_disk(root):
        if entry["suite"] not in known and suite in (None, entry["suite"]):
            found += runs_on_disk(root, entry["suite"])
    if suite is not None and not found:
        raise PerdureError(f"there is no suite {suite!r}; `perdure list` shows those there are")
    return found
