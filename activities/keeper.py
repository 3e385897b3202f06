"""A keeper: the process in charge of one command and of all its descendants.

A fork of the supervisor, and a subreaper of its own, so whatever the command starts comes back
here when it loses its parent, with a session, an environment and a name of its own or not. What
is left when the command has ended, or when nobody waits for it any more, is killed from here.

Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from activities import procfs
from activities.capture import Capture
from activities.keeper_words import INTERRUPT, KILL, NUDGE, TERMINATE, TOUCH, receive, tell
from activities.launch import Launched, LaunchFailed, become_subreaper, launch
from activities.sigchld import drain, wake_up_on_sigchld

_LIVE_SECONDS = 0.2
"""At most so often it is written how a line stands that is being redrawn."""

_READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
"""No pipe holds more (/proc/sys/fs/pipe-max-size, unless root raised it)."""
_LINUX = sys.platform == "linux"


def keep(worker: socket.socket, lifeline: int) -> bool:
    """Run the command that the worker asks for; True if its end was reported.

    `lifeline` ends when the supervisor does. When it or the worker is gone, the whole tree is
    killed at once, and an exit file is written only if the command had already ended.
    """
    spec, stdin = receive(worker)
    if spec is None or _is_gone(worker.fileno()) or _is_gone(lifeline):
        return False
    wake_up = wake_up_on_sigchld()
    become_subreaper()
    captures: list[Capture] = []
    try:
        for name in ("stdout", "stderr"):
            captures.append(
                Capture(
                    spec[name],
                    spec["output_limit_chars"],
                    spec["secrets"],
                    fold_redraws=spec["fold_redraws"],
                )
            )
        command = launch(
            spec["argv"],
            spec["cwd"],
            spec["env"],
            feed_stdin=stdin is not None,
            hold_sigint=spec["hold_sigint"],
            niceness=spec["niceness"],
        )
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        return tell(worker, {"failed": f"cannot start {spec['argv'][0]!r}: {reason}"})
    except LaunchFailed as error:
        return tell(worker, {"failed": str(error)})
    keeper = _Keeper(spec, command, captures, worker, lifeline, wake_up)
    try:
        tell(worker, {"started": command.pid})
        ended = keeper.watch(stdin or b"")
    finally:
        keeper.kill_all()
    if not ended:
        return False
    try:
        report = {"exit": keeper.finish()}
    except OSError as error:
        return tell(worker, {"unrecorded": f"{spec['exit_file']}: {error.strerror}"})
    if spec["hold_report_seconds"]:
        select.select([worker.fileno(), lifeline], [], [], spec["hold_report_seconds"])
    return tell(worker, report)


class _Keeper:
    def __init__(
        self,
        spec: dict[str, Any],
        command: Launched,
        captures: list[Capture],
        worker: socket.socket,
        lifeline: int,
        wake_up: int,
    ) -> None:
        self._spec = spec
        self._command = command
        self._worker = worker
        self._wake_up = wake_up
        self._outputs = dict(zip((command.stdout, command.stderr), captures, strict=True))
        self._captures = captures

        self._started = self._moved = time.monotonic()
        self._ended: float | None = None
        self._exit_code = 0
        self._childless = False
        self._abandoned = False
        self._ended_by = "exit"
        self._kill_at = math.inf
        self._live_at = math.inf
        self._cpu_seconds = 0.0
        self._peak_memory_bytes = 0

        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._listen(worker.fileno(), self._obey)
        self._listen(lifeline, self._abandon)
        self._listen(wake_up, lambda: drain(wake_up))
        for descriptor in self._outputs:
            os.set_blocking(descriptor, False)
            self._listen(descriptor, partial(self._read, descriptor))

    # --- While it runs ---------------------------------------------------------------------

    def watch(self, stdin: bytes) -> bool:
        """Serve the command until its end is due; False if nobody waits for it any more."""
        if self._command.stdin is not None:
            self._feed(self._command.stdin, stdin)
        while True:
            for descriptor, _ in self._poll.poll(self._patience_ms()):
                # A handler of this round may have closed it.
                if handler := self._handlers.get(descriptor):
                    handler()
            # Before giving up: an end that came first is an end, and is recorded.
            self._reap()
            if self._is_over():
                return True
            if self._abandoned:
                return self._ended is not None
            self._enforce_limits()
            self._show_live()

    def _is_over(self) -> bool:
        if self._ended is None:
            return time.monotonic() >= self._kill_at
        # A tree that was asked to end has its grace as a whole: often the command is a shell
        # that dies at once, and its child is the one with something to save.
        return self._ended_by == "exit" or self._childless or time.monotonic() >= self._kill_at

    def _patience_ms(self) -> int | None:
        next_limit = min(self._kill_at, self._timeout_at(), self._idle_timeout_at(), self._live_at)
        if next_limit == math.inf:
            return None
        return max(0, math.ceil((next_limit - time.monotonic()) * 1000))

    def _timeout_at(self) -> float:
        seconds = self._spec["timeout_seconds"]
        return math.inf if seconds is None or self._is_ending() else self._started + seconds

    def _idle_timeout_at(self) -> float:
        seconds = self._spec["idle_timeout_seconds"]
        return math.inf if seconds is None or self._is_ending() else self._moved + seconds

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        if now >= self._timeout_at():
            self._end("timeout", signal.SIGTERM)
        elif now >= self._idle_timeout_at():
            self._end("idle_timeout", signal.SIGTERM)

    def _show_live(self) -> None:
        if time.monotonic() >= self._live_at:
            self._live_at = math.inf
            for capture in self._captures:
                capture.write_live()

    def _is_ending(self) -> bool:
        return self._ended_by != "exit"

    def _end(self, ended_by: str, signum: int) -> None:
        """Ask the tree to end; once only, so that a second request does not prolong the grace."""
        if self._is_ending() or self._ended is not None:
            return
        self._ended_by = ended_by
        self._kill_at = time.monotonic() + self._spec["kill_grace_seconds"]
        main = self._command.pid
        # Not reaped yet, so the number is still its own. A stopped process acts on the signal
        # only when it goes on.
        others = (
            [p for p in procfs.descendants_of(os.getpid()) if p.group != main] if _LINUX else []
        )
        for each in (signum, signal.SIGCONT):
            self._signal_group(each)
            for process in others:
                procfs.send_signal(process, each)

    def _obey(self) -> None:
        try:
            requests = self._worker.recv(4096)
        except ConnectionError:
            requests = b""
        if not requests:
            self._abandon()
        if TOUCH in requests:
            self._moved = time.monotonic()
        if TERMINATE in requests:
            self._end("cancelled", signal.SIGTERM)
        if INTERRUPT in requests:
            self._end("cancelled", signal.SIGINT)
        for _ in range(requests.count(NUDGE)):
            self._reap()  # it may have ended a moment ago; until then its number is its own
            reached = self._ended is None and self._signal_group(signal.SIGINT)
            tell(self._worker, {"nudged": reached})
        if KILL in requests and self._ended is None:
            self._ended_by = "killed" if self._ended_by == "exit" else self._ended_by
            self._kill_at = 0.0

    def _abandon(self) -> None:
        self._abandoned = True

    # --- Pipes -----------------------------------------------------------------------------

    def _listen(
        self, descriptor: int, handler: Callable[[], object], event: int = select.POLLIN
    ) -> None:
        self._poll.register(descriptor, event)
        self._handlers[descriptor] = handler

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._handlers[descriptor]
        os.close(descriptor)

    def _read(self, descriptor: int) -> int:
        """Take what a pipe holds, up to one read; the number of bytes."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._moved = time.monotonic()
            self._outputs[descriptor].feed(data)
            if self._spec["fold_redraws"]:
                self._live_at = min(self._live_at, self._moved + _LIVE_SECONDS)
        else:
            self._close(descriptor)
        return len(data)

    def _feed(self, descriptor: int, data: bytes) -> None:
        os.set_blocking(descriptor, False)
        rest = memoryview(data)

        def write() -> None:
            nonlocal rest
            try:
                rest = rest[os.write(descriptor, rest[:_READ_BYTES]) :] if rest else rest
            except BlockingIOError:
                return
            except BrokenPipeError:  # it does not want the rest
                rest = rest[:0]
            if not rest:
                self._close(descriptor)

        self._listen(descriptor, write, select.POLLOUT)

    # --- The end ---------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = _LINUX or not self._signal_group(0)
                return
            if not pid:
                return
            self._count(usage)
            if pid == self._command.pid:
                self._ended = time.monotonic()
                self._exit_code = os.waitstatus_to_exitcode(status)

    def _count(self, usage: resource.struct_rusage) -> None:
        self._cpu_seconds += usage.ru_utime + usage.ru_stime
        unit = 1024 if _LINUX else 1
        self._peak_memory_bytes = max(self._peak_memory_bytes, usage.ru_maxrss * unit)

    def kill_all(self) -> None:
        """Kill every descendant, and return when the last of them is gone.

        Only our own children are killed, round by round: a child's number is its own until we
        reap it, and its children become ours when it dies. Nothing escapes between two looks.
        """
        if not _LINUX:  # without subreapers the group is all that can be reached from here
            self._signal_group(signal.SIGKILL)
        immune: set[int] = set()
        pause_ms = 1
        self._reap()
        while not self._childless:
            children = procfs.children_of(os.getpid()) if _LINUX else []
            for pid in children:
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:
                    immune.add(pid)  # it became another user (sudo)
            if children and immune.issuperset(children) and self._ended is not None:
                return
            select.select([self._wake_up], [], [], pause_ms / 1000)
            drain(self._wake_up)
            pause_ms = min(pause_ms * 2, 200)
            self._reap()

    def _signal_group(self, signum: int) -> bool:
        """Signal the command's process group; False if nobody is left in it."""
        try:
            os.killpg(self._command.pid, signum)
        except (ProcessLookupError, PermissionError):  # the latter on macOS, for a zombie
            return False
        return True

    def finish(self) -> dict[str, Any]:
        """Take the last output, write the exit file, and return what it says."""
        for descriptor in self._outputs:
            # Somebody outside the tree may hold the pipe and write for ever.
            room = _PIPE_BYTES
            while room > 0 and descriptor in self._handlers and (size := self._read(descriptor)):
                room -= size
        for capture in self._captures:
            capture.finish()
            if self._spec["fold_redraws"]:
                capture.write_live()
        stdout, stderr = self._captures
        assert self._ended is not None
        exit_ = {
            "exit_code": self._exit_code,
            "ended_by": self._ended_by,
            "started_at": self._command.started_at,
            "duration_seconds": self._ended - self._started,
            "stdout_chars": stdout.chars,
            "stderr_chars": stderr.chars,
            "cpu_seconds": self._cpu_seconds,
            "peak_memory_bytes": self._peak_memory_bytes,
            "output_error": stdout.error or stderr.error,
        }
        if self._spec["exit_file"] is not None:
            _write_atomically(self._spec["exit_file"], exit_)
        return exit_


# --- Descriptors ---------------------------------------------------------------------------------


def _is_gone(descriptor: int) -> bool:
    """Whether the other end is closed, whatever is still to be read."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def _write_atomically(path: str, content: dict[str, Any]) -> None:
    """Write a file that is there whole or not at all, whoever is killed meanwhile."""
    unfinished = f"{path}.{os.getpid()}.tmp"
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(unfinished, path)
