"""Named limits that steps take and their suite does not have, found before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from perdure.core.problems import nearest, one_line, shown
from perdure.documents import LoadedTask
from perdure.secret_checks import where


def missing_limits(tasks: Sequence[LoadedTask], limits: Collection[str]) -> list[str]:
    """A line for each step whose limit the suite does not name: where, and what to do."""
    found = []
    for loaded, position, step_id, name in _taken(tasks):
        if name in limits:
            continue
        near = nearest(name, limits)
        remedy = (
            f"it has {near!r}: correct one of the two"
            if near
            else f"give it slots by --limit {name}=N"
        )
        place = where(loaded, ("steps", position, "limit"))
        found.append(
            one_line(f"{place}: step {step_id!r}: the suite has no limit {shown(name)}; {remedy}")
        )
    return found


def idle_limits(tasks: Sequence[LoadedTask], limits: Collection[str]) -> list[str]:
    """The limits that no step takes; likely misspelt."""
    taken = {name for _, _, _, name in _taken(tasks)}
    return [name for name in limits if name not in taken]


def _taken(tasks: Sequence[LoadedTask]) -> Iterator[tuple[LoadedTask, int, str, str]]:
    for loaded in tasks:
        for position, step in enumerate(loaded.task.to_dict()["steps"]):
            if name := step.get("limit"):
                yield loaded, position, step["id"], name
