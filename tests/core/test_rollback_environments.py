"""How a rollback has environments reset, and what becomes of the lease."""

from __future__ import annotations

import json
from typing import Any

from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease, Refuse
from perdure.core.rollback import ResetEnd
from perdure.messages import PoolUse, StepFailure, StepOutcome
from perdure.pool_messages import LeaseRelease, LeaseRequest
from tests.core.rollback_kit import (
    HOLDER,
    REF,
    UNDO,
    Driver,
    back_to,
    drive,
    failed,
    kinds,
    start,
    step,
    task,
)
from tests.workflows.fake_pool import MAIL, SHOP


def leased(*steps: dict[str, Any], **more: Any) -> Driver:
    document = task(*steps, environments=["shop", "mail"], **more)
    run = start(document, pool=PoolUse(), environments=[SHOP, MAIL])
    driver = Driver(run)
    assert driver.go() == []
    grant(driver)
    return driver


def grant(driver: Driver, port: int = 8000) -> None:
    (request,) = (w for w in driver.run.take_lease_words() if isinstance(w, LeaseRequest))
    instances = [
        GrantedInstance(number, name, name, f"p-{name}", {"PORT": port + number})
        for number, name in enumerate(("shop", "mail"))
    ]
    driver.run.lease_granted(
        Grant(request.request_id, HOLDER, "host", instances, pool="default"), driver.now
    )


def releases(driver: Driver) -> list[LeaseRelease]:
    return [w for w in driver.run.take_lease_words() if isinstance(w, LeaseRelease)]


def users(**more: Any) -> Driver:
    """buy and other use the shop, post the mail, aside nothing; check fails back to buy."""
    driver = leased(
        step("buy", uses=["shop"], **UNDO),
        step("check", "buy", uses=[], **back_to("buy", **more)),
        step("other", uses=["shop"], **UNDO),
        step("post", uses=["mail"], **UNDO),
        step("aside", uses=[], **UNDO),
        step("unborn", "aside", uses=["shop"], **UNDO),
    )
    driver.go()
    driver.end("buy")
    driver.go()
    return driver


def test_the_span_is_widened_to_who_uses_what_is_reset() -> None:
    driver = users()
    driver.fail("check")
    assert driver.run.to_stop == ["other"]
    driver.stop()
    assert driver.undo() == ["other#0.1 declared", "buy#0.1 declared"]
    assert driver.run.take_resets(driver.now) == ["shop"]
    assert driver.run.take_resets(driver.now) == [], "handed out once"
    assert driver.go() == []
    driver.run.were_reset(ResetEnd(), driver.now)
    assert driver.go() == ["buy", "other"]
    assert "environments.reset" in kinds(driver.run)
    assert driver.run.record()["rollbacks"][0]["environments"] == ["shop"]


def test_environments_are_not_reset_before_everything_is_undone() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    assert driver.run.take_resets(driver.now) == []
    assert driver.run.take_compensation(driver.now)
    assert driver.run.take_resets(driver.now) == []


def test_a_rollback_that_keeps_its_environments_resets_none() -> None:
    driver = users(environments="keep")
    driver.fail("check")
    assert driver.run.to_stop == []
    assert driver.undo() == ["buy#0.1 declared"]
    assert driver.run.take_resets(driver.now) == []
    assert driver.go() == ["buy"]


def test_without_a_lease_nothing_is_reset() -> None:
    driver = drive(step("a", uses=["shop"], **back_to("a")), environments=["shop"])
    driver.go()
    driver.fail("a")
    assert driver.run.take_resets(0) == []
    assert driver.go() == ["a"]


def test_new_ports_of_an_instance_reach_the_steps_that_run_again() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    driver.undo()
    driver.run.take_resets(driver.now)
    new = GrantedInstance(7, "shop", "shop", "p-shop-7", {"PORT": 9000})
    driver.run.were_reset(ResetEnd([new]), driver.now)
    driver.go()
    assert [(i.number, i.ports) for i in driver.run.instances] == [
        (7, {"PORT": 9000}),
        (1, {"PORT": 8001}),
    ]


def test_instances_that_cannot_be_reset_are_given_back_for_others_with_all_who_used_them() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    driver.undo()
    assert driver.run.take_resets(driver.now) == ["shop"]
    driver.run.were_reset(ResetEnd(failed={"shop": "it hangs"}), driver.now)
    assert driver.run.to_stop == ["post"]
    driver.stop()
    assert driver.undo() == ["post#0.1 declared"]
    assert driver.run.take_resets(driver.now) == [], "others come, clean"
    assert driver.go() == []
    words = driver.run.take_lease_words()
    assert isinstance(words[0], LeaseRelease)
    assert words[0].broken == {"shop": "it hangs"}
    request = words[1]
    assert isinstance(request, LeaseRequest)
    driver.end("aside")
    assert driver.go() == [], "it waits for its environments"
    instances = [
        GrantedInstance(n, name, name, f"q-{name}", {"PORT": 9000 + n})
        for n, name in enumerate(("shop", "mail"))
    ]
    driver.run.lease_granted(
        Grant(request.request_id, HOLDER, "host", instances, pool="default"), driver.now
    )
    assert driver.go() == ["buy", "other", "post", "unborn"]
    assert driver.run.restarts == 0
    assert driver.run.context["results"] == {"aside": 1}


def test_who_failed_meanwhile_is_taken_back_with_all_who_used_the_instances() -> None:
    driver = leased(
        step("buy", uses=["shop"], **back_to("buy")),
        step("first", uses=[], **UNDO),
        step("fails", "first", uses=[], **back_to("first")),
    )
    driver.go()
    driver.end("first")
    driver.go()
    driver.fail("buy")
    assert driver.run.take_resets(driver.now) == ["shop"]
    driver.fail("fails")
    driver.run.were_reset(ResetEnd(failed={"shop": "it hangs"}), driver.now)
    assert driver.undo() == ["first#0.1 declared"]
    assert driver.go() == []
    (rollback,) = driver.run.record()["rollbacks"]
    assert rollback["failed"] == ["buy", "fails"]
    assert rollback["span"] == ["buy", "first", "fails"]


def test_who_fails_while_the_instances_are_exchanged_joins_in() -> None:
    driver = leased(
        step("buy", uses=["shop"], **back_to("buy")),
        step("post", uses=["mail"]),
        step("first", uses=[]),
        step("fails", "first", uses=[], **back_to("first")),
    )
    driver.go()
    driver.end("first")
    driver.go()
    driver.fail("buy")
    assert driver.run.take_resets(driver.now) == ["shop"]
    driver.run.were_reset(ResetEnd(failed={"shop": "it hangs"}), driver.now)
    driver.fail("fails")
    assert driver.stop() == ["post"]
    assert driver.go() == []
    (rollback,) = driver.run.record()["rollbacks"]
    assert rollback["span"] == ["buy", "post", "first", "fails"]
    assert rollback["environments"] == ["shop", "mail"]
    assert driver.run.epoch == 1


def test_a_pool_that_has_no_others_ends_the_task() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    driver.undo()
    driver.run.take_resets(driver.now)
    driver.run.were_reset(ResetEnd(failed={"shop": "it hangs"}), driver.now)
    driver.stop()
    driver.undo()
    driver.go()
    (request,) = (w for w in driver.run.take_lease_words() if isinstance(w, LeaseRequest))
    assert not driver.run.withdraw(driver.now), "it has begun"
    refusal = Refuse(request.request_id, HOLDER, "infrastructure", "no host can")
    driver.run.lease_refused(refusal, driver.now)
    driver.end("aside")
    assert driver.run.status == "failed"


def test_the_task_s_clock_goes_on_under_the_instances_that_it_got_for_the_others() -> None:
    document = task(step("a", **back_to("a")), environments=["shop"])
    run = start(document, pool=PoolUse(), environments=[SHOP], timeout_seconds=100)

    def granted(at: float) -> None:
        (request,) = (w for w in run.take_lease_words() if isinstance(w, LeaseRequest))
        shop = GrantedInstance(1, "shop", "shop", "p", {})
        run.lease_granted(Grant(request.request_id, HOLDER, "h", [shop], pool="default"), at)

    granted(10)
    assert run.deadline == 110
    (a,) = run.take_ready(10)
    run.finish(a, failed(), 40)
    assert run.take_resets(40) == ["shop"]
    run.were_reset(ResetEnd(failed={"shop": "no"}), 50)
    assert run.take_ready(50) == []
    assert run.deadline is None
    granted(70)
    assert run.deadline == 130
    restored = start(document, pool=PoolUse(), environments=[SHOP], timeout_seconds=100)
    restored.restore(json.loads(json.dumps(run.state())))
    assert restored.deadline == 130


def test_what_was_not_undone_goes_back_to_the_pool_as_broken() -> None:
    driver = users()
    driver.fail("check", "original")
    driver.stop()
    driver.undo(failing=["buy"])
    assert driver.run.take_resets(driver.now) == []
    for step_id in ("post", "aside"):
        driver.end(step_id)
    assert driver.run.status == "failed"
    driver.run.close(driver.now)
    (release,) = releases(driver)
    assert list(release.broken) == ["shop"]
    assert "'buy'" in release.broken["shop"]


def lose_lease(driver: Driver) -> None:
    request_id = f"{REF.run_id}:1"
    driver.run.lease_lost(LoseLease(request_id, HOLDER, ["shop"], "it died"), driver.now)


def test_instances_lost_before_anything_is_undone_start_the_run_over_instead() -> None:
    driver = users()
    driver.fail("check")
    lose_lease(driver)
    for step_id in ("other", "post", "aside"):
        driver.end(step_id, StepOutcome("cancelled"))
    assert driver.undo() == []
    assert driver.run.restarts == 1
    grant(driver)
    assert driver.go() == ["buy", "other", "post", "aside"]
    assert driver.run.record()["rollbacks"][0]["abandoned"] == "its environments were lost"


def test_instances_lost_in_between_start_the_run_over_when_the_planned_is_undone() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    first = driver.run.take_compensation(driver.now)
    assert first
    lose_lease(driver)
    for step_id in ("post", "aside"):
        driver.end(step_id, StepOutcome("cancelled"))
    assert driver.run.restarts == 0
    driver.run.compensated(first, StepFailure("its instance is gone"), driver.now)
    assert driver.undo() == ["buy#0.1 declared"]
    assert driver.run.restarts == 1
    assert driver.run.failure is None
    grant(driver)
    assert driver.go() == ["buy", "other", "post", "aside"]


def test_a_cancel_during_a_reset_waits_for_its_end() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    driver.undo()
    assert driver.run.take_resets(driver.now) == ["shop"]
    driver.run.cancel("enough", driver.now)
    for step_id in ("post", "aside"):
        driver.end(step_id, StepOutcome("cancelled"))
    assert driver.run.status == "running"
    driver.run.were_reset(ResetEnd(failed={"shop": "it hangs"}), driver.now)
    assert driver.run.status == "cancelled"
    driver.run.close(driver.now)
    assert releases(driver)[0].broken == {"shop": "it hangs"}
