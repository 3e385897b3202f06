"""Which of the waiting trials starts next."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

PRIORITIES = ("critical", "high", "medium", "low")

Place = tuple[int, int, int]
"""Rank of the task's priority, its position in the list, number of the trial: smaller is first."""


class StartOrder:
    """Waiting trials by name: first those prioritised, the latest first; then the others by place.

    A trial that is taken out and comes back has the place that it had.
    """

    def __init__(
        self, places: Mapping[str, Place], kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Nothing waits yet. `kinds`: of trials that are counted, by name."""
        self.lifts: dict[str, int] = {}
        """By name, for those that were prioritised: the larger, the later."""
        self.by_kind: Counter[tuple[str, ...]] = Counter()
        """How many wait of each kind."""
        self._places = places
        self._kinds = kinds or {}
        self._waiting: set[str] = set()
        # Entries of trials that left, or were lifted since, stay until they come up.
        self._heap: list[tuple[int, Place, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, name: str) -> None:
        """From now on it waits."""
        if name not in self._waiting:
            self._waiting.add(name)
            self._count(name, 1)
            heapq.heappush(self._heap, self._entry(name))

    def remove(self, name: str) -> None:
        """It waits no longer; harmless if it did not."""
        if name in self._waiting:
            self._waiting.discard(name)
            self._count(name, -1)

    def pop(self) -> str:
        """Take out the one that is next. Raises IndexError if nothing waits."""
        while True:
            entry = heapq.heappop(self._heap)
            name = entry[-1]
            if name in self._waiting and entry == self._entry(name):
                self.remove(name)
                return name

    def prioritise(self, names: Iterable[str]) -> None:
        """These come before all others from now on; among themselves, by place."""
        lift = max(self.lifts.values(), default=0) + 1
        for name in names:
            self.lifts[name] = lift
            if name in self._waiting:
                heapq.heappush(self._heap, self._entry(name))

    def lifted(self, names: Iterable[str]) -> list[str]:
        """Those of these that were prioritised; the one that is next comes last."""
        return sorted((name for name in names if name in self.lifts), key=self._entry, reverse=True)

    def kind(self, name: str) -> tuple[str, ...]:
        """The kind of a trial that is counted, whether it waits or not."""
        return self._kinds[name]

    def _count(self, name: str, change: int) -> None:
        if name in self._kinds:
            self.by_kind[self._kinds[name]] += change

    def _entry(self, name: str) -> tuple[int, Place, str]:
        return -self.lifts.get(name, 0), self._places[name], name
