"""LimitWorkflow: the slots of one named limit, for all suites of a server.

Tasks ask and give back by signals, sent with the start of this workflow if it is not there; a grant
is a signal to the task. It is there as long as anybody holds a slot or waits, and a little longer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from perdure.core.limits import Limit
    from perdure.messages import (
        Holder,
        LimitInput,
        ProbeHolders,
        SlotGrant,
        SlotRelease,
        SlotRequest,
    )
    from perdure.names import (
        LIMIT_WORKFLOW,
        PROBE_HOLDERS,
        REQUEST_SLOT,
        SLOT_GRANTED,
        SLOT_RELEASED,
    )
    from workflows.options import LIMIT_IDLE, LIMIT_PROBE_INTERVAL, PROBE


@workflow.defn(name=LIMIT_WORKFLOW)
class LimitWorkflow:
    """Hands out the slots of one limit, and takes back those of tasks that are gone."""

    @workflow.init
    def __init__(self, start: LimitInput) -> None:
        self._start = start
        self._limit = Limit()
        self._idle = _seconds(start.options.idle_seconds, LIMIT_IDLE)
        self._interval = _seconds(start.options.probe_seconds, LIMIT_PROBE_INTERVAL)
        self._next_probe = workflow.time() + self._interval.total_seconds()
        self._announcing = 0
        self._draining = False
        self._stirred = False
        if start.state:
            self._limit = Limit.from_state(start.state["limit"])
            self._next_probe = start.state["next_probe"]

    @workflow.run
    async def run(self, start: LimitInput) -> None:
        """Serve requests until nobody has held a slot, or waited for one, for a minute."""
        # Kept alive by the sleeps and activities that it awaits.
        probe = asyncio.create_task(self._probe())
        while True:
            self._draining = self._draining or self._history_is_long()
            if self._draining and not self._announcing:
                workflow.continue_as_new(self._carried_over())
            if not self._draining:  # a grant while draining would always be in the air
                for grant in self._limit.take_grants(workflow.time()):
                    self._announcing += 1
                    asyncio.create_task(self._announce(grant))  # noqa: RUF006
            self._stirred = False
            if not await self._stirs_in_time():
                break
        probe.cancel()

    @workflow.signal(name=REQUEST_SLOT)
    def request_slot(self, request: SlotRequest) -> None:
        """A task asks for a slot. Told twice, it counts once."""
        self._limit.request(request, workflow.time())
        self._stirred = True

    @workflow.signal(name=SLOT_RELEASED)
    def slot_released(self, release: SlotRelease) -> None:
        """A task gives a slot back, or waits for it no more. Told twice, it counts once."""
        self._limit.release(release.request_id)
        self._stirred = True

    @workflow.query
    def limit(self) -> dict[str, Any]:
        """Who holds a slot and who waits."""
        return {"limit": self._start.limit, **self._limit.view()}

    @workflow.query
    def unknown(self, request_ids: list[str]) -> list[str]:
        """Those of these requests of which nothing is known."""
        return self._limit.unknown(request_ids)

    # --- Inside -----------------------------------------------------------------------------

    async def _stirs_in_time(self) -> bool:
        """Wait for something to happen; False if nothing does while nobody is here."""
        if not self._limit.idle:
            await workflow.wait_condition(lambda: self._stirred)
            return True
        try:
            await workflow.wait_condition(
                lambda: self._stirred, timeout=self._idle, timeout_summary="nobody is here"
            )
        except TimeoutError:
            # A signal that the server has and we have not seen makes it refuse our end: then
            # this workflow task is done again, with the signal.
            return not self._limit.idle
        return True

    async def _announce(self, grant: SlotGrant) -> None:
        holder = self._limit.holder(grant.request_id)
        if holder:
            # By its id alone: the task may have continued as new. A later task of the same id
            # does not know the grant, and gives it back.
            task = workflow.get_external_workflow_handle(holder.workflow_id)
            try:
                await task.signal(SLOT_GRANTED, grant)
            except FailureError:  # it is closed
                self._limit.release(grant.request_id)
        self._announcing -= 1
        self._stirred = True

    async def _probe(self) -> None:
        """Look from time to time whether those who hold or wait are still there."""
        while True:
            await workflow.wait_condition(lambda: not self._limit.idle)
            delay = timedelta(seconds=max(0.001, self._next_probe - workflow.time()))
            await workflow.sleep(delay, summary="next look at the holders")
            if holders := self._limit.holders:
                gone: list[Holder] = await workflow.execute_activity(
                    PROBE_HOLDERS, ProbeHolders(holders), result_type=list[Holder], **PROBE
                )
                for holder in gone:
                    self._limit.close(holder)
                self._stirred = True
            self._next_probe = workflow.time() + self._interval.total_seconds()

    def _history_is_long(self) -> bool:
        info, limit = workflow.info(), self._start.options.history_limit_events
        return info.is_continue_as_new_suggested() or (
            limit is not None and info.get_current_history_length() >= limit
        )

    def _carried_over(self) -> LimitInput:
        return replace(
            self._start,
            state={"limit": self._limit.state(), "next_probe": self._next_probe},
        )


def _seconds(given: float | None, default: timedelta) -> timedelta:
    return default if given is None else timedelta(seconds=given)
