"""What callers of the Python client name as tasks, and the loaded tasks behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.problems import listed
from perdure.documents import (
    DocumentProblem,
    InvalidDocuments,
    LoadedTask,
    SkippedTask,
    load,
    load_document,
    unsupported,
)
from perdure.errors import PerdureError
from perdure.lists import ListOptions
from perdure.messages import Json
from perdure.steps import custom_types, load_step_modules
from perdure.task_store import TaskStore

TaskSource = str | Path | Mapping[str, Any] | LoadedTask
"""A path (file, folder, tree, `.jsonl`, `store:ID@VERSION`), a document, or a task that
`perdure.documents` loaded."""

_log = logging.getLogger("perdure.tasks")


class NothingToRun(PerdureError):
    """Every task has been judged already (`skip_existing`): the work is done."""

    exit_code = 0


async def load_tasks(
    sources: TaskSource | Sequence[TaskSource],
    *,
    seed: Mapping[str, Json] | None,
    only: Sequence[str],
    steps: Sequence[str],
    lists: ListOptions | None = None,
    store: TaskStore | None = None,
) -> list[LoadedTask]:
    """The tasks behind the sources, paths first, checked and able to run.

    `lists` filters the tasks behind paths, and says how those in the DTap layout run; warnings go
    to the log `perdure.tasks`. `store` is where `store:ID@VERSION` is looked up; None: that of the
    environment's settings.
    Raises InvalidDocuments with every problem, NothingToRun if all tasks have been judged already
    (`skip_existing`), and PerdureError if there is no task at all.
    """
    load_step_modules(steps)
    return await asyncio.to_thread(_load, _listed(sources), seed, list(only), lists, store)


def _load(
    sources: list[TaskSource],
    seed: Mapping[str, Json] | None,
    only: list[str],
    lists: ListOptions | None,
    store: TaskStore | None,
) -> list[LoadedTask]:
    paths = [source for source in sources if isinstance(source, str | Path)]
    tasks: list[LoadedTask] = []
    problems: list[DocumentProblem] = []
    skipped: list[SkippedTask] = []
    if paths:
        found = load(paths, seed=seed, custom_types=custom_types(), lists=lists, store=store)
        tasks, problems = list(found.tasks), [*found.problems, *found.unready]
        skipped = found.skipped
        for warning in found.warnings:
            _log.warning("%s", warning)
    for number, source in enumerate(sources, 1):
        if isinstance(source, LoadedTask):
            tasks.append(source)
        elif isinstance(source, Mapping):
            name = f"document {number}" if len(sources) > 1 else "the document"
            found = load_document(
                dict(source), seed=seed, custom_types=custom_types(), source=name, lists=lists
            )
            tasks += found.tasks
            problems += [told for told in found.problems if told not in problems]
            problems += [told for told in found.unready if told not in problems]
    for task in tasks:
        problems += unsupported(task)
    if problems:
        raise InvalidDocuments(problems)
    return _picked(tasks, only, skipped)


def _picked(
    tasks: list[LoadedTask], only: list[str], skipped: list[SkippedTask]
) -> list[LoadedTask]:
    sources: dict[str, str] = {}
    for task in tasks:
        known = sources.setdefault(task.task.id, task.source)
        if known is not task.source and [t.task.id for t in tasks].count(task.task.id) > 1:
            raise PerdureError(
                f"the task id {task.task.id!r} is in {known} and in {task.source}; "
                "give each task an id of its own"
            )
    left_out = {task.id for task in skipped}
    unknown = [id for id in only if id not in sources and id not in left_out]
    if unknown:
        raise PerdureError(f"there is no task {unknown[0]!r}; there are {listed(sources)}")
    picked = [task for task in tasks if not only or task.task.id in only]
    if not picked and skipped:
        count = len(left_out if not only else left_out.intersection(only))
        have = "1 task has" if count == 1 else f"{count} tasks have"
        raise NothingToRun(f"nothing to run: {have} been judged already")
    if not picked:
        raise PerdureError("there is no task to run; name files, folders or documents")
    return picked


def _listed(sources: TaskSource | Sequence[TaskSource]) -> list[TaskSource]:
    if isinstance(sources, str | Path | Mapping | LoadedTask):
        return [sources]
    return list(sources)
