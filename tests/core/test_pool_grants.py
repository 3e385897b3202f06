"""What the pool grants, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.environments import Port
from perdure.core.pool import Pool, PoolOptions
from perdure.core.pool_decisions import (
    CheckInstance,
    Grant,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.core.pool_hosts import HostFacts
from perdure.core.pool_requests import overtakes_allowed
from perdure.messages import Holder
from tests.core.pool_driver import BROKEN, Driver, env, granted, holder, of

# --- Grants -----------------------------------------------------------------------------------


def test_a_lease_has_all_its_environments_on_one_host_reset_and_checked() -> None:
    driver = Driver()
    driver.ask("t", env("a", ports={"A_PORT": Port(18080)}), env("b", resets=False))
    kinds = [type(decision).__name__ for decision in driver.go()]
    assert kinds == [
        *["StartInstance", "StartInstance", "ResetInstance"],
        *["CheckInstance", "CheckInstance", "Grant"],
    ]
    for start in of(StartInstance, driver.told):
        assert start.task == holder("t").workflow_id, "that is on their labels"
    (grant,) = of(Grant, driver.told)
    assert grant.host == "h"
    assert [(i.environment, i.ports) for i in grant.instances] == [
        ("a", {"A_PORT": 18080}),
        ("b", {}),
    ]


def test_what_was_reset_a_moment_ago_is_not_looked_at_again() -> None:
    driver = Driver()
    driver.pool = Pool("0123456789abcdef")
    driver.pool.host_joined("h", driver.facts, driver.now)
    a = env("a")
    suite = Holder("suite/s", "r")
    driver.pool.declare(Demand("s", suite, 2, (EnvironmentSet((a,), 9),)))
    driver.ask("t", a, env("b", resets=False))
    told = driver.go()
    assert granted(told) == ["t"]
    assert of(CheckInstance, told) == []
    driver.release("t")
    driver.ask("next", a)
    assert of(CheckInstance, driver.go()) == []
    driver.release("next")
    driver.go(seconds=PoolOptions().fresh_seconds)
    driver.ask("later", a)
    assert len(of(CheckInstance, driver.go())) == 1


def test_a_look_that_is_not_answered_yet_is_made_again_before_the_next_grant() -> None:
    driver = Driver()
    driver.pool = Pool("0123456789abcdef")
    driver.pool.host_joined("h", driver.facts, driver.now)
    a = env("a")
    suite = Holder("suite/s", "r")
    driver.pool.declare(Demand("s", suite, 2, (EnvironmentSet((a,), 9),)))
    driver.ask("t", a)
    driver.go()
    driver.release("t")
    driver.go(seconds=PoolOptions().fresh_seconds)
    driver.hold = (CheckInstance,)
    driver.ask("withdrawn", a)
    assert len(of(CheckInstance, driver.go())) == 1
    driver.pool.instances[1].cleaned = driver.now  # as if it had been reset a moment ago
    driver.release("withdrawn")
    driver.ask("next", a)
    assert len(of(CheckInstance, driver.go())) == 1


def test_starts_and_resets_of_a_grant_run_side_by_side() -> None:
    """P25, PD4, PD5: nothing waits for another one's reset."""
    driver = Driver()
    driver.hold = (StartInstance, ResetInstance)
    for name in "tuvw":
        driver.ask(name, env("a"), env("b"))
    starts = of(StartInstance, driver.go())
    assert len(starts) == 8
    for start in starts:
        driver.answer(start)
    assert len(of(ResetInstance, driver.go())) == 8


def test_a_fresh_instance_goes_to_one_request_alone() -> None:
    """PD1."""
    driver = Driver()
    driver.hold = (StartInstance,)
    driver.ask("first", env("a", max_instances=1))
    (start,) = of(StartInstance, driver.go())
    for name in "xyz":
        driver.ask(name, env("a", max_instances=1))
    driver.answer(start)
    assert granted(driver.go()) == ["first"]
    assert driver.go() == []


def test_a_burst_keeps_max_instances() -> None:
    """P23, PD3."""
    driver = Driver()
    driver.hold = (StartInstance, StopInstance)
    for number in range(10):
        driver.ask(f"t{number}", env("a", max_instances=2))
    starts = of(StartInstance, driver.go())
    assert len(starts) == 2
    driver.pool.answers.start_failed(starts[0].instance, 1, BROKEN, driver.now)
    assert of(StartInstance, driver.go()) == [], "what is being stopped counts"
    driver.hold = ()
    driver.answer(of(StopInstance, driver.told)[0])
    assert len(of(StartInstance, driver.go())) == 1


def test_an_environment_is_used_again_after_a_reset() -> None:
    """P25, P47."""
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("t", a)
    driver.ask("u", a)
    assert granted(driver.go()) == ["t"]
    kinds = [type(decision).__name__ for decision in driver.release("t")]
    assert kinds == ["ResetInstance", "CheckInstance", "Grant"]
    (instance,) = driver.pool.instances
    assert (instance.uses, instance.last_used) == (2, driver.now)


def test_crossed_wishes_do_not_wait_for_each_other() -> None:
    """PD23."""
    driver = Driver()
    a, b = env("a", max_instances=1), env("b", max_instances=1)
    driver.ask("t", a, b)
    driver.ask("u", b, a)
    driver.ask("v", b)
    assert granted(driver.go()) == ["t"]
    assert granted(driver.release("t")) == ["u"]
    assert granted(driver.release("u")) == ["v"]


def test_a_request_without_environments_gets_a_slot() -> None:
    """PD11; and that needs no host."""
    driver = Driver()
    driver.pool.host_gone("h", driver.now)
    for name in "tuv":
        driver.ask(name, max_parallel=2)
    assert granted(driver.go()) == ["t", "u"]
    assert granted(driver.release("u")) == ["v"]


def test_a_suite_never_has_more_leases_than_max_parallel() -> None:
    """P9."""
    driver = Driver()
    for name in "tuv":
        driver.ask(name, env("a"), max_parallel=2)
    driver.ask("w", env("a"), suite="another")
    assert granted(driver.go()) == ["t", "u", "w"]
    driver.pool.declare(Demand("s", Holder("suite/s", "r"), max_parallel=1))
    assert granted(driver.release("t")) == []
    assert granted(driver.release("u")) == ["v"]


# --- Order ------------------------------------------------------------------------------------


def test_a_higher_priority_goes_first() -> None:
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("held", a)
    driver.go()
    for name, priority in [("l", "low"), ("m", "medium"), ("c", "critical"), ("h", "high")]:
        driver.ask(name, a, priority=priority)
    order = [granted(driver.release(name))[0] for name in ["held", "c", "h", "m"]]
    assert order == ["c", "h", "m", "l"]


def test_most_instances_to_use_again_go_first_and_equals_as_they_came() -> None:
    """P24."""
    driver = Driver()
    a, b = env("a", max_instances=1), env("b", max_instances=1)
    driver.ask("held", a, b)
    driver.go()
    for name, wanted in [("one", [a]), ("another", [b]), ("both", [a, b])]:
        driver.ask(name, *wanted)
    assert granted(driver.release("held"))[0] == "both"
    assert granted(driver.release("both")) == ["one", "another"]


def test_equals_of_one_suite_come_in_the_order_of_its_list_however_they_arrived() -> None:
    """P24. Between suites it is the arrival that counts."""
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("held", a)
    driver.go()
    asked = [("s3", "s", 3), ("x1", "x", 0), ("s1", "s", 1), ("x2", "x", 0), ("s2", "s", 2)]
    for name, suite, index in asked:
        driver.ask(name, a, suite=suite, index=index)
        driver.go()
    order = ["held"]
    for _ in asked:
        order += granted(driver.release(order[-1]))
    assert order[1:] == ["s1", "x1", "s2", "x2", "s3"]


ONE = env("a", max_instances=1)


@pytest.mark.parametrize(
    ("wanted", "waits", "others"),
    [
        pytest.param([ONE], {"index": 9}, {"index": 1}, id="the last of a list"),
        pytest.param([ONE], {"priority": "low"}, {"priority": "critical"}, id="a low priority"),
        pytest.param([], {"max_parallel": 1, "priority": "low"}, {"max_parallel": 1}, id="a slot"),
    ],
)
def test_whoever_comes_after_others_is_overtaken_only_so_often(
    wanted: list[Definition], waits: dict[str, Any], others: dict[str, Any]
) -> None:
    """PD24: also one that shares nothing but its suite's only slot."""
    driver = Driver()
    driver.ask("w0", *wanted, **others)
    driver.go()
    driver.ask("waits", *wanted, **waits)
    passed = 0
    while "waits" not in driver.pool.leases:
        driver.ask(f"w{passed + 1}", *wanted, **others)
        driver.release(f"w{passed}")
        passed += "waits" not in driver.pool.leases
    assert passed == overtakes_allowed(1)


def test_one_that_needs_two_at_a_time_is_overtaken_only_so_often() -> None:
    """PD24: two environments that are never free together, unless one is kept."""
    driver = Driver()
    a, b = env("a", max_instances=1), env("b", max_instances=1)
    driver.ask("a0", a)
    driver.ask("b0", b)
    driver.go()
    driver.ask("waits", a, b)
    passed = 0
    while passed < 100:
        if f"a{passed}" in driver.pool.leases:
            driver.ask(f"a{passed + 1}", a)
            driver.release(f"a{passed}")
        if f"b{passed}" in driver.pool.leases:
            driver.ask(f"b{passed + 1}", b)
            driver.release(f"b{passed}")
        if "waits" in driver.pool.leases:
            break
        passed += 1
    assert passed == overtakes_allowed(2) / 2


def test_one_that_waits_for_what_is_busy_does_not_keep_others_from_working() -> None:
    driver = Driver()
    a, x = env("a", max_instances=3), env("x", max_instances=1)
    driver.ask("holds x", x, max_parallel=9)
    for number in range(3):
        driver.ask(f"w{number}", a, max_parallel=9)
    driver.go()
    for name in ["needs x", "needs x, too"]:
        driver.ask(name, a, x, max_parallel=9)
    for number in range(60):
        driver.ask(f"w{number + 3}", a, max_parallel=9)
        driver.release(f"w{number}")
    assert sum(name.startswith("w") for name in driver.pool.leases) >= 2, "one is kept, two work"
    assert granted(driver.release("holds x"))[0] == "needs x"


def test_one_that_is_due_keeps_its_place_on_a_host_that_can_hold_it() -> None:
    driver = Driver("small", "large")
    driver.pool.host_joined("small", HostFacts(capacity=1), driver.now)
    driver.pool.host_joined("large", HostFacts(capacity=2), driver.now)
    a, b = env("a"), env("b")
    driver.pool.prewarm(a, 1)
    for name in ["l0", "m0"]:
        driver.ask(name, env("c"))
    driver.go()
    driver.ask("waits", a, b)
    for number in range(40):
        for name in "lm":
            driver.ask(f"{name}{number + 1}", env("c"), priority="critical")
            driver.ask(f"{name}{number + 1}'", a, priority="critical")
            driver.release(f"{name}{number}")
            driver.release(f"{name}{number}'")
        if "waits" in driver.pool.leases:
            break
    assert driver.pool.leases["waits"].host == "large"
