"""The rules of the pool, one by one, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from perdure.core.environments import Environment, Memory, Port, ResetEndpoint
from perdure.core.pool import Pool, PoolOptions
from perdure.core.pool_decisions import (
    CheckInstance,
    Decision,
    Grant,
    LoseLease,
    Refuse,
    ResetInstance,
    StartInstance,
    StopInstance,
    SweepHost,
)
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.core.pool_desk import REMEMBERED
from perdure.core.pool_fleet import STOP_AGAIN_SECONDS, Failure
from perdure.core.pool_hosts import CROWDED_SECONDS, HostFacts
from perdure.core.pool_requests import Request, overtakes_allowed
from perdure.core.pool_view import stats, view
from perdure.core.ports import PortRange
from perdure.messages import Holder

BROKEN = Failure("it exited with 3", ("last line",))


def env(name: str, *, resets: bool = True, digest: str = "1", **facts: Any) -> Definition:
    if resets:
        facts["reset_endpoints"] = (ResetEndpoint("api", "http://127.0.0.1/reset"),)
    memory = facts.pop("memory", Memory())
    return Definition(Environment(name, **facts), digest, memory=memory)


def holder(name: str, run: str = "run") -> Holder:
    return Holder(f"task/s/{name}/1", run)


class Driver:
    """A pool whose engines do at once what they are told, but for what is held back."""

    def __init__(self, *hosts: str, facts: HostFacts | None = None) -> None:
        # Every lease is looked at, though here no time passes between a reset and a grant.
        self.pool = Pool("0123456789abcdef", options=PoolOptions(fresh_seconds=0.0))
        self.now = 1_000.0
        self.facts = facts or HostFacts()
        self.told: list[Decision] = []
        self.hold: tuple[type, ...] = ()
        """Orders of these kinds are not answered by themselves."""
        for host in hosts or ("h",):
            self.pool.host_joined(host, self.facts, self.now)

    def ask(self, name: str, *environments: Definition, **facts: Any) -> None:
        request = Request(name, holder(name), tuple(environments), **{"suite": "s", **facts})
        self.pool.request(request, self.now)

    def release(self, *names: str) -> list[Decision]:
        for name in names:
            self.pool.release(name, holder(name), self.now)
        return self.go()

    def go(self, seconds: float = 0.0) -> list[Decision]:
        """Decide, and answer, until nothing is left to do; returns what was decided."""
        self.now += seconds
        told: list[Decision] = []
        while decisions := self.pool.decide(self.now):
            told += decisions
            for decision in decisions:
                if not isinstance(decision, self.hold):
                    self.answer(decision)
        self.told += told
        return told

    def answer(self, decision: Decision) -> None:
        match decision:
            case StartInstance():
                self.pool.answers.started(decision.instance, decision.order, self.now)
            case ResetInstance():
                self.pool.answers.reset_done(decision.instance, decision.order, self.now)
            case CheckInstance():
                self.pool.answers.checked(decision.instance, decision.order, self.now)
            case StopInstance():
                self.pool.answers.stopped(decision.instance, decision.order, self.now)

    def alive(self) -> dict[str, int]:
        return dict(self.pool.instances.alive())


def of(kind: type, decisions: Iterable[Decision]) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def granted(decisions: Iterable[Decision]) -> list[str]:
    return [grant.request_id for grant in of(Grant, decisions)]


# --- Grants -----------------------------------------------------------------------------------


def test_a_lease_has_all_its_environments_on_one_host_reset_and_checked() -> None:
    driver = Driver()
    driver.ask("t", env("a", ports={"A_PORT": Port(18080)}), env("b", resets=False))
    kinds = [type(decision).__name__ for decision in driver.go()]
    assert kinds == [
        *["SweepHost", "StartInstance", "StartInstance", "ResetInstance"],
        *["CheckInstance", "CheckInstance", "Grant"],
    ]
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
    """PD4, PD5: nothing waits for another one's reset."""
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
    """PD3."""
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


def test_a_low_priority_is_overtaken_only_so_often() -> None:
    """PD24."""
    driver = Driver()
    a = env("a", max_instances=1)
    driver.ask("w0", a)
    driver.go()
    driver.ask("waits", a, priority="low")
    passed = 0
    while "waits" not in driver.pool.leases:
        driver.ask(f"w{passed + 1}", a, priority="critical")
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


def test_a_suite_with_one_slot_does_not_starve_the_first_of_its_tasks() -> None:
    """PD24: one that shares nothing but the slot is overtaken, too."""
    driver = Driver()
    driver.ask("w0", max_parallel=1)
    driver.go()
    driver.ask("waits", max_parallel=1, priority="low")
    passed = 0
    while "waits" not in driver.pool.leases:
        driver.ask(f"w{passed + 1}", max_parallel=1)
        driver.release(f"w{passed}")
        passed += "waits" not in driver.pool.leases
    assert passed == overtakes_allowed(1)


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


# --- Failures ---------------------------------------------------------------------------------


def test_after_two_failures_a_request_is_refused_with_the_reason_and_the_log() -> None:
    """PD6, PD7, PD8: a failed instance is stopped, counts until it is gone, and nobody gets it."""
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
    """PD2."""
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


# --- Who asks ---------------------------------------------------------------------------------


def test_asking_twice_under_one_id_takes_one_lease() -> None:
    driver = Driver()
    for _ in range(2):
        driver.ask("t", env("a"))
        driver.go()
        driver.ask("t", env("a"))
    assert granted(driver.told) == ["t"]
    assert driver.alive() == {"a": 1}


def test_a_waiter_that_leaves_and_a_holder_that_dies_make_way() -> None:
    """C13: A holds, B and C wait; B leaves, A is terminated; then C has it."""
    driver = Driver()
    a = env("a", max_instances=1)
    for name in "abc":
        driver.ask(name, a)
    driver.go()
    driver.release("b")
    assert [waiter.request.request_id for waiter in driver.pool.queue] == ["c"]
    driver.pool.close(holder("a", "another run"), driver.now)
    assert granted(driver.go()) == [], "a live holder is never robbed"
    driver.pool.close(holder("a"), driver.now)
    assert granted(driver.go()) == ["c"]
    for who in [holder("a"), holder("b"), holder("c", "another run")]:
        driver.pool.release("c", who, driver.now)
    driver.release("a", "a", "b")
    assert list(driver.pool.leases) == ["c"]
    assert driver.pool.holders == [holder("c")]


def test_a_request_that_arrives_after_its_release_makes_no_ghost() -> None:
    driver = Driver()
    driver.release("t")
    driver.ask("t", env("a"))
    assert granted(driver.go()) == []
    stranger = Request("u", holder("u"), (env("a"),))
    driver.pool.release("u", holder("u", "another run"), driver.now)
    driver.pool.request(stranger, driver.now)
    assert granted(driver.go()) == ["u"], "a foreign release keeps nobody away"


def test_only_so_many_old_requests_are_remembered() -> None:
    driver = Driver()
    for number in range(REMEMBERED + 50):
        driver.release(f"t{number}")
    assert len(driver.pool.state()["desk"]["over"]) == REMEMBERED


def test_a_grant_that_its_holder_does_not_know_is_taken_back() -> None:
    driver = Driver()
    driver.ask("t", env("a", max_instances=1))
    driver.ask("u", env("a", max_instances=1))
    driver.go()
    assert granted(driver.release("t")) == ["u"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([env("a"), env("a", digest="2")], "asks twice for a"),
        ([env("a", max_instances=0)], "a has max_instances: 0"),
    ],
)
def test_what_can_never_be_granted_is_refused_at_once(wanted: list[Definition], says: str) -> None:
    """PD7."""
    driver = Driver()
    driver.ask("t", *wanted)
    (refusal,) = of(Refuse, driver.go())
    assert refusal.kind == "bad_input"
    assert says in refusal.reason


def test_an_id_in_use_is_refused_to_another_holder() -> None:
    driver = Driver()
    driver.ask("t", env("a"))
    driver.pool.request(Request("t", holder("else"), (env("a"),)), driver.now)
    told = driver.go()
    assert [refusal.holder for refusal in of(Refuse, told)] == [holder("else")]
    assert granted(told) == ["t"]


# --- What stays and what goes -----------------------------------------------------------------


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
    driver.pool.declare(Demand("s", suite, 2, (EnvironmentSet((a,), 3),)))
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


# --- Ports ------------------------------------------------------------------------------------


def test_ports_of_a_burst_differ_and_come_back() -> None:
    """C03, PD12: a range of 40, ten tasks with two ports, and an outsider on one port."""
    driver = Driver("h1", "h2", facts=HostFacts(port_range=PortRange(9000, 9039), machine="m"))
    a = env("a", ports={"A": Port(9000), "B": Port(9000)})
    driver.hold = (StartInstance,)
    for number in range(10):
        driver.ask(f"t{number}", a)
    starts = of(StartInstance, driver.go())
    outsider = starts[3].ports["B"]
    driver.pool.answers.ports_taken(
        starts[3].instance, starts[3].order, [outsider], driver.now, at_start=True
    )
    starts[3:4] = of(StartInstance, driver.go())
    ports = [port for start in starts for port in start.ports.values()]
    assert len(set(ports)) == 20
    assert set(ports) <= set(range(9000, 9040)) - {outsider}
    driver.hold = ()
    for start in starts:
        driver.answer(start)
    driver.go()
    driver.release(*(f"t{number}" for number in range(10)))
    assert len(granted(driver.told)) == 10
    book = driver.pool.hosts.ports("h1")
    assert book.owners == {}
    assert book.left(PortRange(9000, 9039), driver.now) == 39


def test_a_second_bind_conflict_fails_the_instance() -> None:
    driver = Driver(facts=HostFacts(port_range=PortRange(9000, 9009)))
    driver.ask("t", env("a", ports={"A": Port(18080)}))
    driver.hold = (StartInstance, StopInstance)
    for _ in range(2):
        start = of(StartInstance, driver.go())[-1]
        taken = [start.ports["A"]]
        driver.pool.answers.ports_taken(
            start.instance, start.order, taken, driver.now, at_start=True
        )
    (stop, *_) = of(StopInstance, driver.go())
    assert stop.reason.endswith(f"are in use: {taken[0]}")


def test_a_port_range_that_is_used_up_is_said() -> None:
    driver = Driver(facts=HostFacts(port_range=PortRange(9000, 9001)))
    two = {"A": Port(9000), "B": Port(9001)}
    driver.ask("t", env("a", ports=two))
    driver.go()
    driver.ask("u", env("b", ports=two))
    driver.go()
    assert driver.pool.ticket("u").reason == "h has no port left for b in 9000-9001"
    assert granted(driver.release("t")) == ["u"]


# --- Hosts and memory -------------------------------------------------------------------------


def test_a_lease_goes_to_the_host_with_the_most_free_memory_whole() -> None:
    driver = Driver()
    driver.pool.host_joined("h", HostFacts(free_gb=7.0), driver.now)
    driver.pool.host_joined("large", HostFacts(free_gb=12.0), driver.now)
    for name in "tuv":
        driver.ask(name, env("a", memory_gb=2.0), env("b", memory_gb=2.0))
    hosts = {grant.request_id: grant.host for grant in of(Grant, driver.go())}
    assert hosts == {"t": "large", "u": "large", "v": "h"}


def test_the_memory_guard_counts_what_is_being_started() -> None:
    """PD22: and who waits for memory holds nothing meanwhile."""
    facts = HostFacts(free_gb=7.0, total_gb=8.0)
    driver = Driver(facts=facts)
    big = env("big", memory=Memory(required_gb=2.0, reserve_gb=2.0))
    driver.hold = (StartInstance,)
    for name in "tuv":
        driver.ask(name, big, env("a", memory_gb=0.0, memory=Memory(0.0, 2.0)))
    starts = of(StartInstance, driver.go())
    assert [start.environment for start in starts].count("big") == 2
    assert "7.0" not in driver.pool.ticket("v").reason
    assert "beside the reserve of 2 GB" in driver.pool.ticket("v").reason
    driver.hold = ()
    for start in starts:
        driver.answer(start)
    driver.pool.host_beat("h", HostFacts(free_gb=5.0, total_gb=8.0), driver.now + 1)
    assert sorted(granted(driver.go(1))) == ["t", "u", "v"]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (HostFacts(capacity=1), "h takes 1 instances, and this needs 2 at once"),
        (HostFacts(free_gb=0.5, total_gb=8.0), "h has 0.5 GB of memory free for a"),
        (HostFacts(port_range=PortRange(9000, 9000)), "h has 1 ports to give"),
    ],
)
def test_what_no_host_can_hold_is_refused_after_some_patience(facts: HostFacts, says: str) -> None:
    driver = Driver(facts=facts)
    driver.ask("t", env("a", ports={"P": Port(9000)}), env("b", ports={"Q": Port(9000)}))
    assert of(Refuse, driver.go()) == []
    refusals: list[Refuse] = []
    while not refusals:
        wake = driver.pool.wake_at()
        assert wake is not None
        driver.pool.host_beat("h", facts, wake)
        driver.now = wake
        refusals = of(Refuse, driver.go())
    assert driver.now == 1_000.0 + PoolOptions().unplaceable_seconds
    assert says in refusals[0].reason


def test_a_request_waits_while_no_host_is_there() -> None:
    driver = Driver()
    driver.pool.host_gone("h", driver.now)
    driver.ask("t", env("a"))
    driver.go()
    assert driver.pool.ticket("t").reason == "no host is there"
    driver.pool.host_joined("h", driver.facts, driver.now + 1_000)
    assert granted(driver.go(1_000)) == ["t"]


def test_the_leases_of_a_host_that_is_gone_are_lost_and_others_go_on_elsewhere() -> None:
    driver = Driver("h1", "h2")
    driver.ask("t", env("a"), env("b"))
    (grant,) = of(Grant, driver.go())
    driver.ask("u", env("a"))
    driver.hold = (CheckInstance,)
    driver.go()
    other = {"h1": "h2", "h2": "h1"}[grant.host]
    driver.pool.host_gone(grant.host, driver.now)
    driver.hold = ()
    told = driver.go()
    (loss,) = of(LoseLease, told)
    assert (loss.request_id, sorted(loss.environments)) == ("t", ["a", "b"])
    assert [(g.request_id, g.host) for g in of(Grant, told)] == [("u", other)]
    driver.pool.host_joined(grant.host, driver.facts, driver.now)
    (sweep,) = of(SweepHost, driver.go())
    assert sweep.host == grant.host
    assert sweep.keep == [instance.number for instance in driver.pool.instances.on(other)], (
        "the other host may be on the same machine"
    )


def test_a_worker_that_comes_back_finds_its_instances() -> None:
    driver = Driver()
    driver.ask("t", env("a"))
    driver.go()
    driver.pool.host_joined("h", driver.facts, driver.now)
    assert driver.go() == [SweepHost("h", [1])]
    assert list(driver.pool.leases) == ["t"]


def test_a_silent_host_gets_nothing_new_and_then_is_gone_if_another_one_is_there() -> None:
    driver = Driver("h1", "h2")
    driver.ask("t", env("a"))
    (grant,) = of(Grant, driver.go())
    other = {"h1": "h2", "h2": "h1"}[grant.host]
    for _ in range(5):
        driver.pool.host_beat(other, driver.facts, driver.now + 10)
        driver.ask("u", env("a"))
        driver.go(10)
    assert driver.pool.leases["u"].host is not None
    assert grant.host not in driver.pool.hosts
    assert driver.pool.leases["t"].state == "lost"


def test_what_fails_while_its_worker_is_away_is_nobodys_fault() -> None:
    driver = Driver()
    driver.hold = (CheckInstance,)
    driver.ask("t", env("a"), env("b"))
    first, second = of(CheckInstance, driver.go())
    driver.now += 20
    for check in (first, second):
        driver.pool.answers.unhealthy(check.instance, check.order, Failure("no answer"), driver.now)
    assert of(Refuse, driver.go()) == []
    driver.pool.host_beat("h", driver.facts, driver.now)
    driver.hold = ()
    assert granted(driver.go()) == ["t"]


def test_the_last_host_is_waited_for_and_a_sleep_of_the_pool_is_nobodys_fault() -> None:
    driver = Driver("h1", "h2")
    driver.ask("t", env("a"))
    driver.go()
    driver.go(10_000)
    assert sorted(host.name for host in driver.pool.hosts) == ["h1", "h2"], "the pool slept"
    for _ in range(20):
        driver.go(10)
    assert sorted(host.name for host in driver.pool.hosts) == ["h1", "h2"], "nobody is better"
    assert driver.pool.leases["t"].state == "granted"


# --- To be seen, and to go on -----------------------------------------------------------------


def test_the_figures_add_up() -> None:
    """P51, PD14."""
    driver = Driver()
    a = env("a", max_instances=1)
    for name in "tuv":
        driver.ask(name, a)
    driver.pool.declare(Demand("s", Holder("suite/s", "r"), 2, (EnvironmentSet((a,), 4),)))
    driver.go()
    driver.release("t")
    driver.hold = (ResetInstance,)
    driver.release("u")
    figures = stats(driver.pool)
    assert figures.total_tasks == 7
    assert (figures.pending_tasks, figures.running_tasks, figures.completed_tasks) == (5, 0, 2)
    assert (figures.total_instances, figures.available_instances) == (1, 1)
    assert (figures.in_use_instances, figures.instances_by_env) == (0, {"a": 1})


def test_a_pool_goes_on_from_its_state_with_all_that_is_not_answered() -> None:
    """PD25: for everything that was ordered and everybody who was told but did not answer."""
    driver = Driver()
    a = env("a", ports={"A": Port(18080)}, env={"X": {"from_env": "Y"}})
    driver.ask("t", a)
    driver.hold = (StartInstance,)
    (start,) = of(StartInstance, driver.go())
    driver.pool.release("u", holder("u"), driver.now)
    driver.pool.host_joined("other", driver.facts, driver.now)
    saved = json.loads(json.dumps(driver.pool.state()))
    driver.pool = Pool.from_state(saved)
    assert json.loads(json.dumps(driver.pool.state())) == saved
    assert driver.pool.outstanding() == [start]
    assert driver.pool.definition(start.key) == a
    driver.answer(start)
    (grant,) = of(Grant, driver.go())
    assert driver.pool.outstanding() == [grant]
    driver.pool.acknowledge("t", holder("t"))
    assert driver.pool.outstanding() == []
    assert json.dumps(view(driver.pool))


def test_an_idle_pool_has_nothing_to_look_after() -> None:
    driver = Driver()
    driver.go()
    assert driver.pool.is_idle
    driver.ask("t", env("a"))
    driver.go()
    assert not driver.pool.is_idle
    driver.release("t")
    assert driver.pool.is_idle
    assert driver.pool.state()["fleet"]["definitions"] == {}
