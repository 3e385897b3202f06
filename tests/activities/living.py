"""What tests of processes share: unique tags, and what /proc says of those who carry them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from activities.supervise import ProcessSpec, Supervisor

PATIENCE_SECONDS = 20.0
"""For conditions that hold within milliseconds on a quiet machine."""

SLEEP = shutil.which("sleep") or "/bin/sleep"


def new_tag() -> str:
    """A number that no other process has in its command line; `sleep <tag>` is decades."""
    return str(random.SystemRandom().randrange(10**9, 2 * 10**9))


def stubborn_tree(tag: str) -> str:
    """A shell script whose five descendants each try to escape in their own way, and stay."""
    return f"""
        trap '' TERM
        {SLEEP} {tag} &
        setsid {SLEEP} {tag} &
        env -i setsid {SLEEP} {tag} &
        ( setsid sh -c "trap '' TERM INT HUP; {SLEEP} {tag}; {SLEEP} {tag}" & )
        {sys.executable} -ISc 'import os, sys, time
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
os.execve("{SLEEP}", ["sleep", "{tag}"], {{}})'
        while :; do {SLEEP} {tag}; done
    """


STUBBORN_SLEEPERS = 6


def living(tag: str) -> list[int]:
    """Pids of the processes whose command line has `tag` in it, zombies excepted."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                command_line = Path("/proc", name, "cmdline").read_bytes()
                if tag.encode() in command_line:
                    found.append(int(name))
    return found


def pid_of(supervisor: Supervisor, key: str) -> int | None:
    """The process id of a running process; None before its start and after its end."""
    process = supervisor._running.get(key)
    return process.pid if process else None


def sleepers(tag: str) -> int:
    """How many processes are `sleep <tag>`, in whatever way they were started."""
    count = 0
    for pid in living(tag):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            count += words[1:] == [tag.encode(), b""]
    return count


def parent_of(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie that waits to be reaped."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def zombies_of(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] == "Z" and int(fields[1]) == parent:
                    found.append(int(name))
    return found


async def until(condition: Callable[[], object], what: str) -> None:
    """Return when a condition holds; fail with `what` if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.01)


def spec_of(
    folder: Path,
    argv: list[str],
    *,
    key: str | None = None,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    **limits: object,
) -> ProcessSpec:
    """A process with its files in `folder`, under a key that nothing else has."""
    key = key or f"{folder.name}/{new_tag()}"
    name = key.replace("/", "-")
    return ProcessSpec(
        key=key,
        argv=argv,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **(env or {})},
        stdin=stdin,
        stdout=folder / f"{name}.out",
        stderr=folder / f"{name}.err",
        exit_file=folder / f"{name}.exit",
        **limits,  # type: ignore[arg-type]
    )
