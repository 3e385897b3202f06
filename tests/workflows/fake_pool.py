"""A pool that does what a test says: it hears what tasks ask, and grants when it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.client import Client

from perdure.core.environments import Environment, Port
from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease, Refuse, Renew
from perdure.core.pool_definitions import Definition
from perdure.messages import PoolUse
from perdure.names import (
    ACQUIRE_LEASE,
    LEASE_GRANTED,
    LEASE_LOST,
    LEASE_REFUSED,
    LEASE_RENEWED,
    RELEASE_LEASE,
    REMIND_POOL,
    RESET_LEASE,
    SEE_LEASE,
    SET_DEMAND,
)
from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseReset, LeaseSeen, SetDemand
from tests.waiting import until

USE = PoolUse(pool="recorded", local_words=True)


def definition(name: str, *ports: str) -> dict[str, Any]:
    """An environment with these port variables."""
    environment = Environment(name, "compose.yml", ports={port: Port() for port in ports})
    travelled: dict[str, Any] = json.loads(json.dumps(Definition(environment, "digest").to_json()))
    return travelled


SHOP = definition("shop", "SHOP_PORT")
MAIL = definition("mail", "MAIL_PORT", "MAIL_UI")


@dataclass
class FakePool:
    """What tasks have told, and how they are answered."""

    client: Client
    requests: list[LeaseRequest] = field(default_factory=list)
    seen: list[LeaseSeen] = field(default_factory=list)
    releases: list[LeaseRelease] = field(default_factory=list)
    reminders: list[LeaseRequest] = field(default_factory=list)
    demands: list[SetDemand] = field(default_factory=list)
    at_once: bool = False
    """Grants as soon as it is asked."""
    resets_at_once: bool = True
    number: int = 0
    granted: dict[str, GrantedInstance] = field(default_factory=dict)
    """By environment: the instance of it that was given last."""
    resets: list[LeaseReset] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Environments whose instances cannot be reset."""

    @property
    def activities(self) -> list[Any]:
        """Under their registered names."""
        return [
            self.acquire,
            self.see,
            self.reset,
            self.release,
            self.remind,
            self.set_demand,
        ]

    @activity.defn(name=ACQUIRE_LEASE)
    async def acquire(self, request: LeaseRequest) -> None:
        self.requests.append(request)
        if self.at_once:
            await self.grant(request)

    @activity.defn(name=SEE_LEASE)
    async def see(self, seen: LeaseSeen) -> None:
        self.seen.append(seen)

    @activity.defn(name=RESET_LEASE)
    async def reset(self, asked: LeaseReset) -> None:
        self.resets.append(asked)
        if self.resets_at_once:
            await self.renew(asked)

    @activity.defn(name=RELEASE_LEASE)
    async def release(self, release: LeaseRelease) -> None:
        self.releases.append(release)

    @activity.defn(name=REMIND_POOL)
    async def remind(self, request: LeaseRequest) -> None:
        self.reminders.append(request)

    @activity.defn(name=SET_DEMAND)
    async def set_demand(self, demand: SetDemand) -> None:
        self.demands.append(demand)

    async def asked(self, count: int = 1) -> LeaseRequest:
        """The `count`-th request, as soon as it is there."""
        await until(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def grant(self, request: LeaseRequest, host: str = "here") -> Grant:
        """Give a request what it asks for."""
        instances = [
            self._give(asked["environment"]["name"], asked["digest"], asked["environment"]["ports"])
            for asked in request.environments
        ]
        grant = Grant(
            request.request_id,
            request.holder,
            host if instances else None,
            instances,
            pool_uuid="uuid",
            pool=request.pool,
        )
        await self.tell(request, LEASE_GRANTED, grant)
        return grant

    async def renew(self, asked: LeaseReset) -> None:
        """Reset what is asked for; others take the place of what is broken."""
        for name in self.broken.intersection(asked.environments):
            was = self.granted[name]
            self._give(name, was.key.partition("@")[2], was.ports)
        instances = [self.granted[name] for name in asked.environments]
        renewal = Renew(asked.request_id, asked.holder, asked.number, instances)
        await self.tell(asked, LEASE_RENEWED, renewal)

    def _give(self, name: str, digest: str, variables: Iterable[str]) -> GrantedInstance:
        self.number += 1
        number, ports = self.number, dict.fromkeys(variables, 9000 + self.number)
        project = f"pool_{name}_{number}"
        given = GrantedInstance(number, f"{name}@{digest}", name, project, ports)
        self.granted[name] = given
        return given

    async def refuse(self, request: LeaseRequest, **more: Any) -> None:
        """Never give it what it asks for."""
        facts = {"kind": "environment", "reason": "shop: it did not come up", **more}
        refusal = Refuse(request.request_id, request.holder, **facts)
        await self.tell(request, LEASE_REFUSED, refusal)

    async def lose(self, request: LeaseRequest, *environments: str) -> None:
        """Take instances of its lease away."""
        loss = LoseLease(request.request_id, request.holder, "its container died", [*environments])
        await self.tell(request, LEASE_LOST, loss)

    async def tell(self, request: LeaseRequest | LeaseReset, signal: str, word: Any) -> None:
        """Signal the holder."""
        await self.client.get_workflow_handle(request.holder.workflow_id).signal(signal, word)
