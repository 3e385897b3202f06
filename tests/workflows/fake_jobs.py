"""Background jobs that play a script, under the names of the activities that run real ones.

The words of a job's command are its script: `say TEXT` hands on output, `beat TEXT` only tells of
it in the heartbeat, `wait` goes on until it is interrupted, `deaf` until it is killed, `lose` falls
silent as a dead worker would, `shutdown` hands the job back, `exit 3` ends. Of words that begin
with `1:` only the first start takes notice, and so on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.job_messages import (
    InterruptAnswer,
    InterruptJob,
    InterruptOrder,
    JobBeat,
    JobEnd,
    JobExit,
    JobTask,
    JobUsage,
    OutputBatch,
    StopJobs,
)
from perdure.names import (
    INTERRUPT,
    INTERRUPT_JOB,
    JOB_OUTPUT,
    RUN_JOB,
    STOP_JOBS,
    WORKER_SHUTDOWN,
    job_workflow_id,
)
from perdure.payloads import adapter

GRACE_SECONDS = 0.3
"""At most, whatever the task says: nobody waits five seconds here."""


@dataclass
class Process:
    """One start of a job that runs now."""

    task: JobTask
    interrupts: int = 0
    killed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class FakeJobs:
    """The jobs of one queue."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.running: dict[str, Process] = {}
        self.started: list[tuple[str, int]] = []
        """Exec id and number of each start, in order."""
        self.most_at_once = 0
        """Of one job."""
        self.tasks: list[JobTask] = []
        self.interrupts: list[InterruptOrder] = []
        self.stops: list[StopJobs] = []
        self.mute = False
        """Whether no interrupt reaches anybody."""
        self.slow = asyncio.Event()
        """Until it is set, whether an interrupt was delivered is not told."""
        self.slow.set()
        self.cannot_stop = False
        """Whether it fails to stop jobs for a rollback, and once at the end of a task."""
        self.log: list[str] = []
        """What happened to the world."""

    @activity.defn(name=RUN_JOB)
    async def run_job(self, task: JobTask) -> JobExit:
        exec_id = task.job.exec_id
        self.tasks.append(task)
        self.started.append((exec_id, task.attempt))
        at_once = 1 + (exec_id in self.running)
        self.most_at_once = max(self.most_at_once, at_once)
        process = self.running[exec_id] = Process(task)
        self.log.append(f"begin {exec_id}")
        try:
            return await self._play(process)
        finally:
            if self.running.get(exec_id) is process:
                del self.running[exec_id]
            self.log.append(f"end {exec_id}")

    async def _play(self, process: Process) -> JobExit:
        task = process.task
        play = _Play(self.client, task)
        await play.say("")
        code = 0
        for word in task.job.spec.argv or []:
            head, _, rest = word.partition(":")
            if head.isdecimal():
                if int(head) != task.attempt:
                    continue
                word = rest
            name, _, text = word.partition(" ")
            if name == "say":
                await play.say(text)
            elif name == "again":  # as after an answer of the server that was lost
                await play.say(text, twice=True)
            elif name == "stale":  # as from a worker that was given up
                await play.say(text, attempt=task.attempt - 1)
            elif name == "beat":
                play.waiting += text
            elif name == "exit":
                code = int(text)
            elif name == "sleep":
                await asyncio.sleep(float(text))
            elif name == "lose":
                activity.heartbeat(play.beat())
                await asyncio.sleep(3600)
            elif name == "shutdown":
                raise ApplicationError(
                    "stopping", play.beat(), type=WORKER_SHUTDOWN, non_retryable=True
                )
            elif name == "break":
                raise RuntimeError("the disk is gone: /somewhere")
            elif name in ("wait", "deaf"):
                ended_by = await self._wait(process, play, deaf=name == "deaf")
                if ended_by:
                    return play.exit(-9, ended_by)
                return play.exit(-2, "exit")
            else:
                raise AssertionError(word)
        return play.exit(code, "exit")

    async def _wait(self, process: Process, play: _Play, *, deaf: bool) -> Any:
        try:
            while True:
                activity.heartbeat(play.beat())
                if process.killed:
                    return "killed"
                if process.interrupts and not deaf:
                    return None
                await asyncio.sleep(0.03)
        except asyncio.CancelledError:
            return "cancelled"

    @activity.defn(name=INTERRUPT_JOB)
    async def interrupt_job(self, order: InterruptOrder) -> InterruptAnswer:
        self.interrupts.append(order)
        process = self.running.get(order.exec_id)
        if self.mute or process is None or process.task.attempt != order.attempt:
            await self.slow.wait()
            return InterruptAnswer(delivered=False, reason="no process of it runs here")
        if order.kill:
            process.killed = True
        else:
            process.interrupts += 1
        await self.slow.wait()
        return InterruptAnswer(delivered=True)

    @activity.defn(name=STOP_JOBS)
    async def stop_jobs(self, asked: StopJobs) -> list[JobEnd]:
        self.stops.append(asked)
        if self.cannot_stop:
            self.cannot_stop = activity.info().activity_id.startswith("undo ")
            raise ApplicationError("no way to stop them", type="Stuck", non_retryable=True)
        return await asyncio.gather(*map(self._stop, asked.exec_ids))

    async def _stop(self, exec_id: str) -> JobEnd:
        handle = self.client.get_workflow_handle(job_workflow_id(exec_id), result_type=JobEnd)
        with contextlib.suppress(RPCError):  # it is closed
            await handle.signal(INTERRUPT, InterruptJob(GRACE_SECONDS))
        try:
            end: JobEnd = await handle.result()
            return end
        except WorkflowFailureError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.details:
                return _end_of(error.cause.details[0])
        return JobEnd(exec_id, "lost", "its workflow was terminated", ended_at=time.time())


def _end_of(detail: Any) -> JobEnd:
    end: JobEnd = adapter(JobEnd).validate_python(detail)
    return end


class _Play:
    """What one start has printed."""

    def __init__(self, client: Client, task: JobTask) -> None:
        self._workflow = client.get_workflow_handle(job_workflow_id(task.job.exec_id))
        self._task = task
        self._at = task.stdout_from
        self._began = time.time()
        self.waiting = ""

    async def say(self, text: str, *, twice: bool = False, attempt: int | None = None) -> None:
        number = self._task.attempt if attempt is None else attempt
        batch = OutputBatch(number, self._at, text, self._task.stderr_from, "", self._began)
        for _ in range(1 + twice):
            await self._workflow.signal(JOB_OUTPUT, batch)
        if attempt is None:
            self._at += len(text)

    def beat(self) -> JobBeat:
        return JobBeat(
            self._task.attempt,
            "here",
            started_at=self._began,
            stdout_from=self._at,
            stdout=self.waiting,
            usage=JobUsage(1.0, 0.5, 1000),
        )

    def exit(self, code: int, ended_by: Any) -> JobExit:
        return JobExit(
            attempt=self._task.attempt,
            host="here",
            exit_code=code,
            ended_by=ended_by,
            usage=JobUsage(2.0, 0.25, 500),
            started_at=self._began,
            ended_at=time.time(),
            stdout_from=self._at,
            stdout=self.waiting,
        )
