"""What a keeper notes in the folder of its instance, as the worker reads it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from activities import procfs
from activities.process_keeper import LOCK, LOG, STATE, TOUCHED
from activities.rolling_log import last_lines_of

GONE_SECONDS = 10.0
"""A keeper that was killed and still holds its lock after so long hangs in the kernel."""

_BETWEEN_LOOKS_SECONDS = 0.01
_NOTE_SECONDS = 10.0


class ProcessFolder:
    """The folder of one instance. Its files may be there or not, and whole or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_kept(self) -> bool:
        """Whether a keeper lives: it alone holds the lock, for as long as it does."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def is_new(self) -> bool:
        """Whether no keeper was ever here."""
        return not (self.path / LOCK).exists()

    @property
    def state(self) -> dict[str, Any]:
        """What the keeper noted; empty if there is nothing."""
        with contextlib.suppress(OSError, ValueError):
            state = json.loads((self.path / STATE).read_bytes())
            if isinstance(state, dict):
                return state
        return {}

    @property
    def log(self) -> list[str]:
        """The server's last lines."""
        return last_lines_of(str(self.path / LOG))

    async def keeps(self, identity: str) -> bool:
        """Whether a keeper lives and keeps the server that is meant."""
        deadline = time.monotonic() + _NOTE_SECONDS
        # It has the lock a moment before it has started what it will note.
        while self.is_kept and not self.state and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)
        return self.is_kept and self.state.get("identity") == identity

    def touch(self) -> None:
        """Tell the keeper that a worker is there."""
        with contextlib.suppress(OSError):  # it ends when the file is gone
            (self.path / TOUCHED).touch(mode=0o600)

    def how_it_ended(self) -> str:
        """Of a server that is not kept any more, for people."""
        ended = self.state.get("ended")
        if not isinstance(ended, dict):
            return "the process is gone: it never ran, or was killed together with its keeper"
        if ended.get("by") == "orphan":
            return "the process was ended, for no worker had come back to it for too long"
        if ended.get("by") == "stop":
            return "the process was stopped"
        code = ended.get("exit_code")
        if isinstance(code, int) and code < 0:
            return f"the process was killed by signal {-code}"
        return f"the process ended with status {code}, and it has to stay in the foreground"

    async def end(self, grace_seconds: float) -> None:
        """Have the keeper end all that it keeps, and kill it if it does not.

        `grace_seconds`: what the keeper itself gives its server.
        """
        state = self.state
        keeper = procfs.Seen(int(state.get("keeper", 0)), 0, 0, int(state.get("start_ticks", 0)))
        for signum, patience_seconds in (
            (signal.SIGTERM, grace_seconds + GONE_SECONDS),
            (signal.SIGKILL, GONE_SECONDS),
        ):
            if not keeper.pid or not self.is_kept:
                break
            _send(keeper, signum)
            deadline = time.monotonic() + patience_seconds
            # A lock tells nobody when it is free.
            while self.is_kept and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)
        (self.path / STATE).unlink(missing_ok=True)


def folders_in(root: Path) -> dict[int, ProcessFolder]:
    """The folders of a pool's instances, by number."""
    with contextlib.suppress(OSError):
        return {
            int(path.name): ProcessFolder(path) for path in root.iterdir() if path.name.isdecimal()
        }
    return {}


def _send(process: procfs.Seen, signum: int) -> None:
    if sys.platform == "linux":
        procfs.send_signal(process, signum)
    else:  # the lock says that the keeper lives, so the number is its own
        with contextlib.suppress(OSError):
            os.kill(process.pid, signum)
