"""What suites and people want of a pool, and what hosts tell it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perdure.core.pool import Pool
from perdure.core.pool_decisions import (
    AbandonInstance,
    CheckInstance,
    LoseLease,
    Refuse,
    ResetInstance,
    StartInstance,
    StopInstance,
    SweepHost,
    from_json,
    to_json,
)
from perdure.core.pool_demand import Demand
from perdure.core.pool_fleet import Failure
from perdure.core.pool_wishes import CannotFulfil, fulfil
from perdure.core.pool_words import BadWords, demand_of, request_of
from perdure.messages import Holder
from perdure.pool_messages import (
    CountedSet,
    HostBeat,
    InstanceAnswer,
    LeaseRequest,
    PoolWish,
    SetDemand,
)
from tests.core.pool_driver import Driver, env, granted, holder, of

SUITE = Holder("suite/s", "r")


def ask_for_one_instance() -> Driver:
    """`t` has the only instance of `a`; `u`, `v` and `w` wait for it."""
    driver = Driver()
    for name in "tuvw":
        driver.ask(name, env("a", max_instances=1))
        driver.go()
    return driver


# --- Suites -----------------------------------------------------------------------------------


def test_a_paused_suite_gets_nothing_and_others_do() -> None:
    driver = ask_for_one_instance()
    driver.ask("x", env("a", max_instances=1), suite="other")
    driver.pool.declare(Demand("s", SUITE, max_parallel=0))
    assert granted(driver.release("t")) == ["x"]
    assert granted(driver.release("x")) == []
    assert {w.waits_for for w in driver.pool.queue} == {"suite s is paused"}
    driver.pool.declare(Demand("s", SUITE, max_parallel=1))
    assert granted(driver.go()) == ["u"]


def test_a_paused_suite_keeps_nothing_from_others_however_often_it_was_overtaken() -> None:
    driver = ask_for_one_instance()
    driver.pool.declare(Demand("s", SUITE, max_parallel=0))
    driver.release("t")
    for number in range(30):
        driver.ask(f"x{number}", env("a", max_instances=1), suite="other")
        assert granted(driver.go()) == [f"x{number}"]
        driver.release(f"x{number}")
    assert all(waiter.is_due for waiter in driver.pool.queue)


def test_a_suite_that_is_gone_leaves_nobody_paused() -> None:
    driver = ask_for_one_instance()
    driver.pool.declare(Demand("s", SUITE, max_parallel=0))
    driver.release("t")
    driver.pool.close(SUITE, driver.now)
    assert granted(driver.go()) == ["u"]


def test_a_suite_that_comes_second_drops_nothing_of_the_first() -> None:
    """PD30."""
    driver = ask_for_one_instance()
    for name in "xyz":
        driver.ask(name, env("a", max_instances=1), suite="second")
    for name in "tuvwxyz":  # each has the instance when it gives it back
        driver.release(name)
    assert granted(driver.told) == [*"tuvwxyz"]


def test_who_is_prioritised_goes_before_all_others_the_last_one_first() -> None:
    driver = ask_for_one_instance()
    driver.ask("urgent", env("a", max_instances=1), suite="other", priority="critical")
    first = [holder(name).workflow_id for name in "vw"]
    driver.pool.declare(Demand("s", SUITE, prioritised=tuple(first)))
    driver.pool = Pool.from_state(json.loads(json.dumps(driver.pool.state())))
    assert granted(driver.release("t")) == ["w"]
    assert granted(driver.release("w")) == ["v"]
    assert granted(driver.release("v")) == ["urgent"]


def test_who_is_prioritised_before_it_asks_goes_first_too() -> None:
    driver = ask_for_one_instance()
    driver.pool.declare(Demand("s", SUITE, prioritised=(holder("late").workflow_id,)))
    driver.ask("late", env("a", max_instances=1))
    assert granted(driver.release("t")) == ["late"]


def test_a_suite_that_is_over_needs_nothing_more_and_says_so_itself() -> None:
    driver = Driver()
    driver.pool.declare(Demand("s", SUITE))
    driver.pool.needs_no_more("s", Holder("suite/s", "another"))
    assert not driver.pool.is_idle
    driver.pool.needs_no_more("s", SUITE)
    driver.go()
    assert driver.pool.is_idle


# --- Leases -----------------------------------------------------------------------------------


def test_a_request_for_one_host_waits_for_it_and_is_told_so() -> None:
    driver = Driver("h1")
    driver.ask("t", env("a"), host="h2")
    assert granted(driver.go()) == []
    assert driver.pool.ticket("t").reason == "host h2 is not there"
    driver.pool.host_joined("h2", driver.facts, driver.now)
    (grant,) = [d for d in driver.go() if getattr(d, "request_id", "") == "t"]
    assert grant.host == "h2"


def test_a_request_for_one_host_uses_no_instance_of_another() -> None:
    driver = Driver("h1", "h2")
    for name, host in (("t", "h1"), ("u", "h2")):
        driver.ask(name, env("a", max_instances=1), host=host)
    assert granted(driver.go()) == ["t"]
    driver.hold = (StartInstance,)
    assert [(s.host, s.instance) for s in of(StartInstance, driver.release("t"))] == [("h2", 2)]


def test_a_final_failure_ends_all_that_no_other_host_would_do_for() -> None:
    driver = Driver("h1", "h2")
    driver.hold = (StartInstance,)
    for name, host in (("t", "h1"), ("u", "h1"), ("v", "h2"), ("w", None)):
        driver.ask(name, env("a", max_instances=1), host=host)
    (start,) = of(StartInstance, driver.go())
    missing = Failure("no such image", is_final=True)
    driver.pool.answers.start_failed(start.instance, start.order, missing, driver.now)
    assert {r.request_id for r in of(Refuse, driver.go())} == {"t", "u"}


def test_a_broken_instance_is_stopped_and_never_handed_out_again() -> None:
    driver = ask_for_one_instance()
    driver.pool.release("t", holder("t"), driver.now, {"a": "its disk is full"})
    decisions = driver.go()
    assert [(s.instance, s.reason) for s in of(StopInstance, decisions)] == [
        (1, "its disk is full")
    ]
    assert [s.instance for s in of(StartInstance, decisions)] == [2]
    assert granted(decisions) == ["u"]


def test_an_instance_whose_name_is_taken_is_replaced_at_nobodys_cost() -> None:
    driver = Driver()
    driver.hold = (StartInstance,)
    driver.ask("t", env("a", max_instances=1))
    for number in range(1, 6):
        (start,) = of(StartInstance, driver.go())
        assert start.instance == number
        driver.pool.answers.never_began(number, start.order, driver.now)
    driver.hold = ()
    assert granted(driver.go()) == ["t"]


@pytest.mark.parametrize(
    ("kind", "order", "expected"),
    [
        ("started", StartInstance, ResetInstance),
        ("start_failed", StartInstance, StopInstance),
        ("ports_taken", StartInstance, StopInstance),
        ("lost", StartInstance, StopInstance),
        ("reset_done", ResetInstance, CheckInstance),
        ("reset_failed", ResetInstance, StopInstance),
        ("healthy", CheckInstance, None),
        ("unhealthy", CheckInstance, StopInstance),
    ],
)
def test_each_answer_has_its_consequence(kind: str, order: type, expected: type | None) -> None:
    driver = Driver()
    driver.hold = (order,)
    driver.ask("t", env("a", ports={}))
    (given,) = of(order, driver.go())
    answer = InstanceAnswer(given.instance, given.order, kind, "why", ["a line"], ports=[1])  # type: ignore[arg-type]
    if kind == "ports_taken":  # there are no others
        answer = replace(answer, kind="start_failed")
    driver.pool.answer(answer, driver.now)
    decisions = driver.pool.decide(driver.now)
    if expected is None:
        assert granted(decisions) == ["t"]
    else:
        assert of(expected, decisions)


def test_a_stop_is_answered_too() -> None:
    driver = ask_for_one_instance()
    driver.hold = (StopInstance,)
    for name in "uvwt":
        driver.release(name)
    (stop,) = of(StopInstance, driver.told)
    driver.pool.answer(InstanceAnswer(1, stop.order, "stop_failed", "it clings"), driver.now)
    assert [i.reason for i in driver.pool.instances] == ["it clings"]
    driver.pool.answer(InstanceAnswer(1, stop.order, "stopped"), driver.now)
    assert not len(driver.pool.instances)


# --- Hosts ------------------------------------------------------------------------------------


def test_a_worker_that_is_new_to_the_pool_has_joined_and_others_only_beat() -> None:
    driver = Driver("other")
    driver.ask("t", env("a"))
    assert of(SweepHost, driver.go()) == [], "a pool that never had an instance has left nothing"
    pool = driver.pool
    for worker, sweeps in (("w1", 1), ("w1", 0), ("w2", 1), ("w1", 0), ("w2", 0)):
        pool.hear(HostBeat("h", worker, capacity=3, machine="m"), 1_000.0)
        assert len(of(SweepHost, pool.decide(1_000.0))) == sweeps
        pool = Pool.from_state(json.loads(json.dumps(pool.state())))
    assert [host.facts.capacity for host in pool.hosts if host.name == "h"] == [3]


def test_what_is_gone_with_its_host_is_abandoned_and_told_once() -> None:
    driver = Driver("h1", "h2")
    driver.ask("t", env("a"), env("b"), host="h1")
    driver.go()
    driver.pool.host_gone("h1", driver.now)
    decisions = driver.go()
    assert {d.environment for d in of(AbandonInstance, decisions)} == {"a", "b"}
    (loss,) = of(LoseLease, decisions)
    assert loss.environments == ["a", "b"]
    for decision in decisions:
        assert from_json(to_json(decision)) == decision


# --- People -----------------------------------------------------------------------------------


def test_wishes_are_fulfilled_and_answered_in_a_sentence() -> None:
    driver = Driver()
    definition = env("a", max_instances=2)
    prewarm = PoolWish("prewarm", count=2, definition=definition.to_json())
    wishes = [
        (prewarm, "2 instances of a kept ready from now on"),
        (PoolWish("reset", "a"), "2 idle instances of a being reset"),
        (PoolWish("sweep"), "what this pool left behind is removed from h"),
        (PoolWish("prewarm", "a"), "no instance of a is kept ready any longer"),
    ]
    for wish, answer in wishes:
        assert fulfil(driver.pool, wish, driver.now) == answer
        driver.go()
    driver.ask("t", definition)
    driver.go()
    assert fulfil(driver.pool, PoolWish("reset"), driver.now) == (
        "0 idle instances being reset; 1 instance in use will be after use"
    )
    assert fulfil(driver.pool, PoolWish("stop"), driver.now) == (
        "0 instances being stopped; 1 instance in use will be stopped after use"
    )
    driver.ask("u", definition)
    assert fulfil(driver.pool, PoolWish("shutdown"), driver.now) == (
        "the pool shuts down: 1 instance being stopped, 1 lease taken back, "
        "1 waiting request refused"
    )
    driver.hold = (StopInstance,)
    driver.go()
    answer = fulfil(driver.pool, PoolWish("shutdown"), driver.now)
    assert answer == "1 instance left, being stopped already"
    with pytest.raises(CannotFulfil, match="the pool is closing: the pool was shut down"):
        fulfil(driver.pool, PoolWish("sweep"), driver.now)


def test_a_sweep_needs_a_host() -> None:
    with pytest.raises(CannotFulfil, match="start a worker first"):
        fulfil(Pool("uuid"), PoolWish("sweep"), 1_000.0)


# --- Words ------------------------------------------------------------------------------------


def test_words_are_taken_as_they_are_meant() -> None:
    a = env("a", max_instances=3)
    more = {"host": "h", "bind": True, "index": 7}
    asked = LeaseRequest("p", "r:1", holder("t"), [a.to_json()], "s", 4, "high", **more)
    request = request_of(asked)
    assert (request.environments, request.host, request.max_parallel) == ((a,), "h", 4)
    assert request.index == 7
    demand = demand_of(
        SetDemand(
            "p",
            "s",
            SUITE,
            coming=[CountedSet(["a"], 3), CountedSet([], 2), CountedSet(["a"], 0)],
            environments={"a": a.to_json()},
            prioritised=["x"],
        )
    )
    assert [(some.environments, some.count) for some in demand.coming] == [((a,), 3), ((), 2)]
    assert (demand.environments, demand.prioritised) == ((a,), ("x",))


@pytest.mark.parametrize("odd", [{}, {"environment": None}, {"environment": {"name": "a"}}])
def test_a_definition_that_cannot_be_read_is_a_bad_word(odd: dict[str, object]) -> None:
    with pytest.raises(BadWords, match="cannot be read"):
        request_of(LeaseRequest("p", "r", holder("t"), [odd]))


def test_demand_for_what_is_not_defined_is_a_bad_word() -> None:
    demand = SetDemand("p", "s", SUITE, coming=[CountedSet(["a", "b"], 1)])
    with pytest.raises(BadWords, match="unknown environments are declared: a, b"):
        demand_of(demand)
