"""Suites on disk for tests, written by the activities that write them for a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from temporalio.testing import ActivityEnvironment

from activities.contexts import Contexts
from activities.results import Results
from activities.suite_results import SuiteResults
from perdure.messages import FinishTask, RunRef, TrialSummary, WriteSuite

CLIENT = cast(Any, None)  # nobody is told

STARTED_AT = 1_700_000_000.0


class Store:
    """A directory of results, and short ways to fill it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "results"
        self.server: str | None = None
        self._trials = Results(CLIENT, folder / "runs", self.root, Contexts(CLIENT))

    async def end(self, trial: TrialSummary, suite: str = "s") -> TrialSummary:
        """Write what the end of a trial leaves."""
        run = RunRef(
            f"task/{suite}/{trial.task_id}/{trial.trial}", trial.run_id, suite,
            trial.task_id, trial.trial,
        )  # fmt: skip
        events = [
            {"seq": 1, "type": "run.started", "at": trial.started_at},
            {"seq": 2, "type": "step.started", "at": trial.started_at, "step": "ask", "attempt": 1},
        ]
        end = FinishTask(run, record_of(trial, suite), events, trial)
        told: TrialSummary = await ActivityEnvironment().run(self._trials.finish_task, end)
        return told

    async def suite(
        self,
        status: Literal["running", "succeeded", "failed", "cancelled"],
        trials: Sequence[TrialSummary] = (),
        *,
        suite: str = "s",
        run_id: str = "suite-run",
        started_at: float = STARTED_AT,
        stopped: str | None = None,
        **repeats: int,
    ) -> None:
        """Write the suite's own file; `repeats`: its tasks."""
        tasks = [
            {"id": id, "index": index, "digest": f"digest of {id}", "repeats": count}
            for index, (id, count) in enumerate(repeats.items())
        ]
        what = WriteSuite(
            suite, run_id, "digest", status, tasks, started_at, None, list(trials), stopped
        )
        suites = SuiteResults(self.root, self.server)
        await ActivityEnvironment().run(suites.write_suite, what)


def ended(id: str, status: str = "succeeded", trial: int = 1, **more: Any) -> TrialSummary:
    """A trial's end, some time after the suite's start."""
    known: dict[str, Any] = {
        "run_id": f"run-{id}-{trial}",
        "started_at": STARTED_AT + 5,
        "duration_seconds": 1.5,
    }
    if status == "failed":
        known |= {"failure_kind": "task", "failure_step": "ask", "failure_reason": "exit code 3"}
    return TrialSummary(id, trial, status=status, **(known | more))  # type: ignore[arg-type]


def record_of(trial: TrialSummary, suite: str) -> dict[str, Any]:
    """The record of a run of one step, `ask`, that ended so."""
    failure = None
    if trial.failure_kind:
        failure = {
            "kind": trial.failure_kind,
            "step": trial.failure_step,
            "message": trial.failure_reason,
            "type": "StepFailed",
        }
    attempt: dict[str, Any] = {
        "number": 1, "status": trial.status, "failure": failure, "artifacts": [],
        "started_at": trial.started_at,
    }  # fmt: skip
    step = {
        "id": "ask", "type": "command", "status": trial.status,
        "duration": trial.duration_seconds, "attempts": [attempt],
    }  # fmt: skip
    return {
        "workflow_id": f"task/{suite}/{trial.task_id}/{trial.trial}",
        "suite": suite, "task_id": trial.task_id, "trial": trial.trial, "run_id": trial.run_id,
        "status": trial.status, "failure": failure, "cancelled": None, "steps": [step],
        "retry_resets": [], "instances": [], "usage": trial.usage, "artifacts": [],
        "context": {"metadata": {}, "results": {"ask": {"stdout": "hi\n"}}},
        "started_at": trial.started_at, "duration": trial.duration_seconds,
    }  # fmt: skip
