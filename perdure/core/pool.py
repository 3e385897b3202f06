"""The rules of a pool: who gets which environments, and what becomes of every instance.

What happens is told to the pool as it happens; `decide` draws the conclusions, and returns what is
to be done. Events may be told twice, late or in any order: what is already known, or concerns
nobody, changes nothing. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from perdure.core import pool_decisions as told
from perdure.core.pool_decisions import Decision, FailureKind
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, Need
from perdure.core.pool_desk import Desk, Ticket
from perdure.core.pool_fleet import STOP_AGAIN_SECONDS, Failure, Fleet
from perdure.core.pool_hosts import CROWDED_SECONDS, HostFacts, Hosts
from perdure.core.pool_instances import FREE, Instance, Instances
from perdure.core.pool_ledger import Ledger, Placement
from perdure.core.pool_plan import Plan, Planner
from perdure.core.pool_requests import (
    FAILURES_ALLOWED,
    OVERTAKES_PER_LEASE,
    Lease,
    Queue,
    Request,
    Waiter,
)
from perdure.core.pool_stock import Stock
from perdure.messages import Holder

ROUNDS = 5
"""Plans that are made at a time, at most; the second is nearly always empty."""


@dataclass(frozen=True)
class PoolOptions:
    """How patient a pool is."""

    host_away_seconds: float = 15.0
    """A host so long silent gets nothing new."""
    host_gone_seconds: float = 45.0
    """One so long silent is gone, if another host is there."""
    unplaceable_seconds: float = 300.0
    """A request that no host could hold even if it were empty waits so long for a better one."""
    overtakes_per_lease: int = OVERTAKES_PER_LEASE
    """See `perdure.core.pool_requests`."""


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

    # --- Those who ask ----------------------------------------------------------------------

    def request(self, request: Request, now: float) -> None:
        """Queue a request, or refuse it. Asked again under one id, it changes nothing."""
        if self._desk.is_told_again(request):
            return
        if complaint := self._complaint(request):
            self._desk.turn_away(request, *complaint)
            return
        self._learn(request.environments)
        self._desk.ask(request, now)

    def release(self, request_id: str, holder: Holder, now: float) -> None:
        """End a lease, or leave the queue. Again, or by somebody else, it changes nothing."""
        if not self._desk.is_known(request_id):
            self._desk.remember(request_id, holder, Ticket("over"))  # the request may come yet
        if self._desk.holder(request_id) == holder and (lease := self._desk.leave(request_id)):
            for number in lease.instances:
                is_used = lease.state != "checking"
                self._fleet.take_back(self.instances[number], now, used=is_used)

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
                del self.demands[suite]

    def declare(self, demand: Demand) -> None:
        """A suite says what it is going to need."""
        self._desk.declare(demand)
        self._learn(demand.definitions())
        if demand.keep_envs:
            self._stock.kept.update((definition.key, None) for definition in demand.definitions())

    def ticket(self, request_id: str) -> Ticket:
        """How it stands with a request."""
        return self._desk.ticket(request_id)

    # --- Hosts ------------------------------------------------------------------------------

    def host_joined(self, name: str, facts: HostFacts, now: float) -> None:
        """A worker serves a host, for the first time or again.

        Instances that the pool knows there are still its own; whatever else this pool left there
        is swept.
        """
        self.host_beat(name, facts, now)
        keep = [instance.number for instance in self.instances.on(name)]
        self._decisions.append(told.SweepHost(name, keep))

    def host_beat(self, name: str, facts: HostFacts, now: float) -> None:
        """The worker of a host says that it is there."""
        self._wake(now)
        self.hosts.hear(name, facts, now)

    def host_gone(self, name: str, now: float) -> None:
        """A host is gone, and its instances with it."""
        if name not in self.hosts:
            return
        self.hosts.remove(name)
        for instance in self.instances.on(name):
            self._part_from(instance, f"its host {name} is gone", now)
            self._fleet.is_gone(instance)

    # --- Instances --------------------------------------------------------------------------

    def started(self, instance: int, order: int, now: float) -> None:
        """It is up and healthy."""
        if found := self._fleet.answering(instance, order, "starting"):
            self._stock.succeed(found.key)
            self._fleet.is_up(found, now)

    def start_failed(self, instance: int, order: int, failure: Failure, now: float) -> None:
        """It did not come up, or did not become healthy in time."""
        found = self._fleet.answering(instance, order, "starting")
        if found is None:
            return
        is_alone = len(self.instances.on(found.host)) == 1
        if failure.is_crowded and not is_alone:  # something will end there, and make room
            self.hosts[found.host].crowded_until = now + CROWDED_SECONDS
            self._fleet.stop(found, failure.reason, now)
        else:
            self._fail(found, failure, now)

    def ports_taken(
        self, instance: int, order: int, ports: Iterable[int], now: float, *, at_start: bool
    ) -> None:
        """Somebody else has some of its ports: it gets others, and starts again.

        `at_start`: that showed only when it came up. Then there is one more try.
        """
        if found := self._fleet.answering(instance, order, "starting"):
            failure = self._fleet.change_ports(found, ports, now, at_start=at_start)
            if failure:
                self._fail(found, failure, now)

    def reset_done(self, instance: int, order: int, now: float) -> None:
        """It is as if it were new."""
        if found := self._fleet.answering(instance, order, "resetting"):
            self._fleet.is_clean(found, now)

    def reset_failed(self, instance: int, order: int, failure: Failure, now: float) -> None:
        """It could not be reset, all tries included."""
        if found := self._fleet.answering(instance, order, "resetting"):
            self._fail(found, failure, now)

    def checked(self, instance: int, order: int, now: float) -> None:
        """It is healthy, as a look before a grant showed."""
        found = self._fleet.answering(instance, order, "checking")
        lease = self.leases.get(found.lease or "") if found else None
        if found and lease and found.number not in lease.checked:
            lease.checked.append(found.number)
            if len(lease.checked) == len(lease.instances):
                self._grant(lease, now)

    def unhealthy(self, instance: int, order: int, failure: Failure, now: float) -> None:
        """It is not healthy, as a look before a grant showed."""
        if found := self._fleet.answering(instance, order, "checking"):
            self._fail(found, failure, now)

    def instance_lost(self, instance: int, failure: Failure, now: float) -> None:
        """It broke, whatever it was doing: its container died, or nobody can reach it."""
        found = self.instances.get(instance)
        if found and found.state != "stopping":
            self._fail(found, failure, now)

    def stopped(self, instance: int, order: int, now: float) -> None:
        """It is gone, with all that it had."""
        if found := self._fleet.answering(instance, order, "stopping"):
            self._fleet.is_gone(found)

    def stop_failed(self, instance: int, order: int, reason: str, now: float) -> None:
        """It could not be stopped, and counts until it is: that is tried again."""
        if found := self._fleet.answering(instance, order, "stopping"):
            found.reason, found.retry_at = reason, now + STOP_AGAIN_SECONDS

    # --- What people ask for ----------------------------------------------------------------

    def prewarm(self, definition: Definition, count: int) -> None:
        """Have so many instances ready, needed or not; 0: no more."""
        self._learn([definition])
        self._stock.want(definition.key, count)

    def definition_changed(self, definition: Definition) -> None:
        """This is what its environment is from now on: older idle instances are retired."""
        self._fleet.definitions[definition.key] = definition
        self._stock.learn(definition)

    def reset_environment(self, name: str, now: float) -> None:
        """Reset the idle instances of an environment."""
        for instance in self.instances:
            is_idle = instance.state in ("clean", "dirty") and instance.environment == name
            if is_idle and self._fleet.definition(instance).is_resettable:
                self._fleet.reset(instance, now)

    def stop_environment(self, name: str, now: float) -> None:
        """Stop the instances of an environment: those in use after their use."""
        self._stock.forget([key for key, d in self._fleet.definitions.items() if d.name == name])
        for instance in self.instances:
            if instance.environment == name and instance.state in FREE:
                self._fleet.stop(instance, "it was asked for", now)
            elif instance.environment == name:
                instance.is_retiring = True

    def shut_down(self, now: float, reason: str = "the pool was shut down") -> None:
        """Stop everything, whatever it does, and refuse everybody."""
        self.closing = reason
        self._stock.forget([*self._fleet.definitions])
        for instance in self.instances:
            if instance.state != "stopping":
                self._part_from(instance, reason, now)
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
            self._give_up_on_the_unplaceable(now)
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
        patience = self.options.unplaceable_seconds
        times = [host.heard + seconds for host in self.hosts for seconds in silences]
        times += [host.crowded_until for host in self.hosts]
        times += [i.retry_at for i in self.instances if i.retry_at is not None]
        times += [w.stuck_since + patience for w in self.queue if w.stuck_since is not None]
        return min((time for time in times if time > self._seen), default=None)

    def outstanding(self) -> list[Decision]:
        """All that was decided and is not answered, for who has lost its memory of it.

        To be told again is harmless to everybody.
        """
        news = [
            self._news(lease)
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
        pool = cls("", options=PoolOptions(**state["options"]))
        pool.closing = state["closing"]
        pool._seen = state["seen"]
        pool._decisions = [told.from_json(value) for value in state["decisions"]]
        pool._fleet = Fleet.from_state(state["fleet"], pool._decisions)
        known = pool._fleet.definitions
        overtakes = pool.options.overtakes_per_lease
        pool._desk = Desk.from_state(state["desk"], known, pool._decisions, overtakes)
        pool._stock = Stock.from_state(state["stock"])
        return pool

    # --- Inside: requests and leases --------------------------------------------------------

    def _complaint(self, request: Request) -> tuple[FailureKind, str] | None:
        """Why a request cannot even wait."""
        if self._desk.holder(request.request_id):
            return "bad_input", f"another holder asks under the id {request.request_id}"
        if self.closing is not None:
            return "infrastructure", self.closing
        fault = request.fault()
        return ("bad_input", fault) if fault else None

    def _learn(self, definitions: Iterable[Definition]) -> None:
        """Two suites may use two versions for a long time; an edit is what was never seen."""
        for definition in definitions:
            if definition.key not in self._fleet.definitions:
                self.definition_changed(definition)

    def _lease(self, waiter: Waiter, placement: Placement | None, now: float) -> None:
        """The request gets its instances as soon as all are found healthy."""
        name = waiter.request.request_id
        instances = placement.use if placement else []
        self.queue.remove(name)
        waiter.stuck_since = waiter.host = None
        host = placement.host if placement else None
        lease = Lease(waiter, host, [instance.number for instance in instances])
        self.leases[name] = lease
        for instance in instances:
            self._fleet.check(instance, name, now)
        if not instances:
            self._grant(lease, now)

    def _grant(self, lease: Lease, now: float) -> None:
        lease.state, lease.since = "granted", now
        for number in lease.instances:
            self._fleet.hand_out(self.instances[number], now)
        self._decisions.append(self._news(lease))

    def _news(self, lease: Lease) -> Decision:
        """What the holder of a lease must know."""
        name, holder = lease.request.request_id, lease.request.holder
        if lease.state == "lost":
            return told.LoseLease(name, holder, lease.reason, list(lease.missing))
        instances = [self.instances[number] for number in lease.instances]
        granted = [
            told.GrantedInstance(i.number, i.key, i.environment, i.project, dict(i.ports))
            for i in instances
        ]
        return told.Grant(name, holder, lease.host, granted)

    def _part_from(self, instance: Instance, reason: str, now: float) -> Waiter | None:
        """Whoever has an instance has it no longer. Returns who waits for it, if anybody does."""
        waiter = self.queue.get(instance.wanted_by)
        lease = self.leases.get(instance.lease or "")
        instance.lease = instance.wanted_by = None
        if lease is None:
            return waiter
        lease.instances.remove(instance.number)
        if lease.state == "checking":  # the request goes back to its place in the queue
            del self.leases[lease.request.request_id]
            for number in lease.instances:
                self._fleet.take_back(self.instances[number], now, used=False)
            self.queue.put(lease.waiter)
            return lease.waiter
        if news := self._untold_loss(lease):
            self._decisions.remove(news)  # one word for all that is lost together
        lease.state, lease.reason, lease.is_acknowledged = "lost", reason, False
        lease.missing.append(instance.environment)
        self._decisions.append(self._news(lease))
        return None

    def _untold_loss(self, lease: Lease) -> Decision | None:
        losses = (d for d in self._decisions if isinstance(d, told.LoseLease))
        return next((d for d in losses if d.request_id == lease.request.request_id), None)

    def _fail(self, instance: Instance, failure: Failure, now: float) -> None:
        """It is not handed out any more; who was to get it gets another, or is refused."""
        is_free = instance.state in FREE
        reason = f"environment {instance.environment}: {failure.reason}"
        waiter = self._part_from(instance, reason, now)
        self._fleet.stop(instance, failure.reason, now)
        if now - self.hosts[instance.host].heard >= self.options.host_away_seconds:
            return  # its worker is away: that is nobody's fault
        refused = [waiter] if waiter and self._count_failure(waiter) else []
        if failure.is_final:
            refused = self._hopeless(instance, waiter)
        for hopeless in refused:
            self._desk.refuse(hopeless, "environment", reason, failure.log)
        if is_free and waiter is None:
            self._stock.fail(instance.key)

    def _count_failure(self, waiter: Waiter) -> bool:
        waiter.failures += 1
        return waiter.failures >= FAILURES_ALLOWED

    def _hopeless(self, instance: Instance, waiter: Waiter | None) -> list[Waiter]:
        """For whom another try would fare no better: with one host, for all that want the same."""
        if len(self.hosts.usable) > 1:
            return [waiter] if waiter else []
        return [
            other
            for other in self.queue
            if instance.key in [definition.key for definition in other.request.environments]
        ]

    # --- Inside: the plan -------------------------------------------------------------------

    def _carry_on(self, now: float) -> bool:
        """Serve those that wait, and look after the instances; False if that changed nothing."""
        planner = self._planner(now)
        while leases := planner.serve(self.queue).leases:
            for waiter, placement in leases:
                self._lease(waiter, placement, now)
                self.queue.overtake(waiter, planner.plan.lack_slots, len(self.leases))
            planner = self._planner(now)  # some may be due now
        need = Need(self.queue, self.demands.values(), self._desk.max_parallel)
        plan = planner.tend(self.instances, self._fleet.definitions, need, self._stock)
        self._order(plan, now)
        return bool(plan.starts or plan.resets or plan.stops or plan.robbed)

    def _planner(self, now: float) -> Planner:
        return Planner(self._ledger(now), self._desk.slots())

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
            self._fleet.start(start.definition, start.host, start.wanted_by, now)

    def _give_up_on_the_unplaceable(self, now: float) -> None:
        """Refuse those that no host could hold even if it were empty, after some patience."""
        ledger, complaints = self._ledger(now), dict[tuple[str, ...], str | None]()
        for waiter in [*self.queue]:
            kind = waiter.request.kind
            if kind not in complaints:
                complaints[kind] = ledger.unplaceable(waiter.request)
            complaint = complaints[kind]
            if complaint is None:
                waiter.stuck_since = None
            elif waiter.stuck_since is None:
                waiter.stuck_since = now
            elif now - waiter.stuck_since >= self.options.unplaceable_seconds:
                self._desk.refuse(waiter, "environment", complaint)

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
