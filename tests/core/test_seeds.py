"""Seeds in steps (T13)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.seeds import SeedTooLarge, fill
from tests.core.strategies import JSON

PLAIN = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.integers() | st.booleans() | st.text("xyz ", max_size=3),
)
TEMPLATES = st.recursive(
    st.text("<>ab ", max_size=12) | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab<>"), inner, max_size=3),
    max_leaves=10,
)


def test_placeholders_are_replaced_in_every_text_of_a_step_ids_and_targets_included() -> None:
    step = {
        "id": "pay-<order>",
        "depends_on": ["get-<order>", {"task_step_id": "x<order>"}],
        "retry_config": {"retry_from_step_id": "get-<order>"},
        "command": ["pay", "<order>", "<order>/<user>", "<unknown>", "a < b > c"],
        "env": {"<order>": "<flag><none>"},
        "n": 3,
    }
    filled = fill([step], {"order": 7, "user": "ann", "flag": True, "none": None})
    assert filled == [
        {
            "id": "pay-7",
            "depends_on": ["get-7", {"task_step_id": "x7"}],
            "retry_config": {"retry_from_step_id": "get-7"},
            "command": ["pay", "7", "7/ann", "<unknown>", "a < b > c"],
            "env": {"<order>": "TrueNone"},
            "n": 3,
        }
    ]


def test_a_value_is_never_searched_for_placeholders() -> None:
    assert fill("<a><b>", {"a": "<b>", "b": "<a>"}) == "<b><a>"


@settings(deadline=None)
@given(TEMPLATES, PLAIN)
def test_filling_changes_a_copy_and_filling_again_changes_nothing(
    document: Any, seed: dict[str, Any]
) -> None:
    before = copy.deepcopy(document)
    filled = fill(document, seed)
    assert document == before
    # Values are free of brackets here; "<" + "<a>" + ">" still could spell a new placeholder.
    if not any(f"<{value}>" in str(filled) and str(value) in seed for value in seed.values()):
        assert fill(filled, seed) == filled


@settings(deadline=None)
@given(JSON)
def test_an_empty_seed_gives_an_equal_copy(document: Any) -> None:
    assert fill(document, {}) == document


def test_deep_documents_are_filled_without_recursion() -> None:
    document: Any = "<a>"
    for _ in range(50_000):
        document = [document]
    filled = fill(document, {"a": 1})
    while isinstance(filled, list):
        (filled,) = filled
    assert filled == "1"


def test_a_seed_that_would_blow_the_document_up_is_refused() -> None:
    """C53: small text, repeated by placeholders instead of anchors."""
    with pytest.raises(SeedTooLarge, match="characters"):
        fill("<a>" * 1000, {"a": "x" * 1_000_000})
