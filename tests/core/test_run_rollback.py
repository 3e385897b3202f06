"""How a run takes a span back and runs it again, without a server."""

from __future__ import annotations

import pytest

from perdure.core.summary import summarise
from perdure.messages import StepOutcome
from tests.core.rollback_kit import (
    UNDO,
    Driver,
    back_to,
    chain,
    deployed,
    drive,
    failed,
    kinds,
    siblings,
    start,
    step,
    task,
    two_branches,
)

# --- The whole story -----------------------------------------------------------------------------


def test_a_failed_step_takes_its_span_back_and_runs_it_again_under_the_next_epoch() -> None:
    driver = chain()
    driver.fail("c", diff=[{"op": "set", "path": ["results", "c"], "value": "half"}])
    run = driver.run
    assert run.is_rolling_back
    assert run.status == "running"
    assert driver.go() == [], "not before it is undone"
    assert driver.undo() == ["c#0.1 declared", "b#0.1 declared"], "the newest first"
    assert driver.go() == ["b"]
    assert (run.epoch, driver.flying["b"].epoch, driver.flying["b"].attempt) == (1, 1, 2)
    assert run.context["results"] == {"a": 1}
    assert driver.flying["b"].lost_attempts == ()
    driver.end("b")
    driver.go()
    driver.end("c")
    assert run.status == "succeeded"
    assert [s["step_id"] for s in run.record()["completed_steps"]] == ["a", "b", "c"]
    run.close(driver.now)
    assert summarise(run).rollbacks == 1


def test_the_record_and_the_events_tell_the_rollback() -> None:
    driver = chain()
    driver.fail("c")
    driver.undo()
    driver.go()
    record = driver.run.record()
    (rollback,) = record["rollbacks"]
    assert rollback["failed"] == ["c"]
    assert rollback["span"] == ["b", "c"]
    assert (rollback["number"], rollback["epoch"], record["attempt_epoch"]) == (1, 1, 1)
    assert [c["step_id"] for c in rollback["compensations"]] == ["c", "b"]
    assert rollback["started_at"] < rollback["ended_at"]
    assert record["compensation_failures"] == []
    told = kinds(driver.run)
    assert told[told.index("rollback.started") :] == [
        "rollback.started",
        *["compensation.started", "compensation.completed"] * 2,
        "rollback.completed",
        "step.started",
    ]
    (begun,) = (e for e in driver.run.events if e["type"] == "rollback.started")
    assert (begun["steps"], begun["cause"], begun["retry"]) == (["b", "c"], ["c"], 1)


def test_a_step_s_own_retries_come_before_a_rollback_and_start_anew_after_it() -> None:
    driver = chain(retry={"max_attempts": 2, "initial_interval": 5})
    driver.fail("c")
    assert not driver.run.is_rolling_back
    driver.now += 5
    assert driver.go() == ["c"]
    driver.fail("c")
    assert driver.undo() == ["c#0.2 declared", "c#0.1 declared", "b#0.1 declared"]
    driver.go()
    driver.end("b")
    driver.go()
    driver.fail("c")
    assert driver.run.wake_at() == driver.now + 5


def test_a_failure_that_retry_would_not_try_again_is_answered_all_the_same() -> None:
    """T25."""
    driver = chain(retry={"max_attempts": 5, "non_retryable_errors": ["StepFailed"]})
    driver.fail("c")
    assert driver.run.is_rolling_back


def test_t25_tolerance_counts_only_when_the_retries_are_used_up() -> None:
    driver = chain(fail_task_on_error=False)
    driver.fail("c")
    driver.undo()
    driver.go()
    driver.end("b")
    driver.go()
    driver.fail("c")
    assert driver.run.status == "succeeded"
    assert driver.run.record()["completed_steps"][-1] == {"step_id": "c", "status": "failure"}


def test_without_retries_left_the_task_fails_with_the_step_s_own_error() -> None:
    driver = chain()
    for message in ("first", "second"):
        driver.fail("c", message)
        driver.undo()
        driver.go()
        if message == "first":
            driver.end("b")
            driver.go()
    assert driver.run.status == "failed"
    assert driver.run.failure
    assert driver.run.failure.message == "second"
    assert len(driver.run.record()["rollbacks"]) == 1, "nothing is compensated at the end"


def test_max_retries_of_zero_never_rolls_back() -> None:
    driver = drive(step("a", **back_to("a", times=0)))
    driver.go()
    driver.fail("a")
    assert driver.run.status == "failed"


def test_t28_retries_are_counted_for_each_failing_step() -> None:
    driver = drive(
        step("a"), step("b", "a", **back_to("a")), step("c", "b", **back_to("a", times=2))
    )
    for step_id, fails in (("a", 0), ("b", 1), ("a", 0), ("b", 0), ("c", 1), ("a", 0), ("b", 1)):
        driver.go()
        driver.end(step_id, failed() if fails else None)
    assert driver.run.status == "failed"
    assert driver.run.failure
    assert driver.run.failure.step == "b"


# --- Siblings ------------------------------------------------------------------------------------


def test_running_steps_of_the_span_are_stopped_before_anything_is_undone() -> None:
    """T27."""
    driver = siblings()
    driver.fail("b")
    assert driver.run.to_stop == ["c"]
    assert driver.undo() == []
    assert driver.stop() == ["c"]
    assert driver.run.to_stop == []
    assert driver.undo() == ["c#0.1 declared", "b#0.1 declared", "a#0.1 declared"]
    assert driver.run.record()["rollbacks"][0]["cancelled"] == ["c"]
    assert driver.go() == ["a"]


def test_all_running_steps_of_the_span_are_stopped_at_once() -> None:
    driver = drive(step("a"), step("b", "a", **back_to("a")), step("c", "a"), step("d", "a"))
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    assert driver.run.to_stop == ["c", "d"]


def test_td18_work_in_flight_outside_the_span_is_kept() -> None:
    driver = siblings()
    driver.fail("b")
    driver.stop()
    driver.undo()
    assert driver.go() == ["a"]
    driver.end("d")
    assert driver.run.context["results"] == {"d": 1}
    assert driver.flying["a"].attempt == 2
    record = driver.run.record()
    assert [len(s["attempts"]) for s in record["steps"] if s["id"] == "d"] == [1]


def test_td1_a_step_that_ends_elsewhere_meanwhile_does_not_hinder_the_retry() -> None:
    """T36: nothing gives a retry up."""
    driver = siblings()
    driver.end("d")
    driver.fail("b")
    driver.stop()
    driver.undo()
    assert driver.go() == ["a"]
    assert driver.run.context["results"] == {"d": 1}


def test_td2_each_step_s_diff_is_its_own_so_survivors_keep_theirs_alone() -> None:
    driver = drive(step("a", **back_to("a")), step("d"), step("e", "a", "d"))
    driver.go()
    wrote = {"op": "merge", "path": ["metadata", "shared"], "value": {"of": "d"}}
    driver.end("d", StepOutcome("succeeded", [wrote]))
    half = {"op": "merge", "path": ["metadata", "shared"], "value": {"also": "a"}}
    driver.fail("a", diff=[half])
    driver.go()
    assert driver.run.context["metadata"]["shared"] == {"of": "d"}


@pytest.mark.parametrize("how", ["lost", "interrupted", "succeeded", "cancelled"])
def test_however_a_stopped_step_ends_it_is_undone_and_runs_again(how: str) -> None:
    driver = siblings()
    driver.fail("b")
    c = driver.flying["c"]
    if how == "lost":
        driver.run.lose(c, StepOutcome("failed", deployed("of c")), driver.now)
    elif how == "interrupted":
        driver.run.interrupt(c, driver.now)
    elif how == "succeeded":
        driver.end("c")
    else:
        driver.run.finish(c, StepOutcome("cancelled"), driver.now)
    assert driver.undo()[0] == "c#0.1 declared"
    assert driver.go() == ["a"]
    driver.end("a")
    assert "c" in driver.go()


def test_a_stopped_step_with_own_retries_left_is_not_tried_before_the_span() -> None:
    driver = drive(
        step("a"),
        step("b", "a", **back_to("a")),
        step("c", "a", retry={"max_attempts": 2, "initial_interval": 0}),
    )
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    driver.fail("c")
    assert driver.go() == ["a"]


def test_steps_outside_the_span_that_wait_for_their_next_attempt_wait_on() -> None:
    driver = siblings(retry={"max_attempts": 2, "initial_interval": 1})
    driver.fail("d")
    driver.fail("b")
    driver.now += 5
    assert driver.run.wake_at() is None
    assert driver.go() == [], "not before the rollback is over"
    driver.stop()
    assert "d#0.1 declared" not in driver.undo()
    assert driver.go() == ["a", "d"]


def test_a_step_of_the_span_that_waits_for_its_next_attempt_is_taken_back() -> None:
    driver = drive(
        step("a"),
        step("b", "a", **back_to("a")),
        step("c", "a", retry={"max_attempts": 2, "initial_interval": 100}, **UNDO),
        step("later", "c"),
    )
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("c")
    driver.fail("b")
    assert driver.undo() == ["c#0.1 declared"]
    assert driver.go() == ["a"]
    assert driver.run.wake_at() is None
    driver.end("a")
    assert driver.go() == ["b", "c"]


def test_a_step_that_was_never_started_has_nothing_undone() -> None:
    driver = drive(step("a", **UNDO), step("b", "a", **back_to("a")), step("later", "b", **UNDO))
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    assert driver.undo() == ["a#0.1 declared"]
    assert driver.run.record()["rollbacks"][0]["span"] == ["a", "b"]


def test_steps_before_the_start_of_the_range_count_as_done_and_stay_so() -> None:
    driver = Driver(start(task(step("a"), step("b", "a", **back_to("a"))), start_step=1))
    driver.go()
    driver.fail("b")
    assert driver.go() == ["b"]
    driver.end("b")
    assert driver.run.status == "succeeded"


def test_td6_a_run_of_a_range_ends_well_after_a_rollback() -> None:
    driver = Driver(start(task(step("a", **back_to("a")), step("b", "a")), end_step=1))
    driver.go()
    driver.fail("a")
    driver.go()
    driver.end("a")
    assert driver.run.status == "succeeded"
    assert driver.run.record()["retry_resets"][0]["replayed"] == ["a"]


# --- Several failures ----------------------------------------------------------------------------


def test_td3_two_failures_together_are_one_rollback_of_both_spans() -> None:
    """T37: they are answered."""
    driver = two_branches()
    driver.fail("b")
    driver.fail("y")
    assert driver.undo() == [f"{s}#0.1 declared" for s in ("y", "b", "x", "a")]
    assert driver.go() == ["a", "x"]
    (rollback,) = driver.run.record()["rollbacks"]
    assert rollback["failed"] == ["b", "y"]
    assert [r["step_id"] for r in driver.run.record()["retry_resets"]] == ["b", "y"]
    assert [r["attempt"] for r in driver.run.record()["retry_resets"]] == [2, 2], "each counted"


def test_a_failure_that_comes_while_steps_are_being_stopped_joins_in() -> None:
    driver = drive(
        step("a"),
        step("b", "a", **back_to("a")),
        step("c", "a"),
        step("x"),
        step("y", "x", **back_to("x")),
    )
    driver.go()
    driver.end("a")
    driver.end("x")
    driver.go()
    driver.fail("b")
    assert driver.undo() == []
    driver.fail("y")
    assert "rollback.widened" in kinds(driver.run)
    driver.stop()
    assert driver.go() == ["a", "x"]
    assert driver.run.epoch == 1


def test_who_waits_in_a_span_that_joins_in_is_taken_back_with_it() -> None:
    driver = drive(
        *(step("a"), step("b", "a", **back_to("a")), step("c", "a")),
        *(step("x"), step("y", "x", **back_to("x"))),
        step("z", "x", retry={"max_attempts": 2, "initial_interval": 100}),
    )
    driver.go()
    driver.end("a")
    driver.end("x")
    driver.go()
    driver.fail("z")
    driver.fail("b")
    driver.fail("y")
    driver.stop()
    assert driver.go() == ["a", "x"]
    assert driver.run.wake_at() is None
    driver.end("x")
    assert driver.go() == ["y", "z"]


def test_a_failure_that_comes_while_the_world_is_undone_has_the_next_rollback() -> None:
    driver = two_branches()
    driver.fail("b")
    compensation = driver.run.take_compensation(driver.now)
    assert compensation
    driver.fail("y")
    driver.run.compensated(compensation, None, driver.now)
    assert driver.undo() == ["a#0.1 declared"]
    assert driver.go() == [], "y's comes before anything starts"
    assert driver.undo() == ["y#0.1 declared", "x#0.1 declared"]
    assert driver.go() == ["a", "x"]
    first, second = driver.run.record()["rollbacks"]
    assert (first["failed"], second["failed"]) == (["b"], ["y"])
    assert driver.run.epoch == 2


def test_a_compensation_s_number_is_its_own_over_the_whole_run() -> None:
    driver = chain(times=2)
    for _ in range(2):
        driver.fail("c")
        driver.undo()
        driver.go()
        driver.end("b")
        driver.go()
    assert [c.number for c in driver.undone] == [1, 2, 3, 4]
    assert len({c.activity_id for c in driver.undone}) == 4


def test_td15_a_task_has_a_budget_of_rollbacks() -> None:
    driver = drive(step("a", **back_to("a", times=9)), max_rollbacks=2)
    for _ in range(2):
        driver.go()
        driver.fail("a")
    driver.go()
    assert driver.run.status == "running"
    driver.fail("a")
    assert driver.run.status == "failed"


def test_a_rollback_of_several_failures_is_told_by_the_one_with_most_retries() -> None:
    driver = drive(step("a", **back_to("a")), step("b", **back_to("b", times=3)))
    driver.go()
    driver.fail("b")
    driver.go()
    driver.fail("a")
    driver.fail("b")
    driver.go()
    told = driver.run.progress()["rollbacks"][-1]
    assert told == {"number": 2, "to": ["a", "b"], "retry": 2, "of": 3}


def test_failures_that_join_a_rollback_need_no_budget_of_their_own() -> None:
    driver = drive(step("a", **back_to("a")), step("b", **back_to("b")), max_rollbacks=1)
    driver.go()
    driver.fail("a")
    driver.fail("b")
    assert driver.go() == ["a", "b"]


@pytest.mark.parametrize(("budget", "status"), [(1, "failed"), (2, "running")])
def test_td15_a_rollback_that_is_to_follow_needs_budget_and_who_joins_it_none(
    budget: int, status: str
) -> None:
    each = (step(name, **back_to(name), **UNDO) for name in "abc")
    driver = drive(*each, max_rollbacks=budget)
    driver.go()
    driver.fail("a")
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.fail("b")
    driver.fail("c")
    driver.run.compensated(first, None, driver.now)
    assert driver.run.status == status
    assert driver.go() == []
    driver.undo()
    assert driver.go() == (["a", "b", "c"] if budget == 2 else [])


def test_td15_the_span_waits_for_the_delay_and_others_do_not() -> None:
    driver = drive(step("a"), step("b", "a", **back_to("a", delay=30)), step("d"), step("e", "d"))
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    assert driver.go() == []
    due = driver.now + 30
    assert driver.run.wake_at() == due
    driver.end("d")
    assert driver.go() == ["e"]
    driver.now = due - 0.1
    assert driver.go() == []
    driver.now = due
    assert driver.go() == ["a"]


def test_of_several_failures_the_longest_delay_counts() -> None:
    driver = drive(step("a", **back_to("a", delay=30)), step("b", **back_to("b", delay=5)))
    driver.go()
    driver.fail("a")
    driver.fail("b")
    assert driver.go() == []
    assert driver.run.wake_at() == driver.now + 30


def test_who_waits_for_the_delay_of_one_rollback_waits_on_after_the_next() -> None:
    driver = drive(
        step("x"), step("b", "x", **back_to("b", delay=30)), step("y", "x", **back_to("x"))
    )
    driver.go()
    driver.end("x")
    driver.go()
    driver.fail("b")
    assert driver.go() == []
    due = driver.now + 30
    driver.fail("y")
    assert driver.go() == ["x"]
    driver.end("x")
    assert driver.go() == ["y"]
    assert driver.run.wake_at() == due
    driver.now = due
    assert driver.go() == ["b"]


# --- Fatal failures, cancels, limits -------------------------------------------------------------


def test_t23_a_fatal_failure_before_anything_is_undone_takes_the_rollback_away() -> None:
    driver = siblings()
    driver.fail("b", diff=[{"op": "set", "path": ["results", "b"], "value": "half"}])
    driver.fail("d", "fatal")
    assert driver.undo() == []
    driver.end("c")
    run = driver.run
    assert run.status == "failed"
    assert run.failure
    assert run.failure.message == "fatal"
    assert run.record()["rollbacks"][0]["abandoned"] == "fatal"
    assert run.context["results"]["b"] == "half", "T57: it stays visible"
    assert run.epoch == 0


def test_t23_after_a_fatal_failure_no_rollback_begins() -> None:
    driver = siblings()
    driver.fail("d", "fatal")
    driver.fail("b")
    assert not driver.run.is_rolling_back
    driver.end("c")
    assert driver.run.failure
    assert driver.run.failure.message == "fatal"


def test_a_fatal_failure_in_between_lets_the_planned_compensations_finish() -> None:
    """T23."""
    driver = siblings()
    driver.fail("b")
    driver.stop()
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.fail("d", "fatal")
    assert not driver.run.over
    driver.run.compensated(first, None, driver.now)
    assert driver.undo() == ["b#0.1 declared", "a#0.1 declared"]
    assert driver.run.status == "failed"
    assert driver.run.failure
    assert driver.run.failure.message == "fatal"
    assert driver.run.take_lease_words() == []
    assert driver.go() == []


def test_t38_a_cancel_in_between_lets_the_planned_compensations_finish() -> None:
    driver = chain()
    driver.fail("c")
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.run.cancel("enough", driver.now)
    assert driver.run.status == "running"
    driver.run.compensated(first, None, driver.now)
    assert driver.undo() == ["b#0.1 declared"]
    assert driver.run.status == "cancelled"
    assert driver.run.record()["rollbacks"][0]["abandoned"] == "enough"
    driver.run.close(driver.now)


def test_a_cancel_while_steps_are_being_stopped_undoes_nothing() -> None:
    driver = siblings()
    driver.fail("b")
    driver.run.cancel("enough", driver.now)
    for step_id in ("c", "d"):
        driver.end(step_id, StepOutcome("cancelled"))
    assert driver.run.status == "cancelled"
    assert driver.undo() == []


def test_t57_what_failed_last_before_the_end_stays_visible_and_who_waited_does_not() -> None:
    driver = drive(
        *(step("a"), step("b", "a", **UNDO, **back_to("a"))),
        *(step("x"), step("y", "x", **back_to("x"))),
        step("z", "a", retry={"max_attempts": 2, "initial_interval": 100}),
    )
    driver.go()
    driver.end("a")
    driver.end("x")
    driver.go()
    half = {name: {"op": "set", "path": ["results", name], "value": "half"} for name in "byz"}
    driver.fail("z", diff=[half["z"]])
    driver.fail("b", diff=[half["b"]])
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.fail("y", diff=[half["y"]])
    driver.run.cancel("enough", driver.now)
    driver.run.compensated(first, None, driver.now)
    assert driver.run.status == "cancelled"
    assert driver.run.context["results"] == {"a": 1, "x": 1, "b": "half", "y": "half"}


def test_the_time_limit_in_between_fails_the_task_when_the_planned_is_undone() -> None:
    driver = chain()
    driver.fail("c")
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.run.time_out(60, driver.now)
    driver.run.compensated(first, None, driver.now)
    assert driver.undo() == ["b#0.1 declared"]
    assert driver.run.status == "failed"
    assert driver.run.failure
    assert driver.run.failure.kind == "timeout"


def test_a_workflow_that_is_terminated_in_between_has_a_whole_record() -> None:
    driver = chain()
    driver.fail("c")
    assert driver.run.take_compensation(driver.now)
    driver.run.cancel("terminated", driver.now)
    driver.run.close(driver.now)
    assert driver.run.status == "cancelled"
    rollback = driver.run.record()["rollbacks"][0]
    assert rollback["abandoned"] == "terminated"
    assert rollback["compensations"][0]["ended_at"] is None
