"""What holds apart the lives of steps, and outlasts them."""

from __future__ import annotations

from perdure.messages import ContextRequest, SlotGrant
from tests.core.rollback_kit import (
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

# --- Epochs --------------------------------------------------------------------------------------


def test_t35_a_straggler_of_an_earlier_epoch_is_dropped() -> None:
    driver = siblings()
    driver.fail("b")
    straggler = driver.flying["c"]
    driver.stop()
    driver.undo()
    driver.go()
    driver.run.finish(straggler, done("c", "late"), driver.now)
    driver.run.lose(straggler, None, driver.now)
    driver.run.interrupt(straggler, driver.now)
    assert "c" not in driver.run.context["results"]
    assert driver.run.record()["steps"][2]["status"] == "pending"
    driver.end("a")
    driver.go()
    driver.run.finish(straggler, done("c", "later"), driver.now)
    assert driver.run.running == ["b", "c", "d"]


def test_td16_an_attempt_of_another_life_never_lands_in_this_one() -> None:
    driver = drive(step("a", max_worker_losses=0, **back_to("a")))
    driver.go()
    first = driver.flying["a"]
    driver.run.lose(first, None, 1)
    assert driver.go() == ["a"]
    driver.run.finish(first, done("a", "the lost one's"), 2)
    assert driver.run.running == ["a"]
    assert driver.flying["a"].lost_attempts == (), "what it left on disk was undone"


def test_a_survivor_is_told_its_context_as_of_its_own_epoch() -> None:
    driver = siblings()
    version = driver.flying["d"].version
    old = ContextRequest(epoch=0, have=-1, want=version)
    before = driver.run.diffs(old)
    driver.fail("b")
    driver.stop()
    driver.undo()
    driver.go()
    assert driver.run.diffs(old) == before
    assert not driver.run.diffs(ContextRequest(1, -1, driver.run.version)).stale
    driver.end("d")
    assert driver.run.diffs(old).stale, "nobody is left who may ask"


def test_a_survivor_that_was_lost_finds_what_it_left_in_the_epoch_before() -> None:
    driver = siblings(max_worker_losses=3)
    driver.run.lose(driver.flying.pop("d"), None, driver.now)
    driver.fail("b")
    driver.stop()
    driver.undo()
    assert driver.go() == ["a", "d"]
    assert driver.flying["d"].lost_attempts == (1,)
    assert driver.flying["d"].epoch == 1


def test_td5_counts_and_plans_outlive_a_continue_as_new() -> None:
    driver = chain()
    driver.fail("c")
    driver.carry_over()
    first = driver.run.take_compensation(driver.now)
    assert first
    driver.run.compensated(first, None, driver.now)
    driver.carry_over()
    assert driver.undo() == ["b#0.1 declared"]
    driver.carry_over()
    assert driver.go() == ["b"]
    driver.end("b")
    driver.carry_over()
    driver.go()
    driver.fail("c")
    assert driver.run.status == "failed", "its one retry is used up"


def test_a_continue_as_new_during_the_delay_keeps_it() -> None:
    driver = drive(step("a"), step("b", "a", **back_to("a", delay=30)))
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    assert driver.go() == []
    due = driver.run.wake_at()
    driver.carry_over()
    assert driver.run.wake_at() == due
    assert driver.go() == []
    driver.now = due or 0
    assert driver.go() == ["a"]


def test_the_next_rollback_outlives_a_continue_as_new() -> None:
    driver = two_branches()
    driver.fail("b")
    compensation = driver.run.take_compensation(driver.now)
    assert compensation
    driver.fail("y")
    driver.run.compensated(compensation, None, driver.now)
    driver.carry_over()
    assert driver.undo() == ["a#0.1 declared"]
    assert driver.go() == []
    driver.carry_over()
    assert driver.undo() == ["y#0.1 declared", "x#0.1 declared"]
    assert driver.go() == ["a", "x"]


def test_a_task_without_retry_config_carries_nothing_more_over() -> None:
    driver = drive(step("a"))
    assert driver.run.state()["rollbacks"] is None


# --- Slots ---------------------------------------------------------------------------------------


def test_a_step_of_the_span_that_waits_for_a_slot_leaves_the_queue_and_asks_again() -> None:
    run = start(
        task(step("a"), step("b", "a", **back_to("a")), step("c", "a", limit="gpu")),
        limits={"gpu": 1},
    )
    driver = Driver(run)
    driver.go()
    driver.end("a")
    driver.go()
    (ask,) = run.take_asks()
    driver.fail("b")
    assert [r.request_id for r in run.take_releases()] == [ask.request_id]
    assert driver.go() == ["a"]
    driver.end("a")
    assert driver.go() == ["b"]
    (again,) = run.take_asks()
    assert again.request_id.endswith("c#1.1")
    run.grant(SlotGrant("gpu", again.request_id))
    assert driver.go() == ["c"]


def test_the_task_s_clock_goes_on_while_it_undoes_and_others_wait_for_slots() -> None:
    run = start(
        task(step("a", **back_to("a"), **UNDO), step("c", limit="gpu")),
        limits={"gpu": 1},
        timeout_seconds=100,
    )
    driver = Driver(run)
    driver.go()
    driver.fail("a")
    assert run.deadline == 100
    driver.undo()
    assert run.deadline == 100


def test_t34_the_context_the_marks_and_the_epoch_change_at_once() -> None:
    driver = chain()
    driver.fail("c")
    seen = []

    def look() -> None:
        record = driver.run.record()
        marks = record["context"]["metadata"]
        seen.append(
            (
                record["attempt_epoch"],
                list(record["context"]["results"]),
                len(record["retry_resets"]),
                [entry.get("retried", False) for entry in marks["failed_steps"]],
            )
        )

    look()
    while compensation := driver.run.take_compensation(driver.now):
        look()
        driver.run.compensated(compensation, None, driver.now)
        look()
    driver.go()
    look()

    assert seen == [*[(0, ["a", "b"], 0, [False])] * 5, (1, ["a"], 1, [True])]


def test_t45_a_run_that_an_older_version_began_is_rolled_back_as_any_other() -> None:
    driver = chain()
    driver.flying.clear()
    state = driver.run.state()
    del state["rollbacks"]
    state["steps"].pop("c")  # it may hand over only while nothing runs
    for known in state["steps"].values():
        del known["rollbacks"], known["since"], known["waited"]
    document, driver.run = driver.run.task, start(driver.run.task)
    driver.run.restore(state)
    assert driver.run.task is document
    assert driver.go() == ["c"]
    driver.fail("c")

    assert driver.undo() == ["c#0.1 declared", "b#0.1 declared"]
    assert driver.go() == ["b"]
    assert driver.run.context["results"] == {"a": 1}
