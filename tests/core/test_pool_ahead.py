"""Which instances are started before anybody asks for them, and in which order."""

from __future__ import annotations

import json

from perdure.core.pool import Pool, PoolOptions
from perdure.core.pool_decisions import ResetInstance, StartInstance
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.messages import Holder
from tests.core.pool_driver import Driver, env, granted, of

SUITE = Holder("suite/s", "r")


def declare(
    driver: Driver, max_parallel: int | None, *sets: tuple[int, *tuple[Definition, ...]]
) -> None:
    coming = tuple(EnvironmentSet(tuple(some), count) for count, *some in sets)
    driver.pool.declare(Demand("s", SUITE, max_parallel, coming))


def started(driver: Driver) -> list[str]:
    """Environments of the instances that are started now, in order."""
    return [start.environment for start in of(StartInstance, driver.go())]


def test_what_a_suite_declares_is_started_before_its_tasks_ask() -> None:
    driver = Driver()
    declare(driver, 1, (3, env("a")))
    assert started(driver) == ["a"]
    driver.ask("t", env("a"), max_parallel=1)
    assert granted(driver.go()) == ["t"]


def test_half_as_many_more_are_up_while_others_are_reset_if_there_are_tasks_for_them() -> None:
    for tasks, instances in ((4, 4), (5, 5), (9, 6)):
        driver = Driver()
        declare(driver, 4, (tasks, env("a")))
        assert len(started(driver)) == instances
    driver = Driver()
    declare(driver, 4, (9, env("a", resets=False)))
    assert len(started(driver)) == 4, "one that is not reset can be used again at once"
    driver = Driver()
    declare(driver, 4, (9, env("a", max_instances=3)))
    assert len(started(driver)) == 3


def test_a_task_that_asks_is_not_counted_as_declared_any_more() -> None:
    driver = Driver()
    driver.hold = (StartInstance,)
    declare(driver, 5, (1, env("a", max_instances=2)), (1, env("b"), env("a", max_instances=2)))
    assert sorted(started(driver)) == ["a", "a", "b"]
    driver.ask("t", env("b"), env("a", max_instances=2), max_parallel=5)
    driver.ask("u", env("a", max_instances=2), max_parallel=5)
    assert started(driver) == []
    assert [some.count for some in driver.pool.demands["s"].coming] == [0, 0]


def test_one_of_each_is_started_in_turn() -> None:
    driver = Driver()
    declare(driver, 2, (2, env("a"), env("b")), (9, env("c")))
    assert started(driver) == ["a", "b", "a", "b"]


def test_tasks_that_have_asked_come_before_those_that_are_only_declared() -> None:
    driver = Driver()
    driver.hold = (StartInstance,)
    declare(driver, 2, (5, env("a"), env("b")))
    driver.ask("t", env("c"))
    assert sorted(started(driver)) == ["a", "b", "c"]


def test_a_suite_that_is_paused_has_nothing_started() -> None:
    driver = Driver()
    declare(driver, 0, (5, env("a")))
    assert started(driver) == []


def test_a_pool_of_the_first_version_goes_on_as_it_began() -> None:
    driver = Driver()
    driver.pool = Pool("0123456789abcdef", options=PoolOptions(starts_early=False))
    driver.pool.host_joined("h", driver.facts, driver.now)
    state = driver.pool.state()
    del state["options"]["starts_early"]
    driver.pool = Pool.from_state(json.loads(json.dumps(state)))
    declare(driver, 4, (9, env("a")))
    assert started(driver) == []
    driver.ask("t", env("a"))
    assert started(driver) == ["a"]


def test_what_was_reset_with_its_start_is_clean_at_once() -> None:
    """P40."""
    driver = Driver()
    driver.hold = (StartInstance,)
    driver.ask("t", env("a"))
    driver.ask("u", env("b", resets=False))
    first, second = of(StartInstance, driver.go())
    assert (first.reset, second.reset) == (True, False)
    driver.pool.answers.started(first.instance, first.order, driver.now, was_reset=True)
    driver.pool.answers.started(second.instance, second.order, driver.now)
    told = driver.go()
    assert of(ResetInstance, told) == []
    assert sorted(granted(told)) == ["t", "u"]
