"""The activity `compensate_step`: undo what one attempt of a step did.

Idempotent by what lies on disk: an outcome is written before it is reported, and the try after a
lost worker finds it. What an earlier try still runs is killed before the next one begins; one that
was lost midway is made again, so what undoes must bear to be done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.backend import Backends
from activities.contexts import Contexts, ContextUnavailable, StaleAttempt
from activities.later import Later
from activities.places import RunPlace, UnsafeName
from activities.secrets import WorkerEnvironment
from activities.step import BEAT_SECONDS, told
from activities.supervise import Supervisor, SupervisorLost
from activities.threads import StepThreads, StillRunning, ThreadHost
from activities.undoing import Undoing
from perdure.core.undo_step import DECLARED
from perdure.messages import CompensateStep, CompensationOutcome, StepFailure
from perdure.names import BAD_INPUT, COMPENSATE_STEP, WORKER_LOST, WORKER_SHUTDOWN
from perdure.steps import StepFailed


class Compensations:
    """Undoes attempts of steps for one worker."""

    def __init__(
        self,
        host: str,
        runs: Path,
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        threads: StepThreads,
        contexts: Contexts,
        backends: Backends | None = None,
    ) -> None:
        """As `activities.step.Steps`."""
        self._host = host
        self._runs = runs
        self._environment = environment
        self._supervisor = supervisor
        self._threads = threads
        self._contexts = contexts
        self._backends = backends
        self._under_way: dict[Path, asyncio.Task[Any]] = {}

    @activity.defn(name=COMPENSATE_STEP)
    async def compensate_step(self, asked: CompensateStep) -> CompensationOutcome:
        """Undo one attempt in one way, or find that it is done.

        Raises ApplicationError, with the StepFailure as its detail:
            the type of the failure: it could not be undone; not to be retried if it was the last
                try, or if another one would be in vain.
        Without a detail, to be tried again:
            WorkerShutdown: this worker is stopping.
            WorkerLost: the supervisor died under it, or its context could not be had.
        And not to be tried again:
            BadInput: a name that cannot be part of a path.
        """
        try:
            place = RunPlace.of(self._runs, asked.run)
            tries = activity.info().attempt
            undoing = Undoing(asked, self._host, place, self._backends, tries=tries)
        except UnsafeName as error:
            raise ApplicationError(str(error), type=BAD_INPUT, non_retryable=True) from None
        with _beating(undoing.step.heartbeat_timeout_seconds):
            await self._come_after(undoing)
            if done := await undoing.apart(undoing.earlier):
                return done
            if tries > 1:
                await asyncio.to_thread(undoing.sweep)
            try:
                return await _to_its_end(self._undo(undoing))
            except (SupervisorLost, ContextUnavailable) as error:
                raise ApplicationError(str(error), type=WORKER_LOST) from error

    async def _come_after(self, undoing: Undoing) -> None:
        """End the same compensation, if this worker is still at it: the server gave it up."""
        before = self._under_way.get(undoing.step_dir)
        current = asyncio.current_task()
        assert current is not None
        self._under_way[undoing.step_dir] = current
        current.add_done_callback(lambda done: self._forget(undoing.step_dir, done))
        if before and not before.done():
            before.cancel()
            await asyncio.wait({before})

    def _forget(self, key: Path, done: object) -> None:
        if self._under_way.get(key) is done:
            del self._under_way[key]

    async def _undo(self, undoing: Undoing) -> CompensationOutcome:
        removed: list[str] = []
        try:
            if undoing.asked.kind == "creates":
                removed = await asyncio.to_thread(undoing.remove)
            elif not undoing.is_void:
                await self._run(undoing)
            return await undoing.apart(undoing.keep, removed)
        except (asyncio.CancelledError, StillRunning) as stopped:
            failure = _stopped(undoing, stopped)
        except (SupervisorLost, ContextUnavailable):
            raise
        except StaleAttempt as error:
            failure = StepFailure(str(error), type="StaleAttempt", retryable=False)
        except StepFailed as failed:
            failure = StepFailure(str(failed), failed.type, failed.kind, failed.retryable)
        except Exception as error:
            failure = told(error)
        finally:
            await undoing.apart(undoing.forget)
        failure = await undoing.apart(undoing.judge, failure)
        raise ApplicationError(
            failure.message, failure, type=failure.type, non_retryable=not failure.retryable
        )

    async def _run(self, undoing: Undoing) -> None:
        stored = await self._contexts.of(undoing.task)
        undoing.prepare(stored, self._environment, self._supervisor)
        work = asyncio.ensure_future(self._call(undoing))
        limit = Later(undoing.shortest_limit, lambda: undoing.limit(work))
        try:
            await work
        finally:
            limit.cancel()

    async def _call(self, undoing: Undoing) -> None:
        function, context, host = undoing.function, undoing.context, undoing.host
        if undoing.asked.kind == DECLARED and undoing.type.on_loop:
            result = function(undoing.document, context, host)
            if hasattr(result, "__await__"):
                await result
            return
        apart = ThreadHost(host, asyncio.get_running_loop())
        await self._threads.run(function, undoing.document, context, apart)


async def _to_its_end(undo: Coroutine[Any, Any, CompensationOutcome]) -> CompensationOutcome:
    """Undo, whoever asks to cancel it: what is half undone is of no use.

    The end of the worker stops it, and whatever else the server says: it goes on elsewhere, or is
    of no account any more.
    """
    work = asyncio.ensure_future(undo)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if work.done() or not (details and details.cancel_requested):
            work.cancel()
    return await work


def _stopped(undoing: Undoing, stopped: asyncio.CancelledError | StillRunning) -> StepFailure:
    """The failure of a try that was told to stop, by its limit or from outside."""
    if (expired := undoing.expired) is not None:
        return expired
    if isinstance(stopped, StillRunning):
        return StepFailure(str(stopped), type=stopped.type, retryable=False)
    details = activity.cancellation_details()
    if details and details.worker_shutdown:
        raise ApplicationError("the worker is stopping; another one goes on", type=WORKER_SHUTDOWN)
    raise stopped


@contextlib.contextmanager
def _beating(heartbeat_timeout_seconds: float) -> Iterator[None]:
    seconds = min(BEAT_SECONDS, heartbeat_timeout_seconds / 3)

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(seconds)

    beating = Later(seconds, beat)
    try:
        yield
    finally:
        beating.cancel()
