"""No sequence of requests, failures and deaths breaks a rule of the pool.

The pool is driven beside a world that knows nothing of its insides: engines that do what they are
told, or fail; holders that hear of their leases; and what is really up on each host. After every
event the rules are looked at in that world.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from perdure.core.environments import Environment, Memory, Port, ResetEndpoint
from perdure.core.pool import Pool, PoolOptions
from perdure.core.pool_decisions import (
    CheckInstance,
    Decision,
    Grant,
    LoseLease,
    Refuse,
    Renew,
    ResetInstance,
    StartInstance,
    StopInstance,
    SweepHost,
)
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.core.pool_fleet import Failure
from perdure.core.pool_hosts import HostFacts
from perdure.core.pool_instances import Instance
from perdure.core.pool_plan import Planner
from perdure.core.pool_requests import Lease, Request, overtakes_allowed
from perdure.core.pool_view import stats, view
from perdure.core.ports import PortRange
from perdure.core.suite_order import PRIORITIES
from perdure.messages import Holder
from tests.core.pool_driver import answer_well

MOVES = [
    *["answer_well"] * 10,
    *["reset_a_lease"] * 3,
    *["ask"] * 4,
    *["release"] * 4,
    *["answer_badly", "answer_twice", "lose_an_instance", "take_ports", "crash"],
    *["withdraw", "close_a_holder", "beat", "pass_time", "ask_again", "release_wrongly"],
    *["declare", "stop_an_environment", "prewarm", "change_a_definition"],
]
NAMES = ["a", "b", "c", "d"]
HOSTS = ["h1", "h2"]
BUSY = ("checking", "leased", "renewing", "replacing")

definition_of = st.builds(
    lambda name, limit, resets, ports, once, gb: Definition(
        Environment(
            name,
            max_instances=limit,
            reset_endpoints=(ResetEndpoint("r", "http://x"),) if resets else (),
            ports={f"{name.upper()}_{n}": Port(8000 + n) for n in range(ports)},
            disable_reuse=once,
            memory_gb=gb,
        ),
        "1",
        memory=Memory(0.5, 0.5),
    ),
    st.just(""),
    st.sampled_from([1, 1, 2, 3, None]),
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, 0.25, 1.0]),
)
luck = st.integers(0, 9).map(lambda number: number == 9)


@dataclass
class Up:
    """An instance as its host knows it."""

    key: str
    name: str
    host: str
    ports: dict[str, int]
    order: Decision
    """The newest; it is being carried out until `answered`."""
    answered: bool = False
    answered_at: float = 0.0
    users: int = 0


@dataclass
class Asked:
    """A request as its holder knows it."""

    request: Request
    number: int
    state: str = "waiting"
    instances: list[int] = field(default_factory=list)
    host: str | None = None
    is_lost: bool = False
    resets: int = 0
    resetting: list[str] = field(default_factory=list)
    """Environments that it wants reset, and does not use meanwhile."""


@dataclass
class Room:
    """What a host has for instances."""

    places: float
    machine_gb: float
    share_gb: float


@dataclass
class Rival:
    """A due request before a plan, of those that share environments the first one."""

    request_id: str
    had: dict[str, int]
    """By environment: seats that were free, or held by idle instances."""
    host: str | None
    """Where it was begun."""
    is_first: bool
    """Of all that are due."""
    room: Room | None = None
    """Of that host, if it is the first one."""


class WatchedPool(Pool):
    """A pool that tells when it is about to plan: what it planned before is done by then."""

    before_a_plan: Callable[[], None] | None = None

    def _planner(self, now: float) -> Planner:
        if self.before_a_plan:
            self.before_a_plan()
        return super()._planner(now)


class PoolMachine(RuleBasedStateMachine):
    """A pool, and a world around it."""

    @initialize(
        definitions=st.lists(definition_of, min_size=4, max_size=4),
        suites=st.lists(st.integers(1, 4), min_size=2, max_size=2),
        capacities=st.lists(st.sampled_from([None, 2, 3, 5]), min_size=2, max_size=2),
        free_gb=st.sampled_from([None, 3.0, 6.0]),
        overtakes=st.sampled_from([0, 1, 4]),
        machines=st.sampled_from([["one", "one"], ["one", "another"]]),
        shares=st.lists(st.sampled_from([None, None, 1.5, 3.0]), min_size=2, max_size=2),
    )
    def begin(
        self,
        definitions: list[Definition],
        suites: list[int],
        capacities: list[int | None],
        free_gb: float | None,
        overtakes: int,
        machines: list[str],
        shares: list[float | None],
    ) -> None:
        self.now = 1_000.0
        options = PoolOptions(unplaceable_seconds=60.0, overtakes_per_lease=overtakes)
        self._adopt(WatchedPool("0123456789abcdef", options=options))
        self.definitions = {
            name: replace(d, environment=replace(d.environment, name=name))
            for name, d in zip(NAMES, definitions, strict=True)
        }
        self.max_parallel = {f"s{n}": most for n, most in enumerate(suites)}
        self.facts = {
            name: HostFacts(capacity, free_gb, 6.0, PortRange(8000, 8011), machine, share)
            for name, capacity, machine, share in zip(
                HOSTS, capacities, machines, shares, strict=True
            )
        }
        self.up: dict[int, Up] = {}
        self.gone: dict[int, Decision] = {}
        self.asked: dict[str, Asked] = {}
        self.answered: list[Decision] = []
        self.joined: set[str] = set()
        self.limits: dict[str, int | None] = {}
        self._join("h1")
        self._go_on()

    # --- What happens -----------------------------------------------------------------------

    @rule(story=st.binary(min_size=60, max_size=180))
    def live(self, story: bytes) -> None:
        """Three bytes are a move and a pick among what it may concern."""
        for first, second, third in zip(story[::3], story[1::3], story[2::3], strict=False):
            move = MOVES[first % len(MOVES)]
            note(f"{move} {second * 256 + third}")
            self.now += 0.1
            getattr(self, f"_{move}")(second * 256 + third)
            self._go_on()

    @rule(name=st.sampled_from(HOSTS))
    def join(self, name: str) -> None:
        self._join(name)
        self._go_on()

    @rule(luck=luck, name=st.sampled_from(HOSTS))
    def a_host_dies(self, luck: bool, name: str) -> None:
        if luck and name in self.joined:
            self.joined.discard(name)
            self.pool.host_gone(name, self.now)
            for number in [n for n, up in self.up.items() if up.host == name]:
                self.gone[number] = self.up.pop(number).order
            self._go_on()

    @rule(luck=luck)
    def everything_ends(self, luck: bool) -> None:
        """Capacity returns and holders finish: everybody is served, and nothing is left."""
        if luck:
            self._end()
            self.begin(
                [*self.definitions.values()],
                [*self.max_parallel.values()],
                [facts.capacity for facts in self.facts.values()],
                self.facts["h1"].free_gb,
                self.pool.options.overtakes_per_lease,
                [facts.machine for facts in self.facts.values()],
                [facts.max_gb for facts in self.facts.values()],
            )

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self._end()

    def _end(self) -> None:
        for name in [name for name, demand in self.pool.demands.items() if demand]:
            self.pool.close(Holder(f"suite/{name}", "r"), self.now)
        self.max_parallel = {suite: max(1, most) for suite, most in self.max_parallel.items()}
        for name in HOSTS:
            self._join(name)
        for name in NAMES:
            self.pool.prewarm(self.definitions[name], 0)
            self.pool.stop_environment(name, self.now)
        for _ in range(2_000):
            self.now += 1.0
            self._beat(0)
            self._go_on()
            if order := next((up for up in self.up.values() if not up.answered), None):
                self._answer(order.order)
            done = [n for n, a in self.asked.items() if a.state == "granted" and not a.resetting]
            for name in done[:1]:  # the others wait for an answer, which comes
                self._give_back(name)
            states = {asked.state for asked in self.asked.values()}
            if not self.up and states <= {"over", "refused"}:
                break
        self._go_on()
        left = {n: a for n, a in self.asked.items() if a.state not in ("over", "refused")}
        assert not left, f"not served: {left} {view(self.pool)}"
        assert not self.up, "everything is stopped in the end"
        assert not len(self.pool.instances)
        assert self.pool.is_idle
        assert all(not ports.owners for ports in self.pool.hosts.all_ports), "ports came back"

    def _join(self, name: str) -> None:
        self.joined.add(name)
        self.pool.host_joined(name, self._measured(name), self.now)

    def _beat(self, pick: int) -> None:
        for name in sorted(self.joined):
            self.pool.host_beat(name, self._measured(name), self.now)

    def _measured(self, name: str) -> HostFacts:
        """A host as it is now: what is still starting uses no memory yet."""
        facts = self.facts[name]
        if facts.free_gb is None:
            return facts
        used = [
            up
            for up in self._on_machine(name)
            if up.answered or not isinstance(up.order, StartInstance)
        ]
        return replace(facts, free_gb=facts.free_gb - self._gb(used))

    def _on_machine(self, name: str) -> list[Up]:
        machine = self.facts[name].machine
        return [up for up in self.up.values() if self.facts[up.host].machine == machine]

    def _gb(self, some: Iterable[Up | Instance]) -> float:
        return sum(self.pool.definition(up.key).needed_gb for up in some)

    def _pass_time(self, pick: int) -> None:
        seconds = [1.0, 10.0, 14.0, 700.0][pick % 4]
        self.now += seconds
        self._beat(0)

    def _ask(self, pick: int) -> None:
        number = len(self.asked)
        names = [name for bit, name in enumerate(NAMES) if pick >> bit & 1][:3]
        suite = f"s{pick >> 4 & 1}"
        request = Request(
            f"q{number}",
            Holder(f"task/{suite}/{pick >> 9 & 7}", f"run-{number}"),
            tuple(self.definitions[name] for name in names),
            suite,
            max(1, self.max_parallel[suite]),
            PRIORITIES[pick >> 6 & 3],
            HOSTS[pick >> 12 & 1] if pick >> 13 & 7 == 7 else None,
        )
        self.asked[request.request_id] = Asked(request, number)
        self.pool.request(request, self.now)

    def _ask_again(self, pick: int) -> None:
        if asked := self._pick(list(self.asked.values()), pick):
            before = self._frozen()
            self.pool.request(asked.request, self.now)
            assert self._frozen() == before, "asking again changes nothing"

    def _release(self, pick: int) -> None:
        granted = [name for name, asked in self.asked.items() if asked.state == "granted"]
        if name := self._pick(granted, pick):
            self._give_back(name, broken=pick % 7 == 0)

    def _withdraw(self, pick: int) -> None:
        waiting = [name for name, asked in self.asked.items() if asked.state == "waiting"]
        if pick % 3 == 0 and (name := self._pick(waiting, pick)):
            self._give_back(name)

    def _give_back(self, name: str, *, broken: bool = False) -> None:
        asked = self.asked[name]
        reasons = dict.fromkeys(asked.request.names[:1], "it is odd") if broken else {}
        self.pool.release(name, asked.request.holder, self.now, reasons)
        for number in asked.instances:
            is_broken = number in self.up and self.up[number].name in reasons
            assert not is_broken or self.pool.instances[number].state == "stopping"
        asked.state, asked.instances, asked.resetting = "over", [], []
        for up in self.up.values():
            up.users = 0

    def _reset_a_lease(self, pick: int) -> None:
        granted = [name for name, asked in self.asked.items() if asked.state == "granted"]
        if not (name := self._pick(granted, pick)):
            return
        asked = self.asked[name]
        holder, names = asked.request.holder, asked.request.names[: 1 + pick % 2]
        if not asked.resetting:
            asked.resets += 1
            self.pool.renewals.ask(name, holder, asked.resets, names, self.now)
            if not asked.is_lost:  # else that is the answer
                asked.resetting = names
                asked.instances = [n for n in asked.instances if self.up[n].name not in names]
                for number in self.pool.leases[name].instances:
                    if self.up[number].name in names:
                        self.up[number].users = 0
            self._go_on()
        before = self._frozen()
        stranger = Holder(holder.workflow_id, "another run")
        self.pool.renewals.ask(name, holder, asked.resets - pick % 2, NAMES, self.now)
        self.pool.renewals.ask(name, stranger, asked.resets + 1, NAMES, self.now)
        assert self._frozen() == before, "a second, a late or a foreign word changes nothing"

    def _release_wrongly(self, pick: int) -> None:
        """Twice, or by a run that never held it."""
        if asked := self._pick(list(self.asked.values()), pick):
            stranger = Holder(asked.request.holder.workflow_id, "another run")
            who = asked.request.holder if asked.state == "over" else stranger
            before = self._frozen()
            self.pool.release(asked.request.request_id, who, self.now)
            assert self._frozen() == before, "a second or foreign release changes nothing"

    def _close_a_holder(self, pick: int) -> None:
        if pick % 4 == 0 and (asked := self._pick(list(self.asked.values()), pick)):
            self.pool.close(asked.request.holder, self.now)
            if asked.state not in ("over", "refused"):
                asked.state, asked.instances, asked.resetting = "over", [], []
                for up in self.up.values():
                    up.users = 0

    def _declare(self, pick: int) -> None:
        suite = f"s{pick & 1}"
        self.max_parallel[suite] = (pick >> 1) % 5  # 0: it is paused
        some = tuple(self.definitions[n] for bit, n in enumerate(NAMES) if pick >> 4 >> bit & 1)
        coming = EnvironmentSet(some, pick >> 8 & 3)
        self.pool.declare(
            Demand(suite, Holder(f"suite/{suite}", "r"), self.max_parallel[suite], (coming,))
        )

    def _prewarm(self, pick: int) -> None:
        self.pool.prewarm(self.definitions[NAMES[pick % 4]], pick // 4 % 3)

    def _stop_an_environment(self, pick: int) -> None:
        self.pool.stop_environment(NAMES[pick % 4], self.now)

    def _change_a_definition(self, pick: int) -> None:
        name = NAMES[pick % 4]
        old = self.definitions[name]
        self.definitions[name] = replace(old, digest=str(int(old.digest) + 1))
        self.pool.definition_changed(self.definitions[name])

    def _crash(self, pick: int) -> None:
        """Or a continue-as-new: all that is known is what the state tells."""
        before = self._frozen()
        self._adopt(WatchedPool.from_state(json.loads(before)))
        assert self._frozen() == before
        for order in self.pool.outstanding():
            if isinstance(order, (StartInstance, ResetInstance, CheckInstance, StopInstance)):
                up = self.up[order.instance]
                assert up.order == order, "what is outstanding is what was ordered last"

    # --- What engines do --------------------------------------------------------------------

    def _orders(self) -> list[Decision]:
        return [up.order for up in self.up.values() if not up.answered]

    def _answer_well(self, pick: int) -> None:
        if order := self._pick(self._orders(), pick):
            self._answer(order)

    def _answer(self, order: Any) -> None:
        up = self.up[order.instance]
        up.answered, up.answered_at = True, self.now
        self.answered.append(order)
        if isinstance(order, StopInstance):
            self.gone[order.instance] = self.up.pop(order.instance).order
        self._tell(order)

    def _tell(self, order: Any) -> None:
        if isinstance(order, StartInstance):  # every other one is reset with its start
            was_reset = order.reset and order.instance % 2 == 0
            self.pool.answers.started(order.instance, order.order, self.now, was_reset=was_reset)
            return
        answer_well(self.pool, order, self.now)

    def _answer_twice(self, pick: int) -> None:
        """An answer to an older order, or once more to one that is answered."""
        if order := self._pick(self.answered, pick):
            before = self._frozen()
            self._tell(order)
            assert self._frozen() == before, "late answers change nothing"

    def _answer_badly(self, pick: int) -> None:
        order: Any = self._pick(self._orders(), pick)
        if order is None:
            return
        up = self.up[order.instance]
        failure = Failure("it broke", ("last line",), pick % 11 == 0, pick % 5 == 0)
        tell = {
            StartInstance: self.pool.answers.start_failed,
            ResetInstance: self.pool.answers.reset_failed,
            CheckInstance: self.pool.answers.unhealthy,
        }
        up.answered = not isinstance(order, StopInstance)
        if isinstance(order, StopInstance):
            self.pool.answers.stop_failed(order.instance, order.order, "it clings", self.now)
        else:
            tell[type(order)](order.instance, order.order, failure, self.now)

    def _lose_an_instance(self, pick: int) -> None:
        if pick % 2 and (number := self._pick(list(self.up), pick)):
            self.pool.answers.lost(number, Failure("its container died"), self.now)

    def _take_ports(self, pick: int) -> None:
        starts = [o for o in self._orders() if isinstance(o, StartInstance) and o.ports]
        if order := self._pick(starts, pick):
            ports = sorted(order.ports.values())[: 1 + pick % 2]
            up = self.up[order.instance]
            up.answered = True
            up.ports = {name: port for name, port in up.ports.items() if port not in ports}
            at_start = pick % 3 == 0
            self.pool.answers.ports_taken(
                order.instance, order.order, ports, self.now, at_start=at_start
            )

    # --- What is decided --------------------------------------------------------------------

    def _go_on(self) -> None:
        self.paused = {suite for suite, most in self.max_parallel.items() if most == 0}
        self.rivals, self.leases_of_old = self._due_before(), {*self.pool.leases}
        for decision in self.pool.decide(self.now):
            note(str(decision))
            self._carry_out(decision)
            if isinstance(decision, Refuse):
                assert decision.reason
        self._keep_the_bound()
        self._look()
        assert self.pool.decide(self.now) == [], "what is decided is decided"

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case StartInstance():
                if decision.instance not in self.up:
                    self._note_a_start(decision)
                up = self.up[decision.instance]
                assert decision.order > getattr(up.order, "order", 0) or up.order is decision
                up.ports, up.order, up.answered = decision.ports, decision, False
            case ResetInstance() | CheckInstance() | StopInstance():
                up = self.up[decision.instance]
                if not isinstance(decision, StopInstance):
                    assert not up.users, "nothing is done to an instance in use"
                assert decision.order > getattr(up.order, "order", 0)
                up.order, up.answered = decision, False
            case Grant():
                self._hear_of_a_grant(decision)
            case LoseLease():
                asked = self.asked[decision.request_id]
                assert asked.state in ("granted", "over")
                lost, asked.resetting, asked.is_lost = decision.environments, [], True
                asked.instances = [
                    n for n in asked.instances if n in self.up and self.up[n].name not in lost
                ]
            case Renew():
                self._hear_of_a_renewal(decision)
            case Refuse():
                asked = self.asked[decision.request_id]
                assert asked.state in ("waiting", "over")
                if asked.state == "waiting":
                    asked.state = "refused"
            case SweepHost():
                assert set(decision.keep) == set(self.up), "two hosts may be one machine"

    def _note_a_start(self, start: StartInstance) -> None:
        assert start.instance not in self.gone, "numbers are not used again"
        definition = self.pool.definition(start.key)
        others = [up for up in self.up.values() if up.name == start.environment]
        limit = definition.environment.max_instances
        assert limit is None or len(others) < limit, "never more alive than max_instances"
        there = [up for up in self.up.values() if up.host == start.host]
        capacity = self.facts[start.host].capacity
        assert capacity is None or len(there) < capacity
        assert start.host in self.joined
        assert set(start.ports) == set(definition.environment.ports)
        self.up[start.instance] = Up(start.key, start.environment, start.host, start.ports, start)

    def _hear_of_a_grant(self, grant: Grant) -> None:
        asked = self.asked[grant.request_id]
        assert asked.state == "waiting", "granted once"
        assert grant.holder == asked.request.holder
        assert not grant.host or asked.request.host in (None, grant.host)
        wanted = sorted(d.key for d in asked.request.environments)
        assert sorted(i.key for i in grant.instances) == wanted, "all or nothing"
        for granted in grant.instances:
            up = self.up[granted.instance]
            is_fresh = self.now - up.answered_at < self.pool.options.fresh_seconds
            assert isinstance(up.order, CheckInstance) or is_fresh, "healthy a moment ago"
            assert up.answered
            assert up.host == grant.host, "a lease's instances are on one host"
            assert up.ports == granted.ports
            assert not up.users, "no instance under two leases"
        asked.state, asked.host = "granted", grant.host
        asked.instances = [granted.instance for granted in grant.instances]
        if len(asked.request.environments) % 2:
            self.pool.acknowledge(grant.request_id, grant.holder)

    def _hear_of_a_renewal(self, renewal: Renew) -> None:
        asked = self.asked[renewal.request_id]
        assert renewal.holder == asked.request.holder
        if asked.state == "over":
            return  # it was given back meanwhile
        assert renewal.number == asked.resets
        assert asked.resetting or not renewal.instances, "answered once"
        wanted = sorted(d.key for d in asked.request.environments if d.name in asked.resetting)
        assert sorted(i.key for i in renewal.instances) == wanted
        for granted in renewal.instances:
            up = self.up[granted.instance]
            assert up.answered
            is_new = isinstance(up.order, StartInstance)
            assert isinstance(up.order, ResetInstance) or is_new, "reset, or new"
            assert up.host == asked.host, "a lease's instances are on one host"
            assert up.ports == granted.ports
            assert not up.users, "no instance under two leases"
        asked.instances += [granted.instance for granted in renewal.instances]
        asked.resetting = []

    # --- The rules --------------------------------------------------------------------------

    def _look(self) -> None:
        granted = [asked for asked in self.asked.values() if asked.state == "granted"]
        used = Counter(number for asked in granted for number in asked.instances)
        for name, asked in self.asked.items():
            lease = self.pool.leases.get(name)
            is_under_way = bool(lease and lease.state == "granted" and lease.renewing)
            assert is_under_way == bool(asked.resetting), "every reset is answered"
        assert all(count == 1 for count in used.values()), "no instance under two leases"
        for number, up in self.up.items():
            up.users = used[number]
        leases = Counter(lease.request.suite for lease in self.pool.leases.values())
        for suite, before in getattr(self, "leases_before", Counter()).items():
            assert leases[suite] <= max(before, self.max_parallel[suite])
        self.leases_before = leases
        ports = Counter(
            (self.facts[up.host].machine, port)
            for up in self.up.values()
            for port in up.ports.values()
        )
        for name, facts in self.facts.items():
            used_gb = self._gb(self._on_machine(name))
            assert facts.free_gb is None or used_gb <= facts.free_gb - 0.5, "the reserve is kept"
            given_gb = self._gb([up for up in self.up.values() if up.host == name])
            assert facts.max_gb is None or given_gb <= facts.max_gb + 1e-6, "the share is kept"
        doing = {n: i.state for n, i in ((i.number, i) for i in self.pool.instances)}
        assert set(doing) == set(self.up), "the pool knows all that is up, and nothing else"
        assert all(count == 1 for count in ports.values()), "ports are unique on a machine"
        figures = stats(self.pool)
        assert figures.total_tasks == (
            figures.pending_tasks + figures.running_tasks + figures.completed_tasks
        )
        json.dumps(view(self.pool))

    def _due_before(self) -> list[Rival]:
        """The first due request of those that share environments, and what is free for it."""
        first: list[Rival] = []
        seen: set[str] = set()
        for waiter in sorted(self.pool.queue, key=lambda waiter: waiter.arrival):
            if waiter.is_due and seen.isdisjoint(waiter.request.names):
                seen.update(waiter.request.names)
                had = self._had(waiter.request)
                first.append(Rival(waiter.request.request_id, had, waiter.host, not first))
        for rival in first[:1]:
            if rival.host in self.facts:
                rival.room = self._room(rival.host)
        return first

    def _room(self, name: str) -> Room:
        """What nobody uses on a host."""
        facts = self.facts[name]
        busy = [i for i in self.pool.instances if i.state in BUSY]
        here = [i for i in busy if i.host == name]
        beside = [i for i in busy if self.facts[i.host].machine == facts.machine]
        return Room(
            math.inf if facts.capacity is None else facts.capacity - len(here),
            math.inf if facts.free_gb is None else facts.free_gb - self._gb(beside),
            math.inf if facts.max_gb is None else facts.max_gb - self._gb(here),
        )

    def _had(self, request: Request) -> dict[str, int]:
        """Of each of its environments, how many seats are free or held by idle instances."""
        counts = {}
        for definition in request.environments:
            limit = definition.environment.max_instances
            if limit is not None:
                busy = [
                    i
                    for i in self.pool.instances
                    if i.environment == definition.name and i.state in BUSY
                ]
                counts[definition.name] = limit - len(busy)
        return counts

    def _keep_the_bound(self) -> None:
        """No later request takes the last instance that a due one waits for, nor the room for it
        on the host where it is kept.

        Looked at after each plan, since what one plan grants may make an earlier request due: the
        next plan keeps for that one instead.
        """
        rivals, old = self.rivals, self.leases_of_old
        self.rivals, self.leases_of_old = self._due_before(), {*self.pool.leases}
        usable = {host.name for host in self.pool.hosts.usable}
        new = [lease for name, lease in self.pool.leases.items() if name not in old]
        for rival in rivals:
            waiter = self.pool.queue.get(rival.request_id)
            if waiter is None or waiter.request.host not in usable | {None} or not usable:
                continue
            if waiter.stuck_since is not None:
                continue  # what it needs is nowhere, so nothing is kept for it
            if waiter.request.suite in self.paused:
                continue  # it keeps nothing from others
            later = [lease for lease in new if lease.waiter.arrival > waiter.arrival]
            taken = {name for lease in later for name in lease.request.names}
            for name, count in self._had(waiter.request).items():
                is_safe = name not in taken or count >= min(1, rival.had[name])
                assert is_safe, f"{name} was taken from {rival.request_id}"
            if rival.is_first and rival.host == waiter.host and rival.host in usable:
                self._keep_room(rival, waiter.request, new)

    def _keep_room(self, rival: Rival, request: Request, new: list[Lease]) -> None:
        """Whatever becomes free where the first due request is begun is kept until it suffices."""
        assert rival.host
        assert rival.room
        machine = self.facts[rival.host].machine
        there = [lease for lease in new if lease.host and self.facts[lease.host].machine == machine]
        instances = [self.pool.instances[number] for each in there for number in each.instances]
        here = [instance for instance in instances if instance.host == rival.host]
        before, names = rival.room, len(request.names)
        places = before.places - len(here)
        assert places >= min(before.places, names), f"{rival.request_id} lost its place"
        needed_gb = sum(definition.needed_gb for definition in request.environments) - 1e-6
        machine_gb = before.machine_gb - self._gb(instances)
        is_safe = machine_gb >= min(before.machine_gb, needed_gb)
        assert is_safe, f"{rival.request_id} lost the machine's memory"
        share_gb = before.share_gb - self._gb(here)
        is_safe = share_gb >= min(before.share_gb, needed_gb)
        assert is_safe, f"{rival.request_id} lost its host's memory"

    # --- Help -------------------------------------------------------------------------------

    def _adopt(self, pool: Pool) -> None:
        assert isinstance(pool, WatchedPool)
        self.pool = pool
        pool.before_a_plan = self._keep_the_bound

    def _frozen(self) -> str:
        return json.dumps(self.pool.state())

    def _pick(self, some: list[Any], pick: int) -> Any:
        return some[pick % len(some)] if some else None


def test_the_bound_has_a_ceiling() -> None:
    assert overtakes_allowed(0) == overtakes_allowed(2) == 8
    assert overtakes_allowed(10) == 40
    assert overtakes_allowed(10_000) == 1_000


TestPoolModel = PoolMachine.TestCase
TestPoolModel.settings = settings(max_examples=50, stateful_step_count=10, deadline=None)
