"""What bounds a suite is taken as people write it, or refused in a line that says what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from perdure import bounds
from perdure.bounds import BadBound


@pytest.mark.parametrize(
    ("written", "trials", "allowed"),
    [
        (3, 10, 3),
        ("3", 10, 3),
        (" 7 ", 2, 7),
        ("10%", 30, 3),
        ("10%", 31, 4),
        ("10 %", 1, 1),
        ("0.5%", 100, 1),
        ("2.5%", 400, 10),
        ("100%", 7, 7),
    ],
)
def test_failures_are_a_number_or_a_share_rounded_up(
    written: int | str, trials: int, allowed: int
) -> None:
    found = bounds.failures("max_failures", written)

    assert found
    assert found.of(trials) == allowed


@pytest.mark.parametrize("share", range(1, 101))
def test_a_share_is_exact_whatever_the_number_of_trials(share: int) -> None:
    found = bounds.failures("max_failures", f"{share}%")

    assert found
    assert [found.of(n * 100) for n in (1, 3, 7)] == [share, share * 3, share * 7]


@pytest.mark.parametrize(
    ("check", "value"),
    [
        *[
            (bounds.failures, bad)
            for bad in (0, -1, True, "", "none", "0%", "101%", "%", "1e9", "٣", "9" * 40, "1.5")
        ],
        *[(bounds.cost, bad) for bad in (0, -1.0, math.nan, math.inf, True)],
        *[(bounds.cost, "5"), (bounds.cost, [])],
        *[(bounds.count, bad) for bad in (0, -1, 10**9, True, 1.5)],
        *[(bounds.count, "5"), (bounds.count, None)],
        *[
            (bounds.seconds, bad)
            for bad in (0, -1, "", "5x", "0s", "10 minutes", math.nan, "9999d")
        ],
        *[
            (bounds.slots, bad)
            for bad in ({"a": 0}, {"a": True}, {"a": "2"}, {"a b": 1}, {"": 1}, {"a/b": 1})
        ],
    ],
)
def test_another_value_is_refused_in_one_line_that_names_it(
    check: Callable[[str, Any], Any], value: Any
) -> None:
    with pytest.raises(BadBound) as refused:
        check("--what", value)
    assert str(refused.value).startswith("--what")
    assert "\n" not in str(refused.value)


def test_nothing_given_bounds_nothing() -> None:
    assert bounds.failures("x", None) is None
    assert bounds.cost("x", None) is None
    assert bounds.seconds("x", None) is None
    assert bounds.slots("x", None) == {}


def test_lengths_of_time_are_those_of_documents() -> None:
    assert [bounds.seconds("x", t) for t in (600, 0.5, "10m", "2h", "1h30m", "90")] == [
        600.0, 0.5, 600.0, 7200.0, 5400.0, 90.0,
    ]  # fmt: skip
