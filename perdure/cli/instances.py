"""The instances and waiting tasks of a pool, in words: for the live picture, and as lines.

A view is what the pool's query `view` answers (`perdure.core.pool_view`).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.cli.console import printable
from perdure.cli.times import span

View = Mapping[str, Any]

NAMES = {"in_use": "in use", "starting": "starting", "available": "idle", "stopping": "stopping"}
"""The states of instances, as people read them, in the order in which they are told."""

DOING = {
    "starting": "starting",
    "dirty": "to be reset",
    "resetting": "resetting",
    "clean": "idle",
    "checking": "being checked",
    "leased": "in use",
    "renewing": "resetting for its task",
    "replacing": "starting for its task",
    "stopping": "stopping",
}
"""What an instance is at, exactly."""

STARTING = ("starting", "replacing")

PATIENCE_SECONDS = 5.0
"""A task that has waited so long for one and the same thing is told of."""

REASON_CHARACTERS = 300

_MEASURED = re.compile(r"\d+\.\d GB")


def counts(instances: Collection[View]) -> str:
    """`3 in use, 1 starting, 2 idle`; empty if there is none."""
    states = Counter(instance["state"] for instance in instances)
    return ", ".join(f"{states[state]} {name}" for state, name in NAMES.items() if states[state])


def ports_text(ports: Mapping[str, int]) -> str:
    """`SHOP_PORT=18080 SHOP_ADMIN=18081`."""
    return " ".join(f"{variable}={number}" for variable, number in ports.items())


def named(instance: View) -> str:
    """What people call an instance: environment and project."""
    return f"{printable(instance['env_name'])} ({printable(instance['project_name'])})"


def reason_of(instance: View) -> str:
    """Why it is stopping, without its environment's name: that stands beside."""
    name = f"environment {instance['env_name']}"
    bare = instance["reason"].removeprefix(f"{name}: ").removeprefix(f"{name}, ")
    return printable(bare, REASON_CHARACTERS)


@dataclass(frozen=True)
class Seen:
    """A pool, as far as it concerns one suite."""

    instances: Collection[View] = ()
    """Of the suite's environments, whoever has them."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """By workflow id of a task that has no lease yet: what it waits for."""

    @property
    def line(self) -> str:
        """`instances: 3 in use, 1 starting`; empty if there is none."""
        told = counts(self.instances)
        return f"instances: {told}" if told else ""


def seen_by(suite: str, environments: Collection[str], view: View) -> Seen:
    """What of a pool concerns a suite: the instances that it could have, and its own tasks."""
    waits = {
        waiter["holder"]: waiter["waits_for"] or _wanted(waiter["environments"])
        for waiter in view["waiting"]
        if waiter["suite"] == suite
    }
    for lease in view["leases"]:
        if lease["suite"] == suite and lease["state"] == "checking":
            waits[lease["holder"]] = f"looking at {_wanted(lease['environments'])}"
    instances = [i for i in view["instances"] if i["env_name"] in environments]
    return Seen(instances, waits)


def _wanted(environments: Collection[str]) -> str:
    return ", ".join(environments) or "a free place"


class Teller:
    """Tells of a pool by lines, each once: what comes up, what fails, what is long in coming."""

    def __init__(self) -> None:
        self._known: dict[int, View] = {}
        self._waited: dict[str, float] = {}
        """Since when some task waits for this."""
        self._told: set[str] = set()

    def lines(self, seen: Seen, now: float | None = None) -> list[str]:
        """What is new since the last call. `now`: seconds since 1970."""
        now = time.time() if now is None else now
        return [*self._of_instances(seen.instances), *self._of_waits(seen.waits, now)]

    def _of_instances(self, instances: Collection[View]) -> list[str]:
        told = []
        for instance in instances:
            before = self._known.get(instance["number"])
            told += _news(before, instance)
        self._known = {instance["number"]: instance for instance in instances}
        return told

    def _of_waits(self, waits: Mapping[str, str], now: float) -> list[str]:
        # A figure that is measured again and again makes no new reason.
        reasons = {_MEASURED.sub("", reason): reason for reason in waits.values()}
        counted = Counter(_MEASURED.sub("", reason) for reason in waits.values())
        self._waited = {kind: self._waited.get(kind, now) for kind in counted}
        told = []
        for kind, count in counted.items():
            is_long = now - self._waited[kind] >= PATIENCE_SECONDS
            if is_long and kind not in self._told:
                self._told.add(kind)
                reason = reasons[kind]
                tasks = "1 task waits" if count == 1 else f"{count} tasks wait"
                told.append(f"{tasks} for an environment: {printable(reason, REASON_CHARACTERS)}")
        return told


def _news(before: View | None, after: View) -> list[str]:
    """What has become of an instance, if that is worth a line."""
    name, state = named(after), after["doing"]
    was = before["doing"] if before else None
    ports = ports_text(after["ports"])
    others = ports if before and before["ports"] != after["ports"] else ""  # the told were in use
    if state == was:
        is_news = others and state in STARTING
        return [f"environment {name}: starting with other ports: {others}"] if is_news else []
    on = " ".join(filter(None, ["on", printable(after["host"]), ports and f"with {ports}"]))
    if state in STARTING and was not in STARTING:
        return [f"environment {name}: starting {on}"]
    if state == "stopping":
        return [f"environment {name}: stopping: {reason_of(after)}"]
    if before is None:  # it was there before we looked, or was quick
        return [f"environment {name}: up {on}"]
    if was in STARTING and state not in STARTING:
        after_all = f"environment {name}: up after {span(after['since'] - before['since'])}"
        return [f"{after_all} with other ports: {others}" if others else after_all]
    return []
