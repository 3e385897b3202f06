"""Background jobs with a real server, their own workflow and real processes; no task is about."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import subprocess
import sys
import termios
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.backend import Backends
from activities.jobs import Jobs
from activities.secrets import WorkerEnvironment
from activities.supervise import Supervisor
from perdure.job_messages import (
    InterruptJob,
    JobBeat,
    JobEnd,
    JobInput,
    JobOrigin,
    JobSpec,
    PeekPage,
    PeekRequest,
)
from perdure.messages import RunRef, StepInstance
from perdure.names import control_queue, job_workflow_id, jobs_queue
from perdure.payloads import adapter
from perdure.sandbox import sandbox
from tests.waiting import until
from workflows.job import JobWorkflow

RUN = RunRef("task/s/t/1", "run-1", "s", "t", 1)
THROTTLE = timedelta(seconds=0.2)


@dataclass
class Job:
    """A job under way."""

    exec_id: str
    handle: WorkflowHandle[Any, JobEnd]

    async def page(self, offset: int = 0, stderr_offset: int = 0) -> PeekPage:
        return await self.handle.query(JobWorkflow.peek, PeekRequest(offset, stderr_offset))

    async def beat(self) -> JobBeat | None:
        """What its worker told last, while it runs."""
        description = await self.handle.describe()
        for pending in description.raw_description.pending_activities:
            if pending.activity_type.name == "run_job" and pending.heartbeat_details.payloads:
                decoded = await self.handle._client.data_converter.decode(
                    pending.heartbeat_details.payloads, [JobBeat]
                )
                beat: JobBeat = decoded[0]
                return beat
        return None

    async def prints(self, text: str, stream: str = "stdout") -> None:
        """Return once a text is committed."""

        async def has_come() -> bool:
            return text in await self.all_of(stream)

        await until(has_come, f"{text!r} is committed")

    async def all_of(self, stream: str = "stdout") -> str:
        """All that is committed of a stream."""
        parts: list[str] = []
        at = 0
        while True:
            out = stream == "stdout"
            page = await self.page(at if out else 2**40, 2**40 if out else at)
            text = page.stdout if out else page.stderr
            parts.append(text)
            at += len(text)
            if not text:
                return "".join(parts)

    async def interrupt(self, kill_after: float | None = None) -> None:
        await self.handle.signal(JobWorkflow.interrupt, InterruptJob(kill_after))

    async def end(self) -> JobEnd:
        """How it ends."""
        try:
            async with asyncio.timeout(60):
                return await self.handle.result()
        except WorkflowFailureError as error:
            if not isinstance(error.cause, ApplicationError):
                raise
            end: JobEnd = adapter(JobEnd).validate_python(error.cause.details[0])
            return end


@dataclass
class JobsKit:
    """Launches jobs on a queue of its own."""

    client: Client
    folder: Path
    environment: WorkerEnvironment
    backends: Backends | None = None
    instances: list[StepInstance] = field(default_factory=list)
    queue: str = field(default_factory=lambda: f"jobs-{uuid.uuid4().hex[:8]}")

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def kept(self, job: Job) -> Path:
        """Where a job's files lie among the results."""
        return self.results / "s" / "t" / "1" / "jobs" / job.exec_id

    def place(self, job: Job) -> Path:
        """Where its files lie while it runs."""
        return self.runs / "s" / "t" / "1" / "run-1" / "jobs" / job.exec_id

    @asynccontextmanager
    async def worker(
        self, slots: int = 64, drain_seconds: float = 0.0, host: str = "here"
    ) -> AsyncIterator[Jobs]:
        """A worker of jobs, with a supervisor of its own."""
        supervisor = await Supervisor.start()
        jobs = Jobs(
            self.client, host, self.runs, self.results, self.environment, supervisor, self.backends
        )
        drain = timedelta(seconds=drain_seconds)
        throttle: dict[str, Any] = {
            "max_heartbeat_throttle_interval": THROTTLE,
            "default_heartbeat_throttle_interval": THROTTLE,
            "graceful_shutdown_timeout": drain,
        }
        try:
            async with (
                Worker(
                    self.client,
                    task_queue=jobs_queue(self.queue, None),
                    activities=[jobs.run_job],
                    max_concurrent_activities=slots,
                    **throttle,
                ),
                Worker(
                    self.client,
                    task_queue=control_queue(self.queue),
                    activities=[jobs.interrupt_job, jobs.stop_jobs],
                ),
            ):
                yield jobs
        finally:
            await supervisor.close()

    @asynccontextmanager
    async def workflows(self) -> AsyncIterator[None]:
        """A worker of the jobs' workflows."""
        async with Worker(
            self.client,
            task_queue=self.queue,
            workflows=[JobWorkflow],
            workflow_runner=sandbox(),
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        ):
            yield

    async def launch(
        self,
        code: str | None = None,
        *,
        argv: list[str] | None = None,
        context: Any = None,
        **spec: Any,
    ) -> Job:
        """Start a job's workflow; whether a worker is there is another matter."""
        exec_id = f"exec-{secrets.token_hex(6)}"
        given = JobInput(
            exec_id=exec_id,
            spec=JobSpec(code=code, argv=argv, **spec),
            origin=JobOrigin("step", "train", 0, 1),
            run=RUN,
            instances=[asdict(instance) for instance in self.instances],
            context=context,
        )
        handle = await self.client.start_workflow(
            JobWorkflow.run, given, id=job_workflow_id(exec_id), task_queue=self.queue
        )
        return Job(exec_id, handle)


@contextmanager
def killed_worker(
    kit: JobsKit, instances: Path | None = None, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, which is killed at the end if not sooner.

    `instances`: the folder of compose instances in which jobs may run. `stdin`: a terminal becomes
    the one that controls it.
    """
    address = kit.client.service_client.config.target_host
    words = [address, kit.queue, str(kit.folder), *([str(instances)] if instances else [])]
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.activities.jobs_worker", *words],
        cwd=Path(__file__).parents[2],
        stdin=stdin,
        preexec_fn=_take_terminal,
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def _take_terminal() -> None:
    os.setsid()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def environment() -> WorkerEnvironment:
    return WorkerEnvironment({"PATH": os.environ["PATH"], "OTHER": "hidden"})
