"""Which step waits for which: ancestors, spans, and what is ready next."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol


class Node(Protocol):
    """What the graph needs to know of a step."""

    @property
    def id(self) -> str: ...

    @property
    def depends_on(self) -> tuple[str, ...] | None:
        """Ids of earlier steps; None: all of them (T6)."""


class Graph:
    """The dependencies between a task's steps, which are in an order that respects them.

    A step without `depends_on` waits for every earlier one. Such a step is kept as a mark, not as
    edges, so a chain of thousands of them costs what its steps cost.
    """

    def __init__(self, ids: list[str], parents: list[tuple[int, ...] | None]) -> None:
        self.ids = ids
        self._index = {id: index for index, id in enumerate(ids)}
        self.parents = parents
        """By index; None: all earlier steps."""
        self.children: list[list[int]] = [[] for _ in ids]
        """By index, the explicit dependents only, in step order."""
        self.joins: list[int] = []
        """Indexes of the steps that wait for all earlier ones, in step order."""
        for child, wanted in enumerate(parents):
            if wanted is None:
                self.joins.append(child)
            else:
                for parent in wanted:
                    self.children[parent].append(child)

    @classmethod
    def of(cls, steps: Sequence[Node]) -> Graph:
        """The graph of validated steps: unique ids, each dependency an earlier step (T4, T5)."""
        index = {step.id: position for position, step in enumerate(steps)}
        return cls(
            [step.id for step in steps],
            [
                None if step.depends_on is None else tuple(index[id] for id in step.depends_on)
                for step in steps
            ],
        )

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, id: str) -> int:
        """The step's position in the task. Raises KeyError."""
        return self._index[id]

    def ancestors(self, id: str) -> set[str]:
        """Every step that must be over before this one starts, directly or not."""
        found: set[int] = set()
        waiting = [self._index[id]]
        while waiting:
            wanted = self.parents[step := waiting.pop()]
            if wanted is None:
                # Everything earlier is an ancestor, and theirs are earlier still.
                found.update(range(step))
                waiting = [index for index in waiting if index > step]
            else:
                new = [parent for parent in wanted if parent not in found]
                found.update(new)
                waiting.extend(new)
        return {self.ids[index] for index in found}

    def needs(self, id: str, other: str) -> bool:
        """True if `other` must be over before `id` starts, directly or not."""
        return bool(self._masks[self._index[id]] >> self._index[other] & 1)

    @cached_property
    def _masks(self) -> list[int]:
        """Each step's ancestors as the bits of a number: for many questions in a row."""
        masks: list[int] = []
        for step, wanted in enumerate(self.parents):
            mask = 0
            for parent in wanted or ():
                mask |= masks[parent] | 1 << parent
            masks.append((1 << step) - 1 if wanted is None else mask)
        return masks

    def span(self, *resume_ids: str) -> list[str]:
        """The steps and everything that depends on one of them, directly or not, in step order
        (T26)."""
        inside = {self._index[id] for id in resume_ids}
        for step in range(min(inside, default=len(self.ids)) + 1, len(self.ids)):
            wanted = self.parents[step]
            if wanted is None or not inside.isdisjoint(wanted):
                inside.add(step)
        return [self.ids[index] for index in sorted(inside)]


class Frontier:
    """Says which steps may start, as others finish.

    A step is ready when all that it depends on is done. Steps from `end` on are never ready
    (T15). The work over a whole run is in proportion to the steps and their explicit edges.
    """

    def __init__(self, graph: Graph, done: Iterable[str] = (), end: int | None = None) -> None:
        self._graph = graph
        self._end = len(graph) if end is None else min(end, len(graph))
        self._done = [False] * len(graph)
        for id in done:
            self._done[graph.index(id)] = True
        self._restart(taken=set())

    @property
    def end(self) -> int:
        """Index of the first step that is not to run."""
        return self._end

    @property
    def finished(self) -> bool:
        """True when every step before `end` is done."""
        return self._prefix >= self._end

    def take_ready(self) -> list[str]:
        """The steps that may start now, in step order; each is handed out once."""
        taken = []
        while self._ready:
            step = heapq.heappop(self._ready)
            if not self._done[step]:  # finished without having been handed out
                taken.append(step)
        self._taken.update(taken)
        return [self._graph.ids[index] for index in taken]

    def finish(self, id: str) -> None:
        """Count a step as done, however it ended; a second time changes nothing."""
        step = self._graph.index(id)
        if self._done[step]:
            return
        self._done[step] = True
        for child in self._graph.children[step]:
            self._missing[child] -= 1
            if self._missing[child] == 0:
                self._offer(child)
        self._advance()

    def reopen(self, ids: Iterable[str]) -> None:
        """Take steps back, done or handed out: they run again when what they need is done.

        A step outside that waits for one of them, and has not been handed out, waits again.
        """
        reopened = {self._graph.index(id) for id in ids}
        for step in reopened:
            self._done[step] = False
        self._restart(taken=self._taken - reopened)

    def _restart(self, taken: set[int]) -> None:
        self._taken = taken
        self._ready: list[int] = []
        self._missing = [
            0 if wanted is None else sum(1 for parent in wanted if not self._done[parent])
            for wanted in self._graph.parents
        ]
        self._prefix = 0
        self._next_join = 0
        for step, wanted in enumerate(self._graph.parents):
            if wanted is not None and self._missing[step] == 0:
                self._offer(step)
        self._advance()

    def _advance(self) -> None:
        """Move the end of the unbroken run of done steps, and release who waits for all of it."""
        while self._prefix < len(self._done) and self._done[self._prefix]:
            self._prefix += 1
        joins = self._graph.joins
        while self._next_join < len(joins) and joins[self._next_join] <= self._prefix:
            self._offer(joins[self._next_join])
            self._next_join += 1

    def _offer(self, step: int) -> None:
        if step < self._end and not self._done[step] and step not in self._taken:
            heapq.heappush(self._ready, step)
