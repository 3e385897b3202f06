"""Running the command line: as a process of its own, as people do, or within the test's."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from perdure.cli import status_of
from perdure.config import Settings
from perdure.server import Server, status, users
from tests import warm
from tests.waiting import HASTY

ROOT = Path(__file__).resolve().parent.parent.parent

PATIENCE_SECONDS = 90.0
"""For a loaded machine; a test that waits this long has failed."""

OWN_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True)
class CommandLine:
    """`perdure` with a state directory and a current directory of its own."""

    state: Path
    folder: Path
    python: tuple[str, ...] = (sys.executable,)
    within: bool = False
    """Whether calls are made in the test's process, which has imported everything already; what is
    started beside it is a copy of one that has, too."""

    def environment(self, **more: str) -> dict[str, str]:
        """What the process sees: nothing of the tester's own settings."""
        own = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
        return {**own, "PYTHONPATH": str(ROOT), "PERDURE_STATE_DIR": str(self.state), **more}

    def __call__(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, within this process if it is to be so."""
        if self.within:
            return self._here(*map(str, arguments), **more)
        return self.process(*arguments, stdin=stdin, **more)

    def process(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as a process of its own."""
        return subprocess.run(
            [*self.python, "-m", "perdure", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**more),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def _here(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment(**more), clear=True),
            mock.patch.object(sys, "argv", ["perdure", *arguments]),
            warm.workers(),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = status_of(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Keep one server for all commands of the block; each would start and end its own."""
        server = Server(Settings.from_env({"PERDURE_STATE_DIR": str(self.state)}), role="test")
        asyncio.run(server.join())
        try:
            yield
        finally:
            asyncio.run(server.leave())

    def start(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.Popen[str]:
        """Begin a command, in a process group of its own."""
        is_usual = self.python == (sys.executable,)
        begin = warm.Popen if self.within and is_usual else subprocess.Popen
        return begin(
            [*self.python, "-m", "perdure", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**more),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hasty(self) -> tuple[str, str]:
        """The option for a worker that is done soon with ending, and with waiting for room."""
        self.write("hasty.py", HASTY)
        return "--steps", "hasty"

    def kill(self) -> None:
        """End the server and its workers, and with these their steps; nobody waits for them."""
        state = Settings.from_env({"PERDURE_STATE_DIR": str(self.state)}).state
        left = [user.pid for user in users(state) if user.role == "worker"]
        for pid in (*left, status(state).pid):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def write(self, name: str, text: str) -> Path:
        """A file in the current directory."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path


@contextmanager
def command_line(folder: Path, *, within: bool = False) -> Iterator[CommandLine]:
    """`perdure` with directories of its own below `folder`; ends what it leaves running."""
    current = folder / "folder"
    current.mkdir()
    command = CommandLine(folder / "state", current, within=within)
    yield command
    command.kill()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def finish(process: subprocess.Popen[str], *signals: signal.Signals) -> tuple[int, str, str]:
    """Send signals to the process's group, await its end; status, stdout and stderr."""
    for number in signals:
        os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, stdout, stderr


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Leave none of them behind."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
