"""Rollbacks in words, from records and events that the core has made."""

from __future__ import annotations

from typing import Any

from perdure.cli.events_command import event_line
from perdure.cli.following import at_steps, may_roll_back
from perdure.cli.rollbacks import (
    attempts_text,
    head_lines,
    rollback_lines,
    rolled_back_lines,
)
from perdure.results_shapes import RECORD
from tests.core.rollback_kit import UNDO, Driver, back_to, chain, drive, step, task


def told(driver: Driver) -> list[str]:
    """The only rollback, without the times."""
    (lines,) = rollback_lines(driver.run.record())
    head, *rest = (" ".join(line.split()) for line in lines)
    assert head.startswith("rollback 1 at ")
    return rest


def lines_of(driver: Driver, *types: str) -> list[str]:
    """Events of these types, without the times."""
    return [
        " ".join(event_line(event).split()[3:])
        for event in driver.run.events
        if event["type"].startswith(types)
    ]


def test_a_rollback_is_told_step_by_step_as_it_goes() -> None:
    driver = chain(2)
    driver.fail("c", "no \x1b[2Jcard")
    begin = ["failed c, attempt 1: no \\x1b[2Jcard", "back to b (retry 1 of 2)", "taken back b, c"]
    assert told(driver)[:-1] == begin

    driver.undo()
    driver.go()
    assert told(driver) == [
        *begin,
        "undone c, attempt 1, by its compensate in 1.00 s",
        "undone b, attempt 1, by its compensate in 1.00 s",
        "again from b after 2.00 s, as epoch 1",
    ]
    assert head_lines(driver.run.record()) == ["epoch    1, after 1 rollback"]


def test_what_is_under_way_is_told_as_such() -> None:
    driver = chain()
    driver.fail("c")
    driver.run.take_compensation(driver.now)

    *_, first, second, last = told(driver)

    assert first == "undoing c, attempt 1, by its compensate"
    assert second == "to be undone b, attempt 1, by its compensate"
    assert last.startswith("under way since ")


def test_what_could_not_be_undone_stands_at_the_top_and_in_its_place() -> None:
    driver = chain()
    driver.fail("c", "it is broken")
    driver.undo(failing=["c"])
    driver.go()
    record = driver.run.record()

    assert head_lines(record)[1] == "note     not undone: c, attempt 1: it will not"
    assert "not undone c, attempt 1, by its compensate: it will not" in told(driver)
    assert told(driver)[-1] == "given up after 2.00 s: it is broken"


def test_environments_that_were_reset_and_siblings_that_were_stopped_are_named() -> None:
    driver = drive(step("a", **back_to("a")), step("b"))
    driver.go()
    driver.fail("a")
    driver.stop()
    driver.undo()
    driver.go()
    record = driver.run.record()
    record["rollbacks"][0] |= {"environments": ["shop", "mail"], "cancelled": ["x", "y"]}

    (lines,) = rollback_lines(record)

    assert [" ".join(line.split()) for line in lines][3:-1] == [
        "stopped x, y",
        "taken back a",
        "reset shop, mail",
    ]
    record["rollbacks"][0]["replaced"] = ["mail"]
    (lines,) = rollback_lines(record)
    assert " ".join(lines[-2].split()) == "reset shop, mail; another instance of mail"


def test_the_events_of_a_rollback_name_it_and_what_it_takes_back() -> None:
    driver = chain(2)
    driver.fail("c")
    driver.undo(failing=["b"])
    driver.go()
    good = chain(2)
    good.fail("c")
    good.undo()
    good.go()

    begin = "c failed back to b (retry 1 of 2) takes back b, c"
    assert lines_of(driver, "rollback.started") == [begin]
    assert lines_of(good, "rollback.completed") == ["rolled back to b (retry 1 of 2) epoch 1"]
    assert lines_of(driver, "compensation.completed") == ["c by its compensate"]
    assert lines_of(driver, "compensation.failed") == ["b by its compensate Broken it will not"]
    reset = {"type": "environments.reset", "at": 1.0, "environments": ["shop", "mail"]}
    assert event_line(reset).split()[3:] == ["shop,", "mail"]
    other = "shop, mail; another instance of mail"
    assert event_line({**reset, "replaced": ["mail"]}).endswith(other)


def test_attempts_are_told_with_their_epochs_where_there_is_more_than_one() -> None:
    def attempts(*epochs: int) -> list[dict[str, Any]]:
        return [{"number": n, "epoch": epoch} for n, epoch in enumerate(epochs, 1)]

    assert attempts_text([]) == ""
    assert attempts_text(attempts(0, 0)) == "2"
    assert attempts_text([{"number": 1}]) == "1"
    assert attempts_text(attempts(0, 0, 1, 3)) == "1-2 (epoch 0), 3 (epoch 1), 4 (epoch 3)"


def test_a_task_that_is_followed_tells_each_rollback_once() -> None:
    driver = chain(2)
    seen = [driver.run.progress()]
    for _ in range(2):
        driver.fail("c")
        seen.append(driver.run.progress())
        driver.undo()
        driver.go()
        seen.append(driver.run.progress())
        driver.end("b")
        driver.go()

    lines, known = [], 0
    for progress in seen:
        lines += rolled_back_lines("t/2", progress["rollbacks"], known)
        known = len(progress["rollbacks"])

    assert lines == [f"t/2: rolled back to b (retry {n} of 2)" for n in (1, 2)]
    assert [at_steps(progress) for progress in seen] == [
        "2/3 c", "2/3 taking back b, c", "1/3 b", "2/3 taking back b, c", "1/3 b",
    ]  # fmt: skip


def test_only_tasks_that_may_take_steps_back_are_asked_for_it() -> None:
    assert not may_roll_back(task(step("a")).to_dict())
    assert may_roll_back(task(step("a"), step("b", "a", **back_to("a"))).to_dict())


def test_a_record_with_a_rollback_is_what_is_read_from_files_again() -> None:
    driver = chain(2)
    driver.fail("c")
    driver.undo(failing=["b"])
    driver.go()
    driver.run.close(driver.now)

    assert RECORD.validate_python(driver.run.record())["rollbacks"][0]["abandoned"] == "no"


def test_causes_survive_a_continue_as_new() -> None:
    driver = drive(step("a", **UNDO), step("b", "a", **back_to("a", 3, delay=60)))
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    driver.undo()
    driver.go()
    before = driver.run.record()["rollbacks"]
    driver.carry_over()

    assert driver.run.record()["rollbacks"] == before
    assert before[0]["causes"] == [
        {"step_id": "b", "attempt": 1, "retry_from_step_id": "a", "retry": 1, "max_retries": 3}
    ]
