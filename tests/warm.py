"""Processes that need no start-up: copies of one that has imported all of perdure.

Reading the program in takes a process longer than most tests give it to do afterwards. A nursery,
one for each process of tests, does that once; what it is asked for is a fork of it, with the
arguments, the environment, the directory and the descriptors that the caller says. Such a copy is
a process like any other, with a pid, a session, files and an end of its own. Its parent is the
nursery, though, whose command line it shows to those who list processes: tests that look at these,
or at how an interpreter begins, start `subprocess.Popen` itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent

MODULES = (
    *("perdure.cli", "perdure.cli.following", "perdure.cli.logs", "perdure.cli.progress"),
    *("perdure.cli.resume_command", "perdure.cli.session", "perdure.cli.signals"),
    *("perdure.cli.summary", "perdure.cli.vacancy", "perdure.client", "perdure.junit"),
    *("perdure.pool_handle", "perdure.storage", "worker"),
)
"""What workers and `perdure run` work with; whatever else they need, they import themselves."""

LOOK_SECONDS = 1.0
"""How often a nursery looks whether the tests that it serves are still there."""

_OWN = 200
"""From here on are descriptors of the nursery; a copy is given lower ones."""

_NUMBER = struct.Struct("i")


# --- At the caller's --------------------------------------------------------------------------


class Popen(subprocess.Popen[Any]):
    """As `subprocess.Popen`, for `[sys.executable, "-m", MODULE, ...]` and `[..., "-c", CODE]`."""

    def _execute_child(self, *given: Any) -> None:
        how = _EXECUTE.bind(self, *given).arguments
        python, way, what, *rest = map(os.fspath, how["args"])
        assert python == sys.executable, how["args"]
        ends = [how[name] for name in _ENDS]
        streams = [own if fd == -1 else fd for own, fd in enumerate((ends[0], ends[3], ends[5]))]
        told, telling = os.pipe()
        request = {
            "way": way,
            "what": what,
            "arguments": rest,
            "environment": dict(os.environ if how["env"] is None else how["env"]),
            "folder": os.fspath(how["cwd"] or Path.cwd()),
            "leads": how["start_new_session"],
            "kept": how["pass_fds"],
        }
        message = json.dumps(request).encode()
        socket.send_fds(_nursery(), [message], [telling, *streams, *how["pass_fds"]])
        os.close(telling)
        self._told = told
        self.pid = self._hear()
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _hear(self) -> int:
        number: int
        (number,) = _NUMBER.unpack(os.read(self._told, _NUMBER.size))
        return number

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not select.select([self._told], [], [], 0 if flags else None)[0]:
            return 0, 0
        status = self._hear()
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self._child_created and self.returncode is None:  # type: ignore[attr-defined]
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


_EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")

SUBPROCESS = SimpleNamespace(Popen=Popen, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)


def workers() -> contextlib.AbstractContextManager[object]:
    """Within, workers that this process starts are copies."""
    return mock.patch("perdure.workers.subprocess", SUBPROCESS)


@functools.cache
def _nursery() -> socket.socket:
    """Where to ask for copies; the process is started when it is first needed."""
    if _inherited:
        return socket.socket(fileno=_inherited[0])
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: os.environ[name] for name in _GIVEN if name in os.environ}
    nursery = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(ours.fileno()), str(its.fileno())],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        pass_fds=[ours.fileno(), its.fileno()],
        start_new_session=True,
    )
    its.close()
    _started.append(nursery)
    return ours


_started: list[subprocess.Popen[bytes]] = []
"""The nursery, which ends after this process."""

_inherited: list[int] = []
"""In a copy: the descriptor at which its nursery is asked for further ones."""

_GIVEN = ("PATH", "HOME", "LANG", "TMPDIR")


# --- In the nursery ---------------------------------------------------------------------------


def main(asking: int, asked: int) -> None:
    """Serve requests until whoever started this is gone; a copy does what was asked for."""
    parent = os.getppid()
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a look for garbage in a copy writes to none of these pages
    asking = _moved(asking)
    requests = socket.socket(fileno=_moved(asked))
    woken, waking = (socket.socket(fileno=_moved(end.detach())) for end in socket.socketpair())
    for end in (woken, waking):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno())
    copies: dict[int, int] = {}
    while os.getppid() == parent:
        ready = select.select([requests, woken], [], [], LOOK_SECONDS)[0]
        if woken in ready:
            woken.recv(4096)
            _tell_ends(copies)
        if requests in ready:
            message, fds, _, _ = socket.recv_fds(requests, 1 << 20, 64)
            telling, *given = map(_moved, fds)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for end in (requests, woken, waking):
                    end.close()
                _inherited.append(asking)
                _become(json.loads(message), given, telling)
            for fd in given:
                os.close(fd)
            copies[pid] = telling


def _moved(fd: int) -> int:
    """The same file at a descriptor that no copy is to have."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OWN)
    os.close(fd)
    return moved


def _tell_ends(copies: dict[int, int]) -> None:
    while copies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        telling = copies.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # who asked for it is gone
            os.write(telling, _NUMBER.pack(status))
        os.close(telling)


def _become(request: dict[str, Any], given: list[int], telling: int) -> NoReturn:
    """Be the Python that was asked for."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for source, target in zip(given, [0, 1, 2, *request["kept"]], strict=True):
            os.dup2(source, target)
            os.close(source)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        if request["leads"]:
            os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        searched = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        sys.path[:2] = [os.getcwd(), *searched]  # the nursery's directory, and its PYTHONPATH
        sys.argv = [request["way"], *request["arguments"]]
        importlib.invalidate_caches()
        workers().__enter__()
    finally:
        # By now it leads its session: whoever hears of it may send it signals.
        os.write(telling, _NUMBER.pack(os.getpid()))
        os.close(telling)
    if request["way"] == "-m":
        runpy.run_module(request["what"], run_name="__main__", alter_sys=True)
    else:
        exec(compile(request["what"], "<string>", "exec"), {"__name__": "__main__"})
    sys.exit()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
