"""A run whose steps and people have background jobs beside it.

A job is launched only while the run goes on (`job_refusal`), and none outlives it: when the run has
come to its end, or has lost its environments, what still runs is stopped (`take_jobs_to_stop`)
before the lease is given back. A rollback stops those of its span (`perdure.core.run_span`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.job_book import Job
from perdure.core.rollback import Rollback
from perdure.core.run_leased import LeasedRun
from perdure.job_messages import JobEnd, JobLaunch, JobOrigin

ENDING = "the task is ending: no job can be launched"
TERMINATED = "its workflow was terminated"
"""Of a job of which nobody can tell how it ended."""


class JobsRun(LeasedRun):
    """A run as it deals with its jobs."""

    is_stopping_jobs = False
    """Whether what `take_jobs_to_stop` has asked for is under way."""

    # --- Launching --------------------------------------------------------------------------

    def job_refusal(self, launch: JobLaunch) -> str | None:
        """Why a job cannot be launched now, and what to do; None: it can, or it was already."""
        if self.jobs.get(launch.exec_id):
            return None
        if self.halted or self.over:
            return ENDING
        return (
            self._stale(launch.origin)
            or self._homeless(launch.spec.environment)
            or self.jobs.refusal(launch)
        )

    def claim_job(self, launch: JobLaunch, now: float) -> Job:
        """Take a place for a job that is not refused, and tell then whether it was started."""
        return self.jobs.claim(launch, now)

    def job_started(self, exec_id: str, now: float) -> None:
        """The server knows the job's workflow."""
        if job := self.jobs.started(exec_id):
            self._note("job.launched", now, **_told(job))

    def job_not_started(self, exec_id: str, now: float) -> None:
        """It was not started; its place is free again."""
        if self.jobs.give_back(exec_id):
            self._part(now)

    def job_ended(self, end: JobEnd, now: float) -> bool:
        """A job has ended; False if that is no news, or no job of this run."""
        self.job_started(end.exec_id, now)  # its end may come before the word of its start
        job = self.jobs.ended(end)
        if job is None:
            return False
        self._note("job.ended", now, **_told(job), status=end.status, error=end.error)
        self._part(now)
        return True

    # --- Stopping ---------------------------------------------------------------------------

    def take_jobs_to_stop(self) -> list[str]:
        """The jobs to be stopped, all at once, since the run is over or parts from its lease.

        Handed out once; tell `jobs_stopped` when all have ended. None while one is being started:
        who is not there yet cannot be stopped.
        """
        if self.is_stopping_jobs or self.jobs.starting or not (self.over or self.is_parting):
            return []
        exec_ids = [job.exec_id for job in self.jobs.running]
        self.is_stopping_jobs = bool(exec_ids)
        return exec_ids

    def jobs_stopped(self, exec_ids: Sequence[str], ends: Sequence[JobEnd], now: float) -> None:
        """What `take_jobs_to_stop` has asked for is done."""
        self.is_stopping_jobs = False
        self.jobs_gone(exec_ids, ends, now)

    def jobs_gone(self, exec_ids: Sequence[str], ends: Sequence[JobEnd], now: float) -> None:
        """None of these runs any more; of one without an `end` nobody can tell how it ended."""
        known = {end.exec_id: end for end in ends}
        for exec_id in exec_ids:
            lost = JobEnd(exec_id, "lost", TERMINATED, ended_at=now)
            self.job_ended(known.get(exec_id, lost), now)

    # --- What is seen -----------------------------------------------------------------------

    @property
    def has_jobs(self) -> bool:
        """Whether a job of it runs, or is being started."""
        return bool(self.jobs.running)

    def progress(self) -> dict[str, Any]:
        """A short state: for a line on a terminal. `jobs`: those that run, if there was one."""
        told = [{"exec_id": job.exec_id, "name": job.name} for job in self.jobs.running]
        return super().progress() | ({"jobs": told} if self.jobs else {})

    def record(self) -> dict[str, Any]:
        """Everything about the run; `jobs` if there was one."""
        return super().record() | ({"jobs": self.jobs.record()} if self.jobs else {})

    def state(self) -> dict[str, Any]:
        return super().state() | ({"jobs": self.jobs.to_state()} if self.jobs else {})

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.jobs.restore(state.get("jobs"))

    # --- For the rules ----------------------------------------------------------------------

    def _part(self, now: float) -> None:
        if not self.jobs.running:
            super()._part(now)

    def _is_launching(self, rollback: Rollback) -> bool:
        """Whether a job is being started that the rollback stops, if there is to be one at all."""
        return any(
            job.origin.step in rollback.span or job.environment in rollback.environments
            for job in self.jobs.starting
        )

    # --- Inside -----------------------------------------------------------------------------

    def _stale(self, origin: JobOrigin) -> str | None:
        """Why this attempt of a step may launch nothing."""
        if origin.kind != "step" or origin.step is None:
            return None
        attempt = self._running.get(origin.step)
        who = f"attempt {origin.attempt} of step {origin.step!r}"
        if attempt is None or (attempt.number, attempt.epoch) != (origin.attempt, origin.epoch):
            return f"{who} does not run any more: it can launch no job"
        current = self._rollbacks.current
        if current and current.phase == "stopping" and origin.step in current.span:
            return f"{who} is being rolled back: it can launch no job"
        return None

    def _homeless(self, environment: str | None) -> str | None:
        """Why there is no place for a job now, inside of an environment or beside the worker."""
        if self.is_parting:
            return "the task has lost its environments, and starts over; launch the job after that"
        if not self.may_start:
            return "the task waits for its environments; launch the job when it has them"
        if environment is None:
            return None
        held = [instance.environment for instance in self.instances]
        if environment not in held:
            has = ", ".join(held) or "none"
            return f"environment {environment!r} is not one of the task's, which are: {has}"
        current = self._rollbacks.current
        if current and environment in current.environments:
            return f"environment {environment!r} is being reset; launch the job after that"
        return None


def _told(job: Job) -> dict[str, Any]:
    step = {"step": job.origin.step, "attempt": job.origin.attempt} if job.origin.step else {}
    return {"exec_id": job.exec_id, "name": job.name, **step}
