"""The journal: replay gives back the context, without the steps that were taken back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.context import apply, diff, new_context, same
from perdure.core.journal import RESERVED_IDS, SCHEDULER, SEED, Entry, Journal
from tests.core.strategies import JSON, states


def entry(step_id: str, before: Any, after: Any, status: str = "succeeded") -> Entry:
    return Entry(step_id, 1, 0, status, diff(before, after))


def caught_up(journal: Journal, have: int, held: Any) -> Any:
    """The context of whoever holds that of version `have`, after asking for the rest."""
    for ops in journal.since(have):
        held = apply(held, ops)
    return held


@given(states(5))
def test_the_context_is_what_the_last_step_left(history: list[Any]) -> None:
    journal = Journal(history[0])
    for number in range(1, len(history)):
        journal.record(entry(f"s{number}", history[number - 1], history[number]))
        assert same(journal.context, history[number])
    assert journal.version == len(history) - 1
    assert same(journal.replay().context, history[-1])


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), JSON), max_size=8), st.sets(st.sampled_from("abcd"))
)
def test_replay_without_steps_is_a_world_in_which_they_never_ran(
    writes: list[tuple[str, Any]], without: set[str]
) -> None:
    """T29."""
    full, spared = Journal(new_context()), Journal(new_context())
    for step_id, value in writes:
        for journal in (full, spared):
            if journal is spared and step_id in without:
                continue
            fresh = Journal(new_context(), [e for e in journal.entries if e.step_id != step_id])
            after = copy.deepcopy(fresh.context)
            after["results"][step_id] = value
            after["metadata"].setdefault("of", {})[step_id] = [value]
            journal.record(entry(step_id, fresh.context, after))
    assert same(full.replay(without).context, spared.context)
    assert full.replay(without).completed == spared.completed


@given(states(6), st.lists(st.sampled_from("abc"), min_size=5, max_size=5), st.integers(-1, 4))
def test_whoever_has_an_older_version_gets_to_the_newest(
    history: list[Any], ids: list[str], have: int
) -> None:
    journal = Journal(history[0])
    held = history[0]
    for number, step_id in enumerate(ids):
        if number == max(have, 0):
            held = journal.context
        name = SCHEDULER if step_id == "c" else step_id
        journal.record(entry(name, history[number], history[number + 1]))
    assert same(caught_up(journal, have, held), journal.context)
    middle = caught_up(Journal(history[0]), -1, history[0])
    for ops in journal.since(-1, 3):
        middle = apply(middle, ops)
    for ops in journal.since(3):
        middle = apply(middle, ops)
    assert same(middle, journal.context)


@given(states(6), st.lists(st.sampled_from("abc"), min_size=5, max_size=5))
def test_a_journal_goes_through_json_with_its_versions(history: list[Any], ids: list[str]) -> None:
    journal = Journal(history[0])
    for number, step_id in enumerate(ids):
        name = SCHEDULER if step_id == "c" else step_id
        journal.record(entry(name, history[number], history[number + 1]))
    carried = Journal.from_dict(json.loads(json.dumps(journal.to_dict())))
    assert same(carried.context, journal.context)
    assert carried.entries == journal.entries
    assert [same(carried.since(n), journal.since(n)) for n in range(7)] == [True] * 7
    carried.record(entry("z", carried.context, {"z": 1}))
    assert carried.context == {"z": 1}


def test_a_step_recorded_again_moves_to_the_end() -> None:
    """T43, T44."""
    seed = new_context()
    journal = Journal(seed)
    for step_id, text in (("a", "first"), ("b", "b"), ("a", "second")):
        after = copy.deepcopy(seed)
        after["results"][step_id] = text
        after["prompt_responses"].append(text)
        journal.record(entry(step_id, seed, after))
    assert journal.completed == ["b", "a"]
    assert journal.context["prompt_responses"] == ["b", "second"]
    assert journal.context["results"] == {"a": "second", "b": "b"}
    assert same(journal.replay().context, journal.context)


def reset_mark(number: int) -> dict[str, Any]:
    path = ["metadata", "retry_resets"]
    return {"op": "edit", "path": path, "remove": [], "append": [{"attempt": number}]}


def test_the_scheduler_s_marks_come_right_after_the_seed_and_are_never_taken_back() -> None:
    """T44."""
    step = {"op": "set", "path": ["metadata", "m"], "value": "step"}
    mark = {"op": "set", "path": ["metadata", "m"], "value": "mark"}
    journal = Journal(new_context())
    journal.record(Entry("a", 1, 0, "succeeded", [step]))
    journal.record(Entry(SCHEDULER, 1, 0, "succeeded", [mark, reset_mark(1)]))
    journal.record(Entry(SCHEDULER, 1, 0, "succeeded", [reset_mark(2)]))
    assert journal.version == 3
    again = journal.replay()
    assert again.context["metadata"] == {
        "m": "step",
        "retry_resets": [{"attempt": 1}, {"attempt": 2}],
    }
    undone = journal.replay({"a", SCHEDULER})
    assert undone.context["metadata"]["m"] == "mark"
    assert undone.context["metadata"]["retry_resets"] == [{"attempt": 1}, {"attempt": 2}]
    assert undone.completed == []


def test_new_marks_are_the_last_of_those_right_after_the_seed() -> None:
    def told(place: str, value: Any) -> list[dict[str, Any]]:
        return [{"op": "set", "path": ["metadata", place], "value": value}]

    journal = Journal(new_context())
    journal.record(Entry("a", 1, 0, "succeeded", told("m", "of a")))
    journal.record(Entry("b", 1, 0, "succeeded", told("n", "of b")))
    journal.record(Entry(SCHEDULER, 1, 0, "succeeded", told("o", "old mark")))
    marks = [Entry(SCHEDULER, 1, 1, "succeeded", [*told("n", "new"), *told("o", "new mark")])]
    again = journal.replay({"a"}, marks)
    assert again.context["metadata"] == {"n": "of b", "o": "new mark"}
    assert [e.epoch for e in again.entries] == [0, 1, 0]
    assert again.version == 3
    assert again.base()["metadata"] == {"n": "new", "o": "new mark"}
    assert journal.context["metadata"]["m"] == "of a"


def test_a_replayed_journal_goes_on_as_one_that_was_recorded() -> None:
    journal = Journal(new_context())
    for step_id in "abc":
        after = copy.deepcopy(journal.context)
        after["results"][step_id] = step_id
        journal.record(entry(step_id, journal.context, after))
    again = Journal.from_dict(json.loads(json.dumps(journal.replay({"b"}).to_dict())))
    again.record(entry("b", again.context, {**again.context, "agent_model": "m"}))
    assert again.context["results"] == {"a": "a", "c": "c"}
    assert again.context["agent_model"] == "m"
    assert same(caught_up(again, -1, again.seed), again.context)


def test_a_context_handed_out_is_not_changed_by_later_records() -> None:
    journal = Journal(new_context())
    held = journal.context
    kept = copy.deepcopy(held)
    journal.record(
        Entry("a", 1, 0, "succeeded", [{"op": "set", "path": ["results", "a"], "value": 1}])
    )
    assert held == kept


def test_the_seed_cannot_be_recorded_and_its_id_is_reserved() -> None:
    """T44."""
    with pytest.raises(ValueError, match="start context"):
        Journal({}).record(Entry(SEED, 1, 0, "succeeded"))
    assert {SEED, SCHEDULER} == RESERVED_IDS


def test_the_carried_journal_names_a_diff_once() -> None:
    journal = Journal(new_context())
    journal.record(
        Entry(
            "a", 1, 0, "succeeded", [{"op": "set", "path": ["results", "a"], "value": "x" * 10_000}]
        )
    )
    assert len(json.dumps(journal.to_dict())) < 11_000
