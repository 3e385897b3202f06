"""Takes leases one after another, of perdure's pool or of the entity written by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from entity import Wish

    from perdure.messages import Holder
    from perdure.names import ACQUIRE_LEASE, RELEASE_LEASE
    from perdure.pool_messages import LeaseRelease, LeaseRequest

_OPTIONS = workflow.ActivityConfig(start_to_close_timeout=timedelta(seconds=60))


@dataclass(frozen=True)
class Cycles:
    """Start of a Requester."""

    count: int
    request: LeaseRequest
    """Its ids are the requester's own."""
    entity: str | None = None
    """Workflow id of the entity that is asked; None: the pool is."""


@workflow.defn
class Requester:
    """Asks, waits for the grant, gives back, and so on."""

    def __init__(self) -> None:
        self._granted: set[str] = set()

    @workflow.run
    async def run(self, start: Cycles) -> list[float]:
        """How long each grant took, in seconds."""
        info = workflow.info()
        holder = Holder(info.workflow_id, info.first_execution_run_id)
        waited = []
        for number in range(start.count):
            name = f"{info.run_id}:{number}"
            request = replace(start.request, request_id=name, holder=holder)
            began = workflow.time()
            if start.entity:
                wish = Wish(name, info.workflow_id, request)
                await workflow.execute_activity(
                    "acquire_by_hand", args=[start.entity, wish], **_OPTIONS
                )
            else:
                await workflow.execute_activity(ACQUIRE_LEASE, request, **_OPTIONS)
            await workflow.wait_condition(lambda: name in self._granted)  # noqa: B023
            waited.append(workflow.time() - began)
            if start.entity:
                await workflow.execute_activity(
                    "release_by_hand", args=[start.entity, name], **_OPTIONS
                )
            else:
                release = LeaseRelease(request.pool, name, holder)
                await workflow.execute_activity(RELEASE_LEASE, release, **_OPTIONS)
        return waited

    @workflow.signal
    def lease_granted(self, grant: dict[str, Any]) -> None:
        """A lease is there."""
        self._granted.add(grant["request_id"])
