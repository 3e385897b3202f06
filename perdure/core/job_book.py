"""The jobs of one task: who launched them, which run, how they ended.

A job is *claimed* before its workflow is started, so that launches side by side do not pass the
limit (B11), *started* when that is known to the server, and given back if it never is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perdure.job_messages import (
    FailingLine,
    JobEnd,
    JobLaunch,
    JobOrigin,
    JobStatus,
    JobUsage,
)

MAX_RUNNING_JOBS = 16
"""Of a task at a time (B10)."""

JobPhase = Literal["claimed", "started", "ended"]


@dataclass
class Job:
    """One job, as its task knows it."""

    exec_id: str
    name: str | None
    origin: JobOrigin
    environment: str | None
    """Inside of which it runs; None: beside the worker."""
    launched_at: float
    """Seconds since 1970."""
    phase: JobPhase = "claimed"
    end: JobEnd | None = None

    @property
    def status(self) -> JobStatus:
        return self.end.status if self.end else "running"

    @property
    def is_running(self) -> bool:
        return self.phase != "ended"

    def recorded(self) -> dict[str, Any]:
        """The job, as records have it; times in seconds since 1970."""
        end = self.end
        return {
            "exec_id": self.exec_id,
            "name": self.name,
            "step": self.origin.step,
            "epoch": self.origin.epoch,
            "attempt": self.origin.attempt,
            "environment": self.environment,
            "status": self.status,
            "launched_at": self.launched_at,
            "started_at": end.started_at if end else None,
            "ended_at": end.ended_at if end else None,
            "exit_code": end.exit_code if end else None,
            "error": end.error if end else None,
            "failing_line": asdict(end.failing_line) if end and end.failing_line else None,
            "interrupted": end.interrupted if end else False,
            "usage": asdict(end.usage if end else JobUsage()),
            "attempts": end.attempts if end else 1,
        }


class JobBook:
    """The jobs of one task, in the order of their launch."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._names: dict[str, str] = {}
        """By name, the newest job that has it."""

    def __bool__(self) -> bool:
        return bool(self._jobs)

    # --- What happens -----------------------------------------------------------------------

    def refusal(self, launch: JobLaunch) -> str | None:
        """Why there is no room for this job; None: there is, or it is known already."""
        if launch.exec_id in self._jobs:
            return None
        name = launch.spec.name
        holder = self.of_name(name) if name is not None else None
        if holder and holder.is_running:
            return (
                f"the name {name!r} is that of {holder.exec_id}, which runs; "
                "wait for its end, or choose another name"
            )
        if (running := len(self.running)) >= MAX_RUNNING_JOBS:
            return (
                f"{running} jobs of the task run, and at most {MAX_RUNNING_JOBS} may; "
                "interrupt one, or wait for the end of one"
            )
        return None

    def claim(self, launch: JobLaunch, now: float) -> Job:
        """Take one of the places for a job that is about to be started."""
        spec = launch.spec
        job = Job(launch.exec_id, spec.name, launch.origin, spec.environment, now)
        self._jobs[job.exec_id] = job
        if job.name is not None:
            self._names[job.name] = job.exec_id
        return job

    def started(self, exec_id: str) -> Job | None:
        """The server knows its workflow; None: that is no news."""
        job = self._jobs.get(exec_id)
        if job is None or job.phase != "claimed":
            return None
        job.phase = "started"
        return job

    def give_back(self, exec_id: str) -> bool:
        """Its workflow was not started: as if it had never been asked for. False: it was."""
        job = self._jobs.get(exec_id)
        if job is None or job.phase != "claimed":
            return False
        del self._jobs[exec_id]
        if job.name is not None and self._names.get(job.name) == exec_id:
            del self._names[job.name]
            for other in self._jobs.values():  # the newest of that name before it, which has ended
                if other.name == job.name:
                    self._names[job.name] = other.exec_id
        return True

    def ended(self, end: JobEnd) -> Job | None:
        """It runs no more; None: that is no news, or it is no job of this task."""
        job = self._jobs.get(end.exec_id)
        if job is None or job.phase == "ended":
            return None
        job.phase, job.end = "ended", end
        return job

    # --- What is seen -----------------------------------------------------------------------

    def get(self, exec_id: str) -> Job | None:
        return self._jobs.get(exec_id)

    def of_name(self, name: str) -> Job | None:
        """The newest job of that name."""
        known = self._names.get(name)
        return self._jobs[known] if known else None

    @property
    def running(self) -> list[Job]:
        """Those that have not ended, claimed ones among them."""
        return self._those(lambda job: job.is_running)

    @property
    def starting(self) -> list[Job]:
        """Those of them that the server may not know yet."""
        return self._those(lambda job: job.phase == "claimed")

    def of_attempt(self, step_id: str, epoch: int, attempt: int) -> list[Job]:
        """The running jobs that an attempt of a step has launched."""
        origin = JobOrigin("step", step_id, epoch, attempt)
        return self._those(lambda job: job.is_running and job.origin == origin)

    def inside(self, environments: Iterable[str]) -> list[Job]:
        """The running jobs inside of these."""
        names = set(environments)
        return self._those(lambda job: job.is_running and job.environment in names)

    def record(self) -> list[dict[str, Any]]:
        """All jobs, as records have them."""
        return [job.recorded() for job in self._jobs.values()]

    def _those(self, wanted: Callable[[Job], bool]) -> list[Job]:
        return [job for job in self._jobs.values() if wanted(job)]

    # --- Over a continue-as-new -------------------------------------------------------------

    def to_state(self) -> list[dict[str, Any]] | None:
        """What a restored book needs; None if there was no job."""
        return [asdict(job) for job in self._jobs.values()] or None

    def restore(self, state: list[dict[str, Any]] | None) -> None:
        """The inverse of `to_state`."""
        for known in state or []:
            end = known["end"]
            job = Job(
                **{
                    **known,
                    "origin": JobOrigin(**known["origin"]),
                    "end": _end_of(end) if end else None,
                }
            )
            self._jobs[job.exec_id] = job
            if job.name is not None:
                self._names[job.name] = job.exec_id


def _end_of(value: dict[str, Any]) -> JobEnd:
    line = value["failing_line"]
    return JobEnd(
        **{
            **value,
            "usage": JobUsage(**value["usage"]),
            "failing_line": FailingLine(**line) if line else None,
        }
    )
