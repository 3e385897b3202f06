"""Python cells of jobs: how one is started, on this host or in a container, and how it ended."""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.job_messages import FailingLine, JobSpec

RUNNER = Path(__file__).with_name("cell_runner.py")
NAME = "<cell>"
"""What tracebacks call the cell."""

ERROR_CHARS = 4_000
LINE_CHARS = 1_000

_REPORT_LIMIT_BYTES = 256 * 1024
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_FOLDERS_INSIDE = ("/tmp", "/dev/shm", "/var/tmp")
_TAKE = """\
import os, sys
for path in sys.argv[1:]:
    if os.path.isfile(path):
        with open(path) as file:
            print(file.read())
        os.unlink(path)
        break
"""


@dataclass(frozen=True)
class Report:
    """How a cell ended, by its own account."""

    error: str | None = None
    failing_line: FailingLine | None = None
    interrupted: bool = False
    """A SIGINT arrived while it ran."""


def argv_here() -> list[str]:
    """The command that runs a cell on this host."""
    return [sys.executable, "-P", "-u", str(RUNNER)]


def argv_inside() -> list[str]:
    """The command that runs a cell in a container, by the Python of its image."""
    return ["python3", "-u", "-c", RUNNER.read_text("utf-8")]


def input_of(spec: JobSpec, args: Any, context: dict[str, Any], reports: list[str]) -> bytes:
    """What the runner reads: the call, and then the cell's own input.

    `args` with secrets in their places; the cell's end is told at the first of `reports` that can
    be written.
    """
    call = {
        "code": spec.code,
        "name": NAME,
        "entrypoint": spec.entrypoint,
        "args": args,
        "results": context["results"],
        "context": context,
        "reports": reports,
    }
    told = json.dumps(call).encode()
    return b"%d\n%s%s" % (len(told), told, (spec.stdin or "").encode("utf-8", "replace"))


def reports_inside(name: str) -> list[str]:
    """Where a cell in a container can tell its end."""
    return [f"{folder}/{name}" for folder in _FOLDERS_INSIDE]


def argv_taking(reports: list[str]) -> list[str]:
    """The command that, in the container, prints the report and removes it."""
    return ["python3", "-c", _TAKE, *reports]


def take_report(path: Path) -> Report | None:
    """The report at a path, which is removed; None if there is none."""
    try:
        with open(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            path.unlink()
            return parsed(file.read(_REPORT_LIMIT_BYTES))
    except OSError:
        return None


def parsed(content: bytes | str) -> Report | None:
    """What the runner wrote; None if it is something else: the cell could write there, too."""
    try:
        told: Any = json.loads(content)
        error, line = told["error"], told["failing_line"]
        return Report(
            error=None if error is None else _clipped(error, ERROR_CHARS),
            failing_line=None if line is None else _line(line),
            interrupted=bool(told["interrupted"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _line(told: Any) -> FailingLine:
    return FailingLine(int(told["number"]), _clipped(told["text"], LINE_CHARS))


def _clipped(text: Any, limit: int) -> str:
    """With `?` for half a character, which no message can carry."""
    return str(text)[:limit].encode("utf-8", "replace").decode()
