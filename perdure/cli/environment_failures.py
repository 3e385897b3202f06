"""Failures that are the environments' and not the task's own, for people."""

from __future__ import annotations

import re
from typing import Any

from perdure import names
from perdure.cli.console import printable
from perdure.cli.failures import printable_line
from perdure.core.run_leased import LOG_ENDS_WITH
from perdure.core.step_types import TRACEBACK_ENDS_WITH
from perdure.outcome import trials_of

REASON_CHARACTERS = 1000
SHOWN_TASKS = 5
SHOWN_LINES = 8

_LINES_BEGIN = re.compile(f"{re.escape(LOG_ENDS_WITH)}|{re.escape(TRACEBACK_ENDS_WITH)}")


def reason_and_log(reason: str | None) -> tuple[str, list[str]]:
    """A failure's reason, and the last lines of what failed, safe for a terminal.

    These are of a log, or of a traceback.
    """
    text, *log = _LINES_BEGIN.split(reason or "", maxsplit=1)
    lines = log[0].splitlines() if log else []
    return text, [printable_line(line) for line in lines][-SHOWN_LINES:]


def environment_lines(outcome: dict[str, Any]) -> list[str]:
    """Why tasks could have no environment, once for all that failed for the same reason.

    With the last lines of the environment's log; empty if there was no such failure.
    """
    found: dict[str, list[str]] = {}
    logs: dict[str, list[str]] = {}
    for task, trial in trials_of(outcome):
        failure = trial.get("failure") or {}
        if trial["status"] != "failed" or failure.get("kind") != "environment":
            continue
        reason, log = reason_and_log(failure.get("reason"))
        name = names.trial_name(task["id"], trial["trial"], several=task["repeats"] > 1)
        found.setdefault(reason, []).append(printable(name))
        logs[reason] = log or logs.get(reason, [])
    lines = []
    for reason, tasks in found.items():
        some = ", ".join(tasks[:SHOWN_TASKS])
        more = f" and {len(tasks) - SHOWN_TASKS} more" if len(tasks) > SHOWN_TASKS else ""
        lines.append(f"no environment for {some}{more}:")
        lines.append(f"  {printable(reason, REASON_CHARACTERS)}")
        lines += [f"  | {line}" for line in logs[reason]]
        lines.append("")
    return lines
