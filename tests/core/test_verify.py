"""Checks over the context: what passes, what fails, and what is said about it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from perdure.core.verify import (
    OPERATORS,
    TEXT_LIMIT_CHARS,
    equal,
    found,
    resolve,
    schema_problem,
    verify,
)
from tests.core.strategies import JSON, OBJECTS

CONTEXT = {
    "results": {
        "agent": {"exit_code": 0, "stdout": "refunded 12.50 EUR\n", "json": {"ids": [3, 5]}},
        "v1.2": {"ok": True},
        "v1": {"2": {"ok": False}, "3": 1},
        "none": None,
    },
    "prompt_responses": ["hello", {"a": 1, "b": [1]}],
    "metadata": {},
}


def reason(check: dict[str, Any], context: Any = CONTEXT) -> str | None:
    """Why a single check fails; None if it passes."""
    result = verify([check], context)
    assert (result.verdict == "passed") is (result.failed == [])
    return result.failed[0]["reason"] if result.failed else None


@pytest.mark.parametrize(
    "check",
    [
        {"path": "results.agent.exit_code", "equals": 0},
        {"path": "results.agent.exit_code", "equals": 0.0},
        {"path": "results.agent.exit_code", "not_equals": False},
        {"path": "results.agent.json", "equals": {"ids": [3, 5.0]}},
        {"path": "results.agent.stdout", "contains": "refunded"},
        {"path": "results.agent.stdout", "contains": 12.5},
        {"path": "results.agent.json.ids", "contains": 5},
        {"path": "results.agent.json", "contains": "ids"},
        {"path": "prompt_responses.1", "contains": {"b": [1]}},
        {"path": "prompt_responses.-1.a", "equals": 1},
        {"path": "results.agent.stdout", "matches": r"\d+\.\d\d EUR"},
        {"path": "results.agent.exit_code", "matches": "^0$"},
        {"path": "results.none", "exists": True},
        {"path": "results.none", "equals": None},
        {"path": "metadata.nothing", "exists": False},
        {"path": "results.agent", "schema": {"type": "object", "required": ["stdout"]}},
        {"path": "", "schema": {"type": "object"}},
    ],
)
def test_checks_that_hold_pass(check: dict[str, Any]) -> None:
    assert reason(check) is None


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ({"path": "results.agent.exit_code", "equals": False}, "exit_code is not false"),
        ({"path": "results.agent.exit_code", "equals": "0"}, 'is not "0"'),
        ({"path": "results.agent.exit_code", "not_equals": 0}, "is 0"),
        ({"path": "results.agent.stdout", "contains": "paid"}, 'does not contain "paid"'),
        ({"path": "results.agent.exit_code", "contains": 0}, "can contain nothing"),
        ({"path": "results.agent.json.ids", "contains": True}, "does not contain true"),
        ({"path": "results.agent.stdout", "matches": "^12"}, 'does not match "^12"'),
        ({"path": "results.agent.stdout", "matches": "("}, "is refused: missing )"),
        ({"path": "results.agent.stdout", "matches": "a" * 2000}, "longer than 1,000"),
        ({"path": "results.agnt.exit_code", "equals": 0}, "results.agnt.exit_code is not there"),
        ({"path": "results.agnt", "not_equals": 0}, "is not there"),
        ({"path": "results.agnt", "exists": True}, "is not there"),
        ({"path": "results.none", "exists": False}, "results.none exists"),
        ({"path": "prompt_responses.2", "exists": True}, "is not there"),
        ({"path": "prompt_responses.-3", "exists": True}, "is not there"),
        ({"path": "prompt_responses.x", "exists": True}, "is not there"),
        ({"path": "results.agent.json.ids", "schema": {"items": {"maximum": 4}}}, "[1]: 5 is"),
        ({"path": "results", "schema": {"type": "objct"}}, "no JSON schema"),
        ({"path": "results"}, "exactly one of"),
        ({"path": "results", "equals": 1, "exists": True}, "exactly one of"),
    ],
)
def test_checks_that_do_not_hold_say_why(check: dict[str, Any], why: str) -> None:
    assert why in str(reason(check))


def test_the_longest_key_wins_where_keys_hold_dots() -> None:
    assert resolve(CONTEXT, "results.v1.2.ok") is True
    assert resolve(CONTEXT, "results.v1.3") == 1
    assert resolve({"a.b": {"x": 1}, "a": {"b": {"y": 2}}}, "a.b.y") == 2
    assert resolve({"": {"": 1}}, ".") == 1


@given(OBJECTS)
def test_every_key_is_found_by_its_own_name(context: Any) -> None:
    for key, value in context.items():
        if key:
            assert resolve(context, key) is value
            assert found(context, key)


@given(JSON)
def test_every_value_equals_itself_and_its_copy(value: Any) -> None:
    assert equal(value, json.loads(json.dumps(value)))
    assert reason({"path": "", "equals": value}, value) is None
    assert reason({"path": "", "not_equals": value}, value) is not None


@pytest.mark.parametrize("operator", OPERATORS)
@given(JSON, JSON)
def test_no_check_raises_whatever_it_asks_of_whatever_there_is(
    operator: str, wanted: Any, context: Any
) -> None:
    result = verify([{"path": "a.b.0", operator: wanted}, {"path": "", operator: wanted}], context)
    json.dumps(vars(result))


def test_the_score_is_the_share_of_passed_checks() -> None:
    good, bad = {"path": "", "exists": True}, {"path": "x", "exists": True}
    result = verify([good, good, good, bad], CONTEXT, pass_score=0.75)
    assert (result.verdict, result.score) == ("passed", 0.75)
    assert result.failed == [{"check": bad, "reason": "x is not there", "actual": None}]
    assert verify([good, bad], CONTEXT).verdict == "failed"
    assert verify([good] * 3 + [bad] * 7, CONTEXT, pass_score=0.1 * 3).verdict == "passed"


def test_no_checks_is_a_failure() -> None:
    assert verify([], CONTEXT).verdict == "failed"


def test_long_values_are_clipped_with_a_mark() -> None:
    result = verify([{"path": "t", "equals": "y" * 5000}], {"t": "x" * 5000})
    assert result.failed[0]["actual"].endswith("...(5,000 characters in all)")
    assert len(result.failed[0]["reason"]) < 200


def test_a_text_too_long_for_patterns_fails_the_check() -> None:
    check = {"path": "t", "matches": "x"}
    assert "at most" in str(reason(check, {"t": "x" * (TEXT_LIMIT_CHARS + 1)}))
    assert reason(check, {"t": "x" * TEXT_LIMIT_CHARS}) is None


def test_a_schema_fetches_nothing() -> None:
    for target in ("http://127.0.0.1:9/x.json", "file:///etc/hostname", "#/nowhere"):
        assert "which is not in it" in str(schema_problem({"$ref": target}, 1))
    assert schema_problem({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}, 1) is None


def test_a_schema_that_refers_to_itself_is_refused_not_followed_for_ever() -> None:
    assert schema_problem({"$ref": "#"}, 1) is not None
