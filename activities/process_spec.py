"""What the supervisor is asked to run, and what it tells of the end."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.errors import PerdureError


class SpawnFailed(PerdureError):
    """A process could not be started; the text names the program and the reason."""


@dataclass(frozen=True)
class ProcessSpec:
    """One process to run."""

    key: str
    """Unique per attempt, such as `<run id>/<step>.<attempt>`; becomes `PERDURE_MARKER`."""
    argv: list[str]
    """The program is looked up on the `PATH` of `env`; a relative path starts at `cwd`."""
    cwd: Path
    env: Mapping[str, str]
    """The whole environment; nothing of the worker's own is added, except the marker."""
    stdin: bytes | None
    """Fed, then closed; None: end of file at once."""
    stdout: Path
    stderr: Path
    exit_file: Path | None
    """Written atomically when the process has ended, before that is reported; None: nobody would
    take its end over."""
    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    """Without output and without `touch`."""
    kill_grace_seconds: float = 5.0
    """Between SIGTERM and SIGKILL."""
    output_limit_chars: int = 1_000_000
    """Of each stream; what comes after is read and dropped."""
    secrets: tuple[str, ...] = ()
    """Values that become `***` in both files."""
    fold_redraws: bool = False
    """Lines that are redrawn by carriage returns are kept in their last state; beside each file
    `<file>.live` then says how such a line stands, and what came last beyond the limit."""
    hold_sigint: bool = False
    """SIGINT is blocked when the program starts; it unblocks it as soon as it can take one."""
    niceness: int = 0
    """Over the worker's own: how much it and what it starts gives way to other processes."""


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended."""

    exit_code: int
    """Negative: ended by that signal."""
    ended_by: str
    """`exit`, `timeout`, `idle_timeout`, `cancelled`, or `killed`."""
    started_at: float
    """Seconds since 1970."""
    duration_seconds: float
    stdout_chars: int
    """Produced, after masking and before the cap."""
    stderr_chars: int
    cpu_seconds: float
    """User and system time of the process and of all its descendants that were reaped."""
    peak_memory_bytes: int
    """Of the largest single process among them; at least the few MB of a fork of the keeper."""
    output_error: str | None = None
    """Why output is missing from the files, for example a full disk."""


def read_exit(path: Path | None) -> ProcessExit | None:
    """Read an exit file; None if there is none, or if it is not a whole one."""
    if path is None:
        return None
    try:
        return exit_from(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def exit_from(content: Mapping[str, Any]) -> ProcessExit:
    """An exit as its keeper tells it."""
    known = {field.name for field in dataclasses.fields(ProcessExit)}
    return ProcessExit(**{name: value for name, value in content.items() if name in known})


def check_spec(spec: ProcessSpec) -> None:
    """Refuse what no system call would take, with a text that says where it stands.

    Raises SpawnFailed.
    """
    if not spec.argv or not spec.argv[0]:
        raise SpawnFailed(f"cannot start {spec.key}: the command is empty")
    places = [(f"argument {n}", text) for n, text in enumerate(spec.argv)]
    places += [("cwd", str(spec.cwd)), ("key", spec.key)]
    for name, value in spec.env.items():
        if not name or "=" in name:
            raise SpawnFailed(f"cannot start {spec.argv[0]!r}: {name!r} cannot name a variable")
        places += [(f"the name {name!r} in env", name), (f"the value of {name!r} in env", value)]
    for place, text in places:
        if "\0" in text:
            raise SpawnFailed(f"cannot start {spec.argv[0]!r}: {place} holds a NUL character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise SpawnFailed(
                f"cannot start {spec.argv[0]!r}: {place} holds half a surrogate pair"
            ) from None
