"""Hypothesis strategies for what a context may hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYS = st.one_of(
    st.sampled_from(["a", "b", "c", "", ".", "a.b", "$set", "results", "0", "é"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)
SCALARS = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, "", "a", "1"]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)
SMALL_LISTS = st.lists(st.sampled_from([0, 1, 1.0, True, "x", [], {}, {"k": 1}]), max_size=7)


@st.composite
def near(draw: st.DrawFn, value: Any) -> Any:
    """A value that differs from `value` here and there, as a step's writes do."""
    choice = draw(st.integers(0, 5))
    if choice == 0:
        return draw(JSON)
    if isinstance(value, dict):
        changed = {
            key: draw(near(item)) if draw(st.booleans()) else item
            for key, item in value.items()
            if draw(st.integers(0, 4))
        }
        return changed | (draw(st.dictionaries(KEYS, JSON, max_size=2)) if choice > 3 else {})
    if isinstance(value, list):
        kept = [
            draw(near(i)) if not draw(st.integers(0, 3)) else i
            for i in value
            if draw(st.integers(0, 3))
        ]
        return kept + draw(st.lists(JSON, max_size=2))
    return value if choice > 3 else draw(SCALARS)


@st.composite
def states(draw: st.DrawFn, count: int = 2) -> list[Any]:
    """Several contexts, each near the one before it."""
    found = [draw(OBJECTS)]
    while len(found) < count:
        after = draw(near(found[-1]))
        found.append(after if isinstance(after, dict) else {"value": after})
    return found
