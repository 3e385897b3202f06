"""The activities of background jobs: `run_job`, `interrupt_job`, `stop_jobs`.

A job's process dies with its worker, so a start that comes after a lost one begins anew. Whatever
a start comes to is told once, by what `run_job` returns; only a worker that stops, or whose
supervisor died, hands it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.backend import Backends
from activities.beats import beating
from activities.job_elsewhere import signal_elsewhere
from activities.job_end import (
    Outcome,
    end_of,
    exit_of,
    handed_back,
    is_handed_back,
    lost_end,
)
from activities.job_files import JOBS, keep_job
from activities.job_handover import Handover
from activities.job_start import HAS_ENDED, JobStart
from activities.job_stop import stop_all
from activities.job_streams import Stream
from activities.places import RunPlace, UnsafeName
from activities.results import is_open
from activities.secrets import WorkerEnvironment
from activities.supervise import Supervisor, SupervisorLost
from perdure.core.job_state import EXECUTION_FAILED
from perdure.errors import PerdureError
from perdure.job_messages import (
    InterruptAnswer,
    InterruptOrder,
    JobBeat,
    JobEnd,
    JobExit,
    JobTask,
    StopJobs,
)
from perdure.names import BAD_INPUT, INTERRUPT_JOB, RUN_JOB, STOP_JOBS, job_workflow_id
from perdure.results import trial_files
from perdure.steps import StepFailed

PARENT_CHECK_SECONDS = 30.0
"""How often a job looks whether its task is still there."""

STOPPING_PATIENCE_SECONDS = 3.0
"""For what a job has printed to arrive, when its worker stops or nobody wants it any more."""

_log = logging.getLogger("perdure.jobs")


class Jobs:
    """Runs background jobs for one worker."""

    def __init__(
        self,
        client: Client,
        host: str,
        runs: Path,
        results: Path,
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        backends: Backends | None = None,
    ) -> None:
        """`runs` and `results`: the worker's own directories. `backends`: of instances here."""
        self._client = client
        self._host = host
        self._runs = runs
        self._results = results
        self._environment = environment
        self._supervisor = supervisor
        self._backends = backends
        self._starts: dict[str, JobStart] = {}

    @activity.defn(name=RUN_JOB)
    async def run_job(self, task: JobTask) -> JobExit:
        """Run one start of a job to its end; nothing of it runs any more then.

        Raises ApplicationError:
            WorkerShutdown: this worker is stopping, and has ended the job; with a JobBeat.
            WorkerLost: the supervisor died, and the job with it; with a JobBeat.
            BadInput: a name that cannot be part of a path.
        """
        try:
            place = RunPlace.of(self._runs, task.job.run)
            start = JobStart(task, place, self._environment, self._supervisor, self._backends)
        except UnsafeName as error:
            raise ApplicationError(str(error), type=BAD_INPUT, non_retryable=True) from None
        with self._known(start) as before:
            working = asyncio.ensure_future(self._begin_to_end(start, before))
            while not working.done():
                try:
                    await asyncio.shield(working)
                except asyncio.CancelledError:
                    details = activity.cancellation_details()
                    stops = details and details.worker_shutdown and not details.cancel_requested
                    start.call_off(handed_back=bool(stops))
                except Exception:  # raised below
                    break
            return working.result()

    @activity.defn(name=INTERRUPT_JOB)
    async def interrupt_job(self, order: InterruptOrder) -> InterruptAnswer:
        """Send one SIGINT to a job's process, or kill it with all that it has started.

        The job may run on another worker of this host.
        """
        start = self._starts.get(order.exec_id)
        if start is None:
            reason = await asyncio.to_thread(signal_elsewhere, order)
        elif start.task.attempt != order.attempt:
            reason = HAS_ENDED
        else:
            reason = await (start.kill() if order.kill else start.interrupt())
        return InterruptAnswer(delivered=reason is None, reason=reason)

    @activity.defn(name=STOP_JOBS)
    async def stop_jobs(self, stop: StopJobs) -> list[JobEnd]:
        """Interrupt jobs, all at once, kill what still runs after the grace, and wait for the end.

        How each ended, in the order of the ids; one that has ended before is told as it did.
        """
        async with beating():
            return await stop_all(self._client, stop)

    # --- One start --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _known(self, start: JobStart) -> Iterator[JobStart | None]:
        """Let the start be found by whoever wants to stop it; the one before it, if there is."""
        exec_id = start.task.job.exec_id
        before = self._starts.get(exec_id)
        self._starts[exec_id] = start
        try:
            yield before
        finally:
            start.gone.set()
            if self._starts.get(exec_id) is start:
                del self._starts[exec_id]

    async def _begin_to_end(self, start: JobStart, before: JobStart | None) -> JobExit:
        task = start.task
        info = activity.info()
        assert info.workflow_id is not None
        stdout = Stream(start.stdout, task.stdout_from)
        stderr = Stream(start.stderr, task.stderr_from)
        handover = Handover(
            self._client.get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id),
            JobBeat(task.attempt, self._host, started_at=time.time()),
            stdout,
            stderr,
            lambda: start.pid,
            task.commits,
        )
        async with handover.going_on(), self._watching_task(task):
            if before is not None:  # the server has given it up, and it may not know yet
                before.call_off(handed_back=False)
                await before.gone.wait()
            outcome = await self._run(start)
            await handover.finish(start.is_hurried, STOPPING_PATIENCE_SECONDS)
            if is_handed_back(outcome, start):
                beat = handover.beat()
                if not start.spec.restartable:
                    await self._keep(start, lost_end(start, beat))
                raise handed_back(outcome, beat)
            exit = exit_of(outcome, start, stdout, stderr, self._host)
            await self._keep(start, end_of(exit, start))
            return exit

    async def _run(self, start: JobStart) -> Outcome:
        """The start to the end of all its processes."""
        try:
            process = await start.prepare()
            if start.is_called_off:
                return Outcome(is_clean=await start.clear())
            ended = await start.run(process)
            report = await start.report(ended)
            return Outcome(ended, report, is_clean=await start.clear())
        except SupervisorLost as error:
            _log.warning("%s: %s", start.key, error)
            return Outcome(is_lost=True, is_clean=await start.clear())
        except (PerdureError, StepFailed) as error:  # told for whoever launched it
            return Outcome(error=start.masked(str(error)), is_clean=await start.clear())
        except Exception:
            _log.exception("%s cannot be run", start.key)
            with contextlib.suppress(Exception):  # told in the log, and the outcome is the same
                await start.clear()
            return Outcome(error=EXECUTION_FAILED)

    async def _keep(self, start: JobStart, end: JobEnd) -> None:
        """Put the job's files with the results. One that cannot be written is in the log only: the
        job's workflow knows all of it."""
        job = start.task.job
        base = Path(job.results_dir) if job.results_dir else self._results
        try:
            _, trial = trial_files(base, job.run)
            await asyncio.to_thread(keep_job, self._runs, start.folder, trial / JOBS, end)
        except (OSError, PerdureError) as error:
            _log.error("%s: its files could not be written: %s", end.exec_id, error)

    # --- Beside it --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watching_task(self, task: JobTask) -> AsyncIterator[None]:
        """End the job if its task is closed: a child with the policy ABANDON must look itself."""
        watching = asyncio.create_task(self._watch_task(task))
        try:
            yield
        finally:
            watching.cancel()

    async def _watch_task(self, task: JobTask) -> None:
        run = task.job.run
        while True:
            await asyncio.sleep(PARENT_CHECK_SECONDS)
            with contextlib.suppress(RPCError):  # the server is away; the next look tells
                if not await is_open(self._client, run.workflow_id, run.run_id):
                    job = job_workflow_id(task.job.exec_id)
                    await self._client.get_workflow_handle(job).cancel()
