"""How a suite ended, for people and for the shell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.cli.console import emit, emit_table, printable, say
from perdure.cli.environment_failures import environment_lines
from perdure.cli.tables import failures_table, note_lines, totals_line, trial_name, trials_of
from perdure.cli.times import clock, number

SUCCEEDED, SOME_FAILED, NOT_WRITTEN = 0, 1, 2

SHOWN_UNWRITTEN = 5

_LARGER = {
    "max_cost": " --max-cost X, with a larger X",
    "max_failures": " --max-failures N, with a larger N",
}
"""What `retry` needs beside the suite's name: the bound that was hit would be hit again."""


def print_summary(outcome: dict[str, Any], took: float | None) -> None:
    """Print every failure, those of environments apart, what was not run and why, and the totals.

    `took`: seconds, None if nothing was run.
    """
    failures = failures_table(outcome)
    if failures:
        emit_table(failures)
        emit("")
    for line in environment_lines(outcome):
        emit(line)
    for line in [*note_lines(outcome, unwritten=False), *closing_lines(outcome)]:
        emit(line)
    emit(
        f"{printable(outcome['suite'])}: {totals_line(outcome['totals'])}"
        + ("" if took is None else f" in {clock(took)}")
    )
    if failures:
        emit(f"see one with: perdure show {outcome['suite']}/{_first_failed(outcome)}")


def closing_lines(outcome: dict[str, Any]) -> list[str]:
    """What stands between a suite's failures and its totals, a line each."""
    totals = outcome["totals"]
    lines = _stop(outcome) if outcome["stopped"] else []
    if usage := usage_text(totals["usage"]):
        lines.append(f"usage: {usage}")
    if estimate := pass_at_k_text(outcome):
        lines.append(estimate)
    return lines


def _stop(outcome: dict[str, Any]) -> list[str]:
    """Why nothing more was started, and what starts the rest."""
    reason, suite = printable(outcome["stopped"]), printable(outcome["suite"])
    if outcome["status"] == "running":
        return [f"stopping: {reason}; nothing more is started, running tasks end by themselves"]
    if not outcome["totals"]["not_run"]:
        return []
    more = next((more for bound, more in _LARGER.items() if f"({bound}: " in reason), "")
    return [f"stopped: {reason}; run the rest with: perdure retry {suite}{more}"]


def usage_text(usage: Mapping[str, float]) -> str:
    """`cost 1.25, tokens 4,100`, by name; empty if nothing was used."""
    return ", ".join(f"{printable(name, 40)} {number(usage[name])}" for name in sorted(usage))


def pass_at_k_text(outcome: dict[str, Any]) -> str:
    """`pass@1 0.500, pass@2 0.667`, for round k and the largest; empty for single trials."""
    estimates = outcome["pass_at_k"]
    if len(estimates) < 2:
        return ""
    largest = max(map(int, estimates))
    return ", ".join(
        f"pass@{k} {chance:.3f}"
        for k, chance in estimates.items()
        if int(k) == largest or _is_round(int(k))
    )


def _is_round(k: int) -> bool:
    """1, 2, 5, 10, 25, 50, 100, 250, ..."""
    while k >= 100 and k % 10 == 0:
        k //= 10
    return k in (1, 2, 5, 10, 25, 50)


def status_of(outcome: dict[str, Any]) -> int:
    """The exit status: 0 if every trial succeeded, else 1."""
    totals = outcome["totals"]
    return SUCCEEDED if totals["succeeded"] == totals["total"] else SOME_FAILED


def report_junit(path: Path, outcome: dict[str, Any], results: Path | None) -> int:
    """Write the results as JUnit XML; returns the exit status, 2 if they cannot be written.

    `results`: where the suite's files are, None if that is on another machine.
    """
    from perdure.junit import JUnitError, write_junit

    try:
        write_junit(outcome, path, results=results)
    except JUnitError as error:
        say(f"--junit {error}")
        return NOT_WRITTEN
    return SUCCEEDED


def tell_unwritten(outcome: dict[str, Any], again: str) -> int:
    """Tell of records that are not among the files of results; returns the exit status.

    `again`: the command that writes what is missing.
    """
    missing = [(task, trial) for task, trial in trials_of(outcome) if trial.get("unwritten")]
    if not missing:
        return SUCCEEDED
    for task, trial in missing[:SHOWN_UNWRITTEN]:
        reason = trial.get("note") or "its record could not be written"
        say(printable(f"error: {trial_name(task, trial)}: {reason}", 1000))
    if len(missing) > SHOWN_UNWRITTEN:
        say(f"error: likewise {len(missing) - SHOWN_UNWRITTEN} other records")
    say(f"nothing is lost: make room, then write what is missing with: {again}")
    return NOT_WRITTEN


def _first_failed(outcome: dict[str, Any]) -> str:
    for task, trial in trials_of(outcome):
        if trial["status"] != "succeeded":
            return trial_name(task, trial)
    return ""
