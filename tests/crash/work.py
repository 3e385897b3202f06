"""What each step of the crash test's suite does: it leaves lines in a file outside the state.

    python work.py FOLDER SECONDS MANNER

Also called in the worker's process (`step_types.py`). Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PLAIN, FAILS, FAILS_ONCE = "plain", "fails", "fails-once"
STRAGGLER = "straggler"
"""It leaves a process behind, in a session of its own."""
WAITS = "waits"
"""It ends when the file `may_end` is there."""

EXIT_FAILED = 3


@dataclass(frozen=True)
class Line:
    """One line that a step left."""

    what: str
    """`start`, `end`, or `beside`: another attempt was still at work."""
    attempt: int
    time: float
    """Seconds since 1970."""


def work(folder: Path, name: str, attempt: int, seconds: float, manner: str) -> bool:
    """Take `seconds` between two lines in the file `name`, and longer until it may end; whether it
    went well.

    While it, or a process that it left, is at work it holds a lock, which dies with them.
    """
    held = os.open(folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _leave(folder, name, "beside", attempt)
        ended_before = any(line.what == "end" for line in lines_of(folder, name))
        _leave(folder, name, "start", attempt)
        if manner == STRAGGLER:
            os.set_inheritable(held, True)
            os.posix_spawnp("sleep", ["sleep", "600"], os.environ, setsid=True)
        time.sleep(seconds)
        while not _may_end(folder, manner):
            time.sleep(0.05)
        _leave(folder, name, "end", attempt)
    finally:
        os.close(held)
    return manner != FAILS and (manner != FAILS_ONCE or ended_before)


def _may_end(folder: Path, manner: str) -> bool:
    if (folder / "may_end").exists():
        return True
    return manner != WAITS and ends_in(folder) < int((folder / "allowed_ends").read_text())


def ends_in(folder: Path) -> int:
    """How many ends all steps have come to: of each, a byte in the file `ends`."""
    try:
        return (folder / "ends").stat().st_size
    except FileNotFoundError:
        return 0


def lines_of(folder: Path, name: str) -> list[Line]:
    """The lines that a step has left so far."""
    try:
        text = (folder / "lines" / name).read_text()
    except FileNotFoundError:
        return []
    fields = [line.split() for line in text.splitlines()]
    return [Line(what, int(attempt), float(at)) for what, attempt, at in fields]


def _leave(folder: Path, name: str, what: str, attempt: int) -> None:
    line = f"{what} {attempt} {time.time():.6f}\n".encode()
    _append(folder / "lines" / name, line)
    if what == "end":
        _append(folder / "ends", b".")


def _append(path: Path, what: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, what)
    finally:
        os.close(file)


def main(folder: str, seconds: str, manner: str) -> int:
    """One attempt of a step in a process of its own."""
    name = f"{os.environ['PERDURE_TASK_ID']}.{os.environ['PERDURE_STEP_ID']}"
    attempt = int(os.environ["PERDURE_ATTEMPT"])
    well = work(Path(folder), name, attempt, float(seconds), manner)
    (Path(os.environ["PERDURE_ARTIFACTS"]) / name).write_text(name)
    print(name)
    return 0 if well else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
