"""The last lines that a failed attempt printed, from files of results or from its context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.cli.console import printable

SHOWN_LINES = 8
LINE_CHARACTERS = 300
_TAIL_BYTES = 16 * 1024


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that did not succeed, and the end of what it printed."""

    step: str
    attempt: int
    message: str
    lines: list[str]
    """Safe for a terminal; the end of stderr, or of stdout if that is empty."""


def failed_attempts(record: dict[str, Any], files: Path | None) -> Iterator[FailedAttempt]:
    """The last failed attempt of each step that failed, in step order.

    `files`: the trial's directory of results, if there is one.
    """
    for step in record["steps"]:
        failed = [attempt for attempt in step["attempts"] if attempt.get("failure")]
        if failed:
            last = failed[-1]
            yield FailedAttempt(
                step["id"],
                last["number"],
                last["failure"]["message"],
                _output(record, step["id"], last, files, is_last=last is step["attempts"][-1]),
            )


def _output(
    record: dict[str, Any],
    step_id: str,
    attempt: dict[str, Any],
    files: Path | None,
    *,
    is_last: bool,
) -> list[str]:
    inner = os.path.join("steps", f"{step_id}.{attempt['number']}")
    for name in ("stderr", "stdout"):
        text = _tail(files, os.path.join(inner, f"{name}.log")) if files else ""
        if not text.strip() and is_last:  # else the context has what a later one printed
            text = _in_context(record, step_id, name)
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            return [printable_line(line) for line in lines[-SHOWN_LINES:]]
    return []


def printable_line(line: str) -> str:
    """A line of output with its indentation, safe for a terminal."""
    line = line.expandtabs(4).rstrip()
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, 40) + printable(line, LINE_CHARACTERS)


def _in_context(record: dict[str, Any], step_id: str, name: str) -> str:
    result = (record.get("context") or {}).get("results", {}).get(step_id)
    text = result.get(name) if isinstance(result, dict) else None
    return text[-_TAIL_BYTES:] if isinstance(text, str) else ""


def _tail(folder: Path, inner: str) -> str:
    """The end of a file; nothing of what a link or a pipe in its place would lead to."""
    path = os.path.join(os.path.realpath(folder), inner)
    if os.path.realpath(path) != path or not os.path.isfile(path):
        return ""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
    return ""
