"""How a rollback has environments reset, and what becomes of the lease."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease, Renew
from perdure.messages import PoolUse, StepFailure, StepOutcome
from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseReset
from tests.core.rollback_kit import (
    HOLDER,
    REF,
    UNDO,
    Driver,
    back_to,
    drive,
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


def resets(driver: Driver) -> list[LeaseReset]:
    return [w for w in driver.run.take_lease_words() if isinstance(w, LeaseReset)]


def renewal(asked: LeaseReset, number: int) -> Renew:
    """The answer: the shop is now the instance of that number."""
    shop = GrantedInstance(number, "shop", "shop", f"p-shop-{number}", {"PORT": 9000 + number})
    return Renew(asked.request_id, asked.holder, asked.number, [shop])


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


def reset_of_the_shop(driver: Driver) -> LeaseReset:
    """The check has failed, and all is undone but the shop."""
    driver.fail("check")
    driver.stop()
    driver.undo()
    (asked,) = resets(driver)
    return asked


def test_the_span_is_widened_to_who_uses_what_is_reset() -> None:
    driver = users()
    driver.fail("check")
    assert driver.run.to_stop == ["other"]
    driver.stop()
    assert driver.undo() == ["other#0.1 declared", "buy#0.1 declared"]
    (asked,) = resets(driver)
    assert asked.environments == ["shop"]
    assert resets(driver) == [], "handed out once"
    assert driver.go() == []
    driver.run.lease_renewed(renewal(asked, 0), driver.now)
    assert driver.go() == ["buy", "other"]
    assert "environments.reset" in kinds(driver.run)
    assert driver.run.record()["rollbacks"][0]["environments"] == ["shop"]


def test_environments_are_not_reset_before_everything_is_undone() -> None:
    driver = users()
    driver.fail("check")
    driver.stop()
    assert resets(driver) == []
    assert driver.run.take_compensation(driver.now)
    assert resets(driver) == []


def test_a_rollback_that_keeps_its_environments_resets_none() -> None:
    driver = users(environments="keep")
    driver.fail("check")
    assert driver.run.to_stop == []
    assert driver.undo() == ["buy#0.1 declared"]
    assert resets(driver) == []
    assert driver.go() == ["buy"]


def test_without_a_lease_nothing_is_reset() -> None:
    driver = drive(step("a", uses=["shop"], **back_to("a")), environments=["shop"])
    driver.go()
    driver.fail("a")
    assert resets(driver) == []
    assert driver.go() == ["a"]


def test_other_instances_and_those_that_stay_reach_the_steps_that_run_again() -> None:
    driver = users()
    asked = reset_of_the_shop(driver)
    driver.run.lease_renewed(renewal(asked, 7), driver.now)
    assert driver.go() == ["buy", "other"]
    assert [(i.number, i.ports) for i in driver.run.instances] == [
        (7, {"PORT": 9007}),
        (1, {"PORT": 8001}),
    ]
    record = driver.run.record()
    assert record["rollbacks"][0]["replaced"] == ["shop"]
    assert record["lease"]["request_id"] == asked.request_id, "the lease stays"
    assert driver.run.lease_host == "host"
    told = next(e for e in driver.run.events if e["type"] == "environments.reset")
    assert (told["environments"], told["replaced"]) == (["shop"], ["shop"])


def test_a_word_that_comes_twice_or_late_or_means_another_lease_changes_nothing() -> None:
    driver = users()
    asked = reset_of_the_shop(driver)
    foreign = replace(renewal(asked, 7), request_id="another")
    late = replace(renewal(asked, 7), number=asked.number - 1)
    assert not driver.run.lease_renewed(foreign, driver.now)
    assert not driver.run.lease_renewed(late, driver.now)
    assert driver.run.lease_renewed(renewal(asked, 8), driver.now)
    assert not driver.run.lease_renewed(renewal(asked, 9), driver.now)
    assert [i.number for i in driver.run.instances] == [8, 1]


def test_who_fails_while_an_environment_is_reset_is_taken_back_after_that() -> None:
    driver = leased(
        step("buy", uses=["shop"], **back_to("buy")),
        step("first", uses=[], **UNDO),
        step("fails", "first", uses=[], **back_to("first")),
    )
    driver.go()
    driver.end("first")
    driver.go()
    driver.fail("buy")
    driver.undo()
    (asked,) = resets(driver)
    driver.fail("fails")
    driver.run.lease_renewed(renewal(asked, 0), driver.now)
    assert driver.go() == []
    assert driver.undo() == ["first#0.1 declared"]
    assert driver.go() == ["buy", "first"]
    assert [r["span"] for r in driver.run.record()["rollbacks"]] == [["buy"], ["first", "fails"]]


def test_a_pool_that_has_no_other_lets_the_run_start_over_with_another_lease() -> None:
    driver = users()
    asked = reset_of_the_shop(driver)
    loss = LoseLease(asked.request_id, HOLDER, "shop: no other comes up", ["shop"])
    driver.run.lease_lost(loss, driver.now)
    for step_id in ("post", "aside"):
        driver.end(step_id, StepOutcome("cancelled"))
    assert driver.run.restarts == 1
    assert driver.run.open_reset is None
    grant(driver)
    assert driver.go() == ["buy", "other", "post", "aside"]
    assert driver.run.record()["rollbacks"][0]["abandoned"] == "its environments were lost"


def test_a_reset_is_asked_for_once_over_a_continue_as_new() -> None:
    driver = leased(step("buy", uses=["shop"], **back_to("buy")))
    driver.go()
    driver.fail("buy")
    driver.undo()
    (asked,) = resets(driver)
    state = json.loads(json.dumps(driver.run.state()))
    driver.run = start(driver.run.task, pool=PoolUse(), environments=[SHOP, MAIL])
    driver.run.take_lease_words()
    driver.run.restore(state)
    assert resets(driver) == []
    assert driver.run.open_reset == asked
    driver.run.lease_renewed(renewal(asked, 0), driver.now)
    assert driver.go() == ["buy"]


def test_what_was_not_undone_goes_back_to_the_pool_as_broken() -> None:
    driver = users()
    driver.fail("check", "original")
    driver.stop()
    driver.undo(failing=["buy"])
    assert resets(driver) == []
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


def test_a_cancel_during_a_reset_gives_the_lease_back_at_once() -> None:
    driver = users()
    reset_of_the_shop(driver)
    driver.run.cancel("enough", driver.now)
    for step_id in ("post", "aside"):
        driver.end(step_id, StepOutcome("cancelled"))
    assert driver.run.status == "cancelled"
    driver.run.close(driver.now)
    assert releases(driver)[0].broken == {}
