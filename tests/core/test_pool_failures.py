"""What the pool does when an instance fails."""

from __future__ import annotations

import pytest

from perdure.core.pool import PoolOptions
from perdure.core.pool_decisions import (
    CheckInstance,
    Grant,
    LoseLease,
    Refuse,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_fleet import STOP_AGAIN_SECONDS, Failure
from perdure.core.pool_hosts import CROWDED_SECONDS
from tests.core.pool_driver import BROKEN, Driver, env, granted, holder, of


def test_after_two_failures_a_request_is_refused_with_the_reason_and_the_log() -> None:
    """P28, PD6, PD7, PD8: a failed instance is stopped, counts till it is gone; nobody gets it."""
    driver = Driver()
    driver.hold = (StartInstance,)
    driver.ask("t", env("bad", max_instances=1), env("good"))
    for _ in range(2):
        bad, *rest = [s for s in of(StartInstance, driver.go()) if s.environment == "bad"]
        assert rest == []
        driver.pool.answers.start_failed(bad.instance, bad.order, BROKEN, driver.now)
    told = driver.go()
    (refusal,) = of(Refuse, told)
    assert (refusal.request_id, refusal.kind) == ("t", "environment")
    assert refusal.reason == "environment bad: it exited with 3"
    assert refusal.log == ["last line"]
    assert len(of(StopInstance, driver.told)) == 3
    assert driver.alive() == {}, "PD31: the good one is stopped, too"
    assert driver.pool.ticket("t").state == "refused"


def test_a_missing_image_is_not_tried_twice_and_harms_nobody_else() -> None:
    """C02."""
    driver = Driver()
    driver.hold = (StartInstance,)
    for name in ["bad", "as bad"]:
        driver.ask(name, env("bad", max_instances=1))
    for name in "tuv":
        driver.ask(name, env("good", max_instances=2))
    for start in of(StartInstance, driver.go()):
        if start.environment == "bad":
            failure = Failure("no such image: img:1", is_final=True)
            driver.pool.answers.start_failed(start.instance, start.order, failure, driver.now)
        else:
            driver.answer(start)
    driver.hold = ()
    told = driver.go()
    assert [refusal.request_id for refusal in of(Refuse, told)] == ["bad", "as bad"]
    assert "bad" not in [start.environment for start in of(StartInstance, told)]
    driver.release("t", "u")
    driver.release("v")
    assert sorted(granted(driver.told)) == ["t", "u", "v"]
    assert driver.alive() == {}


def test_a_failed_start_frees_no_instance_of_others() -> None:
    """P28, PD2."""
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("has a", a)
    driver.go()
    driver.ask("t", a, env("bad"))
    driver.hold = (StartInstance,)
    driver.release("has a")
    driver.ask("u", a)
    driver.go()
    for start in of(StartInstance, driver.told)[-1:]:
        assert start.environment == "bad"
        driver.pool.answers.start_failed(start.instance, start.order, BROKEN, driver.now)
    driver.go()
    (lease,) = [lease for lease in driver.pool.leases.values() if lease.state == "granted"]
    driver.pool.release("t", holder("t"), driver.now)
    driver.ask("v", a)
    driver.go()
    assert list(driver.pool.leases) == [lease.request.request_id] == ["u"]


def test_an_instance_that_is_found_unhealthy_is_replaced_and_the_others_wait_clean() -> None:
    """PD9."""
    driver = Driver()
    driver.hold = (CheckInstance,)
    driver.ask("t", env("a"), env("b"))
    first, second = of(CheckInstance, driver.go())
    driver.answer(second)
    driver.pool.answers.unhealthy(
        first.instance, first.order, Failure("web exited with 1"), driver.now
    )
    driver.hold = ()
    told = driver.go()
    assert [stop.instance for stop in of(StopInstance, told)] == [first.instance]
    (grant,) = of(Grant, told)
    assert second.instance in [instance.instance for instance in grant.instances]
    assert len(of(CheckInstance, told)) == 2, "both are looked at again"


def test_an_instance_that_cannot_be_reset_is_never_handed_out_again() -> None:
    """PD15, PD16: after a use, and right after its start."""
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("t", a)
    driver.go()
    driver.ask("u", a)
    driver.hold = (ResetInstance,)
    for _ in range(2):
        (reset,) = of(ResetInstance, driver.release("t"))
        driver.pool.answers.reset_failed(reset.instance, reset.order, BROKEN, driver.now)
    assert [refusal.request_id for refusal in of(Refuse, driver.go())] == ["u"]
    assert granted(driver.told) == ["t"]


def test_a_broken_container_ends_its_lease_and_leaves_the_rest_to_the_holder() -> None:
    driver = Driver()
    driver.ask("t", env("a"), env("b"))
    (grant,) = of(Grant, driver.go())
    a, b = grant.instances
    driver.pool.answers.lost(a.instance, Failure("killed"), driver.now)
    told = driver.go()
    assert of(LoseLease, told) == [LoseLease("t", holder("t"), "environment a: killed", ["a"])]
    assert driver.pool.instances[b.instance].state == "leased"
    driver.release("t")
    assert driver.alive() == {}


def test_an_answer_to_an_old_order_is_not_heard() -> None:
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("t", a)
    driver.ask("u", a)
    (first,) = of(ResetInstance, driver.go())
    driver.hold = (ResetInstance,)
    driver.release("t")
    driver.answer(first)
    assert driver.go() == []


def test_a_stop_that_failed_is_tried_again_and_counts() -> None:
    """PD19."""
    driver = Driver()
    driver.hold = (StopInstance,)
    driver.ask("t", env("a", max_instances=1))
    driver.go()
    (stop,) = of(StopInstance, driver.release("t"))
    driver.pool.answers.stop_failed(stop.instance, stop.order, "took too long", driver.now)
    driver.ask("u", env("a", max_instances=1))
    assert driver.go() == []
    assert driver.pool.wake_at() <= driver.now + STOP_AGAIN_SECONDS
    driver.hold = ()
    driver.pool.host_beat("h", driver.facts, driver.now + STOP_AGAIN_SECONDS)
    assert granted(driver.go(STOP_AGAIN_SECONDS)) == ["u"]


@pytest.mark.parametrize("by", ["an end", "time"])
def test_a_full_engine_is_waited_for(by: str) -> None:
    driver = Driver()
    driver.ask("t", env("a"))
    driver.go()
    driver.ask("u", env("b"))
    driver.hold = (StartInstance,)
    (start,) = of(StartInstance, driver.go())
    full = Failure("all predefined address pools have been fully subnetted", is_crowded=True)
    driver.pool.answers.start_failed(start.instance, start.order, full, driver.now)
    driver.hold = ()
    assert [type(decision) for decision in driver.go()] == [StopInstance], "no more tries now"
    assert driver.pool.ticket("u").reason == "the engine of h is full"
    assert driver.pool.wake_at() == driver.now + PoolOptions().host_away_seconds
    if by == "an end":
        assert granted(driver.release("t")) == ["u"]
    else:
        driver.pool.host_beat("h", driver.facts, driver.now + CROWDED_SECONDS)
        assert granted(driver.go(CROWDED_SECONDS)) == ["u"]


def test_an_engine_that_is_full_of_others_things_fails_the_start() -> None:
    driver = Driver()
    driver.hold = (StartInstance,)
    driver.ask("t", env("a"))
    for _ in range(2):
        (start,) = of(StartInstance, driver.go())
        full = Failure("address pools are used up", is_crowded=True)
        driver.pool.answers.start_failed(start.instance, start.order, full, driver.now)
    assert len(of(Refuse, driver.go())) == 1
