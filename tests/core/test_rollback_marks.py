"""What a rollback leaves in the context."""

from __future__ import annotations

from typing import Any

from perdure.core.context import diff
from perdure.messages import StepOutcome
from tests.core.rollback_kit import (
    back_to,
    deployed,
    drive,
    step,
)


def test_t31_failures_of_rolled_back_steps_are_marked_as_retried() -> None:
    driver = drive(
        step("aside", fail_task_on_error=False),
        step("a", fail_task_on_error=False),
        step("b", "a", **back_to("a", times=2)),
        metadata={"failed_steps": ["by hand", {"step_id": "a", "of": "before"}]},
    )
    driver.go()
    driver.fail("aside")
    for _ in range(2):
        if not driver.flying:
            driver.go()
        driver.fail("a")
        driver.go()
        driver.fail("b")
        driver.undo()
    driver.go()
    entries = driver.run.context["metadata"]["failed_steps"]
    assert entries[:2] == ["by hand", {"step_id": "a", "of": "before", "retried": True}]
    assert [(e["step_id"], e.get("retried", False)) for e in entries[2:]] == [
        ("aside", False),
        *[("a", True), ("b", True)] * 2,
    ]


def test_a_step_s_own_entries_among_the_failures_are_left_alone() -> None:
    driver = drive(step("a"), step("b", "a", **back_to("b")))
    driver.go()
    own = {"op": "edit", "path": ["metadata", "failed_steps"], "remove": [], "append": ["mine"]}
    driver.end("a", StepOutcome("succeeded", [own]))
    driver.go()
    driver.fail("b")
    driver.go()
    assert driver.run.context["metadata"]["failed_steps"][1:] == ["mine"]
    assert driver.run.context["metadata"]["failed_steps"][0]["retried"]


def test_metadata_that_is_no_list_of_failures_does_no_harm() -> None:
    for odd in ("none so far", [{"step_id": ["a"]}], {"a": 1}, [None]):
        driver = drive(step("a", **back_to("a")), metadata={"failed_steps": odd})
        driver.go()
        driver.fail("a")
        assert driver.go() == ["a"]


def test_t32_each_retry_has_an_entry_in_the_context() -> None:
    driver = drive(step("a"), step("b", "a", **back_to("a", times=2)), step("later", "b"))
    for _ in range(2):
        driver.go()
        driver.end("a")
        driver.go()
        driver.fail("b")
    driver.go()
    resets = driver.run.record()["retry_resets"]
    assert [r["attempt"] for r in resets] == [2, 3]
    assert resets[0]["step_id"] == "b"
    assert resets[0]["retry_from_step_id"] == "a"
    assert resets[0]["replayed"] == ["a", "b", "later"]
    assert resets[0]["at_utc"].startswith("1970-01-01T00:00:02")
    assert resets[0]["rolled_back_sandboxes"] == {
        "deployed_envs": [],
        "deployed_agents": [],
        "deployed_sandboxes": [],
    }


def test_t32_an_entry_counts_the_retries_of_its_own_step() -> None:
    driver = drive(step("a", **back_to("a")), step("b", "a", **back_to("b")))
    driver.go()
    driver.fail("a")
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    driver.go()
    resets = driver.run.record()["retry_resets"]
    assert [(r["step_id"], r["attempt"]) for r in resets] == [("a", 2), ("b", 2)]


def test_td4_what_failed_and_cancelled_attempts_had_deployed_is_named() -> None:
    driver = drive(
        step("kept"),
        step("a"),
        step("cut", "a"),
        step("b", "a", retry={"max_attempts": 2, "initial_interval": 0}, **back_to("a")),
    )
    driver.go()
    driver.end("kept", StepOutcome("succeeded", deployed("kept")))
    driver.end("a", StepOutcome("succeeded", deployed("of a")))
    driver.go()
    driver.fail("b", diff=deployed("of b, first"))
    driver.go()
    driver.fail("b", diff=deployed("of b, second"))
    assert driver.run.to_stop == ["cut"]
    driver.end("cut", StepOutcome("cancelled", deployed("of the one cut off")))
    driver.go()
    (reset,) = driver.run.record()["retry_resets"]
    gone = [s["sandbox_id"] for s in reset["rolled_back_sandboxes"]["deployed_sandboxes"]]
    assert sorted(gone) == ["of a", "of b, first", "of b, second", "of the one cut off"]
    assert [s["sandbox_id"] for s in driver.run.context["deployed_sandboxes"]] == ["kept"]


def test_t33_deployments_are_told_by_their_own_fields_and_compared_by_value() -> None:
    driver = drive(step("a"), step("b", "a", **back_to("a")))
    driver.go()
    items: dict[str, list[Any]] = {
        "deployed_envs": [{"sandbox_id": "e", "sandbox_type": "vm", "more": 1}],
        "deployed_agents": [{"sandbox_id": None}, {"sandbox_id": "g", "sandbox_type": "pod"}],
        "deployed_sandboxes": ["not an object", {"sandbox_id": "s"}],
    }
    ops = [{"op": "edit", "path": [n], "remove": [], "append": v} for n, v in items.items()]
    driver.end("a", StepOutcome("succeeded", ops))
    driver.go()
    driver.fail("b")
    driver.go()
    (reset,) = driver.run.record()["retry_resets"]
    assert reset["rolled_back_sandboxes"] == {
        "deployed_envs": [{"sandbox_id": "e", "sandbox_type": "vm", "sandbox_ids": {}}],
        "deployed_agents": [{"sandbox_id": "g", "sandbox_type": "pod"}],
        "deployed_sandboxes": [{"sandbox_id": "s", "sandbox_type": None}],
    }


def test_what_a_survivor_wrote_is_there_again_exactly() -> None:
    """TD7, TD8, TD9: what it added twice, what it took from a list, what it left empty."""
    seed = {"kept": 1, "gone": 2}
    driver = drive(step("a"), step("b", "a"), step("c", "b", **back_to("c")), metadata=seed)
    driver.go()
    driver.end("a", StepOutcome("succeeded", deployed("one") + deployed("two")))
    driver.go()
    before = driver.run.context
    metadata = {name: value for name, value in before["metadata"].items() if name != "gone"}
    after = {
        **before,
        "deployed_sandboxes": before["deployed_sandboxes"][1:],
        "prompt_responses": ["same", "same"],
        "metadata": {**metadata, "empty": {}, "none": [], "null": None},
    }
    driver.end("b", StepOutcome("succeeded", diff(before, after)))
    driver.go()
    assert driver.run.context == after
    driver.fail("c")
    driver.go()

    marks = ("failed_steps", "retry_resets")
    context = driver.run.context
    kept = {name: value for name, value in context["metadata"].items() if name not in marks}
    assert {**context, "metadata": kept} == after
