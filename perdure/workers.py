"""The worker process behind an embedded run: started, watched, stopped, or left behind.

The process is `perdure worker` with the options below, in a session of its own so that a
terminal's Ctrl-C does not reach it:

```
--queue Q --address HOST:PORT    what it serves, and where
--exit-with-parent               its stdin is a pipe: at its end the parent is gone, and the worker
                                 ends too, unless the line `stay` was read before: then it ends
                                 once nothing on its queue is open any more
--ready-fd N                     it writes the line `ready` to this descriptor once it polls
--steps MODULE  --pass-env NAME  --inherit-env  --env-file F  --host NAME
```
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.state import StateDir, explained

READY_SECONDS = 60.0
"""A loaded machine starts an interpreter slowly; one that needs longer is not going to serve."""

DRAIN_SECONDS = 35.0
"""After SIGTERM. The worker hands its steps back after 10 s, and by 30 s it leaves in any case."""

MAX_LOSSES = 5
LOSSES_WITHIN_SECONDS = 30.0
"""A worker that is lost so often has a reason that starting it again does not mend."""

_STAY = b"stay\n"
_LOG_TAIL_BYTES = 4000


class WorkerFailed(PerdureError):
    """The worker process does not start, or does not stay up."""


@dataclass(frozen=True)
class WorkerConfig:
    """What the worker process of an embedded run is given; a team's workers have their own."""

    steps: tuple[str, ...] = ()
    """Modules with step types."""
    pass_env: tuple[str, ...] = ()
    """Variables that the processes of steps may see."""
    inherit_env: bool = False
    """Let them see all variables."""
    env_file: Path | None = None
    host: str | None = None

    def arguments(self) -> list[str]:
        """The options of `perdure worker` that say so."""
        named = [("--steps", self.steps), ("--pass-env", self.pass_env)]
        found = [part for option, values in named for value in values for part in (option, value)]
        if self.inherit_env:
            found.append("--inherit-env")
        if self.env_file:
            found += ["--env-file", os.path.abspath(self.env_file)]
        if self.host:
            found += ["--host", self.host]
        return found


class WorkerProcess:
    """A worker on a queue of its own, kept alive until it is stopped or detached."""

    def __init__(
        self, settings: Settings, queue: str, address: str, config: WorkerConfig | None = None
    ) -> None:
        """`address`: the embedded server's."""
        self.queue = queue
        self.log: Path | None = None
        """What the newest process prints."""
        self._settings = settings
        self._address = address
        self._config = config or WorkerConfig()
        self._process: subprocess.Popen[bytes] | None = None
        self._losses: deque[float] = deque(maxlen=MAX_LOSSES)
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process; None before it was started and after it was stopped."""
        return self._process.pid if self._process else None

    async def ensure_alive(self) -> bool:
        """Start the worker unless it lives, and wait until it polls; True if it was started.

        Raises WorkerFailed with the end of its log: it ended before it polled, or it was lost
        again and again.
        """
        async with self._starting:
            if self._process and self._process.poll() is None:
                return False
            if self._process:
                self._note_loss(self._process)
            self._process = await self._start()
            return True

    async def stop(self) -> None:
        """End the worker: it drains, and is killed if it cannot. Harmless when repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        for number, patience_seconds in ((signal.SIGTERM, DRAIN_SECONDS), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            if await _ended(process, patience_seconds):
                break
        _close(process)

    def detach(self) -> None:
        """Leave the worker behind: it goes on when this process ends.

        Raises StateError if that cannot be noted for others.
        """
        if self._process:
            _note_left(self._folder, self.queue, self._process.pid, self._config)
        process, self._process = self._process, None
        if process and process.stdin:
            # One that has just died cannot read it, and is started anew by the next run.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(_STAY)
                process.stdin.flush()
            _close(process)

    # --- Inside -----------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self._settings.state.path / "workers"

    def _command(self, ready_fd: int) -> list[str]:
        return [
            *(sys.executable, "-m", "perdure", "worker"),
            *("--queue", self.queue, "--address", self._address),
            *("--exit-with-parent", "--ready-fd", str(ready_fd)),
            *self._config.arguments(),
        ]

    async def _start(self) -> subprocess.Popen[bytes]:
        ready, ready_end = os.pipe()
        try:
            process = self._spawn(ready_end)
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(ready_end)
        try:
            is_ready = await _says_ready(ready)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if is_ready:
            return process
        # Neither a word nor an end in time, or an end without a word.
        ended = process.poll() is not None or await _ended(process, 5.0)
        process.kill()
        process.wait()
        _close(process)
        how = f"ended with status {process.returncode}" if ended else "does not get ready"
        raise WorkerFailed(f"the worker {how}: {self._last_words()}")

    def _spawn(self, ready_fd: int) -> subprocess.Popen[bytes]:
        folder = self._folder
        # An embedded worker serves this state directory, whatever else the environment says.
        environment = {**os.environ, "PERDURE_STATE_DIR": str(self._settings.state.path)}
        draft = folder / f"{_file_part(self.queue)}.{os.getpid()}.starting"
        with explained(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with draft.open("wb") as log:
                process = subprocess.Popen(
                    self._command(ready_fd),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[ready_fd],
                    start_new_session=True,
                    env=environment,
                )
            self.log = folder / f"{_file_part(self.queue)}.{process.pid}.log"
            draft.rename(self.log)
            # Of an earlier process with this pid.
            _left_file(folder, self.queue, process.pid).unlink(missing_ok=True)
        return process

    def _note_loss(self, process: subprocess.Popen[bytes]) -> None:
        """Count a process that ended by itself; refuse to go on after too many."""
        _close(process)
        now = time.monotonic()
        self._losses.append(now)
        if len(self._losses) == MAX_LOSSES and now - self._losses[0] < LOSSES_WITHIN_SECONDS:
            self._process = None
            raise WorkerFailed(
                f"the worker was lost {MAX_LOSSES} times within {LOSSES_WITHIN_SECONDS:.0f} s, "
                f"the last time with status {process.returncode}: {self._last_words()}"
            )

    def _last_words(self) -> str:
        """The end of the log, on one line, and where the rest is."""
        if self.log is None:
            return "it printed nothing"
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            said = " | ".join(line.removeprefix("perdure: ") for line in lines if line)[-600:]
            if said:
                return f"{said} (see {self.log})"
        return f"it printed nothing (see {self.log})"


def _file_part(queue: str) -> str:
    """The queue as a part of a file's name: a queue's name may hold slashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", queue)[:150]


async def _says_ready(fd: int) -> bool:
    """Whether a line arrives on the pipe in time; closes it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        async with asyncio.timeout(READY_SECONDS):
            return (await reader.readline()).strip() == b"ready"
    except TimeoutError:
        return False
    finally:
        transport.close()


async def _ended(process: subprocess.Popen[bytes], patience_seconds: float) -> bool:
    # Polled: a thread in a blocking wait could not be cancelled by Ctrl-C.
    deadline = time.monotonic() + patience_seconds
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()


def log_pids(state: StateDir, queue: str) -> set[int]:
    """The processes that ever were workers of the queue, by the logs that they left."""
    name = re.compile(re.escape(_file_part(queue)) + r"\.([0-9]+)\.log")
    found = (name.fullmatch(file.name) for file in (state.path / "workers").glob("*.log"))
    return {int(match[1]) for match in found if match}


# --- Workers that were left behind ------------------------------------------------------------


def left_pids(state: StateDir, queue: str) -> dict[int, list[str]]:
    """The processes that were left behind on the queue, dead ones too, by `WorkerProcess.detach`.

    Each with its `WorkerConfig.arguments`.
    """
    found: dict[int, list[str]] = {}
    for file in (state.path / "workers").glob("*.left"):
        stem, _, pid = file.name.removesuffix(".left").rpartition(".")
        if stem == _file_part(queue) and pid.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                found[int(pid)] = json.loads(file.read_text())
    return found


def forget_left(state: StateDir, queue: str, pid: int) -> None:
    """Note that a worker that was left behind has ended."""
    with contextlib.suppress(OSError):
        _left_file(state.path / "workers", queue, pid).unlink(missing_ok=True)


def _note_left(folder: Path, queue: str, pid: int, config: WorkerConfig) -> None:
    file = _left_file(folder, queue, pid)
    with explained(file):
        draft = file.with_suffix(".new")
        draft.write_text(json.dumps(config.arguments()))
        draft.rename(file)


def _left_file(folder: Path, queue: str, pid: int) -> Path:
    return folder / f"{_file_part(queue)}.{pid}.left"
