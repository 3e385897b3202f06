"""The files of results: what a suite leaves on disk, readable without any server.

```
<results>/<suite>/suite.json       the suite: state, tasks, digests, totals, how each trial ended
<results>/<suite>/results.jsonl    a line as each trial ends
<results>/<suite>/<task>/<trial>/  record.json, events.jsonl, steps/<step>.<attempt>/, artifacts/
```

Every file is written whole and then moved into place, so a reader never sees half of one; a line
of results.jsonl that a full disk or a crash cut off is taken out by the next one. Paths in them
are none: a directory of results can be copied to another machine and read there.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from perdure.errors import PerdureError
from perdure.messages import RunRef
from perdure.reading import Unreadable, read_bytes
from perdure.results_shapes import LINE, RECORD, SUITE, ResultsError, checked
from perdure.safe_names import safe_part

__all__ = [
    "ResultsError",
    "SuiteFiles",
    "check_owner",
    "check_writable",
    "result_line",
    "suite_files",
    "trial_files",
    "write_json",
]

MAX_FILE_BYTES = 512 * 1024 * 1024
"""Of one file that is read; perdure's own stay far below."""

_TAIL_BYTES = 256 * 1024


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
        """The directory of one trial.

        Raises UnsafeName for a task's id that leads elsewhere.
        """
        return self.root / safe_part(task_id) / str(int(trial))

    def read_suite(self) -> dict[str, Any] | None:
        """The suite's file; None if there is none.

        Raises ResultsError if it is not what perdure wrote.
        """
        value = _read_json(self.suite_file)
        return None if value is None else checked(value, SUITE, self.suite_file)

    def read_record(self, task_id: str, trial: int) -> dict[str, Any] | None:
        """The record of one trial; None if there is none.

        Raises ResultsError if it is not what perdure wrote, and UnsafeName.
        """
        path = self.trial(task_id, trial) / "record.json"
        value = _read_json(path)
        return None if value is None else checked(value, RECORD, path)

    def read_events(self, task_id: str, trial: int) -> list[dict[str, Any]] | None:
        """What happened in one trial, in order; None if there is no record of it.

        Raises ResultsError if it is not what perdure wrote, and UnsafeName.
        """
        path = self.trial(task_id, trial) / "events.jsonl"
        if not os.path.lexists(path):
            return None
        events = [event for _, event in _json_lines(path)]
        for number, event in enumerate(events, 1):
            if not isinstance(event.get("type"), str) or not isinstance(
                event.get("at"), int | float
            ):
                raise ResultsError(
                    f"{path}: event {number} is not what perdure writes there; move the file away"
                )
        return events

    def lines(self) -> list[dict[str, Any]]:
        """The newest line of each trial, in order of their end.

        A trial that ran again has several lines, and a line repeated after a crash counts once.
        Raises ResultsError if there are other lines than perdure's.
        """
        newest: dict[tuple[str, int], dict[str, Any]] = {}
        for number, value in _json_lines(self.lines_file):
            line = checked(value, LINE, self.lines_file, f"line {number} ")
            key = (line["task"], line["trial"])
            newest.pop(key, None)
            newest[key] = line
        return list(newest.values())

    def line_of_record(self, task_id: str, trial: int) -> dict[str, Any] | None:
        """A trial's line made from its record; None if there is none that can be read.

        For a line that a crash or a full disk kept from being written.
        """
        try:
            record = self.read_record(task_id, trial)
        except PerdureError:
            return None
        return None if record is None else result_line(record)

    def run_ids(self) -> set[str]:
        """The runs that have a line."""
        return {str(line.get("run_id")) for _, line in _json_lines(self.lines_file)}

    def append_line(self, line: dict[str, Any]) -> None:
        """Add a trial's line, unless it is there already (a repeat after a crash).

        Whole or not at all: what a full disk lets through of it is taken back.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        mark = f'"run_id":{json.dumps(line["run_id"])}'.encode()
        with self.lines_file.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            whole, newline, rest = (file.readall() or b"").rpartition(b"\n")
            if mark in whole:
                return
            if rest and (newline or size == len(rest)) and not _is_json(rest):
                size -= len(rest)  # a line that a crash cut off; its trial writes it again
                file.truncate(size)
            elif rest:
                data = b"\n" + data
            try:
                while data:
                    data = data[file.write(data) or 0 :]
            except OSError:
                file.truncate(size)
                raise


def check_writable(results: Path, suite: str | None = None) -> None:
    """Find out before anything starts whether results can be written.

    `suite`: its directory too, if it is there already. Makes no directory: what is started may
    keep to another. Raises ResultsError, which says what to do.
    """
    folder = results
    try:
        if results.is_dir():
            _try_to_write(results)
        else:
            _try_to_make(results)
        if suite is not None and os.path.lexists(folder := results / suite):
            _try_to_write(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room there" if is_full else "make it a directory that you may write to"
        raise ResultsError(
            f"{folder}: results cannot be written there ({reason}); {remedy}, or name another "
            "(--results)"
        ) from error


def check_owner(results: Path, suite: str, server: str | None) -> None:
    """Refuse a suite's directory in which a suite of another server may be writing.

    `server`: this one's id; None: not known. What a suite of another server has left when it was
    over gives way. Raises ResultsError, which says what to do.
    """
    files = suite_files(results, suite)
    try:
        known = files.read_suite()
    except ResultsError:
        return  # it is replaced
    other = known and known.get("server")
    if known and other and server and other != server and known["status"] == "running":
        raise ResultsError(
            f"{files.root} holds the results of a suite {suite!r} that another server runs, or "
            f"left when it was killed; name another by --suite, or another directory by --results; "
            "if that server is gone, move the directory away"
        )


def _try_to_make(folder: Path) -> None:
    there = folder
    while not os.path.lexists(there):
        there = there.parent
    with TemporaryDirectory(prefix=".perdure-", dir=there) as draft:
        made = Path(draft) / folder.relative_to(there)
        made.mkdir(parents=True, exist_ok=True)
        _try_to_write(made)


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
    """The files of `suite` below `results`. Raises UnsafeName for one that leads elsewhere."""
    return SuiteFiles(results / safe_part(suite))


def trial_files(results: Path, run: RunRef) -> tuple[SuiteFiles, Path]:
    """The files of a run's suite, and its own directory among them."""
    files = suite_files(results, run.suite)
    return files, files.trial(run.task_id, run.trial)


def _read(path: Path) -> bytes | None:
    """What a file holds; None if there is no file. Nothing is read of a pipe or a device."""
    if not os.path.lexists(path):
        return None
    try:
        return read_bytes(path, MAX_FILE_BYTES)
    except Unreadable as error:
        told = error.finding.message
        reason = told.removeprefix("cannot be read: ")
        what = told if reason == told else f"cannot be read ({reason})"
        raise ResultsError(f"{path}: {what}; move it away") from None


def _read_json(path: Path) -> Any:
    """The value in a file; None if there is no file."""
    content = _read(path)
    if content is None:
        return None
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        what = f"is damaged ({error})" if content.strip() else "is empty"
        raise ResultsError(f"{path}: {what}; move it away, or restore a copy") from error
    return {} if value is None else value  # `null` is there, and wrong


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects in a file of JSON lines, with their lines' numbers; none without a file."""
    for number, line in enumerate((_read(path) or b"").split(b"\n"), 1):
        try:
            value = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            continue  # a line that a crash cut off; its trial has written it again
        if isinstance(value, dict):
            yield number, value


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
