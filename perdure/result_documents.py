"""What a tree holds beside tasks, since something ran there: known by its shape, whatever its name.

Results may lie below the tasks, and the same command has to find the same tasks again.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from perdure.reading import Unreadable, read_json, read_text

JUDGEMENT = "judge_result.json"
JUDGED_KINDS = ("benchmark", "direct_prompt")
"""Folders below a project's results, in which agents, models and judged tasks follow."""

RESULTS_OF_A_SUITE = "holds perdure's results of a suite, and no tasks"
_STATE_DIRECTORY = "is a state directory of perdure, and holds no tasks"
_RESULTS_DIRECTORY = "is the directory of results (--results), and holds no tasks"
_JUDGED = "holds judgements of tasks (judge_result.json), and no tasks"

_STATE_FILES = frozenset({"temporal.db", "start.lock"})
_SHAPES = (
    ({"suite", "run_id", "status", "totals"}, "perdure's result of a suite"),
    ({"suite", "task_id", "trial", "run_id", "status"}, "perdure's record of a run"),
    ({"suite", "task", "trial", "run_id", "status"}, "perdure's list of runs"),
    ({"task", "trial", "run_id", "status"}, "perdure's results of trials"),
    ({"seq", "type", "at"}, "perdure's events of a run"),
)
"""Keys that a document has, and what it is then. No task may have them."""


def result_document(value: Any) -> str | None:
    """What a document is that perdure itself has written as a result; None for any other."""
    if isinstance(value, list) and value:
        return result_document(value[0]) if isinstance(value[0], dict) else None
    if not isinstance(value, dict):
        return None
    return next((what for keys, what in _SHAPES if keys <= value.keys()), None)


def result_list(path: Path) -> str | None:
    """As `result_document`, of the first line of a `.jsonl` file."""
    try:
        text = read_text(path).lstrip()
        first = read_json(text.partition("\n")[0]) if text else None
    except Unreadable:
        return None  # whoever reads it as a list says why
    return None if first is None else result_document(first.value)


def result_folder(folder: Path, files: Collection[str], results: Path | None) -> str | None:
    """Why a folder and all below it hold no tasks; None if they may.

    `files` are the names of the files that lie in it; `results` is the directory of results.
    """
    if results is not None and os.path.realpath(folder) == os.path.realpath(results):
        return _RESULTS_DIRECTORY
    if _STATE_FILES.issubset(files):
        return _STATE_DIRECTORY
    if JUDGEMENT in files and not any(name.endswith((".yaml", ".yml")) for name in files):
        return _JUDGED
    if folder.name in JUDGED_KINDS and folder.parent.name == "results":
        return _JUDGED
    if "suite.json" in files and _document_at(folder / "suite.json"):
        return RESULTS_OF_A_SUITE
    if "results.jsonl" in files and result_list(folder / "results.jsonl"):
        return RESULTS_OF_A_SUITE
    return None


def is_own_output(path: Path) -> bool:
    """Whether this process writes to it: `perdure run . --json > result.json` has made it empty."""
    for stream in (1, 2):
        try:
            if os.path.samestat(os.fstat(stream), os.stat(path)):
                return True
        except (OSError, ValueError):
            continue
    return False


def _document_at(path: Path) -> str | None:
    try:
        return result_document(read_json(read_text(path)).value)
    except Unreadable:
        return None
