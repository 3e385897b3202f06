"""Whatever fails, is lost or cancelled: no job outlives what it belongs to, and others go on.

With `PERDURE_MODEL_TIMES=20` there are twenty times as many cases: see `make soak`.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.job_world import JobWorld
from tests.core.rollback_world import Chances, random_task
from tests.core.test_rollback_model import TIMES, luck, sizes


@settings(max_examples=150 * TIMES)
@given(
    sizes,
    luck,
    st.sampled_from([0.5, 2.0, 8.0]),
    st.builds(
        Chances,
        failure=st.sampled_from([0.1, 0.3]),
        loss=st.sampled_from([0.0, 0.1]),
        cancel=st.sampled_from([0.0, 0.5]),
        undo_failure=st.sampled_from([0.0, 0.1]),
        reset_failure=st.sampled_from([0.0, 0.5]),
        lease_loss=st.sampled_from([0.0, 0.5]),
        fatal=st.sampled_from([0.0, 0.3]),
        carry_over=st.sampled_from([0.0, 0.3]),
    ),
)
def test_no_job_outlives_its_span_its_environment_or_the_lease_of_its_task(
    size: int, luck: int, launches: float, chances: Chances
) -> None:
    chance = random.Random(luck)
    JobWorld(random_task(chance, size, chances), chance, chances, launches=launches).live()
