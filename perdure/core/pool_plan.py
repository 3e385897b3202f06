"""Who gets what next: a plan, made anew after every event.

A plan goes through the requests in order and reserves for each what is free, what is being made
ready, and what may be started. Nothing of that is remembered but what the plan orders: a lease for
each request whose instances are all ready, and starts, resets and stops. So nobody holds one
instance and waits for another, and a failure changes nothing but the next plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Need
from perdure.core.pool_instances import FREE, Instance, Instances
from perdure.core.pool_ledger import Ledger, Placement
from perdure.core.pool_requests import Queue, Waiter
from perdure.core.pool_stock import Stock


@dataclass(frozen=True)
class Start:
    """An instance to be started."""

    definition: Definition
    host: str
    wanted_by: str | None = None


@dataclass
class Plan:
    """What is to be done now."""

    leases: list[tuple[Waiter, Placement | None]] = field(default_factory=list)
    """None: a lease without instances."""
    starts: list[Start] = field(default_factory=list)
    resets: list[Instance] = field(default_factory=list)
    stops: list[tuple[Instance, str]] = field(default_factory=list)
    """Each with the reason."""
    wanted: dict[int, str] = field(default_factory=dict)
    """By instance: the request for which it is reserved."""
    lack_slots: set[tuple[str, ...]] = field(default_factory=set)
    """Kinds of requests that wait for a slot of their suite alone."""
    coming: Counter[str] = field(default_factory=Counter)
    """By key: instances that requests start, now or when others are gone."""
    robbed: list[tuple[str, Waiter]] = field(default_factory=list)
    """Requests that lose what was made ready for them, each with the one that causes it."""
    lack_room: set[tuple[str, ...]] = field(default_factory=set)
    """Kinds of requests that find no room on a host."""
    lacking: set[str] = field(default_factory=set)
    """Environments of requests that cannot be served yet, though they have a slot."""


class Planner:
    """Makes one plan."""

    def __init__(
        self,
        ledger: Ledger,
        slots: Mapping[str, float],
        paused: Container[str] = (),
        *,
        patience: float | None = None,
    ) -> None:
        """`paused` are suites that get nothing now, and keep nothing from others.

        `patience`: a due request keeps room that is not enough yet, too, and so many seconds what
        it has begun to keep where no host seems to hold it; None: it does neither.
        """
        self._ledger = ledger
        self._patience = patience
        self._paused = paused
        self._slots = dict(slots)
        """By suite: leases that it may still have; absent: any number."""
        self.plan = Plan()
        """What has been planned so far."""
        self._kept: set[str] = set()
        """Environments of which a due request keeps what it needs."""
        self._placements: dict[str, Placement | None] = {}
        """By request; what is not here has to be looked for."""

    # --- Requests ---------------------------------------------------------------------------

    def serve(self, queue: Queue) -> Plan:
        """Plan for the requests."""
        kinds = queue.by_kind()
        while kinds:
            kind = min(kinds, key=lambda kind: self._place_in_line(kinds[kind][-1]))
            waiters = kinds[kind]
            waiter = waiters[-1]
            if self._consider(waiter) or waiter.is_due:
                waiters.pop()
            else:  # whoever is like it but came later fares no better
                for other in waiters:
                    other.waits_for = waiter.waits_for
                waiters.clear()
            if not waiters:
                del kinds[kind]
        return self.plan

    def _place_in_line(self, waiter: Waiter) -> tuple[float, ...]:
        if waiter.is_due:
            return 0, -waiter.urgency, waiter.arrival
        placement = self._best(waiter)
        if placement is None:
            return 1, waiter.rank, 0, 0, waiter.turn
        # Among equals, one that can have its lease now does not wait for one that cannot.
        return 1, waiter.rank, -placement.reusable, not placement.is_ready, waiter.turn

    def _best(self, waiter: Waiter) -> Placement | None:
        name = waiter.request.request_id
        if name not in self._placements:
            self._placements[name] = self._ledger.best(waiter.request, waiter.host)
        return self._placements[name]

    def _consider(self, waiter: Waiter) -> bool:
        """Plan for one request; False if it has to wait."""
        request = waiter.request
        if request.suite in self._paused:
            waiter.waits_for = f"suite {request.suite} is paused"
            return False
        has_slot = self._slots.get(request.suite, math.inf) > 0
        placement = self._best(waiter) if request.environments else None
        waiter.waits_for = self._what_lacks(waiter, placement)
        fits = not request.environments or (placement is not None and placement.fits)
        if fits and not has_slot:
            self.plan.lack_slots.add(request.kind)
            waiter.waits_for = f"suite {request.suite} has as many leases as it may"
        kept = self._what_it_keeps(waiter, placement) if placement and waiter.is_due else None
        if kept:
            placement = kept
            self._kept.update(request.names)
            self._reserve(kept, waiter)
        elif fits and has_slot and placement:
            self._reserve(placement, waiter)
        if not (fits and has_slot):
            if has_slot and placement:
                if placement.lacks_room:
                    self.plan.lack_room.add(request.kind)
                self.plan.lacking.update(request.names)
            return False
        if request.suite in self._slots:
            self._slots[request.suite] -= 1
        if placement is None or placement.is_ready:
            self.plan.leases.append((waiter, placement))
        return True

    def _what_lacks(self, waiter: Waiter, placement: Placement | None) -> str:
        if not waiter.request.environments:
            return ""
        if placement is None:
            host = waiter.request.host
            return f"host {host} is not there" if host else "no host is there"
        if placement.lacks:
            return "; ".join(placement.lacks)
        coming = [definition.name for definition in [*placement.starts, *placement.later]]
        coming += [i.environment for i in placement.use if not self._ledger.is_clean(i)]
        return f"getting ready: {', '.join(coming)}" if coming else ""

    def _what_it_keeps(self, waiter: Waiter, best: Placement) -> Placement | None:
        """For a due request whatever can be had of what it needs; None: others keep that.

        All of it on one host, to the end: what it kept on several would not come together.
        """
        if not self._kept.isdisjoint(waiter.request.names):
            return None
        if best.fits:
            return best
        if self._patience is None:  # the first rules
            host = self._ledger.where_to_keep(waiter.request, waiter.host)
            return self._ledger.place(waiter.request, host) if host else None
        is_patient = self._ledger.is_within(self._patience, waiter.stuck_since)
        host = self._ledger.where_to_keep(waiter.request, waiter.host, patience=is_patient)
        return self._ledger.place(waiter.request, host, gathers=True) if host else None

    def _reserve(self, placement: Placement, waiter: Waiter) -> None:
        request_id = waiter.request.request_id
        new = [*placement.starts, *placement.later]
        self._ledger.reserve(placement)
        self.plan.wanted.update((instance.number, request_id) for instance in placement.use)
        self.plan.starts += [Start(d, placement.host, request_id) for d in placement.starts]
        self.plan.coming.update(definition.key for definition in new)
        self.plan.stops += [(i, "others need its place") for i in placement.evicts]
        robbed = [i.wanted_by for i in placement.evicts if i.wanted_by]
        if waiter.host not in (None, placement.host):
            robbed.append(request_id)  # what was begun for it elsewhere was in vain
        self.plan.robbed += [(name, waiter) for name in robbed]
        if new or placement.evicts or waiter.host or not placement.fits:
            waiter.host = placement.host
        self._forget_placements(placement)

    def _forget_placements(self, placement: Placement) -> None:
        """What others could have had may be gone, now that this is reserved."""
        if placement.starts or placement.later or placement.evicts or placement.missing:
            self._placements.clear()
        else:
            used = {instance.number for instance in placement.use}
            for name, known in [*self._placements.items()]:
                if known and not used.isdisjoint(i.number for i in [*known.use, *known.evicts]):
                    del self._placements[name]

    # --- What nobody has asked for yet ------------------------------------------------------

    def tend(
        self,
        instances: Instances,
        definitions: Mapping[str, Definition],
        need: Need,
        stock: Stock,
    ) -> Plan:
        """Plan for instances beyond the requests: whether they are reset, started, stopped."""
        stopping = {instance.number for instance, _ in self.plan.stops}
        free: dict[str, list[Instance]] = {}
        for instance in instances:
            if instance.state in FREE and instance.number not in stopping:
                free.setdefault(instance.key, []).append(instance)
        for key, some in free.items():
            definition, needed = definitions[key], need.by_key[key]
            wanted = max(needed, stock.standing.get(key, 0)) - self.plan.coming[key]
            stays = key in stock.kept and (needed > 0 or not stock.is_outdated(definition))
            self._tend_free(some, wanted, stays, definition.is_resettable)
        if not self.plan.lack_room:  # what is started ahead must not stand in anybody's way
            self._start_ahead(instances, definitions, need, stock)
        return self.plan

    def _tend_free(
        self, some: list[Instance], wanted: int, stays: bool, is_resettable: bool
    ) -> None:
        """Of the free instances of one key: reset as many as are wanted, and stop the rest."""
        reserved = [instance for instance in some if instance.number in self.plan.wanted]
        others = [instance for instance in some if instance.number not in self.plan.wanted]
        retiring = [instance for instance in others if instance.is_retiring]
        # The worst come last: what is hardly begun, and what is dirty.
        others = sorted(
            (instance for instance in others if not instance.is_retiring),
            key=lambda i: (("clean", "resetting", "starting", "dirty").index(i.state), i.number),
        )
        room = max(0, wanted - len(reserved))
        if wanted > 0 or not stays:
            self.plan.stops += [(i, "it is not used again") for i in retiring]
        if not stays:
            self.plan.stops += [(i, "nobody needs it") for i in others[room:]]
        self.plan.resets += [i for i in reserved if self._needs_reset(i, is_resettable)]
        self.plan.resets += [i for i in others[:room] if i.state == "dirty"]

    def _needs_reset(self, instance: Instance, is_resettable: bool) -> bool:
        idle = instance.state in ("clean", "dirty")
        return idle and is_resettable and not self._ledger.is_clean(instance)

    def _start_ahead(
        self,
        instances: Instances,
        definitions: Mapping[str, Definition],
        need: Need,
        stock: Stock,
    ) -> None:
        stopping = {instance.number for instance, _ in self.plan.stops}
        alive, free = Counter(self.plan.coming), Counter(self.plan.coming)
        for instance in instances:
            if instance.state != "stopping" and instance.number not in stopping:
                alive[instance.key] += 1
                free[instance.key] += instance.state in FREE and not instance.is_retiring
        lacking: dict[str, int] = {}
        for key in sorted({*need.by_key, *stock.standing} - stock.hopeless()):
            definition, needed = definitions[key], need.by_key[key]
            if definition.name in self.plan.lacking:
                continue
            prewarm = min(definition.environment.prewarm, needed)
            lacking[key] = max(
                min(need.at_a_time[key] - alive[key], needed - free[key]),
                max(prewarm, stock.standing.get(key, 0)) - free[key],
            )
        # One of each in turn: a task that needs several has them sooner.
        while lacking := {key: count for key, count in lacking.items() if count > 0}:
            for key in lacking:
                definition = definitions[key]
                host = self._ledger.best_start(definition)
                if host is None:
                    lacking[key] = 0
                    continue
                lacking[key] -= 1
                self._ledger.start(definition, host)
                self.plan.starts.append(Start(definition, host.name))
