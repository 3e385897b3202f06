"""Workloads for the pool: how long they must take, and what their instances' log proves.

The files in `workloads/` say what tasks there are, what they need, and how long starts, resets,
stops and tasks take. Each states its lower bound and how it is computed.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("workloads")


@dataclass(frozen=True)
class Workload:
    """One file."""

    name: str
    max_parallel: int
    envs: dict[str, dict[str, Any]]
    tasks: list[dict[str, Any]]
    bound_seconds: float

    @classmethod
    def read(cls, path: Path) -> Workload:
        """Raises ValueError: the file states another bound than its own rule gives."""
        found = json.loads(path.read_text())
        load = cls(
            found["name"],
            found["max_parallel"],
            found["envs"],
            found["tasks"],
            found["lower_bound_s"],
        )
        if not math.isclose(load.bound_seconds, load._bound(), abs_tol=0.05):
            raise ValueError(f"{path}: the bound is {load._bound():.2f} s by its own rule")
        return load

    def _bound(self) -> float:
        def ready(task: dict[str, Any]) -> float:
            return max(self.envs[e]["start_s"] + self.envs[e]["reset_s"] for e in task["envs"])

        users: dict[str, list[float]] = defaultdict(list)
        for task in self.tasks:
            for name in task["envs"]:
                users[name].append(task["seconds"])
        busiest = [
            self.envs[name]["start_s"]
            + math.ceil(len(seconds) / limit) * (self.envs[name]["reset_s"] + min(seconds))
            for name, seconds in users.items()
            if (limit := self.envs[name]["max_instances"])
        ]
        longest = max(ready(task) + task["seconds"] for task in self.tasks)
        total = sum(task["seconds"] for task in self.tasks)
        slots = min(map(ready, self.tasks)) + total / self.max_parallel
        return max(longest, slots, *busiest)


@dataclass(frozen=True)
class Kept:
    """What a log says of a run."""

    most_alive: dict[str, int]
    """Instances of each environment at a time, from their first moment to their last one."""
    most_in_use: int
    """Tasks at a time."""
    starts: int
    resets: int
    faults: list[str]
    """What must not be."""


def judged(load: Workload, lines: Iterable[str]) -> Kept:
    """Look through the log of all instances of a run of the workload."""
    events = sorted(map(json.loads, lines), key=lambda event: float(event["at"]))
    alive: Counter[str] = Counter()
    most_alive: Counter[str] = Counter()
    busy: dict[int, str] = {}
    clean: set[int] = set()
    running: Counter[str] = Counter()
    most = 0
    faults: list[str] = []
    for event in events:
        name, instance, task = event["environment"], event["instance"], event["task"]
        who = f"{name} on port {instance}"
        match event["what"]:
            case "start":
                alive[name] += 1
                most_alive |= alive
            case "gone":
                alive[name] -= 1
                clean.discard(instance)
                if instance in busy:
                    faults.append(f"{who} was stopped during {busy.pop(instance)}")
            case "reset begins" | "use begins" as what:
                doing = f"the use by {task}" if task else "a reset"
                if instance in busy:
                    faults.append(f"{who}: {doing} during {busy[instance]}")
                if what == "use begins" and instance not in clean:
                    faults.append(f"{who} was not reset before {doing}")
                busy[instance] = doing
                clean.discard(instance)
                if task:
                    running[task] += 1
                    most = max(most, len(running))
            case "reset ends":
                clean.add(instance)
                busy.pop(instance, None)
            case "use ends":
                busy.pop(instance, None)
                running[task] -= 1
                running += Counter()  # without those that are done
    for name, env in load.envs.items():
        limit = env["max_instances"]
        if limit is not None and most_alive[name] > limit:
            faults.append(f"{most_alive[name]} instances of {name} at a time, {limit} allowed")
    if most > load.max_parallel:
        faults.append(f"{most} tasks at a time, {load.max_parallel} allowed")
    if left := sum(alive.values()):
        faults.append(f"{left} instances are still there")
    counts = Counter(event["what"] for event in events)
    used = {event["task"] for event in events if event["what"] == "use ends"}
    if missing := {task["id"] for task in load.tasks} - used:
        faults.append(f"{len(missing)} tasks used nothing: {', '.join(sorted(missing)[:5])}")
    return Kept(dict(most_alive), most, counts["start"], counts["reset ends"], faults)
