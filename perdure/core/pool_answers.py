"""What instances answer to the pool's orders, and what the pool makes of it."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.pool_desk import Desk
from perdure.core.pool_fleet import STOP_AGAIN_SECONDS, Failure, Fleet
from perdure.core.pool_hosts import CROWDED_SECONDS
from perdure.core.pool_instances import Instance
from perdure.core.pool_leasing import Leasing
from perdure.core.pool_renewals import Renewals
from perdure.core.pool_stock import Stock
from perdure.pool_messages import InstanceAnswer


class Answers:
    """Hears what became of orders. An answer to any but an instance's newest changes nothing."""

    def __init__(
        self, desk: Desk, fleet: Fleet, stock: Stock, leasing: Leasing, renewals: Renewals
    ) -> None:
        self._desk = desk
        self._fleet = fleet
        self._stock = stock
        self._leasing = leasing
        self._renewals = renewals

    def hear(self, answer: InstanceAnswer, now: float) -> None:
        """Any of them, as it comes."""
        which = answer.instance, answer.order
        failure = Failure(
            answer.reason or "it said no reason",
            tuple(answer.log),
            is_final=answer.is_final,
            is_crowded=answer.is_crowded,
        )
        match answer.kind:
            case "started":
                self.started(*which, now, was_reset=answer.was_reset)
            case "start_failed":
                self.start_failed(*which, failure, now)
            case "ports_taken":
                self.ports_taken(*which, answer.ports, now, at_start=answer.at_start)
            case "reset_done":
                self.reset_done(*which, now)
            case "reset_failed":
                self.reset_failed(*which, failure, now)
            case "healthy":
                self.checked(*which, now)
            case "unhealthy":
                self.unhealthy(*which, failure, now)
            case "lost":
                self.lost(answer.instance, failure, now)
            case "stopped":
                self.stopped(*which, now)
            case "stop_failed":
                self.stop_failed(*which, failure.reason, now)

    def started(self, instance: int, order: int, now: float, *, was_reset: bool = False) -> None:
        """It is up and healthy, and was reset after that if it says so."""
        if found := self._fleet.answering(instance, order, "starting", "replacing"):
            self._stock.succeed(found.key)
            self._fleet.is_up(found, now, was_reset=was_reset)
            if found.lease:
                self._renewals.is_up(found, now)

    def start_failed(self, instance: int, order: int, failure: Failure, now: float) -> None:
        """It did not come up, or did not become healthy in time."""
        found = self._fleet.answering(instance, order, "starting", "replacing")
        if found is None:
            return
        is_alone = len(self._fleet.instances.on(found.host)) == 1
        is_crowded = failure.is_crowded and not is_alone
        if is_crowded:  # something will end there, and make room
            self._fleet.hosts[found.host].crowded_until = now + CROWDED_SECONDS
        if is_crowded and not found.lease:
            self._fleet.stop(found, failure.reason, now)
        else:
            self._fail(found, failure, now)

    def ports_taken(
        self, instance: int, order: int, ports: Iterable[int], now: float, *, at_start: bool
    ) -> None:
        """Somebody else has some of its ports: it gets others, and starts again.

        `at_start`: that showed only when it came up. Then there is one more try.
        """
        if found := self._fleet.answering(instance, order, "starting", "replacing"):
            failure = self._fleet.change_ports(found, ports, now, at_start=at_start)
            if failure:
                self._fail(found, failure, now)

    def never_began(self, instance: int, order: int, now: float) -> None:
        """Its name is still that of an instance of an earlier pool; another one takes its place."""
        if found := self._fleet.answering(instance, order, "starting", "replacing"):
            if found.lease:
                self._renewals.vanish(found)
            else:
                self._leasing.part_from(found, "its name is taken", now)
            self._fleet.is_gone(found)

    def reset_done(self, instance: int, order: int, now: float) -> None:
        """It is as if it were new."""
        if found := self._fleet.answering(instance, order, "resetting", "renewing"):
            self._fleet.is_clean(found, now)
            if found.lease:
                self._renewals.is_up(found, now)

    def reset_failed(self, instance: int, order: int, failure: Failure, now: float) -> None:
        """It could not be reset, all tries included."""
        if found := self._fleet.answering(instance, order, "resetting", "renewing"):
            self._fail(found, failure, now)

    def checked(self, instance: int, order: int, now: float) -> None:
        """It is healthy, as a look before a grant showed."""
        found = self._fleet.answering(instance, order, "checking")
        lease = self._desk.leases.get(found.lease or "") if found else None
        if found and lease and found.number not in lease.checked:
            lease.checked.append(found.number)
            if len(lease.checked) == len(lease.instances):
                self._leasing.grant(lease, now)

    def unhealthy(self, instance: int, order: int, failure: Failure, now: float) -> None:
        """It is not healthy, as a look before a grant showed."""
        if found := self._fleet.answering(instance, order, "checking"):
            self._leasing.fail(found, failure, now)

    def lost(self, instance: int, failure: Failure, now: float) -> None:
        """It broke, whatever it was doing: its container died, or nobody can reach it."""
        found = self._fleet.instances.get(instance)
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

    def _fail(self, instance: Instance, failure: Failure, now: float) -> None:
        if instance.state in ("renewing", "replacing"):
            self._renewals.fail(instance, failure, now)
        else:
            self._leasing.fail(instance, failure, now)
