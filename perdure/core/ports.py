"""The ports of one machine: which instance has which, and which are known to be somebody else's.

A number is an instance's from its choice until the instance is gone, so that nobody is given it
between the choice and the use. Whether it is really free, only the machine can tell: what turns
out to be taken is noted here, and another one chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

TAKEN_FOR_SECONDS = 300.0
"""How long a port that somebody else had is not tried again."""

_LAST_PORT = 65_535


@dataclass(frozen=True)
class PortRange:
    """Numbers to choose from, both ends included (P35)."""

    low: int = 8000
    high: int = 20000

    def __len__(self) -> int:
        return max(0, self.high - self.low + 1)

    def __contains__(self, port: int) -> bool:
        return self.low <= port <= self.high


class Ports:
    """Who has which port of one machine."""

    def __init__(self, seed: int = 0) -> None:
        """`seed` says where in a range the search begins: two pools that do not know each other
        would else try the same numbers at the same time, again and again."""
        self._seed = seed
        self._owners: dict[int, int] = {}
        """By port: the number of the instance."""
        self._taken: dict[int, float] = {}
        """By port: until when it counts as somebody else's; seconds since 1970."""
        self._last = 0
        """The newest choice from a range: the next one goes on from there, so that a port is not
        given to the next instance while the last one's connections still linger."""

    def choose(
        self, owner: int, wanted: Mapping[str, int], within: PortRange, now: float
    ) -> dict[str, int] | None:
        """A port for each variable, the wanted one if it is free (P36); None: too few are left."""
        self._forget(now)
        chosen: dict[str, int] = {}
        rest = self._free(within)
        for variable, number in wanted.items():
            usable = 0 < number <= _LAST_PORT and self._is_free(number)
            port = number if usable else next(rest, None)
            if port is None:
                self._give_back(chosen.values())
                return None
            self._owners[port] = owner
            chosen[variable] = port
            if port != number:
                self._last = port
        return chosen

    def give_back(self, owner: int) -> None:
        """The instance is gone."""
        self._give_back([port for port, has in self._owners.items() if has == owner])

    def take(self, ports: Iterable[int], now: float) -> None:
        """Somebody else has these, whoever they were given to."""
        for port in ports:
            self._owners.pop(port, None)
            self._taken[port] = now + TAKEN_FOR_SECONDS

    def left(self, within: PortRange, now: float) -> int:
        """How many of the range can be chosen."""
        self._forget(now)
        return len(within) - sum(port in within for port in [*self._owners, *self._taken])

    def needed(self, wanted: Iterable[int], within: PortRange) -> int:
        """How many of these would come out of the range: all but those that are free elsewhere."""
        return sum(port in within or not self._is_free(port) for port in wanted)

    @property
    def owners(self) -> dict[int, int]:
        """By port: the number of the instance that has it."""
        return dict(self._owners)

    def state(self) -> dict[str, Any]:
        """As JSON, for `from_state`."""
        return {
            "owners": [list(item) for item in self._owners.items()],
            "taken": [list(item) for item in self._taken.items()],
            "last": self._last,
            "seed": self._seed,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ports:
        """The inverse of `state`."""
        ports = cls(state.get("seed", 0))  # a state may be older than that
        ports._owners = dict(state["owners"])
        ports._taken = dict(state["taken"])
        ports._last = state["last"]
        return ports

    # --- Inside -----------------------------------------------------------------------------

    def _is_free(self, port: int) -> bool:
        return port not in self._owners and port not in self._taken

    def _free(self, within: PortRange) -> Iterator[int]:
        first = within.low + self._seed % max(1, len(within))
        if self._last in within:
            first = self._last + 1
        for port in chain(range(first, within.high + 1), range(within.low, first)):
            if self._is_free(port):
                yield port

    def _give_back(self, ports: Iterable[int]) -> None:
        for port in list(ports):
            del self._owners[port]

    def _forget(self, now: float) -> None:
        self._taken = {port: until for port, until in self._taken.items() if until > now}
