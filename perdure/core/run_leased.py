"""A run that waits for its environments, and starts over when it loses them.

Before its first step the run asks its pool for a lease, and says what else is to be told to the
pool (`take_lease_words`). Meanwhile its clock stands still. When instances of the lease are lost,
nothing new is started, what runs is cancelled by the workflow, and after its end the run begins
again with another lease, once (`on_instance_lost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from perdure.core.journal import SCHEDULER, Entry
from perdure.core.pool_decisions import Grant, LoseLease, Refuse
from perdure.core.record import Attempt, AttemptStatus, utc_iso
from perdure.core.run_lease import LostLease
from perdure.core.run_queues import QueuedRun
from perdure.core.run_state import RunFailure
from perdure.messages import StepInstance, StepOutcome
from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseReset, LeaseSeen

LeaseWord = LeaseRequest | LeaseSeen | LeaseReset | LeaseRelease

ENVIRONMENT_FAILED = "EnvironmentFailed"
"""Type of the failure of a task that can have no environments."""

INSTANCE_LOST = "InstanceLost"
"""Type of the failure of a task that lost its environments too often."""

LOG_ENDS_WITH = "\nits log ends with:\n"
"""Between a failure's reason and the last lines of what failed."""

RESTARTS = 1
"""How often a run starts over after it lost its environments."""


class LeasedRun(QueuedRun):
    """A run as it deals with its pool."""

    # --- What the pool says -----------------------------------------------------------------

    def lease_granted(self, grant: Grant, now: float) -> bool:
        """Take the lease that the run waits for; False if it waits for none, or for another."""
        lease = self._lease
        if lease is None:  # it is meant for an earlier run of the same id
            if grant.pool:
                self._stray_releases.append(
                    LeaseRelease(grant.pool, grant.request_id, grant.holder)
                )
            return False
        if not lease.take(grant, now):
            return False
        self._note(
            "lease.granted",
            now,
            request_id=lease.request_id,
            host=grant.host,
            instances=lease.recorded_instances(),
            seconds=lease.waited,
        )
        return True

    def lease_refused(self, refusal: Refuse, now: float) -> bool:
        """The pool cannot give what the task needs, ever: the task fails for that reason."""
        lease = self._lease
        if lease is None or not lease.refuse(refusal, now):
            return False
        self._note(
            "lease.refused",
            now,
            request_id=lease.request_id,
            failure=refusal.kind,
            reason=refusal.reason,
        )
        if not self.halted:
            self.failure = RunFailure(None, _told(refusal), ENVIRONMENT_FAILED, refusal.kind)
        return True

    def lease_lost(self, loss: LoseLease, now: float) -> bool:
        """Instances of the lease are gone; False if that is no news to the run."""
        if self._lease is None or not self._lease.lose(loss, now):
            return False
        self._lost(loss.environments, loss.reason, now)
        return True

    # --- What is to be told to the pool -----------------------------------------------------

    def take_lease_words(self) -> list[LeaseWord]:
        """What is to be sent to the pool, each handed out once."""
        releases, self._stray_releases = self._stray_releases, []
        if self._lease is None:
            return [*releases]
        lease = self._lease
        # Given back before asked again: a suite's slot is the same one.
        return [*releases, *lease.take_releases(), *lease.take_requests(), *lease.take_seen()]

    @property
    def open_lease(self) -> LeaseRequest | None:
        """What was asked of the pool and has not been granted yet."""
        lease = self._lease
        return lease.request if lease and lease.state == "waiting" else None

    # --- What the workflow does about it ----------------------------------------------------

    @property
    def lease_host(self) -> str | None:
        """Where the run's instances are, and so its steps; None: it has none."""
        lease = self._lease
        return lease.grant.host if lease and lease.state == "held" and lease.grant else None

    @property
    def instances(self) -> list[StepInstance]:
        """The instances that the run holds, in the order of the task's environments."""
        return self._lease.for_steps() if self._lease and self._lease.state == "held" else []

    @property
    def is_parting(self) -> bool:
        """Whether what runs is to be cancelled, since instances under it are gone."""
        return self._lease is not None and self._lease.state == "lost"

    @property
    def may_start(self) -> bool:
        """Whether steps may be started, as far as the lease goes."""
        return self._lease is None or self._lease.state == "held"

    @property
    def restarts(self) -> int:
        """How often the run has started over."""
        return self._lease.restarts if self._lease else 0

    # --- For the rules ----------------------------------------------------------------------

    def _lost(self, environments: Sequence[str], reason: str, now: float) -> None:
        lease = self._lease
        assert lease is not None
        self._note(
            "lease.lost",
            now,
            request_id=lease.request_id,
            environments=[*environments],
            reason=reason,
        )
        if not self.halted and not self._may_restart:
            self.failure = RunFailure(None, self._told_loss(reason), INSTANCE_LOST,
                                      "infrastructure")  # fmt: skip
        self._leave_queues(now)
        self._part(now)

    def _miss(self, outcome: StepOutcome, now: float) -> bool:
        """Whether an attempt that failed found instances of the lease gone; then they are lost."""
        lease = self._lease
        if lease is None or not outcome.lost:
            return False
        reason = "; ".join(outcome.lost.values())
        if lease.miss(outcome.lost, reason, now):
            self._lost(list(outcome.lost), reason, now)
        return True

    @property
    def _is_parting_to_restart(self) -> bool:
        return self.is_parting and not self.halted

    def _drop(
        self,
        step_id: str,
        attempt: Attempt,
        status: AttemptStatus,
        outcome: StepOutcome | None,
        now: float,
    ) -> None:
        """An attempt has ended whose step begins anew, whatever it came to."""
        self._end(step_id, attempt, status, outcome, now)
        self._steps[step_id].status = "pending"
        self._part(now)

    def _part(self, now: float) -> None:
        """Start over as soon as nothing of the lost life runs any more."""
        lease = self._lease
        if lease is None or not self._is_parting_to_restart or self._running:
            return
        loss = lease.losses[-1]
        self._give_lease_back(now)
        lease.restarts += 1
        self.epoch += 1
        self.rev += 1
        self._waiting = []
        self._completed = [step.id for step in self.task.steps[: self.start_step]]
        for record in self._steps.values():
            record.start_over(done=record.id in self._completed, epoch=self.epoch)
        self._frontier = self._new_frontier()
        self._context = self._context.restarted()
        self._context.write(
            Entry(SCHEDULER, len(lease.losses), self.epoch, "succeeded", [_mark(loss)])
        )
        if self._slots:
            self._slots.start_clock_anew()
        self._note("task.restarted", now, epoch=self.epoch, reason=loss.reason)
        lease.ask(now)
        self._note_request(now)

    def _give_lease_back(self, now: float) -> None:
        if self._lease and self._lease.give_back(now):
            self._note("lease.released", now, request_id=self._lease.request_id)

    def _leave_queues(self, now: float) -> None:
        super()._leave_queues(now)
        if self.halted and self._lease and self._lease.state == "waiting":
            self._give_lease_back(now)

    @property
    def _may_restart(self) -> bool:
        assert self._lease is not None
        return self.task.on_instance_lost == "restart" and len(self._lease.losses) <= RESTARTS

    def _told_loss(self, reason: str) -> str:
        assert self._lease is not None
        losses = len(self._lease.losses)
        if losses > 1:
            return f"its environments were lost {losses} times, the last time: {reason}"
        return f"its environments were lost under it: {reason}"


def _told(refusal: Refuse) -> str:
    lines = "\n".join(refusal.log)
    return f"{refusal.reason}{LOG_ENDS_WITH}{lines}" if lines else refusal.reason


def _mark(loss: LostLease) -> dict[str, Any]:
    """The operation that notes a loss in the context of the new start."""
    told = {**asdict(loss), "at_utc": utc_iso(loss.at)}
    del told["at"]
    return {"op": "edit", "path": ["metadata", "leases_lost"], "remove": [], "append": [told]}
