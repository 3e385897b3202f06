"""What is wrong with the files that people wrote, as they are told it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.problems import Problem, one_line, shown, spell
from perdure.errors import PerdureError

SHOWN_PROBLEMS = 50
"""Of a command that starts nothing since there are some; `validate` tells them all."""

LineOf = Callable[[Sequence[str | int]], int | None]
"""The line of a file on which the value at a path of its document stands."""


@dataclass(frozen=True)
class DocumentProblem:
    """One thing that is wrong with a document, and where."""

    file: str
    line: int | None
    step: str | None
    """The step's id, or `#` and its position if it has none."""
    key: str | None
    """The path of the key, below the step if there is one: `retry.max_attempts`."""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        """All of it on one line of printable characters."""
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [where]
        if self.step is not None:
            parts.append(f"step {shown(self.step)}")
        if self.key:
            parts.append(self.key)
        text = ": ".join([*parts, self.message]) + (f"; {self.remedy}" if self.remedy else "")
        return one_line(text)


class InvalidDocuments(PerdureError):
    """Documents are refused; `problems` holds everything that is wrong with them."""

    def __init__(self, problems: Sequence[DocumentProblem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, problems)))


def placed(problem: Problem, file: str, line_of: LineOf, document: Any) -> DocumentProblem:
    """A problem of a document, as one of its file."""
    path, step = problem.path, None
    match path:
        case ("steps", int(position), *rest):
            path = tuple(rest)
            step = _step_name(document, position)
    return DocumentProblem(
        file, line_of(problem.path), step, spell(path) or None, problem.message, problem.remedy
    )


def _step_name(document: Any, position: int) -> str:
    try:
        id = document["steps"][position]["id"]
    except (KeyError, IndexError, TypeError):
        id = None
    return id if isinstance(id, str) and id else f"#{position}"


def problem_lines(problems: Sequence[object]) -> list[str]:
    """Problems as they are told, a line each: the first of many, and a long remedy once.

    `problems`: texts, or what prints as one.
    """
    lines: list[str] = []
    told: set[str] = set()
    for line in map(str, problems[:SHOWN_PROBLEMS]):
        text, listing, remedy = line.rpartition("; known: ")
        if listing and remedy in told:
            line = f"{text}; known: as above"
        told.add(remedy)
        lines.append(line)
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"... and {len(problems) - SHOWN_PROBLEMS:,} more (perdure validate)")
    return lines
