"""What callers of the Python client name as tasks, and the loaded tasks behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.problems import listed
from perdure.documents import (
    DocumentProblem,
    InvalidDocuments,
    LoadedTask,
    load,
    load_document,
    unsupported,
)
from perdure.errors import PerdureError
from perdure.messages import Json
from perdure.steps import custom_types, load_step_modules

TaskSource = str | Path | Mapping[str, Any] | LoadedTask
"""A path (file, folder, tree, `.jsonl`), a document, or a task that `perdure.documents` loaded."""


async def load_tasks(
    sources: TaskSource | Sequence[TaskSource],
    *,
    seed: Mapping[str, Json] | None,
    only: Sequence[str],
    steps: Sequence[str],
) -> list[LoadedTask]:
    """The tasks behind the sources, paths first, checked and able to run.

    Raises InvalidDocuments with every problem, and PerdureError if there is no task at all.
    """
    load_step_modules(steps)
    return await asyncio.to_thread(_load, _listed(sources), seed, list(only))


def _load(
    sources: list[TaskSource], seed: Mapping[str, Json] | None, only: list[str]
) -> list[LoadedTask]:
    paths = [source for source in sources if isinstance(source, str | Path)]
    tasks: list[LoadedTask] = []
    problems: list[DocumentProblem] = []
    if paths:
        found = load(paths, seed=seed, custom_types=custom_types())
        tasks, problems = list(found.tasks), list(found.problems)
    for number, source in enumerate(sources, 1):
        if isinstance(source, LoadedTask):
            tasks.append(source)
        elif isinstance(source, Mapping):
            name = f"document {number}" if len(sources) > 1 else "the document"
            found = load_document(dict(source), seed=seed, custom_types=custom_types(), source=name)
            tasks += found.tasks
            problems += found.problems
    for task in tasks:
        problems += unsupported(task)
    if problems:
        raise InvalidDocuments(problems)
    return _picked(tasks, only)


def _picked(tasks: list[LoadedTask], only: list[str]) -> list[LoadedTask]:
    sources: dict[str, str] = {}
    for task in tasks:
        known = sources.setdefault(task.task.id, task.source)
        if known is not task.source and [t.task.id for t in tasks].count(task.task.id) > 1:
            raise PerdureError(
                f"the task id {task.task.id!r} is in {known} and in {task.source}; "
                "give each task an id of its own"
            )
    unknown = [id for id in only if id not in sources]
    if unknown:
        raise PerdureError(f"there is no task {unknown[0]!r}; there are {listed(sources)}")
    picked = [task for task in tasks if not only or task.task.id in only]
    if not picked:
        raise PerdureError("there is no task to run; name files, folders or documents")
    return picked


def _listed(sources: TaskSource | Sequence[TaskSource]) -> list[TaskSource]:
    if isinstance(sources, str | Path | Mapping | LoadedTask):
        return [sources]
    return list(sources)
