"""Which instances the pool keeps, and which it stops."""

from __future__ import annotations

from perdure.core.pool_decisions import (
    Grant,
    LoseLease,
    Refuse,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.messages import Holder
from tests.core.pool_driver import BROKEN, Driver, env, granted, holder, of


def test_what_no_pending_task_needs_is_stopped_while_others_work() -> None:
    """P48, PD20: and nobody's grant waits for the stop."""
    driver = Driver()
    driver.hold = (StopInstance,)
    driver.ask("t", env("a"))
    driver.ask("u", env("b"))
    driver.go()
    assert [stop.reason for stop in of(StopInstance, driver.release("t"))] == ["nobody needs it"]
    driver.ask("v", env("c"))
    assert granted(driver.go()) == ["v"]


def test_what_tasks_to_come_need_is_reset_and_kept() -> None:
    driver = Driver()
    a = env("a")
    suite = Holder("suite/s", "r")
    driver.pool.declare(Demand("s", suite, 1, (EnvironmentSet((a,), 3),)))
    driver.ask("t", a)
    driver.go()
    assert len(of(ResetInstance, driver.release("t"))) == 1
    assert driver.alive() == {"a": 1}
    driver.pool.close(suite, driver.now)
    driver.go()
    assert driver.alive() == {}


def test_keep_envs_keeps_until_the_environment_is_stopped() -> None:
    driver = Driver()
    a = env("a")
    suite = Holder("suite/s", "r")
    driver.pool.declare(Demand("s", suite, 2, keep_envs=True, environments=(a,)))
    driver.ask("t", a)
    driver.go()
    driver.release("t")
    driver.pool.close(suite, driver.now)
    driver.go()
    assert driver.alive() == {"a": 1}
    driver.ask("u", a)
    assert len(of(ResetInstance, driver.go())) == 1, "it is clean before somebody gets it"
    driver.pool.stop_environment("a", driver.now)
    assert driver.go() == [], "in use"
    driver.release("u")
    assert driver.alive() == {}


def test_an_instance_that_idled_too_long_is_reset_before_its_next_use() -> None:
    driver = Driver()
    a = env("a", max_idle_seconds=600.0)
    driver.pool.prewarm(a, 1)
    driver.go()
    driver.pool.host_beat("h", driver.facts, driver.now + 601)
    assert of(ResetInstance, driver.go(601)) == []
    driver.ask("t", a)
    driver.pool.prewarm(a, 0)
    kinds = [type(decision).__name__ for decision in driver.go()]
    assert kinds == ["ResetInstance", "CheckInstance", "Grant"]


def test_without_reuse_every_use_has_an_instance_of_its_own() -> None:
    """P26, PD21: the fresh one starts while the old one is being stopped, if the limit allows."""
    driver = Driver()
    a = env("a", disable_reuse=True, max_instances=2)
    driver.hold = (StopInstance,)
    driver.ask("t", a, max_parallel=1)
    driver.ask("u", a, max_parallel=1)
    driver.go()
    driver.release("t")
    assert granted(driver.told) == ["t", "u"]
    numbers = [grant.instances[0].instance for grant in of(Grant, driver.told)]
    assert len(set(numbers)) == 2


def test_an_environment_is_prewarmed_before_anybody_asks() -> None:
    driver = Driver()
    a = env("a", prewarm=2, max_instances=3)
    demand = Demand("s", Holder("suite/s", "r"), 1, (EnvironmentSet((a,), 9),))
    driver.pool.declare(demand)
    driver.go()
    assert driver.alive() == {"a": 2}
    driver.ask("t", a)
    told = driver.go()
    assert granted(told) == ["t"]
    assert len(of(StartInstance, told)) == 1, "so that again two are ready"


def test_prewarming_goes_on_while_somebody_waits_for_something_else() -> None:
    driver = Driver()
    x = env("x", max_instances=1)
    driver.ask("has x", x)
    driver.ask("needs x", x)
    driver.pool.prewarm(env("a"), 1)
    driver.go()
    assert driver.alive() == {"x": 1, "a": 1}


def test_prewarming_what_does_not_start_ends_until_somebody_asks() -> None:
    driver = Driver()
    driver.hold = (StartInstance,)
    driver.pool.prewarm(env("a"), 1)
    for _ in range(2):
        (start,) = of(StartInstance, driver.go())
        driver.pool.answers.start_failed(start.instance, start.order, BROKEN, driver.now)
    assert of(StartInstance, driver.go()) == []
    driver.ask("t", env("a"))
    assert len(of(StartInstance, driver.go())) == 1


def test_an_edit_retires_idle_instances_and_two_definitions_share_the_limit() -> None:
    driver = Driver()
    old, new = env("a", max_instances=2), env("a", max_instances=2, digest="2")
    driver.pool.prewarm(old, 2)
    driver.ask("t", old)
    driver.go()
    driver.hold = (StopInstance,)
    driver.ask("u", new)
    told = driver.go()
    assert granted(told) == []
    assert len(of(StopInstance, told)) == 1, "an idle old one makes way"
    driver.answer(of(StopInstance, told)[0])
    assert granted(driver.go()) == ["u"]
    assert driver.alive() == {"a": 2}


def test_idle_instances_are_reset_on_demand() -> None:
    driver = Driver()
    driver.pool.prewarm(env("a"), 2)
    driver.go()
    driver.pool.reset_environment("a", driver.now)
    assert len(of(ResetInstance, driver.go())) == 2


def test_a_shutdown_stops_everything_and_refuses_everybody() -> None:
    """P50."""
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("t", a)
    driver.ask("u", a)
    driver.ask("v", env("b"))
    driver.hold = (ResetInstance,)
    driver.go()
    driver.pool.shut_down(driver.now)
    driver.ask("w", a)
    told = driver.go()
    assert {refusal.request_id for refusal in of(Refuse, told)} == {"t", "u", "v", "w"}
    assert driver.pool.is_over
    assert driver.alive() == {}


def test_a_shutdown_tells_those_who_have_leases() -> None:
    driver = Driver()
    driver.ask("t", env("a"), env("b"))
    driver.go()
    driver.pool.shut_down(driver.now, "good night")
    assert of(LoseLease, driver.go()) == [LoseLease("t", holder("t"), "good night", ["a", "b"])]
