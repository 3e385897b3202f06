"""Reading `.jsonl` lists: on each line a task's path, a task's document, or a DTap line (P54)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.core.problems import kind
from perdure.document_paths import Found, find_behind, refused
from perdure.dtap_layout import CONFIG_FILE, BadLine, root_of_list, task_of_line
from perdure.lists import ListOptions
from perdure.reading import Source, Unreadable, read_json, read_text

MAX_LINES = 100_000
"""Of one list: with ten thousand tasks a suite is large."""
MAX_PROBLEMS = 200
"""That are told one by one; nobody reads more."""

_DTAP_KEYS = frozenset({"domain", "task_id"})


@dataclass(frozen=True)
class _Line:
    """A line that is not blank."""

    number: int
    source: Source | None
    problem: Unreadable | None = None

    @property
    def value(self) -> Any:
        return self.source.value if self.source else None

    @property
    def is_dtap(self) -> bool:
        value = self.value
        return isinstance(value, dict) and "steps" not in value and bool(_DTAP_KEYS & value.keys())


def find_in_list(path: Path, lists: ListOptions) -> Iterator[Found]:
    """The documents behind the lines of a list, blank lines aside.

    In a list of DTap lines alone, lines that lead to no task are warnings, and passed over. In
    perdure's own lists they are problems; but there, too, a DTap line that leads nowhere is not.
    """
    try:
        lines = list(_lines(path))
    except Unreadable as error:
        yield Found(path, None, problem=error)
        return
    if not lines:
        yield refused(path, "the list is empty", "write a path or a document on each line")
        return
    dtap = [line for line in lines if line.is_dtap]
    root = root_of_list(path, lists) if dtap else None
    if dtap and (root is None or not os.path.isdir(root / "dataset")):
        yield _no_dataset(path, root, dtap[0])
        lines = [line for line in lines if not line.is_dtap]  # their own mistakes are told as well
        if not lines:
            return
        dtap = []
    own = any(not line.is_dtap and isinstance(line.value, str | dict | list) for line in lines)
    usable = False
    untold: list[bool] = []
    """Whether they are passed over, of the problems that are too many to be told."""
    problems = 0
    for line in lines:
        for found in _behind_line(path, line, root, lists):
            if found.problem is not None and dtap and (line.is_dtap or not own):
                found = replace(found, passed_over=True)
            usable = usable or not found.passed_over
            problems += found.problem is not None
            if found.problem is not None and problems > MAX_PROBLEMS:
                untold.append(found.passed_over)
            else:
                yield found
    if untold:
        rest = refused(path, f"{len(untold):,} more lines are like these", "correct these first")
        yield replace(rest, passed_over=all(untold))
    if not usable:
        yield refused(path, "no line of the list leads to a task", "correct its lines, or --root")


def _lines(path: Path) -> Iterator[_Line]:
    text = read_text(path)
    if text.count("\n") > MAX_LINES:
        raise Unreadable(None, f"the list has more than {MAX_LINES:,} lines", "split it")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield _Line(number, read_json(line, number))
        except Unreadable as error:
            if _names_a_task(path, line.strip()):  # a path that nobody put into quotes
                yield _Line(number, Source(line.strip(), first_line=number))
            else:
                # Without its traceback, which would keep all that was read so far.
                yield _Line(number, None, error.with_traceback(None))


def _names_a_task(path: Path, line: str) -> bool:
    return line[0] not in "{[\"'" and os.path.exists(path.parent / line)


def _no_dataset(path: Path, root: Path | None, line: _Line) -> Found:
    where = f"no folder above the list holds {Path('dataset')}" if root is None else ""
    return refused(
        path,
        "the line names a task by its domain and id, and "
        + (where or f"there is no folder {root / 'dataset' if root else ''}"),
        "name the project's folder, in which dataset lies, by --root",
        line.number,
    )


def _behind_line(path: Path, line: _Line, root: Path | None, lists: ListOptions) -> Iterator[Found]:
    value, origin = line.value, f"{path}:{line.number}"
    if line.problem is not None:
        yield Found(path, None, problem=line.problem)
    elif line.is_dtap and root is not None:
        try:
            task = task_of_line(value, root)
        except BadLine as error:
            yield refused(
                path, f"the line leads to no task: {error}", "it is left out", line.number
            )
            return
        file = task.directory / CONFIG_FILE
        yield Found(file, None, task.default_id, origin, dtap=task)
    elif isinstance(value, str) and not value:
        yield refused(path, "the path is empty", "write a task's path", line.number)
    elif isinstance(value, str):
        for found in find_behind(path.parent / value, lists, in_list=True):
            # A path that leads nowhere is the list's mistake: name its line as well.
            yield found if found.problem is None else _named_by(found, path, line.number)
    elif isinstance(value, dict | list):
        yield Found(path, line.source, origin=origin)
    else:
        yield refused(
            path,
            f"a line is a task's path or its document, not {kind(value)}",
            "write a path in quotes, or a mapping with steps",
            line.number,
        )


def _named_by(found: Found, path: Path, number: int) -> Found:
    assert found.problem is not None
    finding = found.problem.finding
    if finding.line is not None:
        return found
    return refused(path, f"{found.file}: {finding.message}", finding.remedy, number)
