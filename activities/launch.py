"""Starting a command as a step is to see it: own session, clean signals, no terminal.

Standard library only. For a process with one thread: it forks without exec in between.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

if sys.platform == "linux":
    import ctypes

    _prctl = ctypes.CDLL(None, use_errno=True).prctl


class LaunchFailed(Exception):
    """The command did not start; the text says why."""


class Launched(NamedTuple):
    """A command that runs, and our ends of its pipes."""

    pid: int
    stdout: int
    stderr: int
    stdin: int | None
    """To be fed and closed; None: it has /dev/null."""
    started_at: float
    """Seconds since 1970, from before its program could do anything: whoever sees a trace of it
    comes later."""


def become_subreaper() -> None:
    """Make this process the parent of every descendant that loses its own. Linux only."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def launch(
    argv: list[str],
    cwd: str,
    env: Mapping[str, str],
    *,
    feed_stdin: bool,
    hold_sigint: bool = False,
    niceness: int = 0,
) -> Launched:
    """Start a command, and return when its program runs. Raises LaunchFailed.

    `hold_sigint`: a SIGINT waits until the program unblocks it. `niceness`: over our own.
    """
    try:
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe()
        if feed_stdin:
            theirs_in, ours_in = os.pipe()
        else:
            theirs_in, ours_in = os.open(os.devnull, os.O_RDONLY), -1
        ours_trouble, theirs_trouble = os.pipe()
        keeper = os.getpid()
        started_at = time.time()
        pid = os.fork()
    except OSError as error:
        raise LaunchFailed(f"cannot start {argv[0]!r}: {error.strerror}") from error
    if pid == 0:
        streams = (theirs_in, theirs_out, theirs_err)
        _become(argv, cwd, env, streams, theirs_trouble, keeper, hold_sigint, niceness)
    for descriptor in (theirs_in, theirs_out, theirs_err, theirs_trouble):
        os.close(descriptor)
    with open(ours_trouble, "rb") as pipe:  # closed by a successful exec
        trouble = pipe.read()
    if trouble:
        os.waitpid(pid, 0)
        raise LaunchFailed(_explain(argv, cwd, env, *json.loads(trouble)))
    return Launched(pid, ours_out, ours_err, ours_in if feed_stdin else None, started_at)


def _become(
    argv: list[str],
    cwd: str,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    trouble: int,
    keeper: int,
    hold_sigint: bool,
    niceness: int,
) -> NoReturn:
    """In the child: turn into the command, or write down why not."""
    stage = "set-up"
    try:
        os.setsid()  # so /dev/tty cannot be opened, and the whole group can be signalled
        signal.set_wakeup_fd(-1)
        # An ignored signal stays ignored over exec: under nohup, or with Python's own SIGPIPE,
        # the command would not behave as in a shell.
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        held = {signal.SIGINT} if hold_sigint else set()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        if sys.platform == "linux":
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != keeper:  # it died before the line above could act
                os._exit(127)
        if niceness:
            _give_way(os.nice(niceness))
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        stage = "cwd"
        os.chdir(cwd)
        stage = "program"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(trouble, json.dumps([stage, error.errno, error.strerror]).encode())
    except BaseException as error:
        os.write(trouble, json.dumps([stage, 0, str(error)]).encode())
    finally:
        os._exit(127)


def _give_way(niceness: int) -> None:
    """Have this process's session be as nice as the process itself.

    Where Linux schedules sessions as groups (autogroup, usual on desktops and servers), that alone
    counts between processes of different sessions.
    """
    for _ in range(4):
        try:
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(niceness))
        except BlockingIOError:  # who is not root may say it ten times a second, all together
            time.sleep(0.1)
            continue
        except OSError:
            pass  # no such groups here
        return


def _explain(
    argv: list[str], cwd: str, env: Mapping[str, str], stage: str, code: int, reason: str
) -> str:
    if stage == "cwd":
        return f"cannot start {argv[0]!r}: working directory {cwd!r}: {reason}"
    if code == errno.ENOENT:
        # A script's missing interpreter gives the same error as a missing script.
        if found := _look_up(argv[0], cwd, env):
            reason = f"{found} names an interpreter (#! line) that does not exist"
        elif "/" in argv[0]:
            reason = f"no such program (looked from {cwd})"
        else:
            count = len(env.get("PATH", os.defpath).split(os.pathsep))
            reason = f"no such program in the {count} folders of its PATH"
    elif code == errno.E2BIG:
        size = sum(len(os.fsencode(argument)) + 1 for argument in argv)
        reason = f"argument list or environment too long ({size} bytes of arguments)"
    elif code == errno.ENOEXEC:
        reason = "not a program of this machine, and no #! line says what runs it"
    elif code == errno.EACCES:
        reason = f"{reason} (is it a file, and executable?)"
    return f"cannot start {argv[0]!r}: {reason}"


def _look_up(program: str, cwd: str, env: Mapping[str, str]) -> str | None:
    directories = [""] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep)
    for directory in directories:
        path = os.path.join(cwd, directory, program)
        with contextlib.suppress(OSError):
            if os.access(path, os.F_OK):
                return path
    return None
