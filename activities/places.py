"""Where a run lives on its host: its working directory, its attempts, its secrets.

```
<state>/runs/<suite>/<task>/<trial>/<run id>/
    work/                     PERDURE_WORKDIR, shared by the run's steps
    work.1/                   the same after the run has started over, for want of an environment
    steps/<step>.<attempt>/   logs, exit.json, outcome.json, artifacts/; if it has need of one
    undo/<step>.<attempt>.<kind>/   the same of what undoes an attempt (kind: declared, type, ...)
    jobs/<exec id>/           logs and files of a background job
    outcomes.jsonl            the outcomes of the attempts that had no need of a directory
    secrets.json              values written under redacted keys; removed at the run's end
```
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from perdure.messages import RunRef
from perdure.safe_names import UnsafeName, safe_part

__all__ = ["RunPlace", "UnsafeName", "safe_part", "trial_dir"]


@dataclass(frozen=True)
class RunPlace:
    """The directories and files of one run on this host."""

    root: Path

    @classmethod
    @lru_cache(maxsize=1000)  # each step asks, and paths are dear
    def of(cls, runs: Path, run: RunRef) -> RunPlace:
        """The place of `run` below `runs`. Raises UnsafeName."""
        return cls(trial_dir(runs, run) / safe_part(run.run_id))

    @cached_property
    def work(self) -> Path:
        """The run's working directory."""
        return self.root / "work"

    def work_after(self, restarts: int) -> Path:
        """The working directory of a run that has started over so often: a new one each time."""
        return self.work.with_name(f"work.{restarts}") if restarts else self.work

    @cached_property
    def steps(self) -> Path:
        """The attempts' directories."""
        return self.root / "steps"

    @cached_property
    def undone(self) -> Path:
        """The directories of what undoes attempts."""
        return self.root / "undo"

    @cached_property
    def jobs(self) -> Path:
        """The directories of background jobs."""
        return self.root / "jobs"

    def job(self, exec_id: str) -> Path:
        """The directory of one background job. Raises UnsafeName."""
        return self.jobs / safe_part(exec_id)

    @cached_property
    def outcomes(self) -> Path:
        """The outcomes of attempts without a directory."""
        return self.root / "outcomes.jsonl"

    @cached_property
    def secrets(self) -> Path:
        """Values written under redacted keys, mode 0600."""
        return self.root / "secrets.json"

    def attempt(self, step_id: str, attempt: int) -> Path:
        """The directory of one attempt of one step."""
        return self.steps / f"{safe_part(step_id)}.{attempt}"

    def undo(self, step_id: str, attempt: int, kind: str) -> Path:
        """The directory of what undoes one attempt of one step in one way."""
        return self.undone / f"{safe_part(step_id)}.{int(attempt)}.{safe_part(kind)}"


def trial_dir(base: Path, run: RunRef) -> Path:
    """`<base>/<suite>/<task>/<trial>`."""
    return base / safe_part(run.suite) / safe_part(run.task_id) / str(int(run.trial))
