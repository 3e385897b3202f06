"""What a pool has at one moment: the books in which a plan reserves, request by request."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.core.pool_definitions import Definition
from perdure.core.pool_hosts import Host, Hosts
from perdure.core.pool_instances import FREE, Instance, Instances
from perdure.core.pool_requests import Request
from perdure.core.problems import listed


@dataclass
class Placement:
    """How a request could be served on a host."""

    host: str
    use: list[Instance] = field(default_factory=list)
    """Free instances; some of them must be started or reset to the end."""
    starts: list[Definition] = field(default_factory=list)
    """To be started at once."""
    later: list[Definition] = field(default_factory=list)
    """To be started when something that is stopped now, or will be, is gone."""
    evicts: list[Instance] = field(default_factory=list)
    """Free instances that must make room."""
    lacks: list[str] = field(default_factory=list)
    """What cannot be had, for people; empty: the request fits."""
    missing: list[Definition] = field(default_factory=list)
    """What cannot be had. Who keeps what is free keeps a place for it, too."""
    lacks_room: bool = False
    """Whether it is the host that has too little: room, memory, ports."""
    clean: int = 0
    """How many of those to use are ready."""
    reusable: int = 0
    """How many need no start."""

    @property
    def fits(self) -> bool:
        """Whether all can be had, now or soon."""
        return not self.lacks

    @property
    def is_ready(self) -> bool:
        """Whether all are there, and clean."""
        return self.fits and not self.starts and not self.later and self.clean == len(self.use)


class Ledger:
    """Free instances, seats and room, less what has been reserved."""

    def __init__(
        self,
        hosts: Hosts,
        instances: Instances,
        definitions: dict[str, Definition],
        now: float,
    ) -> None:
        self.hosts = {host.name: host for host in hosts.usable}
        self._definitions = definitions
        self._now = now
        self._alive = instances.alive()
        self._ending: Counter[str] = Counter()
        """Stopping instances by environment: seats that will be free."""
        self._there: Counter[str] = Counter(instance.host for instance in instances)
        self._leaving: Counter[str] = Counter()
        """Stopping instances by host: room that will be there."""
        self._books = {name: hosts.ports(name) for name in self.hosts}
        self._ports = {
            name: self._books[name].left(host.facts.port_range, now)
            for name, host in self.hosts.items()
        }
        """By host: numbers of its range that are left."""
        self._free_gb: dict[str, float] = {}
        """By machine, where it is known: less what is being started there."""
        self._leaving_gb: dict[str, float] = defaultdict(float)
        self._free: dict[tuple[str, str], list[Instance]] = {}
        """By host and key, the readiest first."""
        self._idle: dict[int, Instance] = {}
        """Free instances in which nothing goes on: they can make room."""
        for host in self.hosts.values():
            if host.facts.free_gb is not None:
                known = self._free_gb.get(host.machine, host.facts.free_gb)
                self._free_gb[host.machine] = min(known, host.facts.free_gb)
                self._leaving_gb[host.machine] += host.freed_gb
        self._most_gb = {
            machine: free + self._leaving_gb[machine] for machine, free in self._free_gb.items()
        }
        """By machine, where it is known: what were free if nothing of the pool were there."""
        for instance in instances:
            self._enter(instance)
        for some in self._free.values():
            some.sort(key=self._readiness)

    def _enter(self, instance: Instance) -> None:
        host = self.hosts.get(instance.host)
        if instance.state == "stopping":
            self._ending[instance.environment] += 1
            self._leaving[instance.host] += 1
        if host is None:
            return
        needed = self._definitions[instance.key].needed_gb
        if instance.state == "stopping":
            self._leaving_gb[host.machine] += needed
        if host.machine in self._free_gb:
            if instance.is_measured(host.heard):
                self._most_gb[host.machine] += needed
            else:
                self._free_gb[host.machine] -= needed
        if instance.state in ("clean", "dirty"):
            self._idle[instance.number] = instance
        if instance.state in FREE and not instance.is_retiring:
            self._free.setdefault((host.name, instance.key), []).append(instance)

    # --- What can be had --------------------------------------------------------------------

    def free(self) -> list[Instance]:
        """Free instances that are not reserved."""
        return [instance for some in self._free.values() for instance in some]

    def is_clean(self, instance: Instance) -> bool:
        """Whether it can be handed out as it is: reset, and not too long ago."""
        definition = self._definitions[instance.key]
        max_idle = definition.environment.max_idle_seconds
        fresh = self._now - instance.cleaned < max_idle or not definition.is_resettable
        return instance.state == "clean" and fresh

    def best(self, request: Request, begun_on: str | None) -> Placement | None:
        """The host where most instances can be used again, then that with most free memory.

        But where it was begun to make its instances ready, that is brought to an end. None: there
        is no host.
        """
        placements = [self.place(request, host) for host in self._hosts_for(request)]

        def merit(placement: Placement) -> tuple[bool, bool, bool, tuple[int, int, float]]:
            is_begun = placement.host == begun_on
            return placement.fits, placement.is_ready, is_begun, self._merit(placement)

        return max(placements, key=merit, default=None)

    def where_to_keep(self, request: Request, begun_on: str | None) -> Host | None:
        """Of the hosts that can hold a request at all: where it was begun, else the best.

        None: there is none, and what it kept would be of no use.
        """
        can = [host for host in self._hosts_for(request) if not self._objection(request, host)]
        for host in can:
            if host.name == begun_on:
                return host
        placements = [self.place(request, host) for host in can]
        return self.hosts[max(placements, key=self._merit).host] if placements else None

    def unplaceable(self, request: Request) -> str | None:
        """Why no host could hold a request even if it were empty; None: one could.

        None, too, if no host is there.
        """
        objections = [self._objection(request, host) for host in self._hosts_for(request)]
        return objections[0] if objections and all(objections) else None

    def _hosts_for(self, request: Request) -> list[Host]:
        """Those that will do."""
        only = request.host
        return [host for name, host in self.hosts.items() if only is None or name == only]

    def _objection(self, request: Request, host: Host) -> str | None:
        """Why a host could not hold a request even if all that is there were gone."""
        wanted, facts = request.environments, host.facts
        who = f"environment{'s' if len(wanted) > 1 else ''} {listed(request.names)}"
        if facts.capacity is not None and len(wanted) > facts.capacity:
            return (
                f"{who}: {host.name} takes {facts.capacity} at a time, and {len(wanted)} are needed"
                " at once; raise --max-instances of its worker"
            )
        ports = sum(port in facts.port_range for some in wanted for port in _wanted(some))
        if ports > len(facts.port_range):
            return (
                f"{who}: {host.name} has {len(facts.port_range)} ports to give, and {ports} are"
                " needed; widen DT_PORT_RANGE"
            )
        have = self._most_gb.get(host.machine, math.inf)
        for definition in wanted:
            if have < definition.demanded_gb + definition.reserve_gb(facts.total_gb):
                return f"environment {definition.name}: {_too_little(host, have, definition)}"
            have -= definition.needed_gb
        return None

    def _merit(self, placement: Placement) -> tuple[int, int, float]:
        free = self._free_memory(self.hosts[placement.host])
        return placement.reusable, len(placement.use), free

    def _free_memory(self, host: Host) -> float:
        return self._free_gb.get(host.machine, 0.0)

    def best_start(self, definition: Definition) -> Host | None:
        """Where one more can be started now with nothing evicted; None: nowhere."""
        for host in sorted(self.hosts.values(), key=self._free_memory, reverse=True):
            placement = Placement(host.name)
            self._place_new(definition, host, placement)
            if placement.starts:
                return host
        return None

    def place(self, request: Request, host: Host) -> Placement:
        """How a request could be served on a host; what it lacks is told."""
        placement = Placement(host.name)
        new: list[Definition] = []
        for definition in request.environments:
            if some := self._free.get((host.name, definition.key)):
                placement.use.append(some[0])
                placement.clean += self.is_clean(some[0])
                placement.reusable += some[0].state != "starting"
            else:
                new.append(definition)
        for definition in new:
            self._place_new(definition, host, placement)
        return placement

    def _place_new(self, definition: Definition, host: Host, placement: Placement) -> None:
        """Add a start to a placement: now, later, or what it lacks."""
        started = [*placement.starts, *placement.later, *placement.missing]
        answers = [
            self._seat(definition, placement),
            self._engine(host),
            self._room(host, len(started) + 1, placement),
            self._memory(definition, host, started, placement),
            self._port_numbers(definition, host, started),
        ]
        if lacks := [answer for answer in answers if isinstance(answer, str)]:
            placement.lacks.append(lacks[0])
            placement.missing.append(definition)
            placement.lacks_room |= lacks[-1] is not answers[0]
        elif all(answers):
            placement.starts.append(definition)
        else:
            placement.later.append(definition)

    # Each answers: True, there is some; False, there will be, with the evictions that were added;
    # a text: there is none, and why.

    def _engine(self, host: Host) -> bool | str:
        crowded = host.crowded_until > self._now
        return f"the engine of {host.name} is full" if crowded else True

    def _seat(self, definition: Definition, placement: Placement) -> bool | str:
        name, limit = definition.name, definition.environment.max_instances
        over = 0 if limit is None else self._alive[name] + 1 - limit
        ending = self._ending[name]
        ending += sum(instance.environment == name for instance in placement.evicts)
        if over <= ending:
            return over <= 0
        if self._evict(over - ending, placement, lambda instance: instance.environment == name):
            return False
        there = min(self._alive[name], limit or 0)
        return f"{name}: {there} of {limit} instances are there, none of them free"

    def _room(self, host: Host, starts: int, placement: Placement) -> bool | str:
        capacity = host.facts.capacity
        over = 0 if capacity is None else self._there[host.name] + starts - capacity
        leaving = self._leaving[host.name]
        leaving += sum(instance.host == host.name for instance in placement.evicts)
        if over <= leaving:
            return over <= 0
        if self._evict(over - leaving, placement, lambda instance: instance.host == host.name):
            return False
        return f"{host.name} takes {capacity} instances, none of them free"

    def _memory(
        self, definition: Definition, host: Host, started: list[Definition], placement: Placement
    ) -> bool | str:
        free = self._free_gb.get(host.machine)
        if free is None:
            return True
        have = free - sum(other.needed_gb for other in started)
        need = definition.demanded_gb + definition.reserve_gb(host.facts.total_gb)
        if have >= need:
            return True
        on_machine = [name for name, h in self.hosts.items() if h.machine == host.machine]
        leaving = self._leaving_gb[host.machine]
        leaving += sum(self._gb(i) for i in placement.evicts if i.host in on_machine)
        evicts: list[Instance] = []
        for instance in self._evictable(placement):
            if have + leaving + sum(map(self._gb, evicts)) >= need:
                break
            if instance.host in on_machine:
                evicts.append(instance)
        if have + leaving + sum(map(self._gb, evicts)) >= need:
            placement.evicts += evicts
            return False
        return _too_little(host, have, definition)

    def _port_numbers(
        self, definition: Definition, host: Host, started: list[Definition]
    ) -> bool | str:
        within = host.facts.port_range
        wanted = [port for other in [*started, definition] for port in _wanted(other)]
        if self._books[host.name].needed(wanted, within) <= self._ports[host.name]:
            return True
        return (
            f"{host.name} has no port left for {definition.name} in {within.low}-{within.high};"
            " widen DT_PORT_RANGE"
        )

    def _evict(self, count: int, placement: Placement, suits: Callable[[Instance], bool]) -> bool:
        """Add so many evictions, or none at all."""
        some = [instance for instance in self._evictable(placement) if suits(instance)]
        if len(some) < count:
            return False
        placement.evicts += some[:count]
        return True

    def _evictable(self, placement: Placement) -> list[Instance]:
        """Idle instances that this placement leaves alone, the longest idle first."""
        spared = {instance.number for instance in [*placement.use, *placement.evicts]}
        some = [instance for number, instance in self._idle.items() if number not in spared]
        return sorted(some, key=lambda instance: (instance.since, instance.number))

    def _gb(self, instance: Instance) -> float:
        return self._definitions[instance.key].needed_gb

    def _readiness(self, instance: Instance) -> tuple[int, float, int]:
        """The smaller, the sooner it can be used."""
        if self.is_clean(instance):
            return 0, -instance.cleaned, instance.number
        return 1 + FREE.index(instance.state), instance.since, instance.number

    # --- What is reserved -------------------------------------------------------------------

    def reserve(self, placement: Placement) -> None:
        """Take what a placement uses out of the books."""
        host = self.hosts[placement.host]
        for instance in [*placement.use, *placement.evicts]:
            self.take(instance)
        for definition in [*placement.starts, *placement.later, *placement.missing]:
            self.start(definition, host)
        for instance in placement.evicts:
            self._ending[instance.environment] += 1
            self._leaving[instance.host] += 1
            if instance.host in self.hosts:
                machine = self.hosts[instance.host].machine
                self._leaving_gb[machine] += self._gb(instance)

    def take(self, instance: Instance) -> None:
        """It is reserved, or on its way out."""
        self._idle.pop(instance.number, None)
        if not instance.is_retiring:
            self._free[instance.host, instance.key].remove(instance)

    def start(self, definition: Definition, host: Host) -> None:
        """One more will be there."""
        self._alive[definition.name] += 1
        self._there[host.name] += 1
        within = host.facts.port_range
        self._ports[host.name] -= self._books[host.name].needed(_wanted(definition), within)
        if host.machine in self._free_gb:
            self._free_gb[host.machine] -= definition.needed_gb


def _wanted(definition: Definition) -> list[int]:
    return [port.wanted for port in definition.environment.ports.values()]


def _too_little(host: Host, have_gb: float, definition: Definition) -> str:
    reserve = definition.reserve_gb(host.facts.total_gb)
    return (
        f"{host.name} has {have_gb:.1f} GB of memory free for {definition.name}, which needs"
        f" {definition.demanded_gb:g} GB beside the reserve of {reserve:g} GB; free some, or lower"
        " memory_gb or the reserve_gb of memory in env.yaml"
    )
