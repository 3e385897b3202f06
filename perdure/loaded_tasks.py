"""Loaded tasks: what can be run, where it comes from, and what was found on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.pool_definitions import Definition
from perdure.core.problems import Problem
from perdure.core.step_types import NOT_YET_RUN
from perdure.core.task import Task
from perdure.document_problems import DocumentProblem, InvalidDocuments, LineOf, placed
from perdure.dtap_layout import DtapTask
from perdure.environment_files import Configuration
from perdure.lists import SkippedTask
from perdure.messages import Json


@dataclass(frozen=True)
class LoadedTask:
    """A task that can be run, and where it comes from."""

    task: Task
    source: str
    """Its file, or `list.jsonl:3` for the third line of a list."""
    digest: str
    """SHA-256, in hex, of the final document, embedded scripts and seeds included."""
    seed: dict[str, Json]
    """The seeds that were filled in: the document's own, and over them those given."""
    line_of: LineOf = field(default=lambda path: None, repr=False, compare=False)
    """The line of the file on which the value at a path of the document stands."""
    written: Mapping[str, Json] = field(default_factory=dict, repr=False, compare=False)
    """The document as it was written, seeds not filled in and scripts not embedded."""
    dtap: DtapTask | None = None
    """The directory that the task was made of, if it is one of the DTap layout."""
    definitions: tuple[Definition, ...] = ()
    """Those of its environments, in its order."""
    environments_digest: str = ""
    """Of what its environments are, in hex: their numbers and time limits do not count."""


@dataclass(frozen=True)
class Documents:
    """What was loaded: run the tasks only if there are no problems."""

    tasks: list[LoadedTask] = field(default_factory=list)
    """In the order of the paths, trees in sorted order; those without problems."""
    problems: list[DocumentProblem] = field(default_factory=list)
    warnings: list[DocumentProblem] = field(default_factory=list)
    unready: list[DocumentProblem] = field(default_factory=list)
    """What is wrong with the environments of the tasks: they are good, and cannot run here."""
    skipped: list[SkippedTask] = field(default_factory=list)
    """Tasks that were wanted and are left out, since they have been judged (`skip_existing`)."""
    configurations: list[Configuration] = field(default_factory=list)
    """Files of trees that describe environments or servers, and so are no tasks."""

    def checked(self) -> list[LoadedTask]:
        """The tasks. Raises InvalidDocuments if there is any problem."""
        if self.problems:
            raise InvalidDocuments(self.problems)
        return self.tasks


def unsupported(loaded: LoadedTask) -> list[DocumentProblem]:
    """What the task's document may say but this version cannot run; `validate` lets it pass."""
    task, problems = loaded.task, []
    remedy = "remove it, or only validate the document"
    document = task.to_dict()

    def report(path: tuple[str | int, ...], what: str) -> None:
        message = f"this version of perdure cannot run {what}"
        problems.append(_locate(Problem(path, message, remedy), loaded, document))

    for key in sorted(NOT_YET_RUN.task_keys & document.keys()):
        report((key,), f"tasks with {key}")
    for position, step in enumerate(document["steps"]):
        if step["type"] in NOT_YET_RUN.types:
            report(("steps", position, "type"), f"steps of type {step['type']}")
        undone_by = step.get("compensate", {}).get("type")
        if undone_by in NOT_YET_RUN.types:
            report(("steps", position, "compensate", "type"), f"steps of type {undone_by}")
        not_run = NOT_YET_RUN.step_keys | NOT_YET_RUN.type_keys.get(step["type"], frozenset())
        for key in sorted(not_run & step.keys()):
            report(("steps", position, key), f"{step['type']} steps with {key}")
    return problems


def located(problem: Problem, loaded: LoadedTask) -> DocumentProblem:
    """A problem of a loaded task, as one of its file."""
    return _locate(problem, loaded, loaded.task.to_dict())


def _locate(problem: Problem, loaded: LoadedTask, document: Any) -> DocumentProblem:
    file = loaded.source.rpartition(":")[0] if _is_list_line(loaded.source) else loaded.source
    return placed(problem, file, loaded.line_of, document)


def _is_list_line(source: str) -> bool:
    file, _, line = source.rpartition(":")
    return file.lower().endswith(".jsonl") and line.isdigit()
