"""Tasks that wait until the test lets them go on, and tell when they began."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cli.support import CommandLine, wait_for

TASK = """\
id: {id}
repeats: {repeats}
steps:
  - id: wait
    type: command
    command: >-
      echo x >> "$GATES/began.{id}.$PERDURE_TRIAL";
      while [ ! -e "$GATES/open" ] && [ ! -e "$GATES/open.{id}" ]; do sleep 0.05; done;
      [ ! -e "$GATES/bad.{id}.$PERDURE_TRIAL" ]
    env: {{GATES: {folder}}}
"""


@dataclass(frozen=True)
class Gates:
    """The tasks of one test, below `tasks/` in the command line's folder."""

    folder: Path

    @classmethod
    def of(cls, perdure: CommandLine, *tasks: str, repeats: int = 1) -> Gates:
        """Write a task for each id."""
        folder = perdure.folder / "gates"
        folder.mkdir()
        for id in tasks:
            text = TASK.format(id=id, repeats=repeats, folder=folder)
            perdure.write(f"tasks/{id}.yaml", text)
        return cls(folder)

    def open(self, task: str | None = None) -> None:
        """Let a task go on; without one, all of them, also those that come later."""
        (self.folder / (f"open.{task}" if task else "open")).touch()

    def close(self) -> None:
        """Have tasks wait again."""
        (self.folder / "open").unlink()

    def spoil(self, task: str, trial: int = 1) -> None:
        """Have a trial fail, until `mend`."""
        (self.folder / f"bad.{task}.{trial}").touch()

    def mend(self, task: str, trial: int = 1) -> None:
        """Have a trial succeed again."""
        (self.folder / f"bad.{task}.{trial}").unlink()

    def starts(self, task: str, trial: int = 1) -> int:
        """How often a trial began."""
        file = self.folder / f"began.{task}.{trial}"
        return file.read_text().count("x") if file.exists() else 0

    def await_start(self, task: str, trial: int = 1, *, times: int = 1) -> None:
        """Wait until a trial has begun so often."""
        wait_for(lambda: self.starts(task, trial) >= times, f"{task}/{trial} begins")
