"""Running the command line as a process of its own, as people do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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

    def environment(self, **more: str) -> dict[str, str]:
        """What the process sees: nothing of the tester's own settings."""
        own = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
        return {**own, "PYTHONPATH": str(ROOT), "PERDURE_STATE_DIR": str(self.state), **more}

    def __call__(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*self.python, "-m", "perdure", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**more),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def start(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.Popen[str]:
        """Begin a command, in a process group of its own."""
        return subprocess.Popen(
            [*self.python, "-m", "perdure", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**more),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def write(self, name: str, text: str) -> Path:
        """A file in the current directory."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path


@contextmanager
def command_line(folder: Path) -> Iterator[CommandLine]:
    """`perdure` with directories of its own below `folder`; ends what it leaves running."""
    current = folder / "folder"
    current.mkdir()
    command = CommandLine(folder / "state", current)
    yield command
    if (command.state / "server.json").exists():
        command("server", "stop")


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
