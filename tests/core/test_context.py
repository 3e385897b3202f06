"""The context: diffs that reproduce it exactly, and what JSON can carry."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.context import (
    FIELDS,
    MAX_DEPTH,
    NotJson,
    apply,
    check_json,
    diff,
    new_context,
    same,
    size_bytes,
)
from tests.core.strategies import JSON, OBJECTS, SMALL_LISTS, states


def nested(depth: int, core: Any = 1, *, as_list: bool = False) -> Any:
    value = core
    for _ in range(depth):
        value = [value] if as_list else {"k": value}
    return value


# --- A diff applied gives exactly what the step left ---------------------------------------------


@given(states())
def test_a_diff_turns_what_was_before_into_exactly_what_came_after(both: list[Any]) -> None:
    before, after = both
    assert same(apply(before, diff(before, after)), after)


@given(JSON, JSON)
def test_a_diff_works_between_any_two_json_values(before: Any, after: Any) -> None:
    assert same(apply(before, diff(before, after)), after)


@given(SMALL_LISTS, SMALL_LISTS)
def test_lists_with_equal_items_come_back_exactly(before: Any, after: Any) -> None:
    """TD7."""
    ops = diff({"l": before}, {"l": after})
    assert same(apply({"l": before}, ops), {"l": after})


@given(JSON)
def test_nothing_changed_gives_no_operations(value: Any) -> None:
    assert diff(value, copy.deepcopy(value)) == []


@given(states())
def test_a_diff_survives_json(both: list[Any]) -> None:
    before, after = both
    assert same(apply(before, json.loads(json.dumps(diff(before, after)))), after)


@given(states())
def test_neither_diff_nor_apply_changes_its_arguments(both: list[Any]) -> None:
    before, after = both
    kept = copy.deepcopy((before, after))
    ops = diff(before, after)
    kept_ops = copy.deepcopy(ops)
    later = apply(before, ops)
    apply(later, diff(later, {"other": 1}))
    apply(apply(later, ops), [{"op": "merge", "path": [k], "value": {"x": [1]}} for k in later])
    assert same([before, after, ops], [*kept, kept_ops])


@given(states(), JSON)
def test_a_diff_applies_to_any_other_context(both: list[Any], other: Any) -> None:
    check_json(apply(other, diff(*both)))


@given(OBJECTS, st.data())
def test_diffs_that_touch_different_keys_commute(before: Any, data: st.DataObject) -> None:
    sides = {key: data.draw(st.sampled_from("lr")) for key in [*before, "new", "more"]}
    ops = {}
    for side in "lr":
        after = dict(before)
        for key, owner in sides.items():
            if owner == side:
                change = data.draw(st.integers(0, 2))
                if change == 0:
                    after.pop(key, None)
                elif change == 1:
                    after[key] = data.draw(JSON)
        ops[side] = diff({"m": before}, {"m": after})
    one = apply(apply({"m": before}, ops["l"]), ops["r"])
    other = apply(apply({"m": before}, ops["r"]), ops["l"])
    assert same(one, other)


def test_two_branches_that_create_one_object_both_keep_what_they_wrote() -> None:
    before = new_context()
    left = new_context(metadata={"script_results": {"a": 1}})
    right = new_context(metadata={"script_results": {"b": {"deep": [2]}}})
    empty = new_context(metadata={"script_results": {}})
    ops = [diff(before, left), diff(before, right), diff(before, empty)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        live = before
        for i in order:
            live = apply(live, ops[i])
        assert live["metadata"] == {"script_results": {"a": 1, "b": {"deep": [2]}}}


def test_two_branches_that_add_to_one_list_both_keep_their_items() -> None:
    before = {"prompt_responses": ["p0"], "metadata": {}}
    left = {"prompt_responses": ["p0", "p1", "p1"], "metadata": {"notes": ["n1"]}}
    right = {"prompt_responses": ["p2"], "metadata": {"notes": ["n2"]}}
    live = apply(apply(before, diff(before, left)), diff(before, right))
    assert live == {"prompt_responses": ["p1", "p1", "p2"], "metadata": {"notes": ["n1", "n2"]}}


def test_removing_from_a_list_is_recorded() -> None:
    """TD8."""
    before, after = {"deployed_envs": [{"id": 1}, {"id": 2}]}, {"deployed_envs": [{"id": 2}]}
    assert diff(before, after) == [
        {"op": "edit", "path": ["deployed_envs"], "remove": [{"id": 1}], "append": []}
    ]


def test_a_reordered_list_is_set_as_a_whole() -> None:
    assert diff({"l": [1, 2, 3]}, {"l": [3, 1, 2]}) == [
        {"op": "set", "path": ["l"], "value": [3, 1, 2]}
    ]


def test_new_empty_lists_and_objects_are_recorded() -> None:
    """TD9."""
    after = {"metadata": {"list": [], "object": {}, "null": None}}
    assert same(apply({}, diff({}, after)), after)
    assert same(apply({"metadata": {}}, diff({"metadata": {}}, after)), after)


def test_null_and_absent_are_told_apart() -> None:
    assert apply({"a": 1}, diff({"a": 1}, {"a": None})) == {"a": None}
    assert apply({"a": None}, diff({"a": None}, {})) == {}


def test_keys_with_dots_dollars_and_nothing_in_them_are_keys_like_others() -> None:
    after = {"a.b": {"$set": {"": 1}}, "a": {"b": 2}}
    assert same(apply({"a": {"b": 1}}, diff({"a": {"b": 1}}, after)), after)


def test_a_missing_parent_is_made_and_one_that_is_no_object_replaced() -> None:
    ops = [{"op": "set", "path": ["a", "b"], "value": 1}]
    assert apply({}, ops) == {"a": {"b": 1}}
    assert apply({"a": [1]}, ops) == {"a": {"b": 1}}
    assert apply({"a": [1]}, [{"op": "unset", "path": ["a", "b"]}]) == {"a": [1]}
    assert apply({}, [{"op": "unset", "path": ["a", "b", "c"]}]) == {}
    edit = [{"op": "edit", "path": ["a"], "remove": [9], "append": [1]}]
    assert apply({"a": {"no": "list"}}, edit) == {"a": [1]}


def test_what_a_diff_does_not_touch_is_shared_not_copied() -> None:
    before = {"metadata": {"large": {"x": 1}}, "results": {}}
    after = apply(before, [{"op": "set", "path": ["results", "s"], "value": 1}])
    assert after["metadata"] is before["metadata"]
    assert before["results"] == {}


@pytest.mark.parametrize("as_list", [True, False])
def test_deep_values_do_not_exhaust_the_stack(as_list: bool) -> None:
    deep, other = nested(5000, as_list=as_list), nested(5000, 2, as_list=as_list)
    assert not same(deep, other)
    assert same(apply({"v": deep}, diff({"v": deep}, {"v": other})), {"v": other})
    assert diff(deep, nested(5000, as_list=as_list)) == []
    merged = apply({"v": deep}, diff({}, {"v": other}))
    assert same(merged["v"], other) or as_list


def test_long_lists_are_compared_in_linear_time() -> None:
    before = {"l": [{"n": i} for i in range(20_000)]}
    after = {"l": [*before["l"][10_000:], *({"m": i} for i in range(5_000))]}
    assert same(apply(before, diff(before, after)), after)


# --- Equality ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ("1", 1), (None, False), ([], {}), ([1], [1.0]),
     ({"a": 1}, {"a": 1, "b": 1}), ({"a": 1}, {"b": 1}), ([1, 2], [1])],
)  # fmt: skip
def test_values_of_other_types_are_not_the_same(a: Any, b: Any) -> None:
    assert not same(a, b)
    assert not same(b, a)
    assert not same({"x": [a]}, {"x": [b]})
    assert same(apply({"x": a}, diff({"x": a}, {"x": b})), {"x": b})


def test_the_order_of_keys_does_not_count() -> None:
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert diff({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


# --- What JSON can carry ------------------------------------------------------------------------


@given(JSON)
def test_what_json_can_carry_is_accepted(value: Any) -> None:
    check_json(value)


class Colour(str):
    pass


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"a": [1, math.nan]}, ["a", 1], "nan is not a JSON number"),
        ({"a": -math.inf}, ["a"], "-inf"),
        ({"a": {1: 2}}, ["a"], "key 1 is of type int"),
        ({"a": "x\ud800"}, ["a"], "lone surrogate"),
        ({"\udfff": 1}, [], "lone surrogate"),
        ({"a": (1, 2)}, ["a"], "tuple"),
        ({"a": {"b": {1, 2}}}, ["a", "b"], "set"),
        ([b"raw"], [0], "bytes"),
        ({"a": Colour("red")}, ["a"], "Colour"),
        ({"n": 10**5000}, ["n"], "digits"),
        ({"o": object()}, ["o"], "object"),
    ],
)
def test_what_json_cannot_carry_is_refused_by_its_path(
    value: Any, path: list[str | int], reason: str
) -> None:
    with pytest.raises(NotJson) as caught:
        check_json(value)
    assert caught.value.path == path
    assert reason in str(caught.value)
    str(caught.value).encode()


def test_the_message_spells_the_path_out() -> None:
    with pytest.raises(NotJson, match=r"^metadata\.rows\[2\]\['a\.b'\]: complex is not JSON"):
        check_json({"metadata": {"rows": [0, 1, {"a.b": 1j}]}})


def test_nesting_has_a_limit_that_json_codecs_accept() -> None:
    check_json(nested(MAX_DEPTH))
    json.loads(json.dumps(nested(MAX_DEPTH)))
    with pytest.raises(NotJson, match="levels deep"):
        check_json(nested(MAX_DEPTH + 1))


def test_a_value_inside_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotJson, match="holds itself"):
        check_json({"loop": loop})


def test_shared_values_that_expand_without_bound_are_refused() -> None:
    bomb: Any = "lol"
    for _ in range(12):
        bomb = [bomb] * 10
    with pytest.raises(NotJson, match="more than"):
        check_json(bomb)


# --- The start context ---------------------------------------------------------------------------


def test_a_new_context_has_every_field_and_those_of_a_step_s_view() -> None:
    """T54."""
    from perdure.steps import Context

    context = new_context(metadata={"seed": {}}, agent_model="m", instance_id="i")
    assert tuple(context) == FIELDS
    assert vars(Context(**context)) == context
    check_json(context)


def test_the_size_is_that_of_compact_utf_8() -> None:
    assert size_bytes({"é": [1, 2]}) == len('{"é":[1,2]}'.encode())
