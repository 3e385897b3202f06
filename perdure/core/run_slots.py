"""The slots of one task run: which steps wait for one, who holds one, what is to be given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from perdure.messages import RunRef, SlotRelease, SlotRequest


@dataclass
class _Claim:
    """A step's request for a slot, from the asking to the giving back."""

    request: SlotRequest
    since: float
    """When it asked, in seconds since 1970."""
    granted: bool = False


class RunSlots:
    """What the run and the limits of its server have told each other."""

    def __init__(self, run: RunRef, limits: Mapping[str, int], priority: str) -> None:
        self._run = run
        self._limits = limits
        self._priority = priority
        self._claims: dict[str, _Claim] = {}  # by step id
        self._asks: list[SlotRequest] = []
        self._releases: list[SlotRelease] = []
        self._still_since: float | None = None
        self._still_seconds = 0.0

    # --- Slots ------------------------------------------------------------------------------

    def ask(self, step_id: str, limit: str, attempt: str, now: float) -> None:
        """A step wants a slot for its next attempt, `<step>#<epoch>.<attempt>`."""
        request = SlotRequest(
            limit=limit,
            request_id=f"{self._run.run_id}:{attempt}",
            slots=self._limits[limit],
            holder=self._run.workflow_id,
            holder_run_id=self._run.run_id,
            priority=self._priority,
        )
        self._claims[step_id] = _Claim(request, now)
        self._asks.append(request)

    def grant(self, limit: str, request_id: str) -> bool:
        """Take a grant; False if no step waits for it.

        One that nobody knows is given back. One that is told twice is left alone: giving it back
        would free the slot under its step.
        """
        for claim in self._claims.values():
            if claim.request.request_id == request_id:
                news, claim.granted = not claim.granted, True
                return news
        self._releases.append(SlotRelease(limit, request_id))
        return False

    def give_back(self, step_id: str) -> None:
        """A step needs no slot any more, if it had one or waited for one."""
        claim = self._claims.pop(step_id, None)
        if claim:
            self._releases.append(SlotRelease(claim.request.limit, claim.request.request_id))

    def waited(self, step_id: str, now: float) -> float:
        """Seconds since the step asked for its slot."""
        claim = self._claims.get(step_id)
        return max(0.0, now - claim.since) if claim else 0.0

    @property
    def waiting(self) -> dict[str, str]:
        """The steps that wait, in order of asking, with the limit of each."""
        return {s: c.request.limit for s, c in self._claims.items() if not c.granted}

    @property
    def requests(self) -> list[SlotRequest]:
        """What the steps wait for, in order of asking."""
        return [claim.request for claim in self._claims.values() if not claim.granted]

    @property
    def granted(self) -> list[str]:
        """The steps that have their slot, whether they run already or not."""
        return [step_id for step_id, claim in self._claims.items() if claim.granted]

    def take_asks(self) -> list[SlotRequest]:
        """The requests to send, each handed out once."""
        asks, self._asks = self._asks, []
        return asks

    def take_releases(self) -> list[SlotRelease]:
        """What to give back, each handed out once."""
        releases, self._releases = self._releases, []
        return releases

    # --- The task's clock -------------------------------------------------------------------

    def set_clock(self, *, running: bool, now: float) -> None:
        """Stop the task's clock while it only waits for slots, and let it go on after that."""
        still = not running and bool(self._claims)
        if still and self._still_since is None:
            self._still_since = now
        elif not still and self._still_since is not None:
            self._still_seconds += now - self._still_since
            self._still_since = None

    def start_clock_anew(self) -> None:
        """Forget how long the clock stood still: the task starts over."""
        self._still_since, self._still_seconds = None, 0.0

    @property
    def still_seconds(self) -> float | None:
        """How long the clock has stood still before; None while it does."""
        return self._still_seconds if self._still_since is None else None

    # --- Over a continue-as-new -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a restored run needs: waiting requests keep their places in the queues."""
        return {
            "claims": {step_id: asdict(claim) for step_id, claim in self._claims.items()},
            "still_since": self._still_since,
            "still_seconds": self._still_seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        for step_id, known in state["claims"].items():
            request = SlotRequest(**known["request"])
            self._claims[step_id] = _Claim(request, known["since"], known["granted"])
        self._still_since = state["still_since"]
        self._still_seconds = state["still_seconds"]
