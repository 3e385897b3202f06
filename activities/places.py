"""Where a run lives on its host: its working directory, its attempts, its secrets.

```
<state>/runs/<suite>/<task>/<trial>/<run id>/
    work/                     PERDURE_WORKDIR, shared by the run's steps
    steps/<step>.<attempt>/   logs, exit.json, outcome.json, artifacts/
    secrets.json              values written under redacted keys; removed at the run's end
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import PerdureError
from perdure.messages import RunRef

_PART = re.compile(r"[A-Za-z0-9._-]{1,200}")


class UnsafeName(PerdureError):
    """A name that may not be part of a path."""


def safe_part(name: str) -> str:
    """`name`, if it can stand in a path as one harmless part.

    Documents are checked when they are loaded; this also stops what reached the server by
    another way. Raises UnsafeName.
    """
    if name in (".", "..") or not _PART.fullmatch(name):
        raise UnsafeName(
            f"{name!r} cannot be part of a path: use ASCII letters, digits, '.', '_' and '-'"
        )
    return name


@dataclass(frozen=True)
class RunPlace:
    """The directories and files of one run on this host."""

    root: Path

    @classmethod
    def of(cls, runs: Path, run: RunRef) -> RunPlace:
        """The place of `run` below `runs`."""
        return cls(trial_dir(runs, run) / safe_part(run.run_id))

    @property
    def work(self) -> Path:
        """The run's working directory."""
        return self.root / "work"

    @property
    def steps(self) -> Path:
        """The attempts' directories."""
        return self.root / "steps"

    @property
    def secrets(self) -> Path:
        """Values written under redacted keys, mode 0600."""
        return self.root / "secrets.json"

    def attempt(self, step_id: str, attempt: int) -> Path:
        """The directory of one attempt of one step."""
        return self.steps / f"{safe_part(step_id)}.{attempt}"


def trial_dir(base: Path, run: RunRef) -> Path:
    """`<base>/<suite>/<task>/<trial>`."""
    return base / safe_part(run.suite) / safe_part(run.task_id) / str(int(run.trial))
