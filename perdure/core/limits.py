"""The rules of one named limit: who holds its slots, who waits, who is next.

A limit has no number of its own. Each request carries its asker's, and gets a slot while fewer
than that are held in all. So the order cannot be a plain queue: a request with a small number that
stood at its head would keep everybody with a larger number waiting, and if those simply passed it,
a steady stream of them would keep it waiting for ever. The same goes for priorities. Hence:

- Requests are looked at by priority, then in order of arrival, and whatever fits is granted.
- A request may be overtaken by later ones `OVERTAKES_PER_SLOT` times for each slot in use, and at
  most `OVERTAKES_AT_MOST` times. Then it is *due*: nothing that came later is granted before it,
  slots run free, and it gets the next one that fits. What that idles is small beside what it let
  pass: about one slot in five.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from perdure.core.suite_order import PRIORITIES
from perdure.messages import Holder, SlotGrant, SlotRequest

OVERTAKES_PER_SLOT = 4
OVERTAKES_AT_MOST = 1_000

REMEMBERED_RELEASES = 500
"""Of ids that were given back: a request that arrives after its release makes no ghost. One that
comes later still is granted to somebody who does not know it, and who gives it back."""


@dataclass
class Waiter:
    """A request in the queue."""

    request: SlotRequest
    arrival: int
    """1, 2, ... in order of first arrival."""
    since: float
    """Seconds since 1970."""
    overtaken: int = 0
    """Requests that came later and got a slot before it."""


@dataclass(frozen=True)
class Slot:
    """A slot in use."""

    request: SlotRequest
    since: float


class Limit:
    """The slots of one limit."""

    def __init__(self) -> None:
        self._held: dict[str, Slot] = {}
        self._waiting: dict[str, Waiter] = {}
        self._arrivals = 0
        self._released: dict[str, None] = {}

    def request(self, request: SlotRequest, now: float) -> None:
        """Queue a request. Asked again under one id, or after its release, it changes nothing."""
        name = request.request_id
        if name in self._held or name in self._waiting or name in self._released:
            return
        self._arrivals += 1
        self._waiting[name] = Waiter(request, self._arrivals, now)

    def release(self, request_id: str) -> None:
        """Free a slot, or leave the queue; again, or for an unknown id, it frees nothing."""
        self._held.pop(request_id, None)
        self._waiting.pop(request_id, None)
        self._released.pop(request_id, None)
        self._released[request_id] = None
        if len(self._released) > REMEMBERED_RELEASES:
            del self._released[next(iter(self._released))]

    def close(self, holder: Holder) -> None:
        """A holder is gone: its slots are free, and it waits no more."""
        for request_id in [*self._held, *self._waiting]:
            if holder_of(self._request(request_id)) == holder:
                self.release(request_id)

    def take_grants(self, now: float) -> list[SlotGrant]:
        """Give slots to whom they fit; each grant is told once, and counts as held from here on."""
        grants = []
        while waiter := self._next():
            request = waiter.request
            del self._waiting[request.request_id]
            self._held[request.request_id] = Slot(request, now)
            for other in self._waiting.values():
                if other.arrival < waiter.arrival:
                    other.overtaken += 1
            grants.append(SlotGrant(request.limit, request.request_id))
        return grants

    @property
    def idle(self) -> bool:
        """True when nobody holds a slot and nobody waits."""
        return not self._held and not self._waiting

    @property
    def held(self) -> list[Slot]:
        """The slots in use, in order of their grants."""
        return list(self._held.values())

    @property
    def waiting(self) -> list[Waiter]:
        """The requests in the queue, in order of their arrival."""
        return list(self._waiting.values())

    @property
    def holders(self) -> list[Holder]:
        """Everybody who holds a slot or waits for one, each once, in order of first arrival."""
        requests = [slot.request for slot in self._held.values()]
        requests += [waiter.request for waiter in self._waiting.values()]
        return list(dict.fromkeys(holder_of(request) for request in requests))

    def holder(self, request_id: str) -> Holder | None:
        """Who asked under this id; None if it neither holds nor waits."""
        known = request_id in self._held or request_id in self._waiting
        return holder_of(self._request(request_id)) if known else None

    def unknown(self, request_ids: Iterable[str]) -> list[str]:
        """Those of the ids under which nobody holds a slot or waits, in the same order."""
        return [id for id in request_ids if id not in self._held and id not in self._waiting]

    def view(self) -> dict[str, Any]:
        """Who holds a slot and who waits, for people."""
        return {
            "held": [{**asdict(slot.request), "since": slot.since} for slot in self.held],
            "waiting": [
                {**asdict(w.request), "since": w.since, "overtaken": w.overtaken}
                for w in self.waiting
            ],
        }

    def state(self) -> dict[str, Any]:
        """Everything that a restored limit needs."""
        return {
            "held": [asdict(slot) for slot in self._held.values()],
            "waiting": [asdict(waiter) for waiter in self._waiting.values()],
            "arrivals": self._arrivals,
            "released": list(self._released),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Limit:
        """The inverse of `state`."""
        limit = cls()
        for slot in state["held"]:
            request = SlotRequest(**slot["request"])
            limit._held[request.request_id] = Slot(request, slot["since"])
        for waiter in state["waiting"]:
            request = SlotRequest(**waiter["request"])
            limit._waiting[request.request_id] = Waiter(**{**waiter, "request": request})
        limit._arrivals = state["arrivals"]
        limit._released = dict.fromkeys(state["released"])
        return limit

    # --- Inside -----------------------------------------------------------------------------

    def _next(self) -> Waiter | None:
        """Whose turn it is, if a slot fits."""
        bar = min(OVERTAKES_AT_MOST, OVERTAKES_PER_SLOT * max(1, len(self._held)))
        due = next((w for w in self._waiting.values() if w.overtaken >= bar), None)
        fitting: Iterable[Waiter] = (
            waiter
            for waiter in self._waiting.values()
            if len(self._held) < waiter.request.slots
            and (due is None or waiter.arrival <= due.arrival)
        )
        return min(fitting, key=_rank, default=None)

    def _request(self, request_id: str) -> SlotRequest:
        slot = self._held.get(request_id)
        return slot.request if slot else self._waiting[request_id].request


def holder_of(request: SlotRequest) -> Holder:
    """Who asks."""
    return Holder(request.holder, request.holder_run_id)


def _rank(waiter: Waiter) -> tuple[int, int]:
    priority = waiter.request.priority
    rank = PRIORITIES.index(priority) if priority in PRIORITIES else len(PRIORITIES)
    return rank, waiter.arrival
