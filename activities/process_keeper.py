"""The keeper of a process environment: a daemon in charge of one server and its descendants.

A program of its own, started by `activities/process.py` without site-packages. It belongs to no
worker: it goes on when the worker that started it is gone, and the next one finds it by what it
notes in the instance's folder. It ends the whole tree and itself

- on SIGTERM: the tree is asked first, and killed when its grace is over;
- when the server has ended by itself;
- when the file `touched` was not touched for `orphan_after_seconds`: no worker came back;
- when that file is gone: somebody removed the folder, and nobody can find us any more.

It is told what to do by a JSON object on its stdin, and answers with one on its stdout as soon as
the server runs: `{"started": pid}`, or `{"failed": "why"}`. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import sys
import time
from typing import Any

if __name__ == "__main__":
    # Last, so that nothing of ours can shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from activities import procfs
from activities.launch import Launched, LaunchFailed, become_subreaper, launch
from activities.rolling_log import RollingLog
from activities.sigchld import drain, wake_up_on_sigchld

STATE, LOCK, TOUCHED, LOG = "process.json", "process.lock", "process.touched", "process.log"
"""Files in the instance's folder. The lock is held for as long as the keeper lives."""

BUSY = "another keeper is in charge of this folder"
"""Why a keeper does not start its server, if an earlier attempt was quicker."""

_READ_BYTES = 1 << 16
_LAST_OUTPUT_BYTES = 1 << 20
_LOOK_SECONDS = 5.0
"""Between looks at the touched file; more often where the keeper would be an orphan soon."""
_LOCK_SECONDS = 2.0
"""Who looks whether the lock is held takes it for a moment."""
_LINUX = sys.platform == "linux"


class _Keeper:
    def __init__(self, spec: dict[str, Any], server: Launched, log: RollingLog, wake: int) -> None:
        self._spec = spec
        self._server = server
        self._log = log
        self._wake_up = wake
        self._orphan_after = float(spec["orphan_after_seconds"])
        self._exit_code: int | None = None
        self._childless = False
        self._ended_by = "exit"
        self._kill_at = math.inf
        self._touch = _touch_of(spec["folder"])
        self._touched = time.monotonic()  # which stands still while the machine sleeps
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._outputs = [server.stdout, server.stderr]
        for descriptor in self._outputs:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)
        self._asked = False
        signal.signal(signal.SIGTERM, lambda *_: self._ask())

    def watch(self) -> dict[str, Any]:
        """Serve until nothing is left of the tree; how it ended."""
        while not self._is_over():
            for descriptor, _ in self._poll.poll(self._patience_seconds() * 1000):
                if descriptor == self._wake_up:
                    drain(self._wake_up)
                elif descriptor in self._outputs:
                    self._read(descriptor)
            self._reap()
            if self._asked:
                self._end("stop")
            else:
                self._look()
        self._kill_all()
        for descriptor in list(self._outputs):
            # Somebody outside the tree may hold the pipe and write for ever.
            room = _LAST_OUTPUT_BYTES
            while room > 0 and descriptor in self._outputs and (size := self._read(descriptor)):
                room -= size
        self._log.finish()
        return {"by": self._ended_by, "exit_code": self._exit_code, "at": time.time()}

    def _ask(self) -> None:
        self._asked = True

    def _is_over(self) -> bool:
        if self._ended_by == "exit":
            return self._exit_code is not None
        return self._childless or time.monotonic() >= self._kill_at

    def _patience_seconds(self) -> float:
        patience = min(_LOOK_SECONDS, self._orphan_after / 4, self._kill_at - time.monotonic())
        return max(0.0, patience)

    def _look(self) -> None:
        touch = _touch_of(self._spec["folder"])
        if touch is None:
            self._end("orphan")
        elif touch != self._touch:
            self._touch, self._touched = touch, time.monotonic()
        elif time.monotonic() - self._touched > self._orphan_after:
            self._end("orphan")

    def _end(self, by: str) -> None:
        """Ask the whole tree to end; once only."""
        if self._ended_by != "exit" or self._exit_code is not None:
            return
        self._ended_by = by
        self._kill_at = time.monotonic() + self._spec["kill_grace_seconds"]
        group = self._server.pid
        others = procfs.descendants_of(os.getpid()) if _LINUX else []
        for each in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, each)  # its leader is not reaped yet, so the number is its own
            for process in others:
                if process.group != group:
                    procfs.send_signal(process, each)

    def _read(self, descriptor: int) -> int:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._log.feed(data)
        else:
            self._poll.unregister(descriptor)
            self._outputs.remove(descriptor)
            os.close(descriptor)
        return len(data)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if not pid:
                return
            if pid == self._server.pid:
                self._exit_code = os.waitstatus_to_exitcode(status)

    def _kill_all(self) -> None:
        """Kill every descendant, and return when the last of them is gone.

        Only children of ours are killed, round by round: a child's number is its own until we
        reap it, and its children become ours when it dies.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not _LINUX:  # where nobody becomes our child, the group is all that can be reached
                os.killpg(self._server.pid, signal.SIGKILL)
        immune: set[int] = set()
        self._reap()
        while not self._childless:
            children = procfs.children_of(os.getpid()) if _LINUX else []
            for pid in children:
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:
                    immune.add(pid)  # it became another user (sudo)
            if children and immune.issuperset(children):
                return
            select.select([self._wake_up], [], [], 0.02)
            drain(self._wake_up)
            self._reap()


def _touch_of(folder: str) -> int | None:
    try:
        return os.stat(os.path.join(folder, TOUCHED)).st_mtime_ns
    except OSError:
        return None


def _lock(folder: str) -> bool:
    """Take the folder's lock for good; False if another keeper has it."""
    descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _note(folder: str, state: dict[str, Any]) -> None:
    """Write the state, whole at any moment."""
    draft = os.path.join(folder, f".{STATE}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk, or the folder is gone
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(state, file)
        os.replace(draft, os.path.join(folder, STATE))


def _answer(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # who asked is gone; the next one will find us
        os.write(1, json.dumps(message).encode() + b"\n")


def _detach() -> None:
    """Let go of the streams of who started us."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def keep(spec: dict[str, Any]) -> None:
    """Start the server and stay with it to its end."""
    folder = spec["folder"]
    if not _lock(folder):
        return _answer({"failed": BUSY})
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    wake_up = wake_up_on_sigchld()
    become_subreaper()
    try:
        log = RollingLog(os.path.join(folder, LOG), spec["log_limit_bytes"], spec["secrets"])
        server = launch(spec["argv"], spec["cwd"], spec["env"], feed_stdin=False)
    except OSError as error:
        return _answer({"failed": f"{error.filename}: {error.strerror}"})
    except LaunchFailed as error:
        return _answer({"failed": str(error)})
    keeper = _Keeper(spec, server, log, wake_up)
    seen = procfs.look_at(os.getpid())
    state: dict[str, Any] = {
        "identity": spec["identity"],
        "keeper": os.getpid(),
        "start_ticks": seen.start_ticks if seen else 0,
        "server": server.pid,
    }
    _note(folder, state)
    _answer({"started": server.pid})
    _detach()  # who started us reads to the end of our stdout
    _note(folder, state | {"ended": keeper.watch()})
    return None


def main() -> None:
    """Read what to do, and become a daemon for it."""
    spec = json.loads(sys.stdin.buffer.read())  # cut short if the worker died: then no JSON
    if os.fork():
        os._exit(0)
    os.setsid()
    keep(spec)


if __name__ == "__main__":
    main()
