"""The jobs of a server, held in memory: what a step asks for, without a task that runs.

With a server and real jobs: `tests/test_jobs_end_to_end.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from activities.jobs_endpoint import JobsEndpoint
from activities.step_jobs import StepJobs
from perdure.errors import PerdureError
from perdure.job_messages import JobLaunch, JobLaunched, JobSpec
from perdure.jobs import JobRefused, JobsApi, UnknownJob
from perdure.messages import StepTask
from perdure.peeks import Peek
from tests.activities.steps_kit import RUN

TASK = RUN.workflow_id


@dataclass
class JobsInMemory(JobsApi):
    """Jobs that do nothing: a test says what they print and when they end."""

    launches: list[JobLaunch] = field(default_factory=list)
    interrupts: list[tuple[str, float | None]] = field(default_factory=list)
    jobs: dict[str, Peek] = field(default_factory=dict)
    ends_when_interrupted: bool = True
    refusal: str | None = None
    failures: int = 0
    """So many times nobody answers a launch."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def specs(self) -> list[JobSpec]:
        """What was launched."""
        return [launch.spec for launch in self.launches]

    def have(self, exec_id: str, task: str = TASK, **more: Any) -> Peek:
        """Add a job, or change it."""
        known = self.jobs.get(exec_id) or Peek(exec_id, "running", False, run_id=task)
        done = more.get("status", known.status) != "running"
        self.jobs[exec_id] = peek = replace(known, done=done, **more)
        self.changed.set()
        return peek

    async def launch(self, task_workflow_id: str, launch: JobLaunch) -> JobLaunched:
        if self.failures:
            self.failures -= 1
            raise PerdureError("nobody answers")
        if self.refusal:
            raise JobRefused(self.refusal)
        self.launches.append(launch)
        if launch.exec_id not in self.jobs:
            self.have(launch.exec_id, task_workflow_id, name=launch.spec.name)
        return JobLaunched(launch.exec_id, self.jobs[launch.exec_id].status)

    async def interrupt(self, exec_id: str, kill_after: float | None = None) -> None:
        self.interrupts.append((exec_id, kill_after))
        if self.ends_when_interrupted and not (await self.peek(exec_id)).done:
            self.have(exec_id, status="killed" if kill_after == 0 else "interrupted")

    async def peek(self, exec_id: str, offset: int = 0, stderr_offset: int = 0) -> Peek:
        if exec_id not in self.jobs:
            raise UnknownJob(f"there is no job {exec_id!r}")
        known = self.jobs[exec_id]
        return replace(
            known, stdout=known.stdout[offset:], stderr=known.stderr[stderr_offset:], offset=offset
        )

    async def wait(self, exec_id: str, timeout: float | None = None) -> Peek:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (await self.peek(exec_id)).done:
                    self.changed.clear()
                    await self.changed.wait()
        return await self.peek(exec_id)

    async def list(self, task_workflow_id: str, *, output: bool = True) -> list[Peek]:
        return [peek for peek in self.jobs.values() if peek.run_id == task_workflow_id]


def jobs_of(
    api: JobsApi,
    endpoint: JobsEndpoint | None = None,
    *,
    attempt: int = 1,
    lost: tuple[int, ...] = (),
    step: str = "s",
    secrets: tuple[str, ...] = (),
) -> StepJobs:
    """The jobs of the task as an attempt of a step sees them."""
    document = {"id": step, "type": "custom"}
    task = StepTask(
        RUN, document, 0, 1, attempt=attempt, epoch=0, version=0, lost_attempts=list(lost)
    )
    return StepJobs(api, task, secrets=lambda: secrets, endpoint=endpoint)
