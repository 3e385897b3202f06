"""The document of `run --json`, and pass@k."""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.tables import note_lines
from perdure.messages import SuiteTask, TrialSummary
from perdure.outcome import Trials, line_of_summary, outcome, pass_at_k


def task(id: str, repeats: int = 1) -> SuiteTask:
    return SuiteTask({"id": id, "steps": []}, digest=id, repeats=repeats)


def line(id: str, status: str = "succeeded", trial: int = 1, **more: Any) -> dict[str, Any]:
    summary = TrialSummary(id, trial, f"run-{id}-{trial}", status, started_at=1.0, **more)  # type: ignore[arg-type]
    return line_of_summary(summary)


def test_totals_count_trials_and_add_up_what_they_used() -> None:
    ended = [
        line("a", usage={"cost": 0.5}),
        line("b", "failed", usage={"cost": 1.0, "tokens": 7}),
    ]
    document = outcome("s", "r", [task("a"), task("b"), task("c")], Trials(ended))
    assert document["totals"] == {
        "total": 3,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 0,
        "failed_by_kind": {"infrastructure": 1},
        "not_run": 1,
        "usage": {"cost": 1.5, "tokens": 7},
    }
    assert (document["suite"], document["run_id"]) == ("s", "r")


def test_a_trial_that_was_not_run_is_not_a_failed_one() -> None:
    document = outcome("s", "r", [task("a"), task("b")], Trials([line("a")]))
    assert [t["status"] for t in document["tasks"]] == ["succeeded", "not_run"]
    assert document["tasks"][1]["trials"] == []
    assert (document["totals"]["failed"], document["totals"]["not_run"]) == (0, 1)
    assert document["status"] == "cancelled"
    assert document["pass_at_k"] == {"1": 1.0}


def test_what_a_limit_kept_from_running_makes_a_suite_fail_and_the_reason_is_told() -> None:
    trials = Trials([line("a")], stopped="cost 2.5 (max_cost: 2)")
    document = outcome("s", "r", [task("a"), task("b")], trials)
    assert (document["status"], document["stopped"]) == ("failed", "cost 2.5 (max_cost: 2)")


def test_of_a_trial_that_ended_twice_the_last_end_counts_and_none_while_it_runs_again() -> None:
    twice = [line("a", "failed", failure_kind="timeout"), line("a")]
    assert outcome("s", "r", [task("a")], Trials(twice))["totals"]["failed"] == 0
    again = outcome("s", "r", [task("a")], Trials(twice, [("a", 1)], is_open=True))
    assert (again["totals"]["running"], again["tasks"][0]["trials"]) == (1, [])


def test_a_trial_beyond_the_repeats_is_left_out() -> None:
    document = outcome("s", "r", [task("a")], Trials([line("a"), line("a", trial=2)]))
    assert document["totals"]["succeeded"] == document["totals"]["total"] == 1


def test_failures_are_counted_by_kind_in_one_order() -> None:
    kinds = ["infrastructure", "task", "bad_input", "task", "timeout", "environment"]
    ended = [line(str(n), "failed", failure_kind=kind) for n, kind in enumerate(kinds)]
    totals = outcome("s", "r", [task(str(n)) for n in range(6)], Trials(ended))["totals"]
    assert list(totals["failed_by_kind"].items()) == [
        ("task", 2), ("timeout", 1), ("environment", 1), ("infrastructure", 1), ("bad_input", 1),
    ]  # fmt: skip


@given(data=st.data())
def test_totals_always_add_up(data: st.DataObject) -> None:
    tasks = [task(id, data.draw(st.integers(1, 3), id)) for id in "abc"]
    runs = st.tuples(st.sampled_from("abcd"), st.integers(1, 4))
    ended = [
        line(id, data.draw(st.sampled_from(["succeeded", "failed", "cancelled"])), trial)
        for id, trial in data.draw(st.lists(runs))
    ]
    known = {(t.task["id"], trial) for t in tasks for trial in range(1, t.repeats + 1)}
    running = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True))
    is_open = data.draw(st.booleans())
    totals = outcome("s", "r", tasks, Trials(ended, running, is_open))["totals"]
    parts = ("succeeded", "failed", "cancelled", "not_run", "running", "pending")
    assert totals["total"] == sum(totals.get(part, 0) for part in parts)
    assert all(totals.get(part, 0) >= 0 for part in parts)
    assert sum(totals["failed_by_kind"].values()) == totals["failed"]
    assert ("pending" in totals) == is_open
    assert totals["not_run"] == 0 or not is_open


@pytest.mark.parametrize(
    ("statuses", "running", "is_open", "expected"),
    [
        (["succeeded", "succeeded"], [], False, ("succeeded", True)),
        (["succeeded", "failed"], [], False, ("failed", True)),
        (["failed", "failed"], [], False, ("failed", False)),
        (["succeeded", "cancelled"], [], False, ("cancelled", True)),
        (["succeeded"], [], False, ("not_run", True)),
        (["succeeded"], [("a", 2)], True, ("running", True)),
        (["succeeded"], [], True, ("pending", True)),
        ([], [("a", 1)], False, ("running", False)),
        ([], [], True, ("pending", False)),
    ],
)
def test_a_tasks_status_is_the_worst_of_its_trials(
    statuses: list[str], running: list[tuple[str, int]], is_open: bool, expected: tuple[str, bool]
) -> None:
    ended = [line("a", status, trial) for trial, status in enumerate(statuses, 1)]
    document = outcome("s", "r", [task("a", repeats=2)], Trials(ended, running, is_open))
    (found,) = document["tasks"]
    assert (found["status"], found["passed"]) == expected


def test_trials_stand_in_their_order_and_hold_what_the_contract_names() -> None:
    ended = [line("a", trial=2), line("a", "failed", trial=1, failure_kind="timeout",
                                      failure_step="x", failure_reason="late")]  # fmt: skip
    document = outcome("s", "r", [task("a", repeats=2)], Trials(ended))
    first, second = document["tasks"][0]["trials"]
    assert (first["trial"], second["trial"]) == (1, 2)
    assert first["failure"] == {"kind": "timeout", "step": "x", "reason": "late"}
    assert second["failure"] is None
    assert list(first) == [
        "trial", "run_id", "status", "failure", "steps", "retry_resets", "instances", "usage",
        "started_at", "duration",
    ]  # fmt: skip


def test_lines_of_tasks_that_the_suite_does_not_have_are_left_out() -> None:
    document = outcome("s", "r", [task("a")], Trials([line("a"), line("other", "failed")]))
    assert document["totals"]["failed"] == 0


def test_pass_at_k_of_three_trials_with_one_success() -> None:
    assert pass_at_k([(3, 1)]) == {
        "1": pytest.approx(1 / 3),
        "2": pytest.approx(2 / 3),
        "3": pytest.approx(1.0),
    }


def test_a_task_with_fewer_trials_than_k_is_left_out_of_that_k() -> None:
    assert pass_at_k([(1, 1), (2, 0)]) == {"1": 0.5, "2": 0.0}


def test_without_verdicts_there_is_no_estimate() -> None:
    assert pass_at_k([]) == {}
    assert pass_at_k([(0, 0)]) == {}


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_choices_with_a_success(trials: tuple[int, int]) -> None:
    n, c = trials
    found = pass_at_k([trials])
    for k in range(1, n + 1):
        choices = list(combinations([True] * c + [False] * (n - c), k))
        share = Fraction(sum(any(choice) for choice in choices), len(choices))
        assert found[str(k)] == pytest.approx(float(share))


def test_what_went_wrong_beside_a_task_is_told_of_it_alone() -> None:
    noted = {**line("b", trial=2), "note": "the record could not be written: \x1b[2J"}
    document = outcome("s", "r", [task("a"), task("b", 2)], Trials([line("a"), noted]))
    assert "note" not in document["tasks"][0]["trials"][0]
    [told] = note_lines(document)
    assert told.startswith("note: b/2: the record could not be written")
    assert "\x1b" not in told


def test_ten_thousand_running_tasks_and_trials_are_summed_up_at_once() -> None:
    """A sum over all running ones for each of them took a quarter of a minute."""
    tasks = [SuiteTask({"id": f"t{number}"}, "digest") for number in range(10_000)]
    running = [(f"t{number}", 1) for number in range(10_000)]
    began = time.process_time()
    document = outcome("s", "run", tasks, Trials((), running=running, is_open=True))
    estimates = pass_at_k([(10_000, 1), *[(1, 1)] * 10_000])
    assert time.process_time() - began < 5
    assert document["totals"]["running"] == 10_000
    assert len(estimates) == 10_000
    assert estimates["5000"] == pytest.approx(0.5)
