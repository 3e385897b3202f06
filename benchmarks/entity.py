"""The baseline of the pool: an entity workflow written by hand, first come, first served.

Its messages are those of perdure's pool, one for one: a request and a release by signals from
activities, a grant by a signal, and where there are instances, an order and an answer between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client


@dataclass(frozen=True)
class Wish:
    """Of a requester to the entity."""

    request_id: str
    workflow_id: str
    cargo: Any = None
    """As much as a real request carries."""


@dataclass(frozen=True)
class EntityInput:
    """Start of an Entity."""

    slots: int
    instances: list[str] = field(default_factory=list)
    """Workflow ids of those that are looked at before each grant; empty: none are."""
    held: dict[str, str] = field(default_factory=dict)
    """By request: its instance. Carried over a continue-as-new, as what follows."""
    waiting: list[Wish] = field(default_factory=list)
    free: list[str] | None = None


@activity.defn
async def look() -> bool:
    """Whether an instance is healthy."""
    return True


@workflow.defn
class Instance:
    """Answers orders."""

    def __init__(self) -> None:
        self._orders: deque[tuple[str, str]] = deque()

    @workflow.run
    async def run(self) -> None:
        """For ever."""
        while True:
            await workflow.wait_condition(lambda: bool(self._orders))
            entity, request_id = self._orders.popleft()
            await workflow.execute_local_activity(
                look, start_to_close_timeout=timedelta(seconds=10)
            )
            handle = workflow.get_external_workflow_handle(entity)
            await handle.signal("answered", request_id)
            if workflow.info().is_continue_as_new_suggested() and not self._orders:
                workflow.continue_as_new()

    @workflow.signal
    def order(self, order: tuple[str, str]) -> None:
        """Look whether it is healthy."""
        self._orders.append((order[0], order[1]))


@workflow.defn
class Entity:
    """Hands out slots."""

    @workflow.init
    def __init__(self, start: EntityInput) -> None:
        self._start = start
        self._held = dict(start.held)
        self._waiting = deque(start.waiting)
        self._free = deque(start.instances if start.free is None else start.free)
        self._asked: dict[str, Wish] = {}
        self._telling = 0
        self._over = False

    @workflow.run
    async def run(self, start: EntityInput) -> None:
        """Until told to end."""
        while not self._over:
            await workflow.wait_condition(
                lambda: self._over or workflow.info().is_continue_as_new_suggested()
            )
            if not self._over:
                await workflow.wait_condition(lambda: not self._telling and not self._asked)
                workflow.continue_as_new(
                    EntityInput(
                        start.slots,
                        start.instances,
                        self._held,
                        list(self._waiting),
                        list(self._free),
                    )
                )

    @workflow.signal
    def request(self, wish: Wish) -> None:
        """Wait for a slot."""
        self._waiting.append(wish)
        self._serve()

    @workflow.signal
    def release(self, request_id: str) -> None:
        """Give a slot back."""
        if instance := self._held.pop(request_id, None):
            self._free.append(instance)
        self._serve()

    @workflow.signal
    def answered(self, request_id: str) -> None:
        """An instance is healthy."""
        wish = self._asked.pop(request_id)
        self._send(wish.workflow_id, "lease_granted", {"request_id": request_id})

    @workflow.signal
    def end(self) -> None:
        """No more."""
        self._over = True

    def _serve(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            return
        while self._waiting and len(self._held) < self._start.slots:
            wish = self._waiting.popleft()
            if not self._start.instances:
                self._held[wish.request_id] = ""
                self._send(wish.workflow_id, "lease_granted", {"request_id": wish.request_id})
                continue
            instance = self._held[wish.request_id] = self._free.popleft()
            self._asked[wish.request_id] = wish
            order = (workflow.info().workflow_id, wish.request_id)
            self._send(instance, "order", order)

    def _send(self, workflow_id: str, signal: str, word: Any) -> None:
        async def send() -> None:
            await workflow.get_external_workflow_handle(workflow_id).signal(signal, word)
            self._telling -= 1

        self._telling += 1
        asyncio.create_task(send())  # noqa: RUF006


class ByHand:
    """The activities that talk to an Entity."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn(name="acquire_by_hand")
    async def acquire(self, entity: str, wish: Wish) -> None:
        """Ask."""
        await self._client.get_workflow_handle(entity).signal("request", wish)

    @activity.defn(name="release_by_hand")
    async def release(self, entity: str, request_id: str) -> None:
        """Give back."""
        await self._client.get_workflow_handle(entity).signal("release", request_id)
