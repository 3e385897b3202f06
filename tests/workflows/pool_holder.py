"""Workflows that hold leases for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.messages import Holder
    from perdure.names import ACQUIRE_LEASE, RELEASE_LEASE
    from perdure.pool_messages import LeaseRelease, LeaseRequest

_OPTIONS = workflow.ActivityConfig(start_to_close_timeout=timedelta(seconds=60))


@workflow.defn
class HolderWorkflow:
    """Keeps what its pool tells it, and ends when told to."""

    def __init__(self) -> None:
        self._heard: list[tuple[str, dict[str, Any]]] = []
        self._over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._over)

    @workflow.signal
    def lease_granted(self, grant: dict[str, Any]) -> None:
        self._heard.append(("granted", grant))

    @workflow.signal
    def lease_refused(self, refusal: dict[str, Any]) -> None:
        self._heard.append(("refused", refusal))

    @workflow.signal
    def lease_renewed(self, renewal: dict[str, Any]) -> None:
        self._heard.append(("renewed", renewal))

    @workflow.signal
    def lease_lost(self, loss: dict[str, Any]) -> None:
        self._heard.append(("lost", loss))

    @workflow.signal
    def end(self) -> None:
        self._over = True

    @workflow.query
    def heard(self) -> list[tuple[str, dict[str, Any]]]:
        """Each word and what it said, in order."""
        return self._heard


@workflow.defn
class BusyHolderWorkflow:
    """Takes leases one after another, all by itself: asking it how it is would cost more."""

    def __init__(self) -> None:
        self._granted: list[str] = []

    @workflow.run
    async def run(self, count: int, request: LeaseRequest, queue: str | None = None) -> list[str]:
        """All grants that it was told, in order; it had asked for `count`.

        `queue`: where its words are sent from; None: its own.
        """
        info, options = workflow.info(), _OPTIONS | workflow.ActivityConfig(task_queue=queue)
        holder = Holder(info.workflow_id, info.first_execution_run_id)
        for number in range(1, count + 1):
            name = f"{number}"
            asked = replace(request, request_id=f"{holder.run_id}:{number}", holder=holder)
            await workflow.execute_activity(ACQUIRE_LEASE, asked, **options)
            await workflow.wait_condition(lambda: name in self._granted)  # noqa: B023
            release = LeaseRelease(request.pool, asked.request_id, holder)
            await workflow.execute_activity(RELEASE_LEASE, release, **options)
        return self._granted

    @workflow.signal
    def lease_granted(self, grant: dict[str, Any]) -> None:
        self._granted.append(grant["request_id"].partition(":")[2])
