"""Environments are reset under a lease, and what cannot be reset is replaced under it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from perdure.core.environments import Port
from perdure.core.pool import Pool
from perdure.core.pool_decisions import (
    Decision,
    GrantedInstance,
    LoseLease,
    Renew,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_fleet import Failure
from perdure.core.pool_hosts import CROWDED_SECONDS, HostFacts
from perdure.core.pool_view import stats, view
from perdure.core.ports import PortRange
from tests.core.pool_driver import BROKEN, Driver, env, granted, holder, of

A = env("a", max_instances=1, ports={"A_PORT": Port(8000)})


class Held(Driver):
    """A pool in which `t` has a lease."""

    def __init__(self, *environments: Any, facts: HostFacts | None = None) -> None:
        super().__init__(facts=facts)
        self.ask("t", *environments or (A,))
        self.go()
        self.was = {i.environment: i.number for i in self.pool.instances}
        self.number = 0

    def reset(self, *names: str) -> list[Decision]:
        self.number += 1
        self.pool.renewals.ask("t", holder("t"), self.number, names or ["a"], self.now)
        return self.go()

    def fail(self, order: ResetInstance | StartInstance, failure: Failure = BROKEN) -> None:
        answers = self.pool.answers
        is_start = isinstance(order, StartInstance)
        tell = answers.start_failed if is_start else answers.reset_failed
        tell(order.instance, order.order, failure, self.now)

    def fail_reset(self, failure: Failure = BROKEN) -> list[Decision]:
        """Have the reset of `a` fail; what follows is held back, but for stops."""
        self.hold = (ResetInstance, StartInstance)
        (reset,) = of(ResetInstance, self.reset())
        self.fail(reset, failure)
        return self.go()


def renewed(decisions: Sequence[Decision]) -> list[GrantedInstance]:
    (renewal,) = of(Renew, decisions)
    assert (renewal.request_id, renewal.holder) == ("t", holder("t"))
    found: list[GrantedInstance] = renewal.instances
    return found


def test_an_instance_is_reset_under_its_lease_and_its_holder_hears_of_it_once() -> None:
    driver = Held(A, env("b"))
    told = driver.reset("a")
    assert [reset.instance for reset in of(ResetInstance, told)] == [driver.was["a"]]
    (instance,) = renewed(told)
    assert (instance.instance, instance.ports) == (driver.was["a"], {"A_PORT": 8000})
    assert driver.pool.leases["t"].state == "granted"
    driver.pool.renewals.ask("t", holder("t"), 1, ["a"], driver.now)
    assert driver.go() == [], "told twice"
    assert len(renewed(driver.reset("a", "b"))) == 2
    assert [i.uses for i in driver.pool.instances] == [1, 1], "it is one use"


def test_an_instance_that_is_being_reset_is_seen_in_use_and_given_to_nobody() -> None:
    driver = Held()
    driver.hold = (ResetInstance,)
    driver.reset()
    driver.ask("u", A)
    assert driver.go(1000.0) == []
    (shown,) = view(driver.pool)["instances"]
    assert (shown["state"], shown["doing"], shown["request_id"]) == ("in_use", "renewing", "t")
    assert stats(driver.pool).in_use_instances == 1


def test_one_that_cannot_be_reset_is_replaced_under_the_lease_before_anybody_else_is_served() -> (
    None
):
    driver = Held()
    driver.ask("u", A)
    told = driver.fail_reset()
    assert [(stop.instance, stop.reason) for stop in of(StopInstance, told)] == [
        (driver.was["a"], BROKEN.reason)
    ]
    (start,) = of(StartInstance, told)
    (shown,) = view(driver.pool)["instances"]
    assert (shown["doing"], shown["request_id"]) == ("replacing", "t")
    driver.hold = ()
    driver.answer(start)
    told = driver.go()
    (instance,) = renewed(told)
    assert instance.instance == start.instance != driver.was["a"]
    assert instance.ports == start.ports
    assert driver.pool.leases["t"].instances == [start.instance]
    assert granted(driver.release("t")) == ["u"]


def test_the_place_of_one_that_is_stopping_is_kept_for_its_lease() -> None:
    """`max_instances` and the capacity of the host are kept; starting and stopping ones count."""
    driver = Held(facts=HostFacts(capacity=1))
    driver.ask("u", A)
    driver.ask("v", env("b"))
    driver.hold = (ResetInstance, StopInstance, StartInstance)
    (reset,) = of(ResetInstance, driver.reset())
    driver.fail(reset)
    (stop,) = driver.go()
    assert driver.go(5.0) == []
    driver.answer(stop)
    (start,) = driver.go()
    assert isinstance(start, StartInstance)
    assert start.environment == "a"


def test_a_free_instance_takes_the_place_at_once_and_is_reset_for_that() -> None:
    driver = Held(env("a"))
    driver.pool.prewarm(env("a"), 1)
    driver.go()
    (spare,) = [i for i in driver.pool.instances if i.number != driver.was["a"]]
    told = driver.fail_reset()
    (reset,) = of(ResetInstance, told)
    assert reset.instance == spare.number
    driver.answer(reset)
    assert [i.instance for i in renewed(driver.go())] == [spare.number]


def test_one_that_is_coming_up_takes_the_place_when_it_is_up() -> None:
    driver = Held(env("a"))
    driver.hold = (StartInstance,)
    driver.pool.prewarm(env("a"), 1)
    (start,) = of(StartInstance, driver.go())
    driver.fail_reset()
    driver.pool.answers.started(start.instance, start.order, driver.now, was_reset=True)
    assert [i.instance for i in renewed(driver.go())] == [start.instance]


def test_ports_that_somebody_else_has_are_exchanged_for_one_that_takes_the_place() -> None:
    driver = Held()
    (start,) = of(StartInstance, driver.fail_reset())
    driver.pool.answers.ports_taken(
        start.instance, start.order, [*start.ports.values()], driver.now, at_start=False
    )
    (again,) = of(StartInstance, driver.go())
    driver.hold = ()
    driver.answer(again)
    (instance,) = renewed(driver.go())
    assert instance.ports == again.ports != start.ports


def test_after_three_failures_the_lease_is_lost_with_the_reason() -> None:
    driver = Held(A, env("b"))
    told = driver.fail_reset()
    for number in range(2):
        (start,) = of(StartInstance, told)
        assert of(LoseLease, told) == []
        driver.fail(start, Failure(f"no, {number}"))
        told = driver.go()
    (loss,) = of(LoseLease, told)
    assert (loss.reason, loss.environments) == ("environment a: no, 1", ["a"])
    assert driver.pool.ticket("t").state == "lost"
    driver.hold = ()
    driver.release("t")
    assert driver.alive() == {}


def test_where_another_would_fare_no_better_none_is_tried() -> None:
    driver = Held()
    told = driver.fail_reset(Failure("no such script", is_final=True))
    assert of(StartInstance, told) == []
    assert [loss.reason for loss in of(LoseLease, told)] == ["environment a: no such script"]


def test_ports_that_come_back_when_it_is_gone_are_waited_for() -> None:
    driver = Held(facts=HostFacts(port_range=PortRange(8000, 8000)))
    driver.hold = (ResetInstance, StopInstance)
    (reset,) = of(ResetInstance, driver.reset())
    driver.fail(reset)
    (stop,) = driver.go()
    driver.hold = ()
    driver.answer(stop)
    assert [i.ports for i in renewed(driver.go())] == [{"A_PORT": 8000}]


def test_where_no_other_can_be_had_the_lease_is_lost_and_its_holder_queues_again() -> None:
    driver = Held(env("a", memory_gb=1.0), facts=HostFacts(None, 2.0, 4.0))
    driver.pool.host_beat("h", HostFacts(None, 0.0, 4.0), driver.now)
    driver.now += 1.0
    told = driver.fail_reset()
    driver.pool.host_beat("h", HostFacts(None, 0.0, 4.0), driver.now)
    told += driver.go()
    (loss,) = of(LoseLease, told)
    assert loss.reason.startswith("environment a could not be reset, and there is no other: h has")


def test_a_holder_that_ends_meanwhile_leaves_what_goes_on_to_the_next() -> None:
    driver = Held()
    driver.hold = (ResetInstance,)
    (reset,) = of(ResetInstance, driver.reset())
    driver.ask("u", A)
    driver.pool.close(holder("t"), driver.now)
    assert of(ResetInstance, driver.go()) == [], "it is being reset already"
    driver.hold = ()
    driver.answer(reset)
    told = driver.go()
    assert granted(told) == ["u"]
    assert of(Renew, told) == []


def test_what_was_to_take_the_place_is_free_when_the_lease_is_given_back() -> None:
    driver = Held()
    (start,) = of(StartInstance, driver.fail_reset())
    driver.ask("u", A)
    driver.release("t")
    driver.hold = ()
    driver.answer(start)
    assert granted(driver.go()) == ["u"]


def test_a_host_that_is_gone_meanwhile_loses_the_lease() -> None:
    driver = Held()
    driver.pool.host_joined("other", HostFacts(), driver.now)
    driver.hold = (StopInstance, ResetInstance)
    (reset,) = of(ResetInstance, driver.reset())
    driver.fail(reset)
    driver.go()
    driver.pool.host_gone("h", driver.now)
    (loss,) = of(LoseLease, driver.go())
    assert (loss.reason, loss.environments) == ("its host h is gone", ["a"])


def test_a_pool_that_shuts_down_meanwhile_takes_the_lease_back() -> None:
    driver = Held()
    driver.hold = (StopInstance, ResetInstance)
    (reset,) = of(ResetInstance, driver.reset())
    driver.fail(reset)
    driver.go()
    driver.pool.shut_down(driver.now)
    assert len(of(LoseLease, driver.go())) == 1


def test_a_new_run_of_the_pool_carries_it_on() -> None:
    driver = Held(A, env("b"))
    driver.hold = (ResetInstance, StartInstance)
    first, second = of(ResetInstance, driver.reset("a", "b"))
    driver.fail(first)
    driver.go()
    driver.pool = Pool.from_state(json.loads(json.dumps(driver.pool.state())))
    outstanding = driver.pool.outstanding()
    assert second in outstanding
    (start,) = of(StartInstance, outstanding)
    driver.hold = ()
    driver.answer(second)
    assert of(Renew, driver.go()) == []
    driver.answer(start)
    assert {i.environment for i in renewed(driver.go())} == {"a", "b"}


def test_one_that_dies_while_it_is_reset_is_replaced_and_any_other_loses_the_lease() -> None:
    driver = Held(A, env("b"))
    driver.hold = (ResetInstance,)
    driver.reset()
    driver.hold = ()
    driver.pool.answers.lost(driver.was["a"], BROKEN, driver.now)
    told = driver.go()
    assert of(LoseLease, told) == []
    assert [i.environment for i in renewed(told)] == ["a"]
    driver.hold = (ResetInstance,)
    driver.reset()
    driver.pool.answers.lost(driver.was["b"], BROKEN, driver.now)
    (loss,) = of(LoseLease, driver.go())
    assert loss.environments == ["b"]


def test_a_reset_is_asked_of_a_pool_that_knows_no_such_lease() -> None:
    driver = Driver()
    driver.pool.renewals.ask("r", holder("t"), 1, ["a"], driver.now)
    (loss,) = of(LoseLease, driver.go())
    assert (loss.request_id, loss.holder, loss.environments) == ("r", holder("t"), ["a"])


def test_a_word_that_crosses_the_lease_s_end_or_comes_from_a_stranger_changes_nothing() -> None:
    driver = Held()
    driver.pool.renewals.ask("t", holder("u"), 1, ["a"], driver.now)
    assert driver.go() == []
    driver.release("t")
    driver.pool.renewals.ask("t", holder("t"), 1, ["a"], driver.now)
    assert driver.go() == []


def test_what_has_no_reset_and_is_used_once_is_replaced() -> None:
    driver = Held(env("a", resets=False, disable_reuse=True))
    told = driver.reset()
    assert of(ResetInstance, told) == []
    assert [i.instance for i in renewed(told)] != [driver.was["a"]]


def test_a_full_engine_is_waited_for() -> None:
    driver = Held(A, env("b"))
    (start,) = of(StartInstance, driver.fail_reset())
    driver.fail(start, Failure("no address pools", is_crowded=True))
    assert of(StartInstance, driver.go()) == []
    driver.now += CROWDED_SECONDS
    driver.pool.host_beat("h", driver.facts, driver.now)
    told = driver.go()
    assert of(LoseLease, told) == []
    (again,) = of(StartInstance, told)
    driver.hold = ()
    driver.answer(again)
    assert [i.instance for i in renewed(driver.go())] == [again.instance]


def test_failures_while_the_worker_is_silent_are_not_counted() -> None:
    driver = Held()
    told = driver.fail_reset()
    for _ in range(4):
        (start,) = of(StartInstance, told)
        driver.now += driver.pool.options.host_away_seconds
        driver.fail(start)
        assert of(StartInstance, driver.go()) == [], "nobody is there to start another"
        driver.pool.host_beat("h", driver.facts, driver.now)
        told = driver.go()
    assert of(LoseLease, driver.told) == []


def test_an_instance_of_a_lost_lease_that_cannot_be_reset_is_not_replaced() -> None:
    driver = Held(A, env("b"))
    driver.hold = (ResetInstance,)
    (reset,) = of(ResetInstance, driver.reset())
    driver.pool.answers.lost(driver.was["b"], BROKEN, driver.now)
    driver.go()
    driver.fail(reset)
    told = driver.go()
    (loss,) = of(LoseLease, told)
    assert loss.environments == ["b", "a"]
    assert of(StartInstance, told) == []


def test_one_whose_name_is_taken_never_began_and_another_is_started() -> None:
    driver = Held()
    (start,) = of(StartInstance, driver.fail_reset())
    driver.pool.answers.never_began(start.instance, start.order, driver.now)
    told = driver.go()
    assert of(LoseLease, told) == []
    assert [s.instance for s in of(StartInstance, told)] == [start.instance + 1]


def test_one_that_was_not_reset_with_its_start_is_reset_before_it_is_told() -> None:
    driver = Held()
    (start,) = of(StartInstance, driver.fail_reset())
    driver.pool.answers.started(start.instance, start.order, driver.now, was_reset=False)
    (reset,) = driver.go()
    assert isinstance(reset, ResetInstance)
    assert view(driver.pool)["instances"][0]["doing"] == "renewing"
    driver.answer(reset)
    assert [i.instance for i in renewed(driver.go())] == [start.instance]


def test_idle_instances_make_room_for_the_other() -> None:
    driver = Held(facts=HostFacts(capacity=2))
    driver.pool.prewarm(env("b"), 1)
    driver.go()
    (idle,) = [i.number for i in driver.pool.instances if i.environment == "b"]
    driver.pool.host_beat("h", HostFacts(capacity=1), driver.now)
    driver.hold = (ResetInstance, StopInstance)
    (reset,) = of(ResetInstance, driver.reset())
    driver.fail(reset)
    stops = of(StopInstance, driver.go())
    assert [stop.instance for stop in stops] == [driver.was["a"], idle]
    driver.hold = ()
    for stop in stops:
        driver.answer(stop)
    assert [i.environment for i in renewed(driver.go())] == ["a"]
