"""Tables of suites, runs, steps and failures, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from perdure.cli.console import printable
from perdure.cli.times import moment, span

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
    "running": "cyan",
    "waiting": "cyan",
}
REASON_CHARACTERS = 300


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

    return Text(status, style=STYLES.get(status, ""), no_wrap=True)


def suites_table(suites: Iterable[dict[str, Any]]) -> Table:
    """Suites as `perdure list` shows them."""
    made = table(
        "SUITE", "STATE", ("TASKS", "right"), ("OK", "right"), ("FAILED", "right"),
        ("CANCELLED", "right"), "STARTED",
    )  # fmt: skip
    for suite in suites:
        totals = suite["totals"]
        made.add_row(
            printable(suite["suite"]),
            state(suite["status"]),
            *(_number(totals.get(key)) for key in ("total", "succeeded", "failed", "cancelled")),
            moment(suite["started_at"]),
        )
    return made


def runs_table(runs: Iterable[dict[str, Any]]) -> Table:
    """Runs of tasks as `perdure list SUITE` shows them."""
    made = table("RUN", "STATE", ("TIME", "right"), "STARTED", "FAILURE")
    for run in runs:
        made.add_row(
            printable(run["run"]),
            state(run["status"]),
            span(run["duration"]),
            moment(run["started_at"]),
            printable(run["failure"], REASON_CHARACTERS),
        )
    return made


def steps_table(record: dict[str, Any]) -> Table:
    """The steps of a run."""
    made = table("STEP", "TYPE", "STATE", ("ATTEMPTS", "right"), ("TIME", "right"), "FAILURE")
    for step in record["steps"]:
        made.add_row(
            printable(step["id"]),
            step["type"],
            state(step["status"]),
            str(len(step["attempts"])) if step["attempts"] else "",
            span(step["duration"]) if step["attempts"] else "",
            printable(last_failure(step["attempts"]), REASON_CHARACTERS),
        )
    return made


def failures_table(outcome: dict[str, Any]) -> Table | None:
    """Every trial of a suite that did not succeed, with step and reason; None if all did."""
    made = table("TASK", "STATE", "STEP", "REASON")
    for task, trial in trials_of(outcome):
        if trial["status"] == "succeeded":
            continue
        failure = trial.get("failure") or {}
        made.add_row(
            printable(trial_name(task, trial)),
            state(trial["status"]),
            printable(failure.get("step")),
            printable(failure.get("reason"), REASON_CHARACTERS),
        )
    return made if made.row_count else None


def trials_of(outcome: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each trial of a suite's document, with its task."""
    return [(task, trial) for task in outcome["tasks"] for trial in task["trials"]]


def trial_name(task: dict[str, Any], trial: dict[str, Any]) -> str:
    """A task's id, with the trial if it is not the first."""
    return str(task["id"]) if trial["trial"] == 1 else f"{task['id']}/{trial['trial']}"


def note_lines(outcome: dict[str, Any]) -> list[str]:
    """What went wrong beside the tasks of a suite, such as a record that could not be written."""
    return [
        printable(f"note: {trial_name(task, trial)}: {trial['note']}", 1000)
        for task, trial in trials_of(outcome)
        if trial.get("note")
    ]


def last_failure(attempts: Sequence[dict[str, Any]]) -> str | None:
    """Why the last attempt that failed did; None if none did."""
    for attempt in reversed(attempts):
        if attempt.get("failure"):
            return str(attempt["failure"]["message"])
    return None


def totals_line(totals: dict[str, Any]) -> str:
    """`3 of 4 succeeded, 1 failed`."""
    parts = [f"{totals['succeeded']} of {totals['total']} succeeded"]
    parts += [f"{totals[key]} {key}" for key in ("failed", "cancelled") if totals[key]]
    open_trials = totals["total"] - sum(totals[k] for k in ("succeeded", "failed", "cancelled"))
    return ", ".join([*parts, *([f"{open_trials} not finished"] if open_trials else [])])


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
