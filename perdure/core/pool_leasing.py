"""Leases, from the first look at their instances to their loss."""

from __future__ import annotations

from collections.abc import Container

from perdure.core import pool_decisions as told
from perdure.core.pool_decisions import Decision
from perdure.core.pool_desk import Desk
from perdure.core.pool_fleet import Failure, Fleet
from perdure.core.pool_instances import FREE, Instance
from perdure.core.pool_ledger import Ledger, Placement
from perdure.core.pool_options import PoolOptions
from perdure.core.pool_prospects import Objection
from perdure.core.pool_requests import FAILURES_ALLOWED, Lease, Waiter
from perdure.core.pool_stock import Stock


class Leasing:
    """Gives instances to those who asked, and takes broken ones away from them."""

    def __init__(
        self,
        desk: Desk,
        fleet: Fleet,
        stock: Stock,
        decisions: list[Decision],
        *,
        host_away_seconds: float,
        fresh_seconds: float,
    ) -> None:
        """`decisions` is where grants and losses are told."""
        self._desk = desk
        self._fleet = fleet
        self._stock = stock
        self._decisions = decisions
        self._host_away_seconds = host_away_seconds
        self._fresh_seconds = fresh_seconds

    # --- Given ------------------------------------------------------------------------------

    def lease(self, waiter: Waiter, placement: Placement | None, now: float) -> None:
        """The request gets its instances as soon as all are found healthy."""
        name = waiter.request.request_id
        instances = placement.use if placement else []
        self._desk.queue.remove(name)
        waiter.stuck_since = waiter.host = None
        host = placement.host if placement else None
        lease = Lease(waiter, host, [instance.number for instance in instances])
        self._desk.leases[name] = lease
        # What was asked is waited for: the answer may be that it is not healthy.
        is_fresh = (
            now - instance.cleaned < self._fresh_seconds and not instance.is_looked_at
            for instance in instances
        )
        if all(is_fresh):
            for instance in instances:
                instance.lease, instance.wanted_by = name, None
            self.grant(lease, now)
        else:
            for instance in instances:
                self._fleet.check(instance, name, now)

    def grant(self, lease: Lease, now: float) -> None:
        """All its instances are healthy: the holder hears of it."""
        lease.state, lease.since = "granted", now
        for number in lease.instances:
            self._fleet.hand_out(self._fleet.instances[number], now)
        self._decisions.append(self.news(lease))

    def news(self, lease: Lease) -> Decision:
        """What the holder of a lease must know."""
        name, holder = lease.request.request_id, lease.request.holder
        if lease.state == "lost":
            return told.LoseLease(name, holder, lease.reason, list(lease.missing))
        return told.Grant(name, holder, lease.host, self.granted(lease, lease.request.names))

    def renewed(self, lease: Lease) -> Decision:
        """The environments that its holder wanted reset are as new."""
        name, holder = lease.request.request_id, lease.request.holder
        return told.Renew(name, holder, lease.renewal, self.granted(lease, lease.renews))

    def granted(self, lease: Lease, environments: Container[str]) -> list[told.GrantedInstance]:
        """The instances of a lease, as its holder hears of them."""
        instances = (self._fleet.instances[number] for number in lease.instances)
        return [
            told.GrantedInstance(i.number, i.key, i.environment, i.project, dict(i.ports))
            for i in instances
            if i.environment in environments
        ]

    # --- Taken away -------------------------------------------------------------------------

    def part_from(self, instance: Instance, reason: str, now: float) -> Waiter | None:
        """Whoever has an instance has it no longer. Returns who waits for it, if anybody does."""
        waiter = self._desk.queue.get(instance.wanted_by)
        lease = self._desk.leases.get(instance.lease or "")
        instance.lease = instance.wanted_by = None
        if lease is None:
            return waiter
        lease.instances.remove(instance.number)
        if lease.state == "checking":  # the request goes back to its place in the queue
            del self._desk.leases[lease.request.request_id]
            for number in lease.instances:
                self._fleet.take_back(self._fleet.instances[number], now, used=False)
            self._desk.queue.put(lease.waiter)
            return lease.waiter
        self.lose(lease, instance.environment, reason)
        return None

    def lose(self, lease: Lease, environment: str, reason: str) -> None:
        """A lease has no instance of an environment any longer."""
        if news := self._untold_loss(lease):
            self._decisions.remove(news)  # one word for all that is lost together
        lease.state, lease.reason, lease.is_acknowledged = "lost", reason, False
        lease.missing.append(environment)
        self._decisions.append(self.news(lease))

    def _untold_loss(self, lease: Lease) -> Decision | None:
        losses = (d for d in self._decisions if isinstance(d, told.LoseLease))
        return next((d for d in losses if d.request_id == lease.request.request_id), None)

    def fail(self, instance: Instance, failure: Failure, now: float) -> None:
        """It is not handed out any more; who was to get it gets another, or is refused."""
        is_free, reason = instance.state in FREE, of_environment(instance, failure)
        waiter = self.part_from(instance, reason, now)
        self._fleet.stop(instance, failure.reason, now)
        if self.is_away(instance.host, now):
            return  # that is nobody's fault
        refused = [waiter] if waiter and self._count_failure(waiter) else []
        if failure.is_final:
            refused = self._hopeless(instance, waiter)
        for hopeless in refused:
            self._desk.refuse(hopeless, "environment", reason, failure.log)
        if is_free and waiter is None:
            self._stock.fail(instance.key, reason)

    def is_away(self, host: str, now: float) -> bool:
        """Whether its worker is silent."""
        return now - self._fleet.hosts[host].heard >= self._host_away_seconds

    def give_up_on_the_unplaceable(self, ledger: Ledger, options: PoolOptions, now: float) -> None:
        """Refuse those that no host could hold even if it were empty, after some patience."""
        complaints: dict[tuple[str, ...], Objection | None] = {}
        for waiter in [*self._desk.queue]:
            kind = waiter.request.kind
            if kind not in complaints:
                complaints[kind] = ledger.unplaceable(waiter.request)
            complaint = complaints[kind]
            if complaint is None:
                waiter.stuck_since = None
                continue
            if waiter.stuck_since is None:
                waiter.stuck_since = now
            patience = options.patience(
                is_lasting=complaint.is_lasting, is_bound=waiter.request.host is not None
            )
            if now - waiter.stuck_since >= patience:
                self._desk.refuse(waiter, "environment", complaint.reason)

    def _count_failure(self, waiter: Waiter) -> bool:
        waiter.failures += 1
        return waiter.failures >= FAILURES_ALLOWED

    def _hopeless(self, instance: Instance, waiter: Waiter | None) -> list[Waiter]:
        """For whom another try would fare no better: all that want the same, and no other host
        would do for."""
        is_alone = len(self._fleet.hosts.usable) <= 1
        return [
            other
            for other in self._desk.queue
            if other is waiter
            or (
                (is_alone or other.request.host == instance.host)
                and instance.key in [definition.key for definition in other.request.environments]
            )
        ]


def of_environment(instance: Instance, failure: Failure) -> str:
    """Why an instance failed, with the name of its environment."""
    name = f"environment {instance.environment}"
    return failure.reason if failure.reason.startswith(name) else f"{name}: {failure.reason}"
