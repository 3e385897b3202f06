"""Tables of suites, runs, steps and failures, for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure import names
from perdure.cli.console import printable
from perdure.cli.environment_failures import reason_and_log
from perdure.cli.rollbacks import attempts_text
from perdure.cli.times import moment, span
from perdure.outcome import trials_of

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES = {
    "succeeded": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "yellow",
    "terminated": "yellow",
    "interrupted": "yellow",
    "done": "green",
    "killed": "red",
    "stopping": "yellow",
    "paused": "yellow",
    "no worker": "red",
    "running": "cyan",
    "waiting": "cyan",
}
REASON_CHARACTERS = 300

__all__ = [
    "failed_text",
    "failures_table",
    "kind_name",
    "last_failure",
    "note_lines",
    "runs_table",
    "state",
    "state_of",
    "steps_table",
    "suites_table",
    "table",
    "totals_line",
    "trial_name",
    "trials_of",
    "unserved_line",
]


def table(*columns: str | tuple[str, str]) -> Table:
    """An empty table without lines; a column is its title, or (title, "right" or "wrap")."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        title, how = column if isinstance(column, tuple) else (column, "")
        made.add_column(
            title,
            justify="right" if how == "right" else "left",
            no_wrap=how == "right",
            overflow="fold",
            ratio=None,
        )
    return made


def state(status: str) -> Text:
    """A state in its colour."""
    from rich.text import Text

    return Text(printable(status), style=STYLES.get(status, ""), no_wrap=True)


def state_of(suite: Mapping[str, Any]) -> str:
    """What a suite is at: its status; while it is open also `no worker`, `paused`, `stopping`."""
    if suite["status"] != "running":
        return str(suite["status"])
    if suite.get("served") is False:
        return "no worker"
    if suite.get("stopped"):
        return "stopping"
    return "paused" if suite.get("paused") else "running"


def unserved_line(suite: Mapping[str, Any]) -> str | None:
    """How to go on with a suite that is open and that nobody works on; None if that is not so."""
    if suite["status"] != "running" or suite.get("served") is not False:
        return None
    name = printable(suite["suite"])
    return (
        f"no worker serves suite {name}: what ran it has ended or was killed; "
        f"go on with: perdure retry {name}, or end it with: perdure cancel {name}"
    )


def suites_table(suites: Iterable[dict[str, Any]]) -> Table:
    """Suites as `perdure list` shows them; columns that would be empty are left out."""
    shown = list(suites)
    rare = (("RUNNING", "running"), ("WAITING", "pending"), ("NOT RUN", "not_run"))
    columns = [(title, key) for title, key in rare if any(s["totals"].get(key) for s in shown)]
    stops = any(suite.get("stopped") for suite in shown)
    kinds = [_kinds(suite["totals"]) for suite in shown]
    made = table(
        "SUITE", "STATE", ("TASKS", "right"), ("OK", "right"), ("FAILED", "right"),
        ("CANCELLED", "right"), *((title, "right") for title, _ in columns), "STARTED",
        *(["KINDS"] if any(kinds) else []), *(["STOPPED"] if stops else []),
    )  # fmt: skip
    for suite, told in zip(shown, kinds, strict=True):
        totals = suite["totals"]
        counts = (_number(totals.get(key)) for key in ("total", "succeeded", "failed"))
        others = (_number(totals.get(key)) for key in ("cancelled", *(key for _, key in columns)))
        made.add_row(
            printable(suite["suite"]),
            state(state_of(suite)),
            *counts,
            *others,
            moment(suite["started_at"]),
            *([told] if any(kinds) else []),
            *([printable(suite.get("stopped"), REASON_CHARACTERS)] if stops else []),
        )
    return made


def runs_table(runs: Iterable[dict[str, Any]]) -> Table:
    """Runs of tasks as `perdure list SUITE` shows them."""
    made = table(
        "RUN", "STATE", ("TRIAL", "right"), ("TIME", "right"), "STARTED", "KIND", "FAILURE"
    )
    for run in runs:
        failure = run["failure"] or {}
        step = f"step {failure['step']}: " if failure.get("step") else ""
        made.add_row(
            printable(run["run"]),
            state(run["status"]),
            _number(run["trial"]),
            span(run["duration"]),
            moment(run["started_at"]),
            kind_name(failure.get("kind")),
            printable(step + reason_and_log(failure.get("reason"))[0], REASON_CHARACTERS),
        )
    return made


def steps_table(record: dict[str, Any]) -> Table:
    """The steps of a run."""
    made = table("STEP", "TYPE", "STATE", ("ATTEMPTS", "right"), ("TIME", "right"), "FAILURE")
    for step in record["steps"]:
        made.add_row(
            printable(step["id"]),
            printable(step["type"]),
            state(step["status"]),
            attempts_text(step["attempts"]),
            span(_so_far(step)) if step["attempts"] else "",
            printable(reason_and_log(last_failure(step["attempts"]))[0], REASON_CHARACTERS),
        )
    return made


def _so_far(step: Mapping[str, Any]) -> float:
    """How long a step took, with the attempt that is under way."""
    last = step["attempts"][-1]
    started = last.get("started_at")
    if step["status"] != "running" or last.get("ended_at") or not started:
        return float(step["duration"])
    return float(step["duration"]) + max(0.0, time.time() - float(started))


def failures_table(outcome: dict[str, Any]) -> Table | None:
    """Every trial of a suite that did not succeed, with kind, step and reason; None if all did."""
    made = table("TASK", "STATE", "KIND", "STEP", "REASON")
    for task, trial in trials_of(outcome):
        if trial["status"] == "succeeded":
            continue
        failure = trial.get("failure") or {}
        made.add_row(
            printable(trial_name(task, trial)),
            state(trial["status"]),
            kind_name(failure.get("kind")),
            printable(failure.get("step")),
            printable(reason_and_log(failure.get("reason"))[0], REASON_CHARACTERS),
        )
    return made if made.row_count else None


def kind_name(kind: str | None) -> str:
    """A failure's kind, for people."""
    return printable((kind or "").replace("_", " "))


def trial_name(task: dict[str, Any], trial: dict[str, Any]) -> str:
    """What people call a trial of a suite's document."""
    return names.trial_name(task["id"], trial["trial"], several=task["repeats"] > 1)


def note_lines(outcome: dict[str, Any], *, unwritten: bool = True) -> list[str]:
    """What went wrong beside the tasks of a suite, such as a record that could not be written.

    `unwritten`: False leaves those records out that are still not written.
    """
    return [
        printable(f"note: {trial_name(task, trial)}: {trial['note']}", 1000)
        for task, trial in trials_of(outcome)
        if trial.get("note") and (unwritten or not trial.get("unwritten"))
    ]


def last_failure(attempts: Sequence[dict[str, Any]]) -> str | None:
    """Why the last attempt that failed did; None if none did."""
    for attempt in reversed(attempts):
        if attempt.get("failure"):
            return str(attempt["failure"]["message"])
    return None


def totals_line(totals: Mapping[str, Any]) -> str:
    """`3 of 9 succeeded, 4 failed (3 task, 1 timeout), 2 not run`."""
    parts = [f"{totals['succeeded']} of {totals['total']} succeeded"]
    if totals["failed"]:
        kinds = failed_text(totals).partition(" ")[2]
        parts.append(f"{totals['failed']} failed" + (f" {kinds}" if kinds else ""))
    others = (("cancelled", ""), ("running", ""), ("pending", "waiting"), ("not_run", "not run"))
    parts += [f"{totals[key]} {name or key}" for key, name in others if totals.get(key)]
    return ", ".join(parts)


def failed_text(totals: Mapping[str, Any]) -> str:
    """`4 (3 task, 1 timeout)`; the number alone where all failed by their task's own fault."""
    told = _kinds(totals)
    return f"{totals['failed']} ({told})" if told else str(totals["failed"])


def _kinds(totals: Mapping[str, Any]) -> str:
    """`3 task, 1 timeout`; empty where nothing failed but by its task's own fault."""
    kinds = totals.get("failed_by_kind") or {}
    if not set(kinds) - {"task"}:
        return ""
    return ", ".join(f"{count} {kind_name(kind)}" for kind, count in kinds.items())


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
