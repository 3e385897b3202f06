"""What bounds a suite, as people write it: numbers, shares, lengths of time.

`what` is the name that an error begins with: an option of the command line, or a keyword.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from perdure.core import fields
from perdure.core.fields import Check, duration, identifier
from perdure.core.problems import Place, Problem, shown
from perdure.errors import PerdureError

MAX_COUNT = 1_000_000

_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,7}", re.ASCII)


class BadBound(PerdureError):
    """A bound has a value that cannot be used."""


@dataclass(frozen=True)
class Failures:
    """How many trials may fail before nothing more is started."""

    count: int = 0
    """Used if there is no share."""
    percent: Fraction | None = None
    """Of the suite's trials."""

    def of(self, trials: int) -> int:
        """The number of failures, for a suite of so many trials; at least 1."""
        if self.percent is None:
            return self.count
        return max(1, math.ceil(self.percent * trials / 100))


def failures(what: str, value: int | str | None) -> Failures | None:
    """`3`, `"3"` or `"10%"`; None stays None.

    Raises BadBound.
    """
    if value is None:
        return None
    text = str(value).strip()
    if not isinstance(value, bool) and _COUNT.fullmatch(text) and 1 <= int(text) <= MAX_COUNT:
        return Failures(count=int(text))
    share = _SHARE.fullmatch(text)
    if share and 0 < Fraction(share[1]) <= 100:
        return Failures(percent=Fraction(share[1]))
    raise BadBound(
        f"{what} {shown(value)}: write how many trials may fail, at least 1, or a share of all "
        "such as 10%"
    )


def cost(what: str, value: float | None) -> float | None:
    """A cost above nothing, in the unit of the steps' `usage.cost`; None stays None.

    Raises BadBound.
    """
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        told = f"{value:g}" if isinstance(value, float) else shown(value)
        raise BadBound(f"{what} {told}: write a cost above 0, such as 2.50")
    return float(value)


def count(what: str, value: int, low: int = 1, high: int = MAX_COUNT) -> int:
    """A whole number from `low` to `high`.

    Raises BadBound.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadBound(f"{what} {shown(value)}: write a whole number from {low} to {high:,}")
    return value


def seconds(what: str, value: float | str | None) -> float | None:
    """A length of time as documents write it, such as `600` or `"10m"`; None stays None.

    Raises BadBound.
    """
    if value is None:
        return None
    return float(_checked(what, value, duration))


def pause(what: str, value: float | str | None) -> float | None:
    """As `seconds`, and may be zero. Raises BadBound."""
    return None if value is None else float(_checked(what, value, fields.pause))


def slots(what: str, limits: Mapping[str, int] | None) -> dict[str, int]:
    """Named limits and how many slots each has.

    Raises BadBound.
    """
    for name, number in (limits or {}).items():
        _checked(what, name, identifier)
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not is_whole or not 1 <= number <= MAX_COUNT:
            raise BadBound(
                f"{what} {name}={shown(number)}: give it at least 1 slot, and at most {MAX_COUNT:,}"
            )
    return dict(limits or {})


def _checked(what: str, value: Any, check: Check) -> Any:
    problems: list[Problem] = []
    plain = check(value, Place(problems))
    for problem in problems:
        if problem.message.startswith("must be"):
            raise BadBound(
                f"{what} {shown(value)}: it {problem.message}; leave it out for no limit"
            )
        raise BadBound(f"{what}: {problem}")
    return plain
