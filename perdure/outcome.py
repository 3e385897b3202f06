"""How a suite ended, as the one document that `perdure run --json` prints.

A trial that was not run (the suite was cancelled before its turn) is not a failed one: it is
missing from its task's `trials`, and the task's status says `not_run`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from perdure.core.record import summed
from perdure.messages import SuiteTask, TrialSummary

_TRIAL_KEYS = (
    "trial",
    "run_id",
    "status",
    "failure",
    "steps",
    "retry_resets",
    "instances",
    "usage",
    "started_at",
    "duration",
)


@dataclass(frozen=True)
class Trials:
    """What is known of a suite's trials."""

    ended: Sequence[Mapping[str, Any]]
    """A line of `perdure.results.result_line` for each; with `note`, if something went wrong
    beside the task."""
    running: Collection[tuple[str, int]] = ()
    """Task id and number of those under way."""
    is_open: bool = False
    """Whether the suite may still start some."""


def outcome(suite: str, run_id: str, tasks: Sequence[SuiteTask], trials: Trials) -> dict[str, Any]:
    """The document: totals, pass@k, and every task with its trials.

    A task's `passed` says whether any of its trials succeeded. Its `status` is `succeeded` only if
    all of them did; else `failed`, `cancelled`, `running`, `pending` or `not_run`, the first that
    is true of one.
    """
    by_task: dict[str, list[dict[str, Any]]] = {task.task["id"]: [] for task in tasks}
    for line in trials.ended:
        if line["task"] in by_task:
            note = {"note": line["note"]} if line.get("note") else {}
            by_task[line["task"]].append({key: line[key] for key in _TRIAL_KEYS} | note)
    found = [
        _task(index, task, sorted(by_task[task.task["id"]], key=lambda t: t["trial"]), trials)
        for index, task in enumerate(tasks)
    ]
    ended = [trial for task in found for trial in task["trials"]]
    counts = {
        status: sum(1 for trial in ended if trial["status"] == status)
        for status in ("succeeded", "failed", "cancelled")
    }
    return {
        "suite": suite,
        "run_id": run_id,
        "totals": {
            "total": sum(task.repeats for task in tasks),
            **counts,
            "usage": summed([trial["usage"] for trial in ended]),
        },
        "pass_at_k": pass_at_k(judged(task["trials"]) for task in found),
        "tasks": found,
    }


def line_of_summary(summary: TrialSummary) -> dict[str, Any]:
    """A trial's line when nothing is left of it but what it told its suite."""
    failed = summary.status == "failed"
    return {
        "task": summary.task_id,
        "trial": summary.trial,
        "run_id": summary.run_id,
        "status": summary.status,
        "failure": {
            "kind": summary.failure_kind or "infrastructure",
            "step": summary.failure_step,
            "reason": summary.failure_reason or summary.note or "",
        }
        if failed
        else None,
        "steps": [],
        "retry_resets": [],
        "instances": [],
        "usage": summary.usage,
        "started_at": summary.started_at or None,
        "duration": summary.duration_seconds,
    }


def judged(trials: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How many trials came to a verdict, and how many of those succeeded."""
    verdicts = [t["status"] for t in trials if t["status"] in ("succeeded", "failed")]
    return len(verdicts), verdicts.count("succeeded")


def pass_at_k(tasks: Iterable[tuple[int, int]]) -> dict[str, float]:
    """The chance that at least one of k trials of a task succeeds, averaged over the tasks.

    `tasks`: trials with a verdict and successes of each. For each k the unbiased estimate
    1 - C(n - c, k) / C(n, k), over the tasks that have at least k such trials; a k that no task
    has is left out.
    """
    known = list(tasks)
    estimates: dict[str, float] = {}
    for k in range(1, max((n for n, _ in known), default=0) + 1):
        chances = [1 - comb(n - c, k) / comb(n, k) for n, c in known if n >= k]
        estimates[str(k)] = sum(chances) / len(chances)
    return estimates


def _task(
    index: int, task: SuiteTask, ended: list[dict[str, Any]], trials: Trials
) -> dict[str, Any]:
    id = task.task["id"]
    statuses = {trial["status"] for trial in ended}
    if any(name == id for name, _ in trials.running):
        statuses.add("running")
    if len(ended) < task.repeats and "running" not in statuses:
        statuses.add("pending" if trials.is_open else "not_run")
    order = ("failed", "cancelled", "running", "pending", "not_run", "succeeded")
    return {
        "id": id,
        "index": index,
        "trials": ended,
        "status": next(status for status in order if status in statuses),
        "passed": any(trial["status"] == "succeeded" for trial in ended),
    }
