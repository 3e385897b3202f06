"""The rules of a pool: who gets which environments, and what becomes of every instance.

What happens is told to the pool as it happens; `decide` draws the conclusions, and returns what is
to be done. Events may be told twice, late or in any order: what is already known, or concerns
nobody, changes nothing. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from perdure.core import pool_decisions as told
from perdure.core.pool_answers import Answers
from perdure.core.pool_decisions import Decision, FailureKind
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand
from perdure.core.pool_desk import Desk, Ticket
from perdure.core.pool_fleet import Fleet
from perdure.core.pool_hosts import HostFacts, Hosts
from perdure.core.pool_instances import FREE, Instances
from perdure.core.pool_leasing import Leasing
from perdure.core.pool_ledger import Ledger
from perdure.core.pool_options import PoolOptions
from perdure.core.pool_plan import Plan, Planner
from perdure.core.pool_renewals import Renewals
from perdure.core.pool_requests import Lease, Queue, Request
from perdure.core.pool_stock import Stock
from perdure.messages import Holder
from perdure.pool_messages import HostBeat, InstanceAnswer

__all__ = ["Pool", "PoolOptions"]

ROUNDS = 5
"""Plans that are made at a time, at most; the second is nearly always empty."""


class Pool:
    """Requests, leases, instances and hosts, and the rules that move them."""

    def __init__(self, uuid: str, prefix: str = "pool", options: PoolOptions | None = None) -> None:
        """An empty pool. `uuid` is drawn once; it tells this pool's projects from others'."""
        self.options = options or PoolOptions()
        self.closing: str | None = None
        """Why the pool shuts down; for good."""
        self._decisions: list[Decision] = []
        self._fleet = Fleet(uuid, prefix, self._decisions)
        self._desk = Desk(self._decisions, self.options.overtakes_per_lease)
        self._stock = Stock()
        self._seen = 0.0
        """The newest time that was told."""
        self._assemble()

    # --- Those who ask ----------------------------------------------------------------------

    def request(self, request: Request, now: float) -> None:
        """Queue a request, or refuse it. Asked again under one id, it changes nothing."""
        if self._desk.is_told_again(request):
            return
        if complaint := self._complaint(request):
            self._desk.turn_away(request, *complaint)
            return
        self._learn(request.environments)
        self._desk.ask(request, now, counts_off=self.options.starts_early)

    def release(
        self,
        request_id: str,
        holder: Holder,
        now: float,
        broken: Mapping[str, str] | None = None,
    ) -> None:
        """End a lease, or leave the queue. Again, or by somebody else, it changes nothing.

        `broken`: why instances must not be used again, by environment.
        """
        if not self._desk.is_known(request_id):
            self._desk.remember(request_id, holder, Ticket("over"))  # the request may come yet
        if self._desk.holder(request_id) == holder and (lease := self._desk.leave(request_id)):
            for number in lease.instances:
                instance, is_used = self.instances[number], lease.state != "checking"
                self._fleet.take_back(instance, now, used=is_used)
                if reason := (broken or {}).get(instance.environment):
                    self._fleet.stop(instance, reason, now)

    def acknowledge(self, request_id: str, holder: Holder) -> None:
        """The holder knows that it has its lease, or has lost it."""
        lease = self.leases.get(request_id)
        if lease and lease.request.holder == holder and lease.state != "checking":
            lease.is_acknowledged = True

    def close(self, holder: Holder, now: float) -> None:
        """A holder is gone: it has no leases, waits no more, and needs nothing."""
        for request_id in [*self.leases, *(waiter.request.request_id for waiter in self.queue)]:
            self.release(request_id, holder, now)
        for suite, demand in [*self.demands.items()]:
            if demand.holder == holder:
                self._desk.forget(suite)

    def declare(self, demand: Demand) -> None:
        """A suite says what it is going to need."""
        if self.closing is not None:
            return
        self._desk.declare(demand)
        self._learn(demand.definitions())
        if demand.keep_envs:
            self._stock.kept.update((definition.key, None) for definition in demand.definitions())

    def needs_no_more(self, suite: str, holder: Holder) -> None:
        """A suite is over; by somebody else, that changes nothing."""
        if (demand := self.demands.get(suite)) and demand.holder == holder:
            self._desk.forget(suite)

    def ticket(self, request_id: str) -> Ticket:
        """How it stands with a request."""
        return self._desk.ticket(request_id)

    # --- Hosts ------------------------------------------------------------------------------

    def hear(self, beat: HostBeat, now: float) -> None:
        """A worker says that it serves a host: one that is new to the pool has joined."""
        tell = self.host_beat if self.hosts.has_worker(beat.host, beat.worker) else self.host_joined
        tell(beat.host, HostFacts.of(beat), now)
        self.hosts.add_worker(beat.host, beat.worker)

    def host_joined(self, name: str, facts: HostFacts, now: float) -> None:
        """A worker serves a host, for the first time or again.

        Instances that the pool knows there are still its own; whatever else this pool left there
        is swept. One that never had an instance has left nothing.
        """
        self.host_beat(name, facts, now)
        if self._fleet.numbers or not self.options.starts_early:
            self.sweep(name)

    def sweep(self, host: str) -> None:
        """Remove from a host what this pool left there and knows no more."""
        # Those of other hosts, too: two hosts may be one machine, and share its engine.
        keep = [instance.number for instance in self.instances]
        self._decisions.append(told.SweepHost(host, keep))

    def host_beat(self, name: str, facts: HostFacts, now: float) -> None:
        """The worker of a host says that it is there."""
        self._wake(now)
        self.hosts.hear(name, facts, now)

    def host_gone(self, name: str, now: float) -> None:
        """A host is gone, and its instances with it."""
        if name not in self.hosts:
            return
        self.hosts.remove(name)
        reason = f"its host {name} is gone"
        self.renewals.give_up(reason, name)
        for instance in self.instances.on(name):
            self._leasing.part_from(instance, reason, now)
            self._fleet.is_gone(instance)
            self._decisions.append(
                told.AbandonInstance(instance.number, instance.environment, name, reason)
            )

    def answer(self, answer: InstanceAnswer, now: float) -> None:
        """An instance tells what became of an order, or that it is lost."""
        self.answers.hear(answer, now)

    # --- What people ask for ----------------------------------------------------------------

    def prewarm(self, definition: Definition, count: int) -> None:
        """Have so many instances ready, needed or not; 0: no more."""
        self._learn([definition])
        self._stock.want(definition.key, count)

    def definition_changed(self, definition: Definition) -> None:
        """This is what its environment is from now on: older idle instances are retired."""
        self._fleet.definitions[definition.key] = definition
        self._stock.learn(definition)

    def newest(self, name: str) -> Definition | None:
        """What an environment is as it was told last; None: it was never spoken of."""
        return self._fleet.definitions.get(self._stock.newest.get(name, ""))

    def failures(self) -> list[tuple[str, int, str]]:
        """Keys whose instances, which no request wanted, failed in a row: how often, and why the
        last time."""
        return self._stock.failures()

    def reset_environment(self, name: str, now: float) -> int:
        """Reset the idle instances of an environment; returns how many."""
        idle = [
            instance
            for instance in self.instances
            if instance.state in ("clean", "dirty")
            and instance.environment == name
            and self._fleet.definition(instance).is_resettable
        ]
        for instance in idle:
            self._fleet.reset(instance, now)
        return len(idle)

    def stop_environment(self, name: str, now: float) -> tuple[int, int]:
        """Stop the instances of an environment: those in use after their use.

        Returns how many are stopped, and how many will be.
        """
        self._stock.forget([key for key, d in self._fleet.definitions.items() if d.name == name])
        self._fleet.hurry_stops(now, name)
        there = [i for i in self.instances if i.environment == name and i.state != "stopping"]
        in_use = [instance for instance in there if instance.state not in FREE]
        for instance in there:
            if instance in in_use:
                instance.is_retiring = True
            else:
                self._fleet.stop(instance, "it was asked for", now)
        return len(there) - len(in_use), len(in_use)

    def shut_down(self, now: float, reason: str = "the pool was shut down") -> None:
        """Stop everything, whatever it does, and refuse everybody."""
        self.closing = reason
        self.renewals.give_up(reason)
        self._stock.forget([*self._fleet.definitions])
        self._fleet.hurry_stops(now)
        for instance in self.instances:
            if instance.state != "stopping":
                self._leasing.part_from(instance, reason, now)
                self._fleet.stop(instance, reason, now)
        for waiter in [*self.queue]:
            self._desk.refuse(waiter, "infrastructure", reason)

    # --- What is to be done -----------------------------------------------------------------

    def decide(self, now: float) -> list[Decision]:
        """Everything that is to be done now; each is told once."""
        self._wake(now)
        self._look_at_hosts(now)
        self._fleet.stop_again(now)
        if self.closing is None:
            self._leasing.give_up_on_the_unplaceable(self._ledger(now), self.options, now)
            # What is ordered may change what fits: whatever is to be done is told now, since
            # nothing else may happen for a long time.
            for _ in range(ROUNDS):
                if not self._carry_on(now):
                    break
        decisions = [*self._decisions]
        self._decisions.clear()
        return decisions

    def wake_at(self) -> float | None:
        """When to decide at the latest, if nothing happens before; None: never."""
        silences = (self.options.host_away_seconds, self.options.host_gone_seconds)
        times = [host.heard + seconds for host in self.hosts for seconds in silences]
        times += [host.crowded_until for host in self.hosts]
        times += [i.retry_at for i in self.instances if i.retry_at is not None]
        for waiter in self.queue:
            if waiter.stuck_since is not None:
                times += [waiter.stuck_since + seconds for seconds in self.options.patiences]
        return min((time for time in times if time > self._seen), default=None)

    def outstanding(self) -> list[Decision]:
        """All that was decided and is not answered, for who has lost its memory of it.

        To be told again is harmless to everybody.
        """
        news = [
            self._leasing.news(lease)
            for lease in self.leases.values()
            if lease.state != "checking" and not lease.is_acknowledged
        ]
        return [*self._fleet.outstanding(), *news]

    # --- What can be seen -------------------------------------------------------------------

    @property
    def uuid(self) -> str:
        """What tells this pool's projects from others'."""
        return self._fleet.uuid

    @property
    def hosts(self) -> Hosts:
        """Those that have joined and are not gone."""
        return self._fleet.hosts

    @property
    def instances(self) -> Instances:
        """Those that are not gone without a trace."""
        return self._fleet.instances

    @property
    def next_number(self) -> int:
        """Of the next instance; all that there ever were have smaller ones."""
        return self._fleet.numbers + 1

    @property
    def queue(self) -> Queue:
        """The requests that wait."""
        return self._desk.queue

    @property
    def leases(self) -> dict[str, Lease]:
        """By request id; those under preparation included."""
        return self._desk.leases

    @property
    def demands(self) -> dict[str, Demand]:
        """By suite."""
        return self._desk.demands

    @property
    def completed(self) -> int:
        """Requests that had their lease, or were refused, and are over."""
        return self._desk.completed

    @property
    def holders(self) -> list[Holder]:
        """Everybody who has a lease, waits, or declared a demand, each once."""
        return self._desk.holders

    def definition(self, key: str) -> Definition:
        """What instances with this key are made of. Raises KeyError for an unknown one."""
        return self._fleet.definitions[key]

    @property
    def is_idle(self) -> bool:
        """True when there is nothing to look after: nobody, no instance, and none to be kept."""
        asked = len(self.queue) or self.leases or self.demands or any(self._stock.standing.values())
        return not (asked or len(self.instances) or self._decisions)

    @property
    def is_over(self) -> bool:
        """True when the pool was shut down, and nothing is left."""
        return self.closing is not None and not (len(self.instances) or self._decisions)

    # --- Over a continue-as-new, or a crash -------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a restored pool needs, as JSON."""
        spoken_of = {definition.key for definition in self._desk.definitions()}
        spoken_of |= {*self._stock.standing, *self._stock.kept}
        return {
            "options": asdict(self.options),
            "closing": self.closing,
            "seen": self._seen,
            "fleet": self._fleet.state(spoken_of),
            "desk": self._desk.state(),
            "stock": self._stock.state(),
            "decisions": [told.to_json(decision) for decision in self._decisions],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Pool:
        """The inverse of `state`."""
        first = {"starts_early": False, "rules": 1}
        pool = cls("", options=PoolOptions(**{**first, **state["options"]}))
        pool.closing = state["closing"]
        pool._seen = state["seen"]
        pool._decisions = [told.from_json(value) for value in state["decisions"]]
        pool._fleet = Fleet.from_state(state["fleet"], pool._decisions)
        known = pool._fleet.definitions
        overtakes = pool.options.overtakes_per_lease
        pool._desk = Desk.from_state(state["desk"], known, pool._decisions, overtakes)
        pool._stock = Stock.from_state(state["stock"])
        pool._assemble()
        return pool

    def _assemble(self) -> None:
        self._leasing = Leasing(
            self._desk,
            self._fleet,
            self._stock,
            self._decisions,
            host_away_seconds=self.options.host_away_seconds,
            fresh_seconds=self.options.fresh_seconds,
        )
        self.renewals = Renewals(self._desk, self._fleet, self._leasing, self._decisions)
        """Where holders have environments of their leases reset."""
        self.answers = Answers(self._desk, self._fleet, self._stock, self._leasing, self.renewals)
        """Where instances tell what became of orders."""

    # --- Inside: requests and leases --------------------------------------------------------

    def _complaint(self, request: Request) -> tuple[FailureKind, str] | None:
        """Why a request cannot even wait."""
        if self._desk.holder(request.request_id):
            return "bad_input", f"another holder asks under the id {request.request_id}"
        if self.closing is not None:
            return "infrastructure", self.closing
        return ("bad_input", fault) if (fault := request.fault()) else None

    def _learn(self, definitions: Iterable[Definition]) -> None:
        """Two suites may use two versions for a long time; an edit is what was never seen."""
        for definition in definitions:
            if definition.key not in self._fleet.definitions:
                self.definition_changed(definition)

    # --- Inside: the plan -------------------------------------------------------------------

    def _carry_on(self, now: float) -> bool:
        """Serve those that wait, and look after the instances; False if that changed nothing."""
        planner = self._planner(now)
        while leases := planner.serve(self.queue).leases:
            for waiter, placement in leases:
                self._leasing.lease(waiter, placement, now)
                self.queue.overtake(
                    waiter,
                    len(self.leases),
                    host=placement.host if placement else None,
                    lack_slots=planner.plan.lack_slots,
                    lack_room=planner.plan.lack_room if self.options.rules >= 2 else (),
                )
            planner = self._planner(now)  # some may be due now
        need = self._desk.need(early=self.options.starts_early)
        plan = planner.tend(self.instances, self._fleet.definitions, need, self._stock)
        self._order(plan, now)
        return bool(plan.starts or plan.resets or plan.stops or plan.robbed)

    def _planner(self, now: float) -> Planner:
        ledger = self._ledger(now)
        self.renewals.place(ledger, now)
        patience = self.options.unheard_seconds if self.options.rules >= 2 else None
        return Planner(ledger, self._desk.slots(), self._desk.paused, patience=patience)

    def _ledger(self, now: float) -> Ledger:
        return Ledger(self.hosts, self.instances, self._fleet.definitions, now)

    def _order(self, plan: Plan, now: float) -> None:
        for request_id, by in plan.robbed:
            self.queue.rob(request_id, by, len(self.leases))
        for instance, reason in plan.stops:
            self._fleet.stop(instance, reason, now)
        for instance in self.instances:
            if instance.state in FREE:
                instance.wanted_by = plan.wanted.get(instance.number)
        for instance in plan.resets:
            self._fleet.reset(instance, now)
        for start in plan.starts:
            waiter = self.queue.get(start.wanted_by)
            request = waiter.request if waiter else None
            self._fleet.start(start.definition, start.host, request, now)

    # --- Inside: time -----------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """After a sleep of the pool itself nobody is blamed for having been silent."""
        gap = now - self._seen
        if self._seen and gap >= self.options.host_gone_seconds:
            self.hosts.forgive(gap)
        self._seen = max(self._seen, now)

    def _look_at_hosts(self, now: float) -> None:
        self.hosts.grow_silent(now, self.options.host_away_seconds)
        for host in [*self.hosts]:
            is_silent = now - host.heard >= self.options.host_gone_seconds
            if is_silent and self.hosts.usable:  # the last one left is waited for
                self.host_gone(host.name, now)
