"""Where the pool places what it starts: hosts, their memory and their ports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.environments import Memory, Port
from perdure.core.pool import Pool, PoolOptions
from perdure.core.pool_decisions import (
    CheckInstance,
    Grant,
    LoseLease,
    Refuse,
    StartInstance,
    StopInstance,
    SweepHost,
)
from perdure.core.pool_fleet import Failure
from perdure.core.pool_hosts import HostFacts
from perdure.core.pool_view import view
from perdure.core.ports import PortRange
from tests.core.pool_driver import Driver, env, granted, of

# --- Ports ------------------------------------------------------------------------------------


def test_ports_of_a_burst_differ_and_come_back() -> None:
    """P38, C03, PD12: a range of 40, ten tasks with two ports, and an outsider on one port."""
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
    assert f"are in use: {taken[0]}; stop what has them" in stop.reason


def test_a_port_range_that_is_used_up_is_said() -> None:
    driver = Driver(facts=HostFacts(port_range=PortRange(9000, 9001)))
    two = {"A": Port(9000), "B": Port(9001)}
    driver.ask("t", env("a", ports=two))
    driver.go()
    driver.ask("u", env("b", ports=two))
    driver.go()
    assert driver.pool.ticket("u").reason == (
        "h has no port left for b in 9000-9001; widen DT_PORT_RANGE"
    )
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


def test_instances_of_a_host_share_what_its_worker_may_give_and_idle_ones_make_room() -> None:
    """However much the machine has; and who waits for it holds nothing meanwhile."""
    facts = HostFacts(free_gb=100.0, total_gb=128.0, max_gb=0.7)
    driver = Driver(facts=facts)
    a, b = env("a", memory_gb=0.3), env("b", memory_gb=0.4)
    driver.ask("t", a, b)
    driver.ask("u", a, b)
    assert granted(driver.go()) == ["t"], "the sum fits to the last bit"
    assert driver.pool.ticket("u").reason == (
        "h may give 0.7 GB of memory in all, and has 0.0 GB of it left for a, which needs 0.3 GB;"
        " raise --max-memory of its worker, or lower memory_gb in env.yaml; h may give 0.7 GB of"
        " memory in all, and has 0.0 GB of it left for b, which needs 0.4 GB; raise --max-memory"
        " of its worker, or lower memory_gb in env.yaml"
    )
    (host,) = view(driver.pool)["hosts"]
    assert (host["free_gb"], host["max_gb"]) == (0.0, 0.7)
    driver.ask("v", env("c", memory_gb=0.6))
    assert granted(driver.release("t")) == ["u"], "what is there is used again"
    assert granted(driver.release("u")) == ["v"]
    assert driver.alive() == {"c": 1}


def test_of_two_hosts_on_one_machine_each_gets_whole_leases_that_its_own_share_can_hold() -> None:
    driver = Driver()
    driver.pool.host_gone("h", driver.now)
    for name, most in (("small", 1.0), ("large", 2.5)):
        facts = HostFacts(free_gb=50.0, total_gb=64.0, machine="m", max_gb=most)
        driver.pool.host_joined(name, facts, driver.now)
    a, b = env("a", memory_gb=0.6), env("b", memory_gb=0.6)
    for name in "tuv":
        driver.ask(name, a, b)
    hosts = {grant.request_id: grant.host for grant in of(Grant, driver.go())}
    assert hosts == {"t": "large", "u": "large"}
    driver.ask("w", a)
    assert [(g.request_id, g.host) for g in of(Grant, driver.go())] == [("w", "small")]
    assert [(g.request_id, g.host) for g in of(Grant, driver.release("u"))] == [("v", "large")]


@pytest.mark.parametrize(
    ("facts", "reason", "remedy"),
    [
        (
            HostFacts(capacity=1),
            "environments a, b: h takes 1 at a time, and 2 are needed",
            "raise --max-instances",
        ),
        (
            HostFacts(free_gb=0.5, total_gb=8.0),
            "environment a: h has 0.5 GB of memory free for a, which needs 1 GB beside the reserve",
            "free some, or lower memory_gb",
        ),
        (
            HostFacts(port_range=PortRange(9000, 9000)),
            "environments a, b: h has 1 ports to give, and 2 are needed",
            "widen DT_PORT_RANGE",
        ),
    ],
    ids=["places", "memory", "ports"],
)
def test_what_no_host_can_hold_is_refused_after_some_patience(
    facts: HostFacts, reason: str, remedy: str
) -> None:
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
    assert refusals[0].kind == "environment"
    assert refusals[0].reason.startswith(reason)
    assert f"; {remedy}" in refusals[0].reason


# --- More memory than there is ----------------------------------------------------------------

LARGE = env("large", memory_gb=16.0)
EIGHT = HostFacts(free_gb=1.0, total_gb=8.0)


def test_who_needs_more_memory_than_its_only_host_has_in_all_is_refused_at_once() -> None:
    driver = Driver(facts=EIGHT)
    driver.ask("t", LARGE, host="h")
    (refusal,) = of(Refuse, driver.go())
    assert refusal.kind == "environment"
    assert refusal.reason == (
        "environment large needs 16 GB of memory: h has 8.0 GB in all and a reserve of 0.8 GB;"
        " lower memory_gb or the reserve_gb of memory in env.yaml"
    )


def test_environments_of_one_task_that_no_machine_holds_together_are_refused() -> None:
    driver = Driver(facts=EIGHT)
    driver.ask("t", env("a", memory_gb=4.0), env("b", memory_gb=4.0), host="h")
    driver.ask("u", env("a", memory_gb=4.0), host="h")
    (refusal,) = of(Refuse, driver.go())
    assert refusal.request_id == "t"
    assert refusal.reason.startswith("environments a, b need together 8 GB of memory: h has 8.0 GB")


def test_a_request_that_any_host_would_do_for_waits_until_all_that_are_up_are_heard_of() -> None:
    driver = Driver("h", "i", facts=EIGHT)
    driver.pool.host_beat("i", HostFacts(max_gb=4.0), driver.now)
    driver.ask("t", LARGE)
    assert of(Refuse, driver.go()) == []
    driver.pool.host_beat("h", EIGHT, driver.now + 14.0)
    driver.pool.host_beat("i", HostFacts(max_gb=4.0), driver.now + 14.0)
    assert of(Refuse, driver.go(14.0)) == []
    assert driver.pool.wake_at() == driver.now + 1.0
    (refusal,) = of(Refuse, driver.go(1.0))
    assert refusal.reason == (
        "environment large needs 16 GB of memory: h has 8.0 GB in all and a reserve of 0.8 GB,"
        " i may give 4 GB in all; lower memory_gb or the reserve_gb of memory in env.yaml, or raise"
        " --max-memory of a worker, or add a host that has more"
    )


def test_a_larger_host_that_joins_in_time_or_is_only_silent_is_waited_for() -> None:
    driver = Driver(facts=EIGHT)
    driver.ask("t", LARGE)
    driver.go(10.0)
    driver.pool.host_joined("large", HostFacts(free_gb=60.0, total_gb=64.0), driver.now)
    assert [grant.host for grant in of(Grant, driver.go())] == ["large"]

    driver.ask("u", LARGE)
    for _ in range(4):
        driver.pool.host_beat("h", EIGHT, driver.now + 10.0)
        assert of(Refuse, driver.go(10.0)) == []
    assert driver.pool.hosts["large"].is_away


def test_memory_that_is_there_but_used_by_others_is_waited_for() -> None:
    driver = Driver(facts=EIGHT)
    driver.ask("t", env("a", memory_gb=4.0), host="h")
    for _ in range(10):
        driver.pool.host_beat("h", EIGHT, driver.now + 10.0)
        assert of(Refuse, driver.go(10.0)) == []
    driver.pool.host_beat("h", HostFacts(free_gb=7.0, total_gb=8.0), driver.now)
    assert granted(driver.go()) == ["t"]


@given(
    needs=st.lists(st.sampled_from([0.25, 1.0, 3.0, 9.0]), min_size=1, max_size=3),
    totals=st.lists(st.sampled_from([0.0, 2.0, 4.0, 16.0]), min_size=1, max_size=3),
    shares=st.lists(st.sampled_from([None, 1.5, 8.0]), min_size=3, max_size=3),
)
def test_a_request_is_refused_for_want_of_memory_if_and_only_if_no_empty_host_could_hold_it(
    needs: list[float], totals: list[float], shares: list[float | None]
) -> None:
    driver = Driver()
    driver.pool.host_gone("h", driver.now)
    suits = False
    for number, (total, share) in enumerate(zip(totals, shares, strict=False)):
        free = total if total else None
        facts = HostFacts(free_gb=free, total_gb=total, max_gb=share)
        driver.pool.host_joined(f"h{number}", facts, driver.now)
        # Beside the reserve of a tenth; while the last one starts, 1 GB is asked for at least.
        started = [sum(needs[:n]) + max(1.0, need) for n, need in enumerate(needs)]
        suits |= (not total or max(started) + total / 10 <= total) and (
            share is None or sum(needs) <= share
        )
    driver.ask("t", *(env(f"e{n}", memory_gb=need) for n, need in enumerate(needs)))
    told = driver.go()
    told += driver.go(14.9)
    assert granted(told) == ["t"] * suits
    assert of(Refuse, told) == []
    for host in [*driver.pool.hosts]:
        driver.pool.host_beat(host.name, host.facts, driver.now)
    assert len(of(Refuse, driver.go(0.2))) == (not suits)


def test_a_pool_of_the_first_rules_goes_on_to_be_patient() -> None:
    driver = Driver(facts=EIGHT)
    state = driver.pool.state()
    del state["options"]["rules"]
    driver.pool = Pool.from_state(state)
    driver.ask("t", LARGE, host="h")
    assert of(Refuse, driver.go()) == []
    assert driver.pool.wake_at() == driver.now + PoolOptions().host_away_seconds
    for _ in range(29):
        driver.pool.host_beat("h", EIGHT, driver.now + 10.0)
        assert of(Refuse, driver.go(10.0)) == []
    assert len(of(Refuse, driver.go(10.0))) == 1


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
