"""What undoes the attempts of a rolled-back span, and what becomes of a run when it does not."""

from __future__ import annotations

from perdure.core.pool_decisions import Grant, GrantedInstance
from perdure.core.summary import summarise
from perdure.messages import PoolUse, StepFailure, StepOutcome
from perdure.pool_messages import LeaseRelease, LeaseRequest
from tests.core.rollback_kit import (
    HOLDER,
    UNDO,
    Driver,
    back_to,
    chain,
    done,
    drive,
    siblings,
    start,
    step,
    task,
    two_branches,
)
from tests.workflows.fake_pool import SHOP


def test_a_compensation_that_keeps_failing_ends_the_task_with_the_original_error() -> None:
    driver = chain()
    driver.fail("c", "the order was refused")
    assert driver.undo(failing=["c"]) == ["c#0.1 declared", "b#0.1 declared"], "the rest still run"
    run = driver.run
    assert run.status == "failed"
    assert run.failure
    assert (run.failure.step, run.failure.message) == ("c", "the order was refused")
    (told,) = run.record()["compensation_failures"]
    assert told["step_id"] == "c"
    assert (told["attempt"], told["kind"]) == (1, "declared")
    assert (told["error"], told["error_type"]) == ("it will not", "Broken")
    assert told["at_utc"] == "1970-01-01T00:00:04+00:00"
    run.close(driver.now)
    summary = summarise(run)
    assert summary.failure_reason == "the order was refused"
    assert summary.note
    assert "it will not" in summary.note


def test_after_a_failed_compensation_steps_outside_are_left_to_finish() -> None:
    driver = siblings()
    driver.fail("b")
    driver.stop()
    driver.undo(failing=["b"])
    assert not driver.run.over
    driver.end("d")
    assert driver.run.status == "failed"
    assert driver.run.context["results"] == {"a": 1, "d": 1}


def test_a_compensation_s_end_is_heard_once() -> None:
    driver = chain()
    driver.fail("c")
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.run.compensated(first, None, driver.now)
    driver.run.compensated(first, StepFailure("late"), driver.now)
    driver.undo()
    assert driver.go() == ["b"]
    driver.run.compensated(first, StepFailure("later still"), driver.now)
    assert driver.run.record()["compensation_failures"] == []


def test_a_compensation_knows_the_attempt_that_it_undoes() -> None:
    driver = drive(
        step("a", creates=["orders/1"], **UNDO),
        step("b", "a", type="shop", max_worker_losses=1, **back_to("a"), **UNDO),
    )
    driver.go()
    driver.end("a", done("a", {"order": 7}, creates=["orders/1"]))
    driver.go()
    beat = StepOutcome("failed", [{"op": "set", "path": ["metadata", "b"], "value": 1}])
    driver.run.lose(driver.flying.pop("b"), beat, driver.now)
    driver.go()
    driver.fail("b")
    assert driver.undo() == [
        *["b#0.2 declared", "b#0.2 type", "b#0.1 declared", "b#0.1 type"],
        *["a#0.1 declared", "a#0.1 creates"],
    ]
    by_name = {c.activity_id: c for c in driver.undone}
    lost = by_name["undo b#0.1 type"]
    assert (lost.status, lost.diff, lost.result) == ("lost", beat.diff, None)
    assert not lost.is_written
    known = by_name["undo a#0.1 creates"]
    assert (known.status, known.result, known.creates) == ("succeeded", {"order": 7}, ["orders/1"])
    assert known.is_written
    assert known.step.body["compensate"] == UNDO["compensate"]


def test_a_step_without_anything_to_undo_has_no_compensation() -> None:
    driver = drive(step("a", **back_to("a")))
    driver.go()
    driver.fail("a")
    assert driver.undo() == []
    assert driver.go() == ["a"]


def test_what_was_undone_is_not_undone_again_by_the_next_rollback() -> None:
    driver = drive(step("a", **UNDO), step("b", "a", **UNDO, **back_to("b", times=2)))
    driver.go()
    driver.end("a")
    for attempt in (1, 2):
        driver.go()
        driver.fail("b")
        assert driver.undo() == [f"b#{attempt - 1}.{attempt} declared"]


def test_each_attempt_is_undone_by_what_it_wrote_itself() -> None:
    driver = drive(
        step("a", retry={"max_attempts": 2, "initial_interval": 0}, **UNDO),
        step("b", "a", **back_to("a")),
    )
    driver.go()
    half = [{"op": "set", "path": ["results", "a"], "value": "half"}]
    driver.fail("a", diff=half)
    driver.go()
    driver.end("a", done("a", "whole"))
    driver.go()
    driver.fail("b")
    driver.undo()

    told = [(c.attempt, c.status, c.result, c.is_written) for c in driver.undone]
    assert told == [(2, "succeeded", "whole", True), (1, "failed", "half", False)]


def test_files_are_removed_whether_the_attempt_got_as_far_as_to_make_them_or_not() -> None:
    driver = drive(step("a", creates=["half", "whole"], **back_to("a")))
    driver.go()
    driver.fail("a", creates=["half"])
    driver.undo()

    assert [(c.kind, c.creates) for c in driver.undone] == [("creates", ["half", "whole"])]


def test_of_several_failures_that_are_not_undone_the_first_is_the_task_s() -> None:
    """T22."""
    driver = two_branches()
    driver.fail("b", "first")
    driver.fail("y", "second")
    driver.undo(failing=["x"])

    assert driver.run.failure
    assert (driver.run.failure.step, driver.run.failure.message) == ("b", "first")


def test_where_a_compensation_failed_is_broken_though_its_step_used_nothing() -> None:
    undo = {"type": "http", "environment": "shop", "port": "PORT", "path": "/"}
    known = task(step("a", uses=[], compensate=undo, **back_to("a")), environments=["shop"])
    driver = Driver(start(known, pool=PoolUse(), environments=[SHOP]))
    (asked,) = driver.run.take_lease_words()
    assert isinstance(asked, LeaseRequest)
    shop = GrantedInstance(1, "shop", "shop", "p", {})
    driver.run.lease_granted(Grant(asked.request_id, HOLDER, "h", [shop], pool="default"), 0)
    driver.go()
    driver.fail("a")
    driver.undo(failing=["a"])
    driver.run.close(driver.now)

    words = driver.run.take_lease_words()
    (release,) = (word for word in words if isinstance(word, LeaseRelease))
    assert list(release.broken) == ["shop"]
