"""A pool for tests of its rules, without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.environments import Environment, Memory, ResetEndpoint
from perdure.core.pool import Pool, PoolOptions
from perdure.core.pool_decisions import (
    CheckInstance,
    Decision,
    Grant,
    ResetInstance,
    StartInstance,
    StopInstance,
)
from perdure.core.pool_definitions import Definition
from perdure.core.pool_fleet import Failure
from perdure.core.pool_hosts import HostFacts
from perdure.core.pool_requests import Request
from perdure.messages import Holder

BROKEN = Failure("it exited with 3", ("last line",))


def env(name: str, *, resets: bool = True, digest: str = "1", **facts: Any) -> Definition:
    if resets:
        facts["reset_endpoints"] = (ResetEndpoint("api", "http://127.0.0.1/reset"),)
    memory = facts.pop("memory", Memory())
    return Definition(Environment(name, **facts), digest, memory=memory)


def holder(name: str, run: str = "run") -> Holder:
    return Holder(f"task/s/{name}/1", run)


def answer_well(pool: Pool, decision: object, now: float) -> None:
    """Tell a pool that an order of it was carried out; what is no order is not answered."""
    match decision:
        case StartInstance():
            pool.answers.started(decision.instance, decision.order, now)
        case ResetInstance():
            pool.answers.reset_done(decision.instance, decision.order, now)
        case CheckInstance():
            pool.answers.checked(decision.instance, decision.order, now)
        case StopInstance():
            pool.answers.stopped(decision.instance, decision.order, now)


class Driver:
    """A pool whose engines do at once what they are told, but for what is held back."""

    def __init__(self, *hosts: str, facts: HostFacts | None = None) -> None:
        # Every lease is looked at, though here no time passes between a reset and a grant.
        self.pool = Pool("0123456789abcdef", options=PoolOptions(fresh_seconds=0.0))
        self.now = 1_000.0
        self.facts = facts or HostFacts()
        self.told: list[Decision] = []
        self.hold: tuple[type, ...] = ()
        """Orders of these kinds are not answered by themselves."""
        for host in hosts or ("h",):
            self.pool.host_joined(host, self.facts, self.now)

    def ask(self, name: str, *environments: Definition, **facts: Any) -> None:
        request = Request(name, holder(name), tuple(environments), **{"suite": "s", **facts})
        self.pool.request(request, self.now)

    def release(self, *names: str) -> list[Decision]:
        for name in names:
            self.pool.release(name, holder(name), self.now)
        return self.go()

    def go(self, seconds: float = 0.0) -> list[Decision]:
        """Decide, and answer, until nothing is left to do; returns what was decided."""
        self.now += seconds
        told: list[Decision] = []
        while decisions := self.pool.decide(self.now):
            told += decisions
            for decision in decisions:
                if not isinstance(decision, self.hold):
                    self.answer(decision)
        self.told += told
        return told

    def answer(self, decision: Decision) -> None:
        answer_well(self.pool, decision, self.now)

    def alive(self) -> dict[str, int]:
        return dict(self.pool.instances.alive())


def of(kind: type, decisions: Iterable[Decision]) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def granted(decisions: Iterable[Decision]) -> list[str]:
    return [grant.request_id for grant in of(Grant, decisions)]
