"""Leases whose holder wants environments as they were at the beginning, and keeps them.

An instance is reset under its lease. One that cannot be is stopped, and another of its environment
takes its place, on the same host: a free one, or one that is started. Leases come before all
requests in that, and whatever is sure to come is kept for them and waited for. If nothing is, or
others fail too, the lease is lost: its holder may ask anew, and waits in the queue like everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core import pool_decisions as told
from perdure.core.pool_decisions import Decision
from perdure.core.pool_definitions import Definition
from perdure.core.pool_desk import Desk
from perdure.core.pool_fleet import Failure, Fleet
from perdure.core.pool_instances import Instance
from perdure.core.pool_leasing import Leasing, of_environment
from perdure.core.pool_ledger import Ledger, Placement
from perdure.core.pool_requests import FAILURES_ALLOWED, Lease, Request
from perdure.messages import Holder


class Renewals:
    """Makes instances under a lease as new."""

    def __init__(
        self, desk: Desk, fleet: Fleet, leasing: Leasing, decisions: list[Decision]
    ) -> None:
        """`decisions` is where it is told what came of them."""
        self._desk = desk
        self._fleet = fleet
        self._leasing = leasing
        self._decisions = decisions

    def ask(
        self,
        request_id: str,
        holder: Holder,
        number: int,
        environments: Sequence[str],
        now: float,
    ) -> None:
        """Reset environments of a lease, for its holder.

        Each reset of a lease has a higher `number` than the one before: one that is told again, or
        late, changes nothing.
        """
        lease = self._desk.leases.get(request_id)
        if lease is None and not self._desk.is_known(request_id):
            reason = "its pool knows of no such lease"
            self._decisions.append(told.LoseLease(request_id, holder, reason, [*environments]))
        if lease is None or lease.request.holder != holder or lease.state != "granted":
            return
        if number <= lease.renewal:
            return
        lease.renewal, lease.is_acknowledged = number, True
        lease.renews = [name for name in lease.request.names if name in environments]
        for instance in [self._fleet.instances[number] for number in lease.instances]:
            if instance.environment in lease.renews and instance.state == "leased":
                lease.renewing[instance.environment] = 0
                self._renew(lease, instance, now)
        self._tell_if_done(lease)

    # --- What becomes of an instance --------------------------------------------------------

    def is_up(self, instance: Instance, now: float) -> None:
        """It was started to take the place of another, or reset, and is as new."""
        if instance.state == "dirty":
            self._fleet.order(instance, "renewing", now)
            return
        instance.become("leased", now)
        lease = self._desk.leases[instance.lease or ""]
        lease.renewing.pop(instance.environment, None)
        self._tell_if_done(lease)

    def fail(self, instance: Instance, failure: Failure, now: float) -> None:
        """It is not as new, and never will be: another one is to take its place."""
        lease = self._desk.leases[instance.lease or ""]
        if lease.state != "granted":
            self._leasing.fail(instance, failure, now)
            return
        environment = instance.environment
        lease.instances.remove(instance.number)
        self._fleet.stop(instance, failure.reason, now)
        if self._leasing.is_away(instance.host, now):
            return  # that is nobody's fault
        lease.renewing[environment] += 1
        # The first is the one that was in use: it is no sign that others would fail, too.
        if failure.is_final or lease.renewing[environment] > FAILURES_ALLOWED:
            self._lose(lease, of_environment(instance, failure))

    def vanish(self, instance: Instance) -> None:
        """It is gone before it was there: another one is to take its place."""
        lease = self._desk.leases[instance.lease or ""]
        lease.instances.remove(instance.number)

    def give_up(self, reason: str, host: str | None = None) -> None:
        """Nothing can be had any more, on this host or anywhere: whoever waits for it loses."""
        for lease in self._desk.leases.values():
            if host in (None, lease.host):
                self._lose(lease, reason)

    # --- Others in their place --------------------------------------------------------------

    def place(self, ledger: Ledger, now: float) -> None:
        """Have others in place of what failed; what they take or wait for is reserved."""
        for lease in [*self._desk.leases.values()]:
            host = ledger.hosts.get(lease.host or "")
            if host is None or host.crowded_until > now:
                continue  # it may be there again, or have room again
            for definition in self._lacking(lease):
                request = Request(lease.request.request_id, lease.request.holder, (definition,))
                placement = ledger.place(request, host)
                if placement.fits:
                    ledger.reserve(placement)
                    self._take(lease, placement, now)
                elif not any(i.state == "stopping" for i in self._fleet.instances.on(host.name)):
                    why = f"could not be reset, and there is no other: {placement.lacks[0]}"
                    self._lose(lease, f"environment {definition.name} {why}")
                    break

    def _lose(self, lease: Lease, reason: str) -> None:
        for definition in self._lacking(lease):
            self._leasing.lose(lease, definition.name, reason)

    def _lacking(self, lease: Lease) -> list[Definition]:
        """Of what a lease has no instance now, and is to have one."""
        if lease.state != "granted" or not lease.renewing:
            return []
        there = {self._fleet.instances[number].environment for number in lease.instances}
        lacking = lease.renewing.keys() - there
        return [known for known in lease.request.environments if known.name in lacking]

    def _take(self, lease: Lease, placement: Placement, now: float) -> None:
        for instance in placement.evicts:
            self._fleet.stop(instance, "others need its place", now)
        for instance in placement.use:
            self._adopt(lease, instance, now)
            # What it is in the middle of goes on.
            if instance.state in ("starting", "resetting"):
                is_starting = instance.state == "starting"
                instance.become("replacing" if is_starting else "renewing", now)
            else:
                self._fleet.order(instance, "renewing", now)
        for definition in placement.starts:
            host, request = placement.host, lease.request
            if started := self._fleet.start(definition, host, request, now, "replacing"):
                self._adopt(lease, started, now)

    def _adopt(self, lease: Lease, instance: Instance, now: float) -> None:
        lease.instances.append(instance.number)
        instance.lease, instance.wanted_by = lease.request.request_id, None
        instance.uses += 1
        instance.last_used = now

    def _renew(self, lease: Lease, instance: Instance, now: float) -> None:
        definition = self._fleet.definition(instance)
        if definition.environment.disable_reuse and not definition.is_resettable:
            lease.instances.remove(instance.number)
            lease.renewing[instance.environment] = 1
            self._fleet.stop(instance, "it cannot be reset", now)
        else:
            self._fleet.order(instance, "renewing", now)

    def _tell_if_done(self, lease: Lease) -> None:
        if lease.state == "granted" and not lease.renewing:
            self._decisions.append(self._leasing.renewed(lease))
