"""Secrets that documents name and this machine does not have, found before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.core.problems import one_line
from perdure.core.secret_references import is_reference
from perdure.core.task import Task
from perdure.documents import LoadedTask
from perdure.messages import SuiteTask
from perdure.secret_files import UnreadableSecret, read_secret_file
from perdure.suite_input import folder_of

_RESOLVED_KEYS = {"command": ("env",), "http": ("headers", "json"), "python": ("env", "args")}
"""By step type: where a reference stands for its value. Other types resolve `env` at most."""

_Path = tuple[str | int, ...]


def missing_secrets(tasks: Sequence[LoadedTask], env_file: Mapping[str, str]) -> list[str]:
    """A line for each reference that leads nowhere: file, line, step, and what to do.

    For the embedded server alone: its worker has this process's environment and directory, a
    team's workers have their own.
    """
    return [
        one_line(f"{where(loaded, path)}: {reason}")
        for loaded in tasks
        for path, reason in _missing(loaded.task, env_file, folder_of(loaded))
    ]


def missing_in_suite(tasks: Sequence[SuiteTask], env_file: Mapping[str, str]) -> list[str]:
    """As `missing_secrets`, of tasks that a suite was started with: their files may be gone."""
    return [
        one_line(f"task {task.task['id']!r}: {reason}")
        for task in tasks
        for _, reason in _missing(Task.from_dict(task.task), env_file, task.folder)
    ]


def _missing(
    task: Task, env_file: Mapping[str, str], folder: str | None
) -> Iterator[tuple[_Path, str]]:
    """Where a reference leads nowhere, and why."""
    for step_id, path, reference in _references(task):
        if reason := why_missing(reference, env_file, folder):
            yield path, f"step {step_id!r}: {reason}"


def _references(task: Task) -> Iterator[tuple[str, _Path, Any]]:
    for position, step in enumerate(task.steps):
        for key in _RESOLVED_KEYS.get(step.type, ("env",)):
            waiting: list[tuple[_Path, Any]] = [(("steps", position, key), step.body.get(key))]
            while waiting:
                path, value = waiting.pop()
                if is_reference(value):
                    yield step.id, path, value
                elif isinstance(value, dict):
                    waiting += [((*path, name), entry) for name, entry in value.items()]
                elif isinstance(value, list):
                    waiting += [((*path, index), entry) for index, entry in enumerate(value)]


def why_missing(
    reference: dict[str, Any], env_file: Mapping[str, str], folder: str | None
) -> str | None:
    """Why a reference has no value; None if it has one."""
    if "from_env" in reference:
        name = str(reference["from_env"])
        if name in env_file or name in os.environ:
            return None
        return f"{{from_env: {name}}}: there is no variable {name}; set it, or use --env-file"
    name = str(reference["from_file"])
    try:
        read_secret_file(name, folder)
    except UnreadableSecret as error:
        start = f"the document's folder, {folder}" if folder else "the current directory"
        return f"{{from_file: {name}}}: {error}; correct the path, which starts at {start}"
    return None


def where(loaded: LoadedTask, path: _Path) -> str:
    """The file of a value in a task's document, with its line if that is known."""
    line = loaded.line_of(path)
    listed = loaded.source.rpartition(":")[2].isdigit()
    return loaded.source if line is None or listed else f"{loaded.source}:{line}"
