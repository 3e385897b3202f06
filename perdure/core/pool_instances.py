"""The instances of a pool, from the order to start one until it is gone without a trace.

    starting -> (dirty -> resetting) -> clean -> checking -> leased -> dirty or clean again
    leased -> renewing -> leased: it was reset for who has it
    replacing (-> renewing) -> leased: another one took its place
    and from each of these: -> stopping -> gone

An instance counts against its environment's limit from its start until it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal[
    "starting",
    "dirty",
    "resetting",
    "clean",
    "checking",
    "leased",
    "renewing",
    "replacing",
    "stopping",
]
"""`renewing`: being reset, and `replacing`: starting, both under a lease that is in use."""

PUBLIC_STATES: dict[State, str] = {
    "starting": "starting",
    "dirty": "available",
    "resetting": "available",
    "clean": "available",
    "checking": "in_use",
    "leased": "in_use",
    "renewing": "in_use",
    "replacing": "starting",
    "stopping": "stopping",
}
"""As people know the states (P16)."""

FREE: tuple[State, ...] = ("resetting", "clean", "dirty", "starting")
"""Of nobody; of those that are not clean now, the first are usable soonest."""


@dataclass
class Instance:
    """A running environment."""

    number: int
    """Unique in the pool."""
    key: str
    """Which definition it is made of."""
    environment: str
    project: str
    host: str
    ports: dict[str, int] = field(default_factory=dict)
    state: State = "starting"
    order: int = 1
    """Of the newest order; answers to older ones are not heard."""
    since: float = 0.0
    """When it came into this state; seconds since 1970."""
    settled: float | None = None
    """When it had come up: what is measured later includes its memory. None: not yet, or never."""
    cleaned: float = 0.0
    """When it was last new, or reset."""
    lease: str | None = None
    """The request under whose lease it is."""
    wanted_by: str | None = None
    """The request that will most likely get it, and hears of it if it fails."""
    is_looked_at: bool = False
    """Whether it is healthy was asked and not answered yet, even if nobody waits for that now."""
    is_retiring: bool = False
    """True: it is stopped after its use."""
    started_for: str = ""
    """The workflow id of the task whose request it was started for; empty: for no one of them."""
    uses: int = 0
    last_used: float | None = None
    searches: int = 0
    """How often one of its ports was found taken before anything came up."""
    conflicts: int = 0
    """How often one turned out to be taken when it came up."""
    reason: str = ""
    """Why it is stopping."""
    retry_at: float | None = None
    """When its stop, which failed, is tried again."""

    @property
    def instance_id(self) -> str:
        """As people know it (P17)."""
        return f"{self.environment}:{self.project}"

    def is_measured(self, at: float) -> bool:
        """Whether a measurement of free memory at that time knows of it."""
        return self.settled is not None and self.settled < at

    def become(self, state: State, now: float) -> None:
        """Change the state."""
        self.state, self.since = state, now


class Instances:
    """All instances that are not gone."""

    def __init__(self) -> None:
        self._instances: dict[int, Instance] = {}

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def __len__(self) -> int:
        return len(self._instances)

    def __getitem__(self, number: int) -> Instance:
        return self._instances[number]

    def get(self, number: int) -> Instance | None:
        """None: it is gone, or never was."""
        return self._instances.get(number)

    def add(self, instance: Instance) -> None:
        """From now on it counts."""
        self._instances[instance.number] = instance

    def remove(self, number: int) -> None:
        """It counts no longer."""
        del self._instances[number]

    def alive(self) -> Counter[str]:
        """How many there are of each environment, by name; starting and stopping ones count."""
        return Counter(instance.environment for instance in self)

    def on(self, host: str) -> list[Instance]:
        """Those of a host."""
        return [instance for instance in self if instance.host == host]

    def state(self) -> list[dict[str, Any]]:
        """As JSON, for `from_state`."""
        return [asdict(instance) for instance in self]

    @classmethod
    def from_state(cls, state: list[dict[str, Any]]) -> Instances:
        """The inverse of `state`."""
        instances = cls()
        for value in state:
            instances.add(Instance(**value))
        return instances
