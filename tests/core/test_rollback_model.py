"""Whatever fails, is lost or cancelled: a rollback leaves what a run without it had left.

With `PERDURE_MODEL_TIMES=20` there are twenty times as many cases, thousands: see `make soak`.
"""

from __future__ import annotations

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rollback_world import Chances, World, random_task

TIMES = int(os.environ.get("PERDURE_MODEL_TIMES", "1"))

sizes = st.integers(1, 30)
luck = st.integers(0, 2**32)


def live(size: int, luck: int, chances: Chances) -> World:
    chance = random.Random(luck)
    world = World(random_task(chance, size, chances), chance, chances)
    world.live()
    return world


@settings(max_examples=100 * TIMES)
@given(
    sizes,
    luck,
    st.sampled_from([0.05, 0.2, 0.4]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.1]),
)
def test_after_failures_and_losses_the_context_is_that_of_the_attempts_that_count(
    size: int, luck: int, failure: float, loss: float, carry_over: float
) -> None:
    """T29."""
    chances = Chances(failure=failure, loss=loss, fatal=0.0, limited=loss, carry_over=carry_over)
    live(size, luck, chances)


@settings(max_examples=200 * TIMES)
@given(
    sizes,
    luck,
    st.builds(
        Chances,
        failure=st.sampled_from([0.1, 0.3]),
        cancel=st.sampled_from([0.0, 0.5]),
        undo_failure=st.sampled_from([0.0, 0.1]),
        reset_failure=st.sampled_from([0.0, 0.5]),
        lease_loss=st.sampled_from([0.0, 0.5]),
        fatal=st.sampled_from([0.0, 0.3]),
        limited=st.sampled_from([0.0, 0.3]),
        carry_over=st.sampled_from([0.0, 0.1]),
    ),
)
def test_whatever_ends_a_run_what_was_planned_is_undone_and_nothing_is_undone_twice(
    size: int, luck: int, chances: Chances
) -> None:
    live(size, luck, chances)
