"""What a pool has at one moment: the books in which a plan reserves, request by request."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.core.pool_definitions import Definition
from perdure.core.pool_hosts import Host, Hosts
from perdure.core.pool_instances import FREE, Instance, Instances
from perdure.core.pool_prospects import (
    ROUNDING_GB,
    Objection,
    objection,
    too_little,
    unplaceable,
    wanted_ports,
)
from perdure.core.pool_requests import Request
from perdure.core.ports import PortRange


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
    gathers: bool = False
    """Idle instances make room for it even where all that could would not make enough."""
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
        self._away = [host for host in hosts if host.is_away]
        self._definitions = definitions
        self._now = now
        self._alive = instances.alive()
        self._ending: Counter[str] = Counter()
        """Stopping instances by environment: seats that will be free."""
        self._there: Counter[str] = Counter(instance.host for instance in instances)
        self._leaving: Counter[str] = Counter()
        """Stopping instances by host: room that will be there."""
        self._leaving_ports: Counter[str] = Counter()
        """By machine: numbers of stopping instances."""
        self._claimed_gb: dict[str, float] = defaultdict(float)
        """By host: what all that is there needs, stopping instances included."""
        self._released_gb: dict[str, float] = defaultdict(float)
        """By host: what its stopping instances need of that."""
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
        self._unsure_gb: dict[str, float] = defaultdict(float)
        """By machine: so much more may be, since what is starting there may use it already."""
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
        self._claimed_gb[host.name] += needed
        if instance.state == "stopping":
            self._leaving_gb[host.machine] += needed
            self._leaving_ports[host.machine] += _ports_in(instance, host.facts.port_range)
            self._released_gb[host.name] += needed
        if host.machine in self._free_gb:
            if instance.is_measured(host.heard):
                self._most_gb[host.machine] += needed
            else:
                self._free_gb[host.machine] -= needed
                self._unsure_gb[host.machine] += needed
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

    def where_to_keep(
        self, request: Request, begun_on: str | None, *, patience: bool | None = None
    ) -> Host | None:
        """Of the hosts that can hold a request at all: where it was begun, else the best.

        None: there is none, and what it kept would be of no use. But what a host has free may be
        told wrong for a moment, while things start and stop there. `patience`: whether a request
        that no host can hold now stays where it was begun; None: nor does any other stay there
        because of what is starting, and seems to use its memory twice.
        """
        hosts = self._hosts_for(request)
        can = [host for host in hosts if not objection(request, host, self._most(host))]
        for host in hosts:
            if host.name == begun_on and (
                host in can
                or (patience is not None and self._may_hold(request, host, can, patience))
            ):
                return host
        placements = [self.place(request, host) for host in can]
        return self.hosts[max(placements, key=self._merit).host] if placements else None

    def _may_hold(self, request: Request, host: Host, others: list[Host], patience: bool) -> bool:
        """Whether a host that has too little memory for a request may turn out to have enough."""
        if not others:
            return patience and objection(request, host, math.inf) is None
        most = self._most(host) + self._unsure_gb[host.machine]
        return objection(request, host, most) is None

    def unplaceable(self, request: Request) -> Objection | None:
        """Why no host could hold a request even if it were empty; None: one could.

        None, too, if no host is there.
        """
        hosts = self._hosts_for(request)
        away = [host for host in self._away if request.host in (None, host.name)]
        return unplaceable(request, hosts, away, self._most)

    def _hosts_for(self, request: Request) -> list[Host]:
        """Those that will do."""
        only = request.host
        return [host for name, host in self.hosts.items() if only is None or name == only]

    def _most(self, host: Host) -> float:
        return self._most_gb.get(host.machine, math.inf)

    def is_within(self, seconds: float, since: float | None) -> bool:
        """Whether something began less than so long ago, or not at all."""
        return since is None or self._now - since < seconds

    def _merit(self, placement: Placement) -> tuple[int, int, float]:
        free = self._free_memory(self.hosts[placement.host])
        return placement.reusable, len(placement.use), free

    def _free_memory(self, host: Host) -> float:
        """What its instances can still have: of the machine's memory, and of its own share."""
        free, most = self._free_gb.get(host.machine), host.facts.max_gb
        if most is None:
            return free or 0.0
        share = most - self._claimed_gb[host.name]
        return share if free is None else min(free, share)

    def best_start(self, definition: Definition) -> Host | None:
        """Where one more can be started now with nothing evicted; None: nowhere."""
        for host in sorted(self.hosts.values(), key=self._free_memory, reverse=True):
            placement = Placement(host.name)
            self._place_new(definition, host, placement)
            if placement.starts:
                return host
        return None

    def place(self, request: Request, host: Host, *, gathers: bool = False) -> Placement:
        """How a request could be served on a host; what it lacks is told.

        `gathers`: idle instances make room even where all that could would not make enough.
        """
        placement = Placement(host.name, gathers=gathers)
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
            self._share(definition, host, started, placement),
            self._memory(definition, host, started, placement),
            self._port_numbers(definition, host, started, placement),
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

    def _share(
        self,
        definition: Definition,
        host: Host,
        started: list[Definition],
        placement: Placement,
    ) -> bool | str:
        """Of the memory that the host's worker may give."""
        most = host.facts.max_gb
        if most is None:
            return True
        have = most + ROUNDING_GB - self._claimed_gb[host.name]
        have -= sum(other.needed_gb for other in started)
        need = definition.needed_gb
        if have >= need:
            return True
        leaving = self._released_gb[host.name]
        if self._evict_gb(need, have + leaving, placement, {host.name}):
            return False
        return (
            f"{host.name} may give {most:g} GB of memory in all, and has {max(0.0, have):.1f} GB of"
            f" it left for {definition.name}, which needs {need:g} GB; raise --max-memory of its"
            " worker, or lower memory_gb in env.yaml"
        )

    def _memory(
        self,
        definition: Definition,
        host: Host,
        started: list[Definition],
        placement: Placement,
    ) -> bool | str:
        free = self._free_gb.get(host.machine)
        if free is None:
            return True
        have = free - sum(other.needed_gb for other in started)
        need = definition.demanded_gb + definition.reserve_gb(host.facts.total_gb)
        if have >= need:
            return True
        leaving = self._leaving_gb[host.machine]
        on_machine = self._hosts_beside(host)
        if self._evict_gb(need, have + leaving, placement, on_machine):
            return False
        return too_little(host, have, definition)

    def _evict_gb(self, need: float, have: float, placement: Placement, hosts: set[str]) -> bool:
        """Add evictions on some hosts until there is enough memory; False: there never is."""
        have += sum(self._gb(i) for i in placement.evicts if i.host in hosts)
        evicts: list[Instance] = []
        for instance in self._evictable(placement):
            if have + sum(map(self._gb, evicts)) >= need:
                break
            if instance.host in hosts:
                evicts.append(instance)
        is_enough = have + sum(map(self._gb, evicts)) >= need
        if is_enough or placement.gathers:
            placement.evicts += evicts
        return is_enough

    def _port_numbers(
        self,
        definition: Definition,
        host: Host,
        started: list[Definition],
        placement: Placement,
    ) -> bool | str:
        within, book = host.facts.port_range, self._books[host.name]
        wanted = [port for other in [*started, definition] for port in wanted_ports(other)]
        short = book.needed(wanted, within) - self._ports[host.name]
        if short <= 0:
            return True
        if placement.gathers:
            hosts = self._hosts_beside(host)
            coming = self._leaving_ports[host.machine]
            coming += sum(_ports_in(i, within) for i in placement.evicts if i.host in hosts)
            for instance in self._evictable(placement):
                if coming >= short:
                    break
                if instance.host in hosts and (freed := _ports_in(instance, within)):
                    placement.evicts.append(instance)
                    coming += freed
            if coming >= short:
                return False
        return (
            f"{host.name} has no port left for {definition.name} in {within.low}-{within.high};"
            " widen DT_PORT_RANGE"
        )

    def _hosts_beside(self, host: Host) -> set[str]:
        """All that are on the same machine."""
        return {name for name, other in self.hosts.items() if other.machine == host.machine}

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
            if placement.gathers:  # what it lacks must not be taken by way of another host
                self._keep_ports(definition, host)
        for instance in placement.evicts:
            self._ending[instance.environment] += 1
            self._leaving[instance.host] += 1
            if instance.host in self.hosts:
                where = self.hosts[instance.host]
                self._leaving_gb[where.machine] += self._gb(instance)
                within = where.facts.port_range
                self._leaving_ports[where.machine] += _ports_in(instance, within)
                self._released_gb[where.name] += self._gb(instance)

    def _keep_ports(self, definition: Definition, host: Host) -> None:
        """As `start`, for the other hosts of its machine."""
        for name in self._hosts_beside(host) - {host.name}:
            within = self.hosts[name].facts.port_range
            self._ports[name] -= self._books[name].needed(wanted_ports(definition), within)

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
        self._claimed_gb[host.name] += definition.needed_gb
        self._ports[host.name] -= self._books[host.name].needed(wanted_ports(definition), within)
        if host.machine in self._free_gb:
            self._free_gb[host.machine] -= definition.needed_gb


def _ports_in(instance: Instance, within: PortRange) -> int:
    return sum(port in within for port in instance.ports.values())
