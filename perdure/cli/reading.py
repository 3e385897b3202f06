"""What the reading commands read from: a server if there is one to ask, else files of results.

They never start a worker, so nothing that they do runs a step.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.console import say
from perdure.errors import PerdureError
from perdure.names import trial_name
from perdure.outcome import trials_of

if TYPE_CHECKING:
    from perdure.client import Perdure
    from perdure.config import Settings

ROLE = "reader"


@dataclass(frozen=True)
class Named:
    """What a RUN on the command line names."""

    suite: str
    task_id: str | None = None
    """None: the suite as a whole."""
    trial: int = 1

    def __str__(self) -> str:
        if self.task_id is None:
            return self.suite
        return f"{self.suite}/{self.task_id}" + (f"/{self.trial}" if self.trial != 1 else "")


def named(run: str) -> Named:
    """Read `SUITE`, `SUITE/TASK`, `SUITE/TASK/TRIAL` or a workflow id.

    Raises PerdureError for anything else.
    """
    match run.strip("/").split("/"):
        case ["suite", suite] | [suite]:
            found = Named(suite)
        case [suite, task_id]:
            found = Named(suite, task_id)
        case ["task", suite, task_id, trial] | [suite, task_id, trial] if _is_trial(trial):
            found = Named(suite, task_id, int(trial))
        case _:
            found = Named("")
    parts = (found.suite, *([] if found.task_id is None else [found.task_id]))
    if not all(_is_id(part) for part in parts):
        raise PerdureError(
            f"{run!r} names no run; write SUITE, SUITE/TASK or SUITE/TASK/TRIAL "
            "(`perdure list` shows what there is)"
        )
    return found


@asynccontextmanager
async def server_to_read(settings: Settings) -> AsyncIterator[Perdure | None]:
    """A connection for reading; None if there is no server to ask, and files must do.

    The embedded server is started if its database is there and nobody runs it: what it knows can
    be had in no other way.
    """
    from perdure.client import Perdure
    from perdure.config import temporal_configured

    if not temporal_configured(settings.temporal_env) and not settings.state.database.exists():
        yield None
        return
    try:
        connection = await Perdure.connect(settings, role=ROLE)
    except PerdureError as error:
        say(f"note: {error}")
        say("note: reading the files of results instead")
        yield None
        return
    async with connection as perdure:
        yield perdure


@asynccontextmanager
async def server_to_act(settings: Settings, what: str) -> AsyncIterator[Perdure]:
    """A connection for a command that cannot do with files.

    Raises PerdureError if no run was ever started with this state directory, and whatever
    connecting raises.
    """
    from perdure.client import Perdure
    from perdure.config import temporal_configured

    if not temporal_configured(settings.temporal_env) and not settings.state.database.exists():
        raise PerdureError(
            f"{what}: nothing has run in {settings.state.path} yet; "
            "set PERDURE_STATE_DIR or TEMPORAL_ADDRESS to where it did"
        )
    async with await Perdure.connect(settings, role=ROLE) as perdure:
        yield perdure


@asynccontextmanager
async def to_read(given: Path | None) -> AsyncIterator[tuple[Perdure | None, Path]]:
    """What to read from: a connection, if there is one, and the directory of results.

    `given`: what `--results` names. Then there is no connection: the files may come from another
    machine, and neither server nor state directory is looked for. Raises ResultsError if it holds
    no results.
    """
    if given is not None:
        from perdure.stored_results import require_results

        require_results(given)
        yield None, given
        return
    from perdure.config import Settings

    settings = Settings.from_env()
    async with server_to_read(settings) as perdure:
        yield perdure, settings.state.results


def suites_on_disk(results: Path) -> list[dict[str, Any]]:
    """The suites below `results` as `perdure list` shows them, newest first.

    What cannot be read is told of on stderr.
    """
    from perdure.stored_results import stored_suites

    found = stored_suites(results, lambda problem: say(f"note: {problem}"))
    return [
        {key: stored.document[key] for key in ("suite", "status", "paused", "stopped", "run_id")}
        | {"served": None, "started_at": stored.started_at, "totals": stored.document["totals"]}
        for stored in found
    ]


def runs_on_disk(results: Path, suite: str) -> list[dict[str, Any]]:
    """The ended trials of a suite as `perdure list SUITE` shows them, in order of their tasks.

    Raises ResultsError for files that are not what perdure writes.
    """
    from perdure.results import suite_files
    from perdure.stored_results import stored_suite

    stored = stored_suite(results, suite)
    if stored:
        ended = [{**trial, "task": task["id"]} for task, trial in trials_of(stored.document)]
        several = {task["id"] for task in stored.document["tasks"] if task["repeats"] > 1}
    else:  # tasks that were started by themselves
        ended = suite_files(results, suite).lines()
        several = {line["task"] for line in ended if line["trial"] > 1}
    return [
        {
            "run": f"{suite}/{_name(line, several)}",
            "suite": suite,
            "task": line["task"],
            "trial": line["trial"],
            "run_id": line["run_id"],
            "status": line["status"],
            "started_at": line["started_at"],
            "duration": line["duration"],
            "failure": line["failure"],
            "note": line.get("note"),
        }
        for line in ended
    ]


def outcome_on_disk(results: Path, suite: str, given: Path | None = None) -> dict[str, Any] | None:
    """A suite's document as its files tell it; None if it has none.

    `given` is what `--results` names.

    Raises ResultsError for files that are not what perdure writes.
    """
    from perdure.results import ResultsError, suite_files
    from perdure.stored_results import stored_suite

    stored = stored_suite(results, suite)
    if stored is None and (files := suite_files(results, suite)).lines_file.exists():
        raise ResultsError(
            f"{files.suite_file} is missing: its tasks were started by themselves, or the copy is "
            f"not whole; single runs can be read all the same: {shown_by_list(suite, given)}"
        )
    return None if stored is None else {**stored.document, "served": None}


def unknown_suite(results: Path, suite: str, given: Path | None) -> PerdureError:
    """That there is no such suite in a directory; `given` is what `--results` names."""
    return PerdureError(f"there is no suite {suite!r} in {results}; {shown_by_list(None, given)}")


def unknown_run(results: Path, run: Named, given: Path | None) -> PerdureError:
    """Why nothing can be told of a run: its record is missing, or there is no such run.

    Raises ResultsError for files that are not what perdure writes.
    """
    from perdure.results import suite_files

    files = suite_files(results, run.suite)
    task_id = run.task_id or ""
    if any((line["task"], line["trial"]) == (task_id, run.trial) for line in files.lines()):
        return PerdureError(
            f"{files.trial(task_id, run.trial)} has no record of the run: it could not be written, "
            f"or the copy is not whole; {shown_by_list(run.suite, given)}"
        )
    return PerdureError(f"there is no run {run} in {results}; {shown_by_list(run.suite, given)}")


def shown_by_list(suite: str | None, given: Path | None) -> str:
    """The command that lists what there is, where it was looked for."""
    words = ["perdure", "list", *([suite] if suite else [])]
    words += ["--results", str(given)] if given else []
    return f"`{shlex.join(words)}` shows those there are"


def _name(line: dict[str, Any], several: Collection[str]) -> str:
    return trial_name(line["task"], line["trial"], several=line["task"] in several)


def _is_trial(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text) > 0


def _is_id(text: str) -> bool:
    return (
        0 < len(text) <= 200
        and text not in (".", "..")
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in text)
    )
