"""How a suite ended, as the one document that `perdure run --json` prints.

A trial that was not run (the suite was cancelled before its turn, or stopped at one of its limits)
is not a failed one: it is missing from its task's `trials`, and counted by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from perdure.core.record import summed
from perdure.messages import FailureKind, SuiteTask, TrialSummary

FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
"""In the order in which they are told."""

_ENDS = ("succeeded", "failed", "cancelled")
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
    """A line of `perdure.results.result_line` for each, perhaps marked by `with_marks`; of a trial
    that ended more than once the last counts."""
    running: Collection[tuple[str, int]] = ()
    """Task id and number of those under way; an end of theirs that is known is an earlier one."""
    is_open: bool = False
    """Whether the suite may still start some."""
    stopped: str | None = None
    """Why nothing more is started, for people."""
    paused: bool = False
    """Whether nothing is started until somebody resumes the suite."""
    cancelled: bool = False
    """Whether the suite itself was cancelled."""


def outcome(suite: str, run_id: str, tasks: Sequence[SuiteTask], trials: Trials) -> dict[str, Any]:
    """The document: status, totals, pass@k, and every task with its trials.

    The totals add up: total = succeeded + failed + cancelled + not_run, and + running + pending
    where there are such. A task's `passed` says whether any of its trials succeeded. Its `status`
    is `succeeded` only if all of them did; else `failed`, `cancelled`, `running`, `pending` or
    `not_run`, the first that is true of one.
    """
    repeats = {task.task["id"]: task.repeats for task in tasks}
    ended: dict[tuple[str, int], dict[str, Any]] = {}
    for line in trials.ended:
        if 1 <= line["trial"] <= repeats.get(line["task"], 0):
            marks = {key: line[key] for key in ("note", "unwritten") if line.get(key)}
            ended[line["task"], line["trial"]] = {key: line[key] for key in _TRIAL_KEYS} | marks
    running = {run for run in trials.running if run[0] in repeats}
    for run in running:
        ended.pop(run, None)
    by_task: dict[str, list[dict[str, Any]]] = {id: [] for id in repeats}
    for (id, _), trial in sorted(ended.items()):
        by_task[id].append(trial)
    at_work = Counter(id for id, _ in running)
    found = [
        _task(index, task, by_task[task.task["id"]], at_work[task.task["id"]], trials)
        for index, task in enumerate(tasks)
    ]
    totals = _totals(sum(repeats.values()), list(ended.values()), len(running), trials)
    return {
        "suite": suite,
        "run_id": run_id,
        "status": _status(totals, trials),
        "stopped": trials.stopped,
        "paused": trials.paused,
        "totals": totals,
        "pass_at_k": pass_at_k(judged(task["trials"]) for task in found),
        "tasks": found,
    }


def trials_of(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each ended trial of a suite's document, with its task."""
    return ((task, trial) for task in document["tasks"] for trial in task["trials"])


def unwritten(document: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Task id and number of the trials whose record is not among the files of results."""
    return [(task["id"], trial["trial"]) for task, trial in trials_of(document)
            if trial.get("unwritten")]  # fmt: skip


def with_marks(line: Mapping[str, Any], summary: TrialSummary) -> dict[str, Any]:
    """The line, marked with what only the suite heard: what went wrong beside the task."""
    marked = dict(line)
    if summary.note:
        marked["note"] = summary.note
    if summary.unwritten:
        marked["unwritten"] = True
    return marked


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


def count_by_kind(failures: Iterable[Mapping[str, Any] | None]) -> dict[str, int]:
    """How many failures there are of each kind, in the order of `FAILURE_KINDS`; no zeros."""
    kinds = [failure["kind"] for failure in failures if failure]
    known = [kind for kind in FAILURE_KINDS if kind in kinds]
    return {kind: kinds.count(kind) for kind in known}


def judged(trials: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How many trials came to a verdict, and how many of those succeeded.

    A failed trial is a verdict, of whatever kind its failure is: what the infrastructure spoiled
    is run again by `retry_infrastructure`, and a number that leaves it out would flatter.
    """
    verdicts = [t["status"] for t in trials if t["status"] in ("succeeded", "failed")]
    return len(verdicts), verdicts.count("succeeded")


def pass_at_k(tasks: Iterable[tuple[int, int]]) -> dict[str, float]:
    """The chance that at least one of k trials of a task succeeds, averaged over the tasks.

    `tasks`: trials with a verdict and successes of each. For each k the unbiased estimate
    1 - C(n - c, k) / C(n, k), over the tasks that have at least k such trials; a k that no task
    has is left out.
    """
    sums: dict[int, float] = {}
    counted: dict[int, int] = {}
    # Equal counts have equal chances, and most tasks of a suite share a few.
    for (n, c), alike in Counter(tasks).items():
        none = 1.0  # C(n - c, k) / C(n, k), made from that of k - 1: a suite may have many trials
        for k in range(1, n + 1):
            none *= max(0, n - c - k + 1) / (n - k + 1)
            sums[k] = sums.get(k, 0.0) + alike * (1 - none)
            counted[k] = counted.get(k, 0) + alike
    return {str(k): sums[k] / counted[k] for k in sorted(sums)}


def _totals(
    total: int, ended: Sequence[Mapping[str, Any]], running: int, trials: Trials
) -> dict[str, Any]:
    rest = total - len(ended) - running
    under_way = {"running": running, "pending": rest} if trials.is_open else {}
    if running and not trials.is_open:  # the suite was terminated, these were not
        under_way = {"running": running}
    return {
        "total": total,
        **{status: sum(1 for trial in ended if trial["status"] == status) for status in _ENDS},
        "failed_by_kind": count_by_kind(trial["failure"] for trial in ended),
        "not_run": 0 if trials.is_open else rest,
        **under_way,
        "usage": summed([trial["usage"] for trial in ended]),
    }


def _status(totals: Mapping[str, Any], trials: Trials) -> str:
    if trials.is_open:
        return "running"
    if totals["succeeded"] == totals["total"]:
        return "succeeded"
    failed = totals["failed"] or trials.stopped
    return "failed" if failed and not trials.cancelled else "cancelled"


def _task(
    index: int,
    task: SuiteTask,
    ended: list[dict[str, Any]],
    at_work: int,
    trials: Trials,
) -> dict[str, Any]:
    statuses = {trial["status"] for trial in ended}
    if at_work:
        statuses.add("running")
    if len(ended) + at_work < task.repeats:
        statuses.add("pending" if trials.is_open else "not_run")
    order = ("failed", "cancelled", "running", "pending", "not_run", "succeeded")
    return {
        "id": task.task["id"],
        "index": index,
        "repeats": task.repeats,
        "trials": ended,
        "status": next(status for status in order if status in statuses),
        "passed": any(trial["status"] == "succeeded" for trial in ended),
    }
