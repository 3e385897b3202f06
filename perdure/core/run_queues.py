"""A run whose steps wait for slots of named limits, and its clock that stands still meanwhile.

A step that takes a slot waits for it before each attempt: the run says which requests to send
(`take_asks`), hears of grants (`grant`) and says what to give back (`take_releases`). While nothing
else of the task runs, its clock stands still.
"""

from __future__ import annotations

from typing import Any

from perdure.core.record import Attempt, AttemptStatus
from perdure.core.run_slots import RunSlots
from perdure.core.run_state import RunState
from perdure.messages import SlotGrant, SlotRelease, SlotRequest, StepOutcome


class QueuedRun(RunState):
    """A run as it deals with the queues of its server's limits."""

    def grant(self, grant: SlotGrant) -> bool:
        """Take a slot for the step that waits for it; True if one does.

        A slot that nobody here waits for any more is given back.
        """
        slots = self._slots
        if slots is None:
            # No step takes slots: it is meant for an earlier run of the same id.
            self._slots = slots = RunSlots(self.run, {}, self.task.priority)
        return slots.grant(grant.limit, grant.request_id)

    def take_asks(self) -> list[SlotRequest]:
        """The requests for slots to send, each handed out once."""
        return self._slots.take_asks() if self._slots else []

    def take_releases(self) -> list[SlotRelease]:
        """The slots to give back and the queues to leave, each handed out once."""
        return self._slots.take_releases() if self._slots else []

    @property
    def open_requests(self) -> list[SlotRequest]:
        """What was asked and has not been granted yet."""
        return self._slots.requests if self._slots else []

    @property
    def deadline(self) -> float | None:
        """When the task's time is up, as of now.

        None without a limit, and while the clock stands still: nothing runs, and something waits
        for a slot, or the run for its lease. A run that starts over has all of its time again.
        """
        still = self._slots.still_seconds if self._slots else 0.0
        if self.timeout_seconds is None or still is None:
            return None
        if self._lease is None:
            return self.started_at + self.timeout_seconds + still
        if self._lease.state == "waiting":
            return None
        began = self._lease.since + self._lease.waited
        return began + self.timeout_seconds + still

    # --- For the rules ----------------------------------------------------------------------

    def _with_slots(self, slots: RunSlots, ready: list[str], now: float) -> list[str]:
        """Those of the ready steps that need no slot, and those whose slots have come."""
        starting = [s for s in slots.granted if s not in self._running]
        for step_id in starting:
            self._steps[step_id].waited += slots.waited(step_id, now)
        for step_id in ready:
            record = self._steps[step_id]
            limit = self.task.steps[self._graph.index(step_id)].limit
            if limit is None:
                starting.append(step_id)
                continue
            attempt = f"{step_id}#{self.epoch}.{len(record.attempts) + 1}"
            slots.ask(step_id, limit, attempt, now)
            record.status, record.not_before = "waiting", None
            self._note("step.waiting", now, step=step_id, limit=limit)
        return sorted(starting, key=self._graph.index)

    def _end(
        self,
        step_id: str,
        attempt: Attempt,
        status: AttemptStatus,
        outcome: StepOutcome | None,
        now: float,
    ) -> None:
        """An attempt has ended, and gives its slot back."""
        del self._running[step_id]
        attempt.end(status, outcome, now)
        if self._slots:
            self._slots.give_back(step_id)
            self._set_clock(now)
        self.rev += 1
        told: dict[str, Any] = {"seconds": attempt.duration_seconds}
        if attempt.failure:
            told["error"] = attempt.failure.message
            told["error_type"] = attempt.failure.type
        name = {"succeeded": "completed"}.get(status, status)
        self._note(f"step.{name}", now, step=step_id, attempt=attempt.number, **told)

    def _leave_queues(self, now: float) -> None:
        """Give back every slot that no running attempt holds, and wait for no more."""
        if self._slots:
            for step_id in [*self._slots.waiting, *self._slots.granted]:
                self._leave_queue(self._slots, step_id, now)
            self._set_clock(now)

    def _leave_queue(self, slots: RunSlots, step_id: str, now: float) -> None:
        if step_id not in self._running:
            self._steps[step_id].waited += slots.waited(step_id, now)
            slots.give_back(step_id)

    def _set_clock(self, now: float) -> None:
        if self._slots:
            self._slots.set_clock(running=self._is_at_work, now=now)

    @property
    def _is_at_work(self) -> bool:
        """Whether the run does something itself, waiting aside."""
        return bool(self._running)
