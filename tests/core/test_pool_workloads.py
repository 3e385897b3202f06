"""How long the pool takes for whole workloads, in a world where only time passes.

Starts, resets and tasks take the seconds that the workload says; all else takes none. The bound of
a workload is what nobody can beat: the busiest environment used without a pause, or the slots of
the suite without one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations, count

import pytest

from perdure.core.environments import Environment, ResetEndpoint
from perdure.core.pool import Pool
from perdure.core.pool_decisions import (
    CheckInstance,
    Decision,
    Grant,
    Refuse,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_definitions import Definition
from perdure.core.pool_hosts import HostFacts
from perdure.core.pool_requests import Request
from perdure.messages import Holder
from tests.core.pool_driver import answer_well


@dataclass(frozen=True)
class Workload:
    """A suite: what it asks for, and how long everything takes."""

    tasks: list[tuple[str, ...]]
    """Of each task, the environments."""
    task_seconds: float
    start_seconds: float
    reset_seconds: float
    max_parallel: int
    max_instances: dict[str, int | None]
    stop_seconds: float = 0.2
    check_seconds: float = 0.02

    def bound_seconds(self) -> float:
        users = Counter(name for names in self.tasks for name in names)
        prepare = self.start_seconds + self.reset_seconds
        busiest = [
            self.start_seconds
            + math.ceil(users[name] / limit) * (self.reset_seconds + self.task_seconds)
            for name, limit in self.max_instances.items()
            if limit
        ]
        slots = prepare + len(self.tasks) * self.task_seconds / self.max_parallel
        return max([prepare + self.task_seconds, slots, *busiest])


@dataclass
class World:
    """Runs a workload on a pool, event by event, and checks the limits as it goes."""

    load: Workload
    pool: Pool = field(default_factory=lambda: Pool("0123456789abcdef"))
    now: float = 1_000.0
    running: int = 0
    most_alive: Counter[str] = field(default_factory=Counter)

    def makespan(self) -> float:
        begin, last, numbers = self.now, self.now, count()
        agenda: list[tuple[float, int, object]] = []
        self.pool.host_joined("h", HostFacts(), self.now)
        for index, names in enumerate(self.load.tasks):
            environments = tuple(self._definition(name) for name in names)
            self.pool.request(
                Request(f"t{index}", _holder(index), environments, "s", self.load.max_parallel),
                self.now,
            )
        while True:
            self.pool.host_beat("h", HostFacts(), self.now)
            for decision in self.pool.decide(self.now):
                if (seconds := self._seconds(decision)) is not None:
                    heapq.heappush(agenda, (self.now + seconds, next(numbers), decision))
            self._look()
            if not agenda:
                break
            self.now, _, decision = heapq.heappop(agenda)
            self._happen(decision)
            if isinstance(decision, Grant):
                last = self.now
        assert not len(self.pool.instances), "everything is stopped in the end"
        assert self.pool.completed == len(self.load.tasks)
        return last - begin

    def _definition(self, name: str) -> Definition:
        return Definition(
            Environment(
                name,
                max_instances=self.load.max_instances[name],
                reset_endpoints=(ResetEndpoint("r", "http://x/"),),
            ),
            "d",
        )

    def _seconds(self, decision: Decision) -> float | None:
        match decision:
            case StartInstance():
                return self.load.start_seconds
            case ResetInstance():
                return self.load.reset_seconds
            case CheckInstance():
                return self.load.check_seconds
            case StopInstance():
                return self.load.stop_seconds
            case Grant():
                return self.load.task_seconds
        assert not isinstance(decision, Refuse)
        return None

    def _happen(self, decision: object) -> None:
        if isinstance(decision, Grant):
            self.pool.release(decision.request_id, decision.holder, self.now)
        else:
            answer_well(self.pool, decision, self.now)

    def _look(self) -> None:
        alive = self.pool.instances.alive()
        for name, limit in self.load.max_instances.items():
            assert limit is None or alive[name] <= limit
        assert len(self.pool.leases) <= self.load.max_parallel
        self.most_alive |= alive


def _holder(index: int) -> Holder:
    return Holder(f"task/s/t{index}/1", "r")


A, B, C, D = "alpha", "beta", "gamma", "delta"

SMALL = Workload([(A,), (B,), (A, B)] * 4, 1.0, 2.0, 0.3, 4, {A: None, B: None})
RESETS = Workload(
    [(A,), (B,), (C,), (A, C), (B,), (C,), (A,), (A, B), (C,), (A,), (B, C), (B,)] * 3
    + [(A, B)] * 4,
    *(0.5, 2.0, 1.0, 8),
    {A: 4, B: 4, C: 4},
)
PAIRS = Workload([*combinations((A, B, C, D), 2)] * 10, 1.0, 1.5, 0.3, 10, {A: 2, B: 2, C: 3, D: 3})
"""Each task wants a pair, and there are two or three instances of each environment."""


@pytest.mark.parametrize("load", [SMALL, RESETS, PAIRS], ids=["small", "resets", "pairs"])
def test_a_workload_takes_hardly_longer_than_it_must(load: Workload) -> None:
    assert World(load).makespan() <= 1.2 * load.bound_seconds()


def test_tasks_without_environments_take_as_long_as_their_slots() -> None:
    load = Workload([()] * 20, 1.0, 0.0, 0.0, 4, {})
    assert World(load).makespan() == pytest.approx(5.0)


def test_no_more_instances_are_up_than_tasks_can_use() -> None:
    world = World(Workload([(A,)] * 30, 1.0, 2.0, 0.3, 3, {A: None}))
    world.makespan()
    assert world.most_alive[A] <= 2 * 3, "those in use, and those that are made ready for the next"
