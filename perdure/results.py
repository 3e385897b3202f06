"""The files of results: what a suite leaves on disk, readable without any server.

```
<results>/<suite>/suite.json       the suite: tasks, digests, totals
<results>/<suite>/results.jsonl    a line as each trial ends
<results>/<suite>/<task>/<trial>/  record.json, events.jsonl, steps/<step>.<attempt>/, artifacts/
```

Every file is written whole and then moved into place, so a reader never sees half of one.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from perdure.errors import PerdureError
from perdure.messages import RunRef

_TAIL_BYTES = 256 * 1024


class ResultsError(PerdureError):
    """Files of results that cannot be read or written."""


@dataclass(frozen=True)
class SuiteFiles:
    """The results of one suite."""

    root: Path

    @property
    def suite_file(self) -> Path:
        """The suite itself."""
        return self.root / "suite.json"

    @property
    def lines_file(self) -> Path:
        """A line per ended trial, in order of their end."""
        return self.root / "results.jsonl"

    def trial(self, task_id: str, trial: int) -> Path:
        """The directory of one trial."""
        return self.root / task_id / str(trial)

    def read_suite(self) -> dict[str, Any] | None:
        """The suite's file; None if there is none.

        Raises ResultsError if it is not what perdure wrote.
        """
        return _read_json(self.suite_file)

    def read_record(self, task_id: str, trial: int) -> dict[str, Any] | None:
        """The record of one trial; None if there is none."""
        return _read_json(self.trial(task_id, trial) / "record.json")

    def lines(self) -> list[dict[str, Any]]:
        """The newest line of each trial, in order of their end.

        A trial that ran again has several lines, and a line repeated after a crash counts once.
        """
        newest: dict[tuple[str, int], dict[str, Any]] = {}
        for line in _json_lines(self.lines_file):
            key = (line.get("task", ""), line.get("trial", 0))
            newest.pop(key, None)
            newest[key] = line
        return list(newest.values())

    def append_line(self, line: dict[str, Any]) -> None:
        """Add a trial's line, unless it is there already (a repeat after a crash)."""
        self.root.mkdir(parents=True, exist_ok=True)
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        mark = f'"run_id":{json.dumps(line["run_id"])}'.encode()
        with self.lines_file.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
            if mark in tail:
                return
            if tail and not tail.endswith(b"\n"):
                data = b"\n" + data  # an earlier write was cut off
            file.write(data)


def check_writable(results: Path, suite: str | None = None) -> None:
    """Find out before anything starts whether results can be written.

    `suite`: its directory too, if it is there already. Raises ResultsError, which says what to do.
    """
    folder = results
    try:
        results.mkdir(parents=True, exist_ok=True)
        _try_to_write(results)
        if suite is not None and os.path.lexists(folder := results / suite):
            _try_to_write(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ResultsError(
            f"{folder}: results cannot be written there ({reason}); make it a directory that you "
            "may write to, or name another (--results, `results_dir`)"
        ) from error


def _try_to_write(folder: Path) -> None:
    with TemporaryFile(dir=folder) as file:
        file.write(b"\0")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        draft.write_text(json.dumps(value, ensure_ascii=False), "utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def result_line(record: dict[str, Any]) -> dict[str, Any]:
    """A trial's line, made from its record: what `run --json` prints of it."""
    failure = record.get("failure")
    return {
        "suite": record["suite"],
        "task": record["task_id"],
        "trial": record["trial"],
        "run_id": record["run_id"],
        "status": record["status"],
        "failure": failure
        and {
            "kind": failure["kind"],
            "step": failure["step"],
            "reason": failure["message"],
        },
        "steps": [
            {
                "id": step["id"],
                "status": step["status"],
                "attempts": len(step["attempts"]),
                "duration": step["duration"],
            }
            for step in record["steps"]
        ],
        "retry_resets": record["retry_resets"],
        "instances": record["instances"],
        "usage": record["usage"],
        "started_at": record["started_at"],
        "duration": record["duration"],
    }


def suite_files(results: Path, suite: str) -> SuiteFiles:
    """The files of `suite` below `results`."""
    return SuiteFiles(results / suite)


def trial_files(results: Path, run: RunRef) -> tuple[SuiteFiles, Path]:
    """The files of a run's suite, and its own directory among them."""
    files = suite_files(results, run.suite)
    return files, files.trial(run.task_id, run.trial)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read ({error}); move it away") from error
    if not isinstance(value, dict):
        raise ResultsError(f"{path}: is not a file of results; move it away")
    return value


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error})") from error
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a line that a crash cut off; its trial has written it again
        if isinstance(value, dict):
            yield value
