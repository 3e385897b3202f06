"""What tests of processes share: unique tags, and what /proc says of those who carry them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
from pathlib import Path

from activities.supervise import ProcessSpec, Supervisor
from tests.waiting import until

SLEEP = shutil.which("sleep") or "/bin/sleep"


def sh(script: str) -> list[str]:
    """The command that has the shell run a script."""
    return ["/bin/sh", "-c", script]


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


async def started(supervisor: Supervisor, key: str) -> int:
    """The process id of a process, as soon as the worker has been told of its start.

    That is a moment after the process itself can be seen.
    """
    await until(lambda: pid_of(supervisor, key) is not None, f"the start of {key}")
    pid = pid_of(supervisor, key)
    assert pid is not None, f"{key} has ended already"
    return pid


def command_of(pid: int) -> list[str]:
    """The command line of a process; empty for one that has ended."""
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    return []


def sleepers(tag: str) -> int:
    """How many processes are `sleep <tag>`, in whatever way they were started."""
    return sum(command_of(pid)[1:] == [tag] for pid in living(tag))


def parent_of(pid: int) -> int:
    """Raises OSError if the process has ended and was reaped."""
    return _parent_and_state(pid)[0]


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie that waits to be reaped."""
    with contextlib.suppress(OSError):
        return _parent_and_state(pid)[1] not in "ZX"
    return False


def children_of(parent: int) -> set[int]:
    """Zombies, too."""
    return set(_children(parent))


def zombies_of(parent: int) -> list[int]:
    return [pid for pid, state in _children(parent).items() if state == "Z"]


def keeper_of(tag: str, worker: int) -> int:
    """The grandchild of the worker that is the parent of a tagged process."""
    for pid in living(tag):
        with contextlib.suppress(OSError):  # one that only helped to start others may end now
            keeper = parent_of(pid)
            if parent_of(parent_of(keeper)) == worker:
                return keeper
    raise AssertionError(f"no process with {tag} has a keeper")


def _parent_and_state(pid: int) -> tuple[int, str]:
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(parent), state


def _children(parent: int) -> dict[int, str]:
    """The state of each child."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                its_parent, state = _parent_and_state(int(name))
                if its_parent == parent:
                    found[int(name)] = state
    return found


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
