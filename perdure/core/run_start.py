"""What a run may be started with: a range of steps that the task has, limits that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class BadStart(ValueError):
    """A run cannot be started as it was asked to."""


class BadRange(BadStart):
    """`start_step` or `end_step` lies outside the task (T14)."""


class UnknownLimit(BadStart):
    """A step takes a slot of a limit that has no number."""


def check_range(total: int, start_step: int, end_step: int | None) -> None:
    """Refuse a range outside the task (T14).

    Raises BadRange with the value and the range allowed.
    """
    if not 0 <= start_step < total:
        raise BadRange(f"start_step {start_step} is outside 0 to {total - 1}")
    if end_step is not None and not start_step < end_step <= total:
        raise BadRange(f"end_step {end_step} is outside {start_step + 1} to {total}")


def check_limits(steps: Iterable[Mapping[str, Any]], limits: Mapping[str, int]) -> None:
    """Refuse steps, as documents, whose limit is not among `limits`, or has no slots there.

    Raises UnknownLimit naming the step and the limit.
    """
    for step in steps:
        limit = step.get("limit")
        if limit is None:
            continue
        if limit not in limits:
            raise UnknownLimit(
                f"step {step['id']!r} takes a slot of the limit {limit!r}, which is not set; "
                f"set it by --limit {limit}=N"
            )
        if limits[limit] < 1:
            raise UnknownLimit(
                f"step {step['id']!r} would wait for ever: the limit {limit!r} is "
                f"{limits[limit]}; it must be at least 1"
            )
