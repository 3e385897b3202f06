"""Loading what `perdure run` is to run, and finding everything that stands in its way."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perdure.cli.console import say

if TYPE_CHECKING:
    from perdure.documents import Documents, LoadedTask
    from perdure.lists import ListOptions
    from perdure.messages import TaskOptions
    from perdure.workers import WorkerConfig

BAD_INPUT = 2


@dataclass(frozen=True)
class Wanted:
    """What the documents are loaded and checked by."""

    paths: list[Path]
    seed: dict[str, str]
    only: list[str]
    lists: ListOptions
    options: TaskOptions
    limits: dict[str, int]
    worker: WorkerConfig
    suite: str | None = None


def load_checked(wanted: Wanted) -> list[LoadedTask]:
    """The tasks, if nothing is wrong with any of them; else all that is wrong, and the end.

    There is none if all are left out by `--skip-existing`.
    """
    from perdure.document_problems import problem_lines
    from perdure.documents import load
    from perdure.limit_checks import idle_limits
    from perdure.steps import custom_types

    documents = load(
        wanted.paths,
        seed=wanted.seed,
        custom_types=custom_types(),
        only=wanted.only,
        lists=wanted.lists,
    )
    for warning in documents.warnings:
        say(f"warning: {warning}")
    problems = _problems(documents, wanted)
    if problems:
        for problem in problem_lines(problems):
            say(problem)
        say("nothing was started")
        raise typer.Exit(BAD_INPUT)
    if documents.skipped:
        say(f"{len(documents.skipped)} left out: judged already (--skip-existing)")
    for name in idle_limits(documents.tasks, wanted.limits):
        say(f"warning: --limit {name}: no step says `limit: {name}`")
    return documents.tasks


def _problems(documents: Documents, wanted: Wanted) -> list[str]:
    """Everything that stands in the way of the documents' run, a line each."""
    from perdure.config import Settings, temporal_configured
    from perdure.core.run import BadRange, check_range
    from perdure.documents import unsupported
    from perdure.env_file import read_env_file
    from perdure.environment_checks import missing_for
    from perdure.limit_checks import missing_limits
    from perdure.secret_checks import missing_secrets

    env_file = read_env_file(wanted.worker.env_file)
    options, tasks = wanted.options, documents.tasks
    problems = [str(problem) for problem in [*documents.problems, *documents.unready]]
    for loaded in tasks:
        problems += [str(problem) for problem in unsupported(loaded)]
        try:
            check_range(len(loaded.task.steps), options.start_step, options.end_step)
        except BadRange as error:
            told = re.sub(r"^(start|end)_step", r"--\1-step", str(error))
            problems.append(f"{loaded.source}: {told}; write a number within, by the task's steps")
    missing = missing_limits(tasks, wanted.limits)
    if missing and not (wanted.suite and asyncio.run(_is_open(wanted.suite))):
        problems += missing
    if not temporal_configured(Settings.from_env().temporal_env):
        problems += [*missing_secrets(tasks, env_file), *missing_for(tasks, env_file)]
    return problems


async def _is_open(suite: str) -> bool:
    """Whether the suite is open: then it is followed, and has limits of its own."""
    from perdure.cli.reading import server_to_read
    from perdure.config import Settings
    from perdure.event_log import find_execution
    from perdure.names import suite_workflow_id

    async with server_to_read(Settings.from_env()) as perdure:
        found = perdure and await find_execution(perdure.client, suite_workflow_id(suite))
        return bool(found and found.is_open)


def check_results(kept: Path | None, suite: str | None) -> None:
    """Refuse a directory that cannot be written, before a server starts.

    A team's workers have directories of their own, and a new state directory is checked whole.
    """
    from perdure.config import Settings, temporal_configured
    from perdure.results import check_writable

    settings = Settings.from_env()
    if temporal_configured(settings.temporal_env):
        return
    own = settings.state.results
    if kept or own.exists():
        check_writable(kept or own, suite)
