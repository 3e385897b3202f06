"""Rollbacks in words: of a run that is shown, of its events, and of one that is followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from perdure.cli.console import printable
from perdure.cli.environment_failures import reason_and_log
from perdure.cli.times import span, time_of_day

BY = {
    "jobs": "stopping its jobs",
    "declared": "its compensate",
    "type": "its type's own undo",
    "creates": "removing its files",
    "guests": "stopping jobs of others in what is reset",
}
"""What undid an attempt, by kind of compensation."""

REASON_CHARACTERS = 300


def back_to(told: Mapping[str, Any]) -> str:
    """`back to order (retry 1 of 2)`: of a rollback's event, or of a run's progress."""
    to = " and ".join(told.get("to") or ["?"])
    return f"back to {to} (retry {told.get('retry', 0)} of {told.get('of', 0)})"


def rolled_back_lines(name: str, rollbacks: Sequence[Mapping[str, Any]], known: int) -> list[str]:
    """A line for each rollback of a run that people call `name`, after the first `known`."""
    return [printable(f"{name}: rolled {back_to(told)}", 300) for told in rollbacks[known:]]


def counted(rollbacks: int) -> str:
    """`1 rollback`, `2 rollbacks`."""
    return "1 rollback" if rollbacks == 1 else f"{rollbacks} rollbacks"


def event_words(event: Mapping[str, Any]) -> list[str]:
    """What an event of a rollback says beside its step; empty for any other event."""
    kind = event["type"]
    if kind in ("rollback.started", "rollback.widened"):
        failed = f"{', '.join(event.get('cause', []))} failed"
        return [failed, back_to(event), f"takes back {', '.join(event.get('steps', []))}"]
    if kind == "rollback.completed":
        return [f"rolled {back_to(event)}", f"epoch {event.get('epoch')}"]
    if kind.startswith("compensation."):
        how = str(event.get("undo"))
        return [f"by {BY.get(how, how)}"]
    if kind == "environments.reset":
        return [_reset_text(event)]
    return []


def _reset_text(told: Mapping[str, Any]) -> str:
    """`shop, mail; another instance of mail`: of a rollback's event, or of the rollback."""
    text, others = ", ".join(told["environments"]), ", ".join(told.get("replaced", []))
    return f"{text}; another instance of {others}" if others else text


def attempts_text(attempts: Sequence[Mapping[str, Any]]) -> str:
    """How many attempts a step had; `1-2 (epoch 0), 3 (epoch 1)` if it began anew in between."""
    if not any(attempt.get("epoch") for attempt in attempts):
        return str(len(attempts)) if attempts else ""
    lives = []
    for epoch, life in groupby(attempts, key=lambda attempt: attempt.get("epoch", 0)):
        numbers = [attempt["number"] for attempt in life]
        several = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
        lives.append(f"{several} (epoch {epoch})")
    return ", ".join(lives)


def head_lines(record: Mapping[str, Any]) -> list[str]:
    """The epoch of a run that has taken steps back, and what of it could not be undone."""
    rollbacks = record.get("rollbacks") or []
    lines = []
    if rollbacks:
        epoch = record.get("attempt_epoch", 0)
        lines.append(f"epoch    {epoch}, after {counted(len(rollbacks))}")
    for failed in record.get("compensation_failures") or []:
        error, _ = reason_and_log(failed["error"])
        what = f"{failed['step_id']}, attempt {failed['attempt']}: {error}"
        lines.append(f"note     not undone: {printable(what, REASON_CHARACTERS)}")
    return lines


def rollback_lines(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Each rollback of a run, step by step, in the order in which it happened."""
    reasons = {
        (step["id"], attempt["number"]): reason_and_log(attempt["failure"]["message"])[0]
        for step in record["steps"]
        for attempt in step["attempts"]
        if attempt.get("failure")
    }
    for rollback in record.get("rollbacks") or []:
        yield [
            f"rollback {rollback['number']} at {time_of_day(rollback['started_at'])}",
            *(f"  {title:<12} {text}" for title, text in _story(rollback, reasons)),
        ]


def _story(
    rollback: Mapping[str, Any], reasons: Mapping[tuple[str, int], str]
) -> Iterator[tuple[str, str]]:
    for cause in rollback["causes"]:
        reason = reasons.get((cause["step_id"], cause["attempt"]), "")
        what = f"{cause['step_id']}, attempt {cause['attempt']}: {reason}"
        yield "failed", printable(what, REASON_CHARACTERS)
        told = {**cause, "to": [cause["retry_from_step_id"]], "of": cause["max_retries"]}
        yield "", printable(back_to(told))
    if rollback["cancelled"]:
        yield "stopped", printable(", ".join(rollback["cancelled"]))
    yield "taken back", printable(", ".join(rollback["span"]))
    for undo in rollback["compensations"]:
        yield _undone(undo)
    if rollback["environments"]:
        is_done = rollback["epoch"] is not None
        yield "reset" if is_done else "to reset", printable(_reset_text(rollback))
    yield _end(rollback)


def _undone(undo: Mapping[str, Any]) -> tuple[str, str]:
    what = f"{undo['step_id']}, attempt {undo['attempt']}, by {BY.get(undo['kind'], undo['kind'])}"
    if undo["started_at"] is None:
        return "to be undone", printable(what)
    if undo["ended_at"] is None:
        return "undoing", printable(what)
    if undo["failure"]:
        why, _ = reason_and_log(undo["failure"]["message"])
        return "not undone", printable(f"{what}: {why}", REASON_CHARACTERS)
    return "undone", f"{printable(what)} in {span(undo['ended_at'] - undo['started_at'])}"


def _end(rollback: Mapping[str, Any]) -> tuple[str, str]:
    if rollback["ended_at"] is None:
        return "under way", f"since {time_of_day(rollback['started_at'])}"
    took = span(rollback["ended_at"] - rollback["started_at"])
    if rollback["epoch"] is None:
        why, _ = reason_and_log(rollback["abandoned"])
        return "given up", f"after {took}: {printable(why, REASON_CHARACTERS)}"
    to = dict.fromkeys(cause["retry_from_step_id"] for cause in rollback["causes"])
    return "again", f"from {printable(' and '.join(to))} after {took}, as epoch {rollback['epoch']}"
