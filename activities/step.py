"""The activity `run_step`: one attempt of one step, whatever its type.

Idempotent by what lies on disk: an outcome is written before it is reported, and the attempt that
follows a lost worker adopts what it finds, so a finished step never runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.adoption import Earlier
from activities.attempt import Attempt
from activities.backend import Backends
from activities.contexts import Contexts, ContextUnavailable, StaleAttempt
from activities.jobs_endpoint import JobsEndpoint
from activities.later import Later
from activities.places import RunPlace, UnsafeName
from activities.ports import FreePorts
from activities.results import is_open
from activities.secrets import WorkerEnvironment
from activities.step_jobs import StepJobs
from activities.supervise import Supervisor, SupervisorLost
from activities.threads import StepThreads, StillRunning, ThreadHost
from perdure.errors import PerdureError
from perdure.jobs import JobsApi
from perdure.messages import Json, StepFailure, StepOutcome, StepTask
from perdure.names import BAD_INPUT, RUN_STEP, WORKER_LOST, WORKER_SHUTDOWN
from perdure.steps import StepFailed

BEAT_SECONDS = 0.5
CROWDED_BEAT_SECONDS = 2.0
"""Above `CROWD` running steps: the beats of a thousand steps would be a load of their own."""
CROWD = 200

PARENT_CHECK_SECONDS = 30.0
"""How often a step looks whether its suite still wants it."""


class Steps:
    """Runs steps for one worker."""

    def __init__(
        self,
        client: Client,
        host: str,
        runs: Path,
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        threads: StepThreads,
        contexts: Contexts,
        backends: Backends | None = None,
        free_ports: FreePorts | None = None,
        *,
        jobs: JobsApi | None = None,
        endpoint: JobsEndpoint | None = None,
    ) -> None:
        """`runs`: below it each run has its directory. `backends`: of instances on this host.
        `free_ports`: for servers that steps start themselves. `jobs`: the server's; by default
        without those that only files tell of. `endpoint`: where processes of steps ask for them."""
        self._client = client
        self._host = host
        self._runs = runs
        self._environment = environment
        self._supervisor = supervisor
        self._threads = threads
        self._contexts = contexts
        self._backends = backends
        self._free_ports = free_ports
        self._jobs = jobs or JobsApi(client)
        self._endpoint = endpoint
        self._under_way: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._left_behind: dict[tuple[str, str], StillRunning] = {}
        """Functions that go on although their attempt is over."""

    @activity.defn(name=RUN_STEP)
    async def run_step(self, task: StepTask) -> StepOutcome:
        """Run one attempt of a step, or adopt the outcome that a lost attempt left.

        A cancelled attempt cleans up and returns an outcome that says so: the SDK drops the
        details of a raised cancellation.

        Raises ApplicationError, with the StepOutcome as its detail:
            the type of the step's failure: the attempt failed.
            WorkerShutdown: handed back, since this worker is stopping.
            WorkerLost: the supervisor died under it, or its context could not be had.
            BadInput: a name that cannot be part of a path.
        """
        try:
            place = RunPlace.of(self._runs, task.run)
            place.attempt(task.step["id"], task.attempt)
        except UnsafeName as error:
            raise ApplicationError(str(error), type=BAD_INPUT, non_retryable=True) from None
        attempt = Attempt(task, self._host, place, self._backends)
        try:
            with self._beating(attempt):
                outcome = await self._run(attempt, place)
                if not outcome.adopted:
                    outcome = await attempt.judged(outcome)
                    await attempt.write(outcome)
        except (SupervisorLost, ContextUnavailable) as error:
            raise ApplicationError(str(error), type=WORKER_LOST, non_retryable=True) from error
        if outcome.failure:
            raise ApplicationError(
                outcome.failure.message, outcome, type=outcome.failure.type, non_retryable=True
            )
        return outcome

    async def _run(self, attempt: Attempt, place: RunPlace) -> StepOutcome:
        """The attempt to its outcome; raises only where another worker is to make a new one."""
        task = attempt.task
        try:
            if outcome := await self._take_over(attempt, place):
                return outcome
            stored = await self._contexts.of(task)
            attempt.prepare(stored, self._environment, self._supervisor, self._free_ports)
            host = attempt.host
            host.give_jobs(
                StepJobs(
                    self._jobs, task, secrets=lambda: host.secret_values, endpoint=self._endpoint
                )
            )
            work = asyncio.ensure_future(self._call(attempt))
            limit = Later(attempt.shortest_limit, lambda: attempt.limit(work))
            try:
                result = await work
            finally:
                limit.cancel()
                host.end_jobs()
            return await attempt.succeeded(result)
        except (asyncio.CancelledError, StillRunning) as stopped:
            return await self._stopped(attempt, stopped)
        except StaleAttempt:
            return StepOutcome(status="cancelled", host=self._host)
        except (SupervisorLost, ContextUnavailable):
            raise
        except StepFailed as failed:
            return await attempt.failed(
                StepFailure(str(failed), failed.type, failed.kind, failed.retryable), failed.result
            )
        except Exception as error:
            return await attempt.failed(told(error))

    async def _take_over(self, attempt: Attempt, place: RunPlace) -> StepOutcome | None:
        """Come after the earlier attempts of this step on this host: the outcome that one left,
        or None when none of them is at work any more.

        Raises StepFailed if the function of one ignores that it is to stop.
        """
        task = attempt.task
        lost = Earlier(place, task) if task.lost_attempts else None
        if lost and (outcome := await lost.outcome()):
            return outcome
        key = (task.run.run_id, task.step["id"])
        before = self._under_way.get(key)
        current = asyncio.current_task()
        assert current is not None
        self._under_way[key] = current
        current.add_done_callback(
            lambda done: self._under_way.pop(key) if self._under_way.get(key) is done else None
        )
        if before and not before.done():
            before.cancel()
            await asyncio.wait({before})
        if left := self._left_behind.get(key):
            raise StepFailed(str(left), type=left.type, retryable=False)
        if lost:
            await lost.sweep()
            # Again: one that this worker still ran may have come to its end meanwhile.
            if outcome := await lost.outcome():
                return outcome
            attempt.step_dir = lost.home() or attempt.step_dir
        return None

    async def _stopped(
        self, attempt: Attempt, stopped: asyncio.CancelledError | StillRunning
    ) -> StepOutcome:
        """The outcome of an attempt that was told to stop, by its limit or from outside."""
        if isinstance(stopped, StillRunning):
            key = (attempt.task.run.run_id, attempt.step.id)
            self._left_behind[key] = stopped
            stopped.call.add_done_callback(lambda _: self._left_behind.pop(key, None))
        if (expired := attempt.expired) is not None:
            if isinstance(stopped, StillRunning):
                message = f"{expired.message}; {stopped}"
                expired = replace(expired, message=message, retryable=False)
            return await attempt.failed(expired)
        details = activity.cancellation_details()
        if details and details.worker_shutdown and not details.cancel_requested:
            raise ApplicationError(
                "the worker is stopping; the step starts again on another",
                type=WORKER_SHUTDOWN,
                non_retryable=True,
            ) from None
        return await attempt.cancelled()

    async def _call(self, attempt: Attempt) -> Json:
        kind, host = attempt.type, attempt.host
        step, context = attempt.step.body, attempt.context
        if kind.on_loop:
            result = kind.function(step, context, host)
            return await result if hasattr(result, "__await__") else result
        apart = ThreadHost(host, asyncio.get_running_loop())
        return await self._threads.run(kind.function, step, context, apart, on_cancel=apart.cancel)

    # --- Heartbeats -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _beating(self, attempt: Attempt) -> Iterator[None]:
        seconds = self._beat_seconds(attempt)
        beating = Later(seconds, lambda: self._beat(attempt))
        try:
            yield
        finally:
            beating.cancel()

    def _beat_seconds(self, attempt: Attempt) -> float:
        usual = CROWDED_BEAT_SECONDS if len(self._under_way) > CROWD else BEAT_SECONDS
        # Two beats may come late or get lost before the server gives the worker up.
        return min(usual, attempt.step.heartbeat_timeout_seconds / 3)

    async def _beat(self, attempt: Attempt) -> None:
        """A beat says that the worker lives and where; the server's answer brings a cancel."""
        checked = time.monotonic()
        while True:
            activity.heartbeat(StepOutcome(status="failed", host=self._host, diff=attempt.so_far()))
            if time.monotonic() - checked > PARENT_CHECK_SECONDS:
                checked = time.monotonic()
                await self._check_parent(attempt.task)
            await asyncio.sleep(self._beat_seconds(attempt))

    async def _check_parent(self, task: StepTask) -> None:
        """End the task if its suite is closed: a child with the policy ABANDON must look itself."""
        suite = task.suite_workflow_id
        with contextlib.suppress(RPCError):  # the server is away; the next look tells
            if suite and not await is_open(self._client, suite):
                await self._client.get_workflow_handle(task.run.workflow_id).cancel()


def told(error: Exception) -> StepFailure:
    """The failure behind an exception of a step function."""
    if isinstance(error, PerdureError):
        return StepFailure(str(error), type=type(error).__name__, retryable=False)
    return StepFailure(f"{type(error).__name__}: {error}", type=type(error).__name__)
