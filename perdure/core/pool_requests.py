"""Requests for leases: those that wait, in order, and those that have one.

Who comes first is decided anew after every event: by priority, then by how many instances can be
used again, then by turn. The turn is the arrival, but for requests of one suite: those take each
other's turns, so that they come in the order of its list, however they arrived (P24). So a request
may be overtaken by ones that came later. It *is* when a later one gets an instance of an
environment that it waits for, too, or a slot of its suite that is all that it lacks, or the place
of an instance that was being made ready for it, or, while no host has room for it, an instance of
whatever environment on a host that would do for it.

After `OVERTAKES_PER_LEASE` times for each lease in use (for two at least, and `OVERTAKES_AT_MOST`
times at most) it is *due*: due requests come first, in order of arrival. The first of those that
want an environment keeps whatever is free of what it needs, so no later one gets the last instance
that it could use. One instance of each environment may stand idle for that. All of it is kept on
one host, and where that has too little room whatever becomes idle there gives up its own, so that
it is served when the leases that are there are over, at the latest.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from perdure.core.pool_definitions import Definition
from perdure.core.suite_order import PRIORITIES
from perdure.messages import Holder

OVERTAKES_PER_LEASE = 4
OVERTAKES_AT_MOST = 1_000

FAILURES_ALLOWED = 2
"""After so many instances that failed under it, a request is refused."""


@dataclass(frozen=True)
class Request:
    """A wish for one lease: an instance of each of the environments, all at once and on one host.

    A request without environments is one for a slot of its suite alone.
    """

    request_id: str
    """Chosen by who asks. Asking twice under one id changes nothing."""
    holder: Holder
    """Who asks; a later run of the same workflow id is another holder."""
    environments: tuple[Definition, ...] = ()
    suite: str = ""
    max_parallel: int | None = None
    """Leases of its suite at a time; None: any number."""
    priority: str = "medium"
    host: str | None = None
    """The only one that will do; None: any."""
    index: int = 0
    """Its task's position in the list of its suite."""

    @property
    def names(self) -> list[str]:
        """Of its environments."""
        return [definition.name for definition in self.environments]

    @property
    def kind(self) -> tuple[str, ...]:
        """Requests of one kind differ in their turn alone."""
        keys = sorted(definition.key for definition in self.environments)
        return (self.suite, self.priority, self.host or "", *keys)

    def fault(self) -> str | None:
        """Why it can never be granted, whatever there is; None: it can."""
        names = self.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            return f"asks twice for {', '.join(twice)}: name each environment once"
        for definition in self.environments:
            limit = definition.environment.max_instances
            if limit is not None and limit < 1:
                return f"environment {definition.name} has max_instances: {limit}; allow 1 or more"
        return None


@dataclass
class Waiter:
    """A request, with what it has met so far."""

    request: Request
    arrival: int
    """1, 2, ... in order of first arrival."""
    since: float
    """When it arrived; seconds since 1970."""
    overtaken: int = 0
    is_due: bool = False
    """It was overtaken as often as may be, or people want it served first."""
    urgency: int = 0
    """Above 0: people want it served before all others that have less."""
    failures: int = 0
    """Instances that failed while they were meant for it."""
    host: str | None = None
    """Where its instances are being made ready, or kept."""
    stuck_since: float | None = None
    """Since when no host could hold it, were it empty."""
    waits_for: str = ""
    """For people."""
    turn: int = 0
    """When it comes among equals, the lower the earlier; 0: as it arrived."""

    def __post_init__(self) -> None:
        self.turn = self.turn or self.arrival

    @property
    def rank(self) -> int:
        """0 is the highest priority."""
        priority = self.request.priority
        return PRIORITIES.index(priority) if priority in PRIORITIES else len(PRIORITIES)


@dataclass
class Lease:
    """A request that has its instances."""

    waiter: Waiter
    host: str | None
    instances: list[int]
    state: Literal["checking", "granted", "lost"] = "checking"
    since: float = 0.0
    checked: list[int] = field(default_factory=list)
    """Instances that were found healthy."""
    is_acknowledged: bool = False
    reason: str = ""
    """Why it is lost."""
    missing: list[str] = field(default_factory=list)
    """Environments whose instances are gone."""
    renewal: int = 0
    """Number of the newest reset that its holder asked for."""
    renews: list[str] = field(default_factory=list)
    """The environments of that."""
    renewing: dict[str, int] = field(default_factory=dict)
    """Those that are not as new yet: how many of their instances failed in this."""

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.waiter.request


class Queue:
    """The requests that wait."""

    def __init__(self, overtakes_per_lease: int = OVERTAKES_PER_LEASE) -> None:
        self.arrivals = 0
        self._overtakes_per_lease = overtakes_per_lease
        self._waiting: dict[str, Waiter] = {}

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def get(self, request_id: str | None) -> Waiter | None:
        """None: no such request waits."""
        return self._waiting.get(request_id) if request_id else None

    def ask(self, request: Request, now: float) -> Waiter:
        """Add a request at the end, or before those that its suite has later in its list."""
        self.arrivals += 1
        waiter = Waiter(request, self.arrivals, now)
        later = [w for w in self if w.request.suite == request.suite and not w.is_due
                 and w.request.index > request.index]  # fmt: skip
        moved = sorted([waiter, *later], key=lambda w: (w.request.index, w.turn))
        for each, turn in zip(moved, sorted(w.turn for w in moved), strict=True):
            each.turn = turn
        self.put(waiter)
        return waiter

    def put(self, waiter: Waiter) -> None:
        """Add a request, or put it back to its place."""
        self._waiting[waiter.request.request_id] = waiter

    def remove(self, request_id: str) -> Waiter | None:
        """It waits no longer; None: it did not."""
        return self._waiting.pop(request_id, None)

    def by_kind(self) -> dict[tuple[str, ...], list[Waiter]]:
        """The requests of each kind, the one that is next at the end."""
        kinds: dict[tuple[str, ...], list[Waiter]] = {}

        def place(waiter: Waiter) -> tuple[int, bool, int]:
            turn = waiter.arrival if waiter.is_due else waiter.turn
            return waiter.urgency, waiter.is_due, -turn

        for waiter in sorted(self, key=place):
            kinds.setdefault(waiter.request.kind, []).append(waiter)
        return kinds

    def overtake(
        self,
        by: Waiter,
        leases: int,
        *,
        host: str | None = None,
        lack_slots: Container[tuple[str, ...]] = (),
        lack_room: Container[tuple[str, ...]] = (),
    ) -> None:
        """`by` is served, on `host`: whoever came before it and wants the same was overtaken.

        `lack_slots` are the kinds of requests that wait for a slot of their suite alone, and
        `lack_room` those for which no host has room.
        """
        names, suite = set(by.request.names), by.request.suite
        allowed = overtakes_allowed(leases, self._overtakes_per_lease)
        for waiter in self:
            request = waiter.request
            if waiter.arrival < by.arrival and (
                not names.isdisjoint(request.names)
                or (request.suite == suite and request.kind in lack_slots)
                or (host and request.host in (None, host) and request.kind in lack_room)
            ):
                self._put_off(waiter, allowed)

    def rob(self, request_id: str, by: Waiter, leases: int) -> None:
        """What was made ready for a request goes to one that came later: that counts, too.

        Else two requests could take each other's instances away for ever, and none be served.
        """
        waiter = self.get(request_id)
        if waiter and waiter.arrival <= by.arrival:
            self._put_off(waiter, overtakes_allowed(leases, self._overtakes_per_lease))

    def _put_off(self, waiter: Waiter, allowed: int) -> None:
        waiter.overtaken += 1
        waiter.is_due = waiter.is_due or waiter.overtaken >= allowed


def overtakes_allowed(leases: int, per_lease: int = OVERTAKES_PER_LEASE) -> int:
    """How often a request may be overtaken while so many leases are in use."""
    return min(OVERTAKES_AT_MOST, per_lease * max(2, leases))


def waiter_to_json(waiter: Waiter) -> dict[str, Any]:
    """As JSON: each definition is told by its key alone."""
    request = waiter.request
    return {
        **{name: value for name, value in vars(waiter).items() if name != "request"},
        "request": {
            **vars(request),
            "holder": asdict(request.holder),
            "environments": [definition.key for definition in request.environments],
        },
    }


def waiter_from_json(value: dict[str, Any], definitions: dict[str, Definition]) -> Waiter:
    """The inverse of `waiter_to_json`."""
    facts = value["request"]
    request = Request(
        **{
            **facts,
            "holder": Holder(**facts["holder"]),
            "environments": tuple(definitions[key] for key in facts["environments"]),
        }
    )
    return Waiter(**{**value, "request": request})


def definitions_of(waiters: Iterable[Waiter]) -> dict[str, Definition]:
    """All definitions of some requests, by key."""
    return {
        definition.key: definition
        for waiter in waiters
        for definition in waiter.request.environments
    }
