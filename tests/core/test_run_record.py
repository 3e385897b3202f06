"""What the record of a run says of it, without a server."""

from __future__ import annotations

from tests.core.rollback_kit import Driver, back_to, chain, done, drive, failed, step


def journaled(driver: Driver) -> list[str]:
    """The steps that the journal holds, in its order."""
    entries = driver.run.state()["journal"]["entries"]
    return [e["step_id"] for e in entries if e["step_id"] != "__scheduler__"]


def completed(driver: Driver) -> list[tuple[str, str]]:
    known = driver.run.record()["completed_steps"]
    return [(entry["step_id"], entry["status"]) for entry in known]


def test_td17_a_failure_counts_alike_whether_it_ends_the_task_or_not() -> None:
    """T49."""
    told = []
    for tolerant in (True, False):
        driver = drive(step("a"), step("b", "a", fail_task_on_error=not tolerant))
        for step_id, outcome in (("a", done("a")), ("b", failed())):
            driver.go()
            driver.end(step_id, outcome)
        told.append((completed(driver), driver.run.record()["current_step"]))

    assert told[0] == told[1] == ([("a", "success"), ("b", "failure")], 2)


def test_a_failure_that_a_rollback_answers_ends_no_step() -> None:
    driver = chain()
    driver.fail("c")
    assert completed(driver) == [("a", "success"), ("b", "success")]
    driver.undo()
    driver.go()
    assert completed(driver) == [("a", "success")]
    assert driver.run.record()["current_step"] == 1


def test_t47_what_is_completed_is_journaled_in_the_same_breath() -> None:
    driver = drive(
        step("a"),
        step("b", fail_task_on_error=False),
        step("c", "a", "b", **back_to("a")),
    )
    driver.go()
    for step_id, outcome in (("b", failed()), ("a", done("a"))):
        driver.end(step_id, outcome)
        assert journaled(driver) == [known for known, _ in completed(driver)]
    driver.go()
    driver.fail("c")
    driver.go()
    assert journaled(driver) == [known for known, _ in completed(driver)] == ["b"]


def test_t50_a_run_that_is_over_is_not_cancelled_any_more() -> None:
    driver = drive(step("a"))
    driver.go()
    driver.end("a")
    driver.run.cancel("too late", driver.now)
    driver.run.close(driver.now)

    assert driver.run.status == "succeeded"
    assert driver.run.record()["cancelled"] is None


def test_t53_each_failed_attempt_is_told_once() -> None:
    driver = chain(retry={"max_attempts": 2, "initial_interval": 0})
    driver.fail("c", "first")
    driver.go()
    driver.fail("c", "second")
    driver.undo()
    driver.go()

    first, second = driver.run.record()["step_attempt_failures"]
    assert first == {
        "attempt": 1,
        "step_id": "c",
        "step_type": "command",
        "error_class": "StepFailed",
        "error_message": "first",
        "duration_s": 1.0,
        "occurred_at_utc": "1970-01-01T00:00:03+00:00",
    }
    assert (second["attempt"], second["error_message"]) == (2, "second")


def test_t55_the_revision_goes_up_with_whatever_is_written() -> None:
    driver = chain()
    seen = [driver.run.record()["rev"]]
    driver.fail("c")
    seen.append(driver.run.record()["rev"])
    driver.undo()
    driver.go()
    seen.append(driver.run.record()["rev"])
    driver.end("b")
    seen.append(driver.run.record()["rev"])

    assert seen == sorted(set(seen))
