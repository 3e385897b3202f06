"""Who asks a pool, who has a lease, and who is over and done with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perdure.core.pool_decisions import Decision, FailureKind, Refuse
from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, Need
from perdure.core.pool_requests import (
    Lease,
    Queue,
    Request,
    Waiter,
    waiter_from_json,
    waiter_to_json,
)
from perdure.messages import Holder

REMEMBERED = 500
"""Requests that are over and still known: one that is told again, or arrives after its own
release, makes no ghost. One that comes later still is granted to somebody who gives it back."""


@dataclass(frozen=True)
class Ticket:
    """How it stands with a request."""

    state: Literal["unknown", "waiting", "granted", "lost", "refused", "over"]
    reason: str = ""
    """What it waits for, or why it was refused or lost; for people."""


class Desk:
    """Requests, leases and declared demands."""

    def __init__(self, decisions: list[Decision], overtakes_per_lease: int) -> None:
        """`decisions` is where refusals are told."""
        self.queue = Queue(overtakes_per_lease)
        self.leases: dict[str, Lease] = {}
        """By request id; those under preparation included."""
        self.demands: dict[str, Demand] = {}
        """By suite."""
        self.max_parallel: dict[str, int | None] = {}
        """By suite: leases at a time; None: any number."""
        self.completed = 0
        """Requests that had their lease, or were refused."""
        self._decisions = decisions
        self._over: dict[str, tuple[Holder, Ticket]] = {}

    # --- Who it is --------------------------------------------------------------------------

    def holder(self, request_id: str) -> Holder | None:
        """Who waits or has a lease under this id; None: nobody."""
        if waiter := self.queue.get(request_id):
            return waiter.request.holder
        lease = self.leases.get(request_id)
        return lease.request.holder if lease else None

    def is_told_again(self, request: Request) -> bool:
        """Whether the same holder asked under the same id before."""
        name = request.request_id
        over = self._over.get(name)
        return request.holder in (self.holder(name), over and over[0])

    @property
    def holders(self) -> list[Holder]:
        """Everybody who has a lease, waits, or declared a demand, each once."""
        some = [lease.request.holder for lease in self.leases.values()]
        some += [waiter.request.holder for waiter in self.queue]
        some += [demand.holder for demand in self.demands.values()]
        return list(dict.fromkeys(some))

    def ticket(self, request_id: str) -> Ticket:
        """How it stands with a request."""
        if waiter := self.queue.get(request_id):
            return Ticket("waiting", waiter.waits_for)
        if lease := self.leases.get(request_id):
            if lease.state == "checking":
                return Ticket("waiting", "its instances are looked at")
            return Ticket(lease.state, lease.reason)
        return self._over[request_id][1] if request_id in self._over else Ticket("unknown")

    # --- What becomes of them ---------------------------------------------------------------

    def ask(self, request: Request, now: float, *, counts_off: bool = True) -> None:
        """Queue a request.

        `counts_off`: its suite has declared it, and will say only later that it has come.
        """
        demand = self.demands.get(request.suite)
        if demand is None:  # what a suite itself declared is newer
            self._limit(request.suite, request.max_parallel, at_least=1)
        elif counts_off:
            self.demands[request.suite] = demand.without(request.environments)
        self._hurry(self.queue.ask(request, now))

    def declare(self, demand: Demand) -> None:
        """A suite says what it is going to need."""
        self.demands[demand.suite] = demand
        self._limit(demand.suite, demand.max_parallel, at_least=0)
        for waiter in self.queue:
            self._hurry(waiter)

    def need(self, *, early: bool) -> Need:
        """What all of them are going to use; `early` as in `Need`."""
        return Need(self.queue, self.demands.values(), self.max_parallel, early=early)

    def forget(self, suite: str) -> None:
        """A suite needs nothing more, or is gone: nobody is left who could resume it."""
        del self.demands[suite]
        if self.max_parallel.get(suite) == 0:
            self.max_parallel[suite] = 1

    def turn_away(self, request: Request, kind: FailureKind, reason: str) -> None:
        """Refuse a request that was never queued."""
        if self.holder(request.request_id) is None:  # else the id is somebody else's
            self.remember(request.request_id, request.holder, Ticket("refused", reason))
        self._decisions.append(Refuse(request.request_id, request.holder, kind, reason))

    def refuse(
        self, waiter: Waiter, kind: FailureKind, reason: str, log: Sequence[str] = ()
    ) -> None:
        """Refuse a request that waits: it was served, in its way."""
        name, holder = waiter.request.request_id, waiter.request.holder
        self.queue.remove(name)
        self.queue.overtake(waiter, len(self.leases))
        self.remember(name, holder, Ticket("refused", reason))
        self._decisions.append(Refuse(name, holder, kind, reason, list(log)))
        self.completed += 1

    def leave(self, request_id: str) -> Lease | None:
        """The holder waits no more, or gives its lease back, which is returned."""
        holder = self.holder(request_id)
        lease = self.leases.pop(request_id, None)
        self.queue.remove(request_id)
        self.completed += lease is not None and lease.state != "checking"
        if holder:
            self.remember(request_id, holder, Ticket("over"))
        return lease

    def remember(self, request_id: str, holder: Holder, ticket: Ticket) -> None:
        """The request is over."""
        self._over.pop(request_id, None)
        self._over[request_id] = holder, ticket
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]

    def is_known(self, request_id: str) -> bool:
        """Whether the id was heard of, not too long ago."""
        return self.holder(request_id) is not None or request_id in self._over

    # --- Slots ------------------------------------------------------------------------------

    def slots(self) -> dict[str, float]:
        """By suite: how many leases it may still have; those without a limit are not named."""
        used = Counter(lease.request.suite for lease in self.leases.values())
        suites = {waiter.request.suite for waiter in self.queue} | {*used, *self.demands}
        self.max_parallel = {s: limit for s, limit in self.max_parallel.items() if s in suites}
        return {
            suite: limit - used[suite]
            for suite, limit in self.max_parallel.items()
            if limit is not None
        }

    @property
    def paused(self) -> set[str]:
        """Suites that get nothing for now."""
        return {suite for suite, limit in self.max_parallel.items() if limit == 0}

    def _limit(self, suite: str, max_parallel: int | None, *, at_least: int) -> None:
        self.max_parallel[suite] = None if max_parallel is None else max(at_least, max_parallel)

    def _hurry(self, waiter: Waiter) -> None:
        """People may want it served first. It is like one that was overtaken too often: what is
        free of what it needs is kept for it."""
        demand, who = self.demands.get(waiter.request.suite), waiter.request.holder.workflow_id
        if demand and who in demand.prioritised:
            waiter.urgency = 1 + demand.prioritised.index(who)
            waiter.is_due = True

    # --- Over a continue-as-new, or a crash -------------------------------------------------

    def definitions(self) -> Iterable[Definition]:
        """All that anybody here speaks of."""
        for waiter in [*self.queue, *(lease.waiter for lease in self.leases.values())]:
            yield from waiter.request.environments
        for demand in self.demands.values():
            yield from demand.definitions()

    def state(self) -> dict[str, Any]:
        """As JSON, for `from_state`."""
        return {
            "arrivals": self.queue.arrivals,
            "waiting": [waiter_to_json(waiter) for waiter in self.queue],
            "leases": [
                {**vars(lease), "waiter": waiter_to_json(lease.waiter)}
                for lease in self.leases.values()
            ],
            "demands": [demand.to_json() for demand in self.demands.values()],
            "max_parallel": dict(self.max_parallel),
            "completed": self.completed,
            "over": [
                [name, asdict(holder), asdict(ticket)]
                for name, (holder, ticket) in self._over.items()
            ],
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        known: dict[str, Definition],
        decisions: list[Decision],
        overtakes_per_lease: int,
    ) -> Desk:
        """The inverse of `state`."""
        desk = cls(decisions, overtakes_per_lease)
        desk.queue.arrivals = state["arrivals"]
        for value in state["waiting"]:
            desk.queue.put(waiter_from_json(value, known))
        for value in state["leases"]:
            lease = Lease(**{**value, "waiter": waiter_from_json(value["waiter"], known)})
            desk.leases[lease.request.request_id] = lease
        for value in state["demands"]:
            desk.demands[value["suite"]] = Demand.from_json(value, known)
        desk.max_parallel = dict(state["max_parallel"])
        desk.completed = state["completed"]
        for name, holder, ticket in state["over"]:
            desk._over[name] = Holder(**holder), Ticket(**ticket)
        return desk
