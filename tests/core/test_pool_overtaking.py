"""Nobody is passed over for ever, however many come later and whatever it is that is short."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.environments import Port
from perdure.core.pool import Pool
from perdure.core.pool_definitions import Definition
from perdure.core.pool_hosts import HostFacts
from perdure.core.pool_requests import overtakes_allowed
from perdure.core.ports import PortRange
from tests.core.pool_driver import Driver, env, granted, holder

TWO_PORTS = {"P": Port(9000), "Q": Port(9000)}


def small(name: str) -> Definition:
    return env(name, memory_gb=1.0, ports=TWO_PORTS)


def large(name: str) -> Definition:
    return env(name, memory_gb=4.0, ports=TWO_PORTS)


class Stream:
    """Hosts on which small tasks come without end, each ending after as many others as the next."""

    def __init__(self, hosts: dict[str, HostFacts], *others: Definition) -> None:
        self.driver = Driver()
        self.driver.pool.host_gone("h", self.driver.now)
        for name, facts in hosts.items():
            self.driver.pool.host_joined(name, facts, self.driver.now)
        self._hosts, self._others = hosts, others
        self._asked = self._most = 0
        self._at_work: deque[str] = deque()
        for _ in range(20):
            self._ask()
        self._go()

    def serves(self, *wanted: Definition) -> bool:
        """Whether a request is served within twice the bound: it is overtaken as often as is
        allowed, and then all leases come to their end that were there."""
        self.driver.ask("large", *wanted, suite="t")
        ended = 0
        while ended < 2 * (overtakes_allowed(self._most) + self._most):
            ended += 1
            self._ask()
            if self._at_work:  # else all that is there is kept for it
                name = self._at_work.popleft()
                self.driver.pool.release(name, holder(name), self.driver.now)
            if "large" in self._go():
                return True
        return False

    def _ask(self) -> None:
        """One more, unless enough of them wait."""
        if len(self.driver.pool.queue) > 8:
            return
        self.driver.ask(f"s{self._asked}", self._others[self._asked % len(self._others)])
        self._asked += 1

    def _go(self) -> list[str]:
        pool = self.driver.pool
        for name, facts in self._hosts.items():
            there = [i for i in pool.instances if self._hosts[i.host].machine == facts.machine]
            used = sum(pool.definition(instance.key).needed_gb for instance in there)
            free = None if facts.free_gb is None else facts.free_gb - used
            pool.host_beat(name, replace(facts, free_gb=free), self.driver.now)
        got = granted(self.driver.go(0.5))
        self._at_work += [name for name in got if name != "large"]
        self._most = max(self._most, len(pool.leases))
        return got


SHORT = {
    "places": HostFacts(capacity=3),
    "memory": HostFacts(free_gb=8.0, total_gb=10.0),
    "share": HostFacts(max_gb=6.0),
    "ports": HostFacts(port_range=PortRange(9000, 9005)),
}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("short", SHORT)
def test_a_task_that_needs_more_than_others_is_served_though_what_is_free_never_suffices(
    short: str, hosts: int
) -> None:
    """Those that come later want another environment, and would have its instances for ever."""
    facts = {f"h{n}": replace(SHORT[short], machine=f"m{n}") for n in range(hosts)}
    stream = Stream(facts, small("other"))
    assert stream.serves(large("a"), large("b") if short == "places" else small("b"))


@given(
    hosts=st.lists(
        st.builds(
            HostFacts,
            capacity=st.sampled_from([3, 4]),
            free_gb=st.sampled_from([None, 8.0, 12.0]),
            total_gb=st.just(14.0),
            port_range=st.sampled_from([PortRange(9000, 9007), PortRange(9000, 9999)]),
            machine=st.sampled_from(["one", "another"]),
            max_gb=st.sampled_from([None, 6.0, 9.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    limit=st.sampled_from([None, 1, 2]),
    shares_an_environment=st.booleans(),
    kinds=st.integers(1, 3),
    wanted=st.lists(st.sampled_from(["b", "c"]), unique=True, max_size=2),
)
@settings(max_examples=25, deadline=None)
def test_the_bound_holds_on_several_hosts_whatever_is_short(
    hosts: list[HostFacts],
    limit: int | None,
    shares_an_environment: bool,
    kinds: int,
    wanted: list[str],
) -> None:
    shared = replace(small("x"), environment=replace(small("x").environment, max_instances=limit))
    others = [shared] if shares_an_environment else []
    others += [small(f"other-{number}") for number in range(kinds)]
    # Hosts of one machine have its memory, all of them the same.
    memory = {facts.machine: facts.free_gb for facts in hosts}
    facts = {
        f"h{number}": replace(each, free_gb=memory[each.machine])
        for number, each in enumerate(hosts)
    }
    stream = Stream(facts, *others)
    request = [large("a"), *map(small, wanted)][: 1 + len(wanted)]
    request += [shared] if shares_an_environment and len(request) < 3 else []
    if stream.driver.pool.queue:
        assert stream.serves(*request)


def test_a_pool_of_the_first_rules_has_those_starve() -> None:
    """Why there are others; it goes on as it began all the same."""
    stream = Stream({"h": SHORT["places"]}, small("other"))
    state = stream.driver.pool.state()
    del state["options"]["rules"]
    stream.driver.pool = Pool.from_state(state)
    assert not stream.serves(large("a"), large("b"))
