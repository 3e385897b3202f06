"""Picking tasks out of what was loaded: by id, and by the fields of their metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.fields import meant
from perdure.core.problems import listed, nearest, shown
from perdure.document_problems import DocumentProblem
from perdure.lists import FILTERS, ListOptions
from perdure.loaded_tasks import LoadedTask


def with_ids(
    tasks: Sequence[LoadedTask], only: Sequence[str], known: Iterable[str]
) -> tuple[list[LoadedTask], list[DocumentProblem]]:
    """The tasks that are asked for; asking for one that is not among the known is a problem."""
    known = set(known)
    problems = [
        _problem("--only", f"there is no task {shown(id)}", meant(id, known) if known else "")
        for id in only
        if id not in known
    ]
    wanted = set(only)
    return [loaded for loaded in tasks if not only or loaded.task.id in wanted], problems


def with_fields(
    tasks: Sequence[LoadedTask], lists: ListOptions
) -> tuple[list[LoadedTask], list[DocumentProblem]]:
    """The tasks whose metadata has what the filters want; a filter that matches none is a problem.

    What there is, is said then.
    """
    wanted = {key: value for key in FILTERS if (value := getattr(lists, key)) is not None}
    kept = [task for task in tasks if all(_has(task, *entry) for entry in wanted.items())]
    if kept or not wanted or not tasks:
        return kept, []
    problems = [
        _problem(
            FILTERS[key], f"no task has the {_words(key)} {shown(value)}", _there(tasks, key, value)
        )
        for key, value in wanted.items()
        if not any(_has(task, key, value) for task in tasks)
    ]
    if not problems:
        asked = " and ".join(f"{_words(key)} {shown(value)}" for key, value in wanted.items())
        options = ", ".join(FILTERS[key] for key in wanted)
        problems = [_problem(options, f"no task has {asked}", "leave one of the filters out")]
    return kept, problems


def _has(loaded: LoadedTask, key: str, value: str) -> bool:
    return bool(loaded.task.metadata.get(key) == value)


def _there(tasks: Sequence[LoadedTask], key: str, value: str) -> str:
    found = sorted({shown(task.task.metadata[key]) for task in tasks if key in task.task.metadata})
    if not found:
        return f"no task says its {_words(key)}; leave the filter out"
    near = nearest(value, (name.strip("'\"") for name in found))
    return (f"did you mean {near!r}? " if near else "") + f"there are: {listed(found, 30)}"


def _words(key: str) -> str:
    return key.replace("_", " ")


def _problem(option: str, message: str, remedy: str) -> DocumentProblem:
    return DocumentProblem(option, None, None, None, message, remedy)
