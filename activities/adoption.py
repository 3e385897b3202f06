"""What earlier attempts of a step left on this host, and what of it the next one may take over.

A finished step never runs again: an outcome is on disk before it is reported, and the exit of a
process before its worker hears of it. What an earlier attempt still runs is killed. The worker of
a killed process may live, the server having given it up, and record that end like any other; so
what is there before is noted first, and what turns up later is the killing's, not the step's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from activities import marker
from activities.places import RunPlace
from activities.supervise import ProcessExit, read_exit
from perdure.messages import StepOutcome, StepTask
from perdure.payloads import adapter

SWEPT = "swept.json"
"""In an attempt's directory, if its processes were killed by a later one: for each time a JSON
object of `at` (seconds since 1970) and `ended` (the exit and outcome files that were there)."""

OUTCOME = "outcome.json"

_NO_LINK_NO_WAIT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Earlier:
    """The lost attempts before one attempt of a step."""

    def __init__(self, place: RunPlace, task: StepTask) -> None:
        self._place = place
        self._newest_first = [
            (process_key(task, attempt), place.attempt(task.step["id"], attempt))
            for attempt in reversed(task.lost_attempts)
        ]

    async def outcome(self) -> StepOutcome | None:
        """What a lost attempt came to, unless that is only the word that it was cancelled."""
        for _, step_dir in self._newest_first:
            outcome = await asyncio.to_thread(_own_outcome, self._place, step_dir)
            if outcome is not None and outcome.status != "cancelled":
                return replace(outcome, adopted=True)
        return None

    async def sweep(self) -> None:
        """Kill what the lost attempts still run on this host."""
        for key, step_dir in self._newest_first:
            await asyncio.to_thread(_sweep, key, step_dir)

    def home(self) -> Path | None:
        """The directory of a lost attempt whose first process had ended by itself.

        There the host finds the exit and does not start the process again.
        """
        for _, step_dir in self._newest_first:
            if own_end(step_dir / "exit.json") is not None:
                return step_dir
        return None


def own_end(exit_file: Path) -> ProcessExit | None:
    """The exit of a process that came to its end; None if there is none, or others ended it
    because its worker went away."""
    ended = read_exit(exit_file)
    if ended is None or ended.ended_by == "cancelled":
        return None
    swept = (
        ended.started_at <= sweep["at"] and exit_file.name not in sweep["ended"]
        for sweep in _sweeps(exit_file.parent)
    )
    return None if any(swept) else ended


def take_over(step_dir: Path) -> None:
    """Say that a later attempt has put its outcome into this directory, which counts again."""
    _note_sweeps(step_dir, [])


def _own_outcome(place: RunPlace, step_dir: Path) -> StepOutcome | None:
    killed = any(OUTCOME not in sweep["ended"] for sweep in _sweeps(step_dir))
    return None if killed else read_outcome(step_dir) or noted_outcome(place, step_dir.name)


def _sweep(key: str, step_dir: Path) -> None:
    if not step_dir.exists():  # it ran no process, or not on this host
        return
    before = _sweeps(step_dir)
    ended = sorted(path.name for path in [*step_dir.glob("exit*.json"), *step_dir.glob(OUTCOME)])
    _note_sweeps(step_dir, [*before, {"at": time.time(), "ended": ended}])
    killed = marker.sweep(key)
    killed += marker.sweep(f"{key}/", prefix=True)  # the second and later ones of a custom step
    if not killed:  # so whatever turns up has ended by itself
        _note_sweeps(step_dir, before)


def _sweeps(step_dir: Path) -> list[dict[str, Any]]:
    try:
        noted = json.loads((step_dir / SWEPT).read_bytes())
        return [{"at": float(sweep["at"]), "ended": list(sweep["ended"])} for sweep in noted]
    except (OSError, ValueError, TypeError, KeyError):  # a step's own file in its place
        return []


def _note_sweeps(step_dir: Path, sweeps: list[dict[str, Any]]) -> None:
    if not sweeps:
        (step_dir / SWEPT).unlink(missing_ok=True)
        return
    draft = step_dir / f".{SWEPT}"
    draft.write_text(json.dumps(sweeps), "utf-8")
    draft.replace(step_dir / SWEPT)


def process_key(task: StepTask, attempt: int) -> str:
    """What marks the processes of one attempt; those after its first add `/<number>`."""
    return f"{task.run.run_id}/{task.step['id']}.{attempt}"


def write_outcome(step_dir: Path, outcome: StepOutcome) -> None:
    """Put an outcome on disk, whole or not at all, before it is reported."""
    step_dir.mkdir(parents=True, exist_ok=True)
    draft = step_dir / ".outcome.json"
    draft.write_bytes(adapter(StepOutcome).dump_json(outcome))
    draft.replace(step_dir / OUTCOME)


def read_outcome(step_dir: Path) -> StepOutcome | None:
    """The outcome that an attempt left; None if it did not get that far."""
    try:
        left = (step_dir / OUTCOME).read_bytes()
        outcome: StepOutcome = adapter(StepOutcome).validate_json(left)
    except (FileNotFoundError, ValueError):
        return None
    return outcome


def note_outcome(place: RunPlace, attempt: str, outcome: StepOutcome) -> None:
    """Put the outcome of an attempt that has no directory on disk, before it is reported.

    `attempt`: as its directory would be called. All of a run's are lines of one file: to make a
    directory and a file for each costs more than many a step.

    Raises OSError.
    """
    # A line of its own even after one that was cut short.
    told = adapter(StepOutcome).dump_json(outcome, exclude_defaults=True)
    line = b'\n["%s",%s]\n' % (attempt.encode(), told)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        file = os.open(place.outcomes, flags | _NO_LINK_NO_WAIT, 0o666)
    except FileNotFoundError:
        place.root.mkdir(parents=True, exist_ok=True)
        file = os.open(place.outcomes, flags | _NO_LINK_NO_WAIT, 0o666)
    try:
        # In one piece, so that parallel steps and a kill in between leave whole lines.
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place.outcomes))
    finally:
        os.close(file)


def noted_outcome(place: RunPlace, attempt: str) -> StepOutcome | None:
    """The outcome that `note_outcome` put on disk; None if there is none."""
    begin = b'["%s",' % attempt.encode()
    found: StepOutcome | None = None
    try:
        with open(os.open(place.outcomes, os.O_RDONLY | _NO_LINK_NO_WAIT), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            for line in file:
                if line.startswith(begin):
                    with contextlib.suppress(ValueError):  # cut short
                        found = adapter(StepOutcome).validate_python(from_json(line)[1])
    except OSError:
        return None
    return found
