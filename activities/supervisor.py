"""The supervisor: a small process beside a worker, the ancestor of all that its steps start.

Started by `activities/supervise.py` as a program of its own, without site-packages, so that it
is up in milliseconds and small to fork. It only forks keepers (`activities/keeper.py`): a request
is a number with the socket over which the keeper and the worker will talk. If a keeper is killed,
what it leaves is re-parented to here, killed, and the keeper's number is sent back.

It ends when the worker does, SIGKILL included, and takes everything along.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

if __name__ == "__main__":
    # Last, so that nothing of ours can shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from activities import keeper, procfs
from activities.keeper_words import tell
from activities.launch import become_subreaper
from activities.sigchld import drain, wake_up_on_sigchld

NUMBER_BYTES = 4

_LINUX = sys.platform == "linux"
_BETWEEN_LOOKS_MS = 5


class _Supervisor:
    def __init__(self, requests: socket.socket, worker_pid: int) -> None:
        self._requests = requests
        self._keepers: dict[int, bytes] = {}
        """Pid of each living keeper, with its number."""
        self._lost: list[bytes] = []
        """Keepers that were killed and whose orphans may still live."""
        # Keepers hold the reading end: it ends when we do, however that comes.
        self._lifeline, self._our_life = os.pipe()
        self._wake_up = wake_up_on_sigchld()
        self._poll = select.poll()
        self._poll.register(requests.fileno(), select.POLLIN)
        self._poll.register(self._wake_up, select.POLLIN)
        self._worker = -1
        if hasattr(os, "pidfd_open"):
            # The end of the socket says the same, unless a fork of the worker holds it too.
            with contextlib.suppress(OSError):
                self._worker = os.pidfd_open(worker_pid)
                self._poll.register(self._worker, select.POLLIN)

    def serve(self) -> None:
        """Fork keepers for as long as the worker lives."""
        while True:
            patience_ms = _BETWEEN_LOOKS_MS if self._lost else None
            ready = {descriptor for descriptor, _ in self._poll.poll(patience_ms)}
            drain(self._wake_up)
            self._reap()
            self._clear_up()
            if self._worker in ready:
                return
            if self._requests.fileno() in ready and not self._answer():
                return

    def end(self) -> None:
        """Have every keeper kill what it keeps, and return when nothing is left."""
        os.close(self._our_life)
        self._reap()
        while self._keepers or self._lost:
            select.select([self._wake_up], [], [], _BETWEEN_LOOKS_MS / 1000)
            drain(self._wake_up)
            self._reap()
            self._clear_up()

    def _answer(self) -> bool:
        """Fork the keeper that is asked for; False if the worker is gone."""
        try:
            number, sockets, _, _ = socket.recv_fds(self._requests, NUMBER_BYTES, 1)
        except OSError:
            return False
        if not number:
            return False
        os.set_inheritable(sockets[0], False)  # a received descriptor would outlive an exec
        with socket.socket(fileno=sockets[0]) as worker:
            try:
                pid = os.fork()
            except OSError as error:
                tell(worker, {"failed": f"cannot start a process: {error.strerror}"})
                return True
            if pid == 0:
                self._become_keeper(worker)
        self._keepers[pid] = number
        return True

    def _become_keeper(self, worker: socket.socket) -> NoReturn:
        reported = False
        try:
            os.close(self._our_life)
            self._requests.close()
            os.close(self._wake_up)
            if self._worker >= 0:
                os.close(self._worker)
            reported = keeper.keep(worker, self._lifeline)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if reported else 1)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                number = self._keepers.pop(pid, None)
                if number is not None and status:
                    self._lost.append(number)

    def _clear_up(self) -> None:
        """Kill what lost keepers left; tell the worker once it is gone."""
        if not self._lost:
            return
        # Only children of ours, so their numbers are their own until we reap them.
        orphans = set(procfs.children_of(os.getpid())) - self._keepers.keys() if _LINUX else set()
        killable = 0
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killable += 1
        if killable:
            return  # they are reaped, and their children seen, in the next round
        for number in self._lost:
            with contextlib.suppress(OSError):
                self._requests.sendall(number)
        self._lost.clear()


def main(descriptor: int, worker_pid: int) -> None:
    """Serve the worker at the other end of the socket `descriptor` until it is gone."""
    # A service manager sends its signals to every process; only the worker decides when to end.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    # Where a standard stream is closed, its number would go to a pipe and be overwritten.
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    become_subreaper()
    supervisor = _Supervisor(socket.socket(fileno=descriptor), worker_pid)
    os.set_inheritable(descriptor, False)
    supervisor.serve()
    supervisor.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
