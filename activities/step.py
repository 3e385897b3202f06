"""The activity `run_step`: one attempt of one step, whatever its type.

Idempotent by what lies on disk: an outcome is written before it is reported, and the attempt that
follows a lost worker adopts what it finds, so a finished step never runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

import activities.steps  # noqa: F401  (registers the built-in types)
from activities import marker
from activities.contexts import Contexts, StaleAttempt
from activities.host import StepHost, WorkerEnvironment
from activities.places import RunPlace, UnsafeName
from activities.results import is_open
from activities.secrets import SecretFile
from activities.supervise import Supervisor, SupervisorLost, read_exit
from activities.threads import StepThreads, ThreadHost
from perdure.core.context import NotJson, check_json, diff
from perdure.core.redaction import mask, mask_ops, redact, restore
from perdure.core.task import Step
from perdure.errors import PerdureError
from perdure.messages import Json, StepFailure, StepOutcome, StepTask
from perdure.names import BAD_INPUT, RUN_STEP, WORKER_LOST, WORKER_SHUTDOWN
from perdure.payloads import adapter
from perdure.steps import Context, StepFailed, StepType, registered

T = TypeVar("T")

BEAT_SECONDS = 0.5
CROWDED_BEAT_SECONDS = 2.0
"""Above `CROWD` running steps: the beats of a thousand steps would be a load of their own."""
CROWD = 200

PARENT_CHECK_SECONDS = 30.0
"""How often a step looks whether its suite still wants it."""

MESSAGE_LIMIT_CHARS = 4000


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
    ) -> None:
        """`runs`: below it each run has its directory."""
        self._client = client
        self._host = host
        self._runs = runs
        self._environment = environment
        self._supervisor = supervisor
        self._threads = threads
        self._contexts = contexts
        self._under_way: dict[tuple[str, str], asyncio.Task[Any]] = {}

    @activity.defn(name=RUN_STEP)
    async def run_step(self, task: StepTask) -> StepOutcome:
        """Run one attempt of a step, or adopt the outcome that a lost attempt left.

        A cancelled attempt cleans up and returns an outcome that says so: the SDK drops the
        details of a raised cancellation.

        Raises ApplicationError, with the StepOutcome as its detail:
            the type of the step's failure: the attempt failed.
            WorkerShutdown: handed back, since this worker is stopping.
            WorkerLost: the supervisor died under it.
            BadInput: a name that cannot be part of a path.
        """
        try:
            place = RunPlace.of(self._runs, task.run)
            place.attempt(task.step["id"], task.attempt)
        except UnsafeName as error:
            raise ApplicationError(str(error), type=BAD_INPUT, non_retryable=True) from None
        outcome = await _adopted(place, task)
        if outcome is None:
            await self._end_earlier(task)
            # Again: one that this worker still ran may have come to its end meanwhile.
            outcome = await _adopted(place, task) or await self._attempt(task, place)
        if outcome.failure:
            raise ApplicationError(
                outcome.failure.message, outcome, type=outcome.failure.type, non_retryable=True
            )
        return outcome

    async def _end_earlier(self, task: StepTask) -> None:
        """Make sure that no earlier attempt of this step is still at work on this host."""
        key = (task.run.run_id, task.step["id"])
        earlier = self._under_way.get(key)
        if earlier and not earlier.done():
            earlier.cancel()
            await asyncio.wait({earlier})
        current = asyncio.current_task()
        assert current is not None
        self._under_way[key] = current
        current.add_done_callback(
            lambda done: self._under_way.pop(key) if self._under_way.get(key) is done else None
        )
        for attempt in task.lost_attempts:
            await asyncio.to_thread(marker.sweep, process_key(task, attempt))

    async def _attempt(self, task: StepTask, place: RunPlace) -> StepOutcome:
        attempt = _Attempt(task, self._host, place)
        try:
            with self._beating(attempt):
                outcome = await self._run(attempt)
        except SupervisorLost as error:
            raise ApplicationError(str(error), type=WORKER_LOST, non_retryable=True) from error
        await attempt.write(outcome)
        return outcome

    async def _run(self, attempt: _Attempt) -> StepOutcome:
        """The attempt from its context to its outcome; only a lost supervisor raises."""
        task = attempt.task
        try:
            stored = await self._contexts.of(task)
            attempt.prepare(stored, self._environment, self._supervisor)
            work = asyncio.ensure_future(self._call(attempt))
            limit = _Later(attempt.shortest_limit, lambda: attempt.limit(work))
            try:
                result = await work
            finally:
                limit.cancel()
            return await attempt.succeeded(result)
        except asyncio.CancelledError:
            if attempt.expired:
                return await attempt.failed(attempt.expired)
            details = activity.cancellation_details()
            if details and details.worker_shutdown and not details.cancel_requested:
                raise ApplicationError(
                    "the worker is stopping; the step starts again on another",
                    type=WORKER_SHUTDOWN,
                    non_retryable=True,
                ) from None
            return await attempt.cancelled()
        except StaleAttempt:
            return StepOutcome(status="cancelled", host=self._host)
        except SupervisorLost:
            raise
        except StepFailed as failed:
            return await attempt.failed(
                StepFailure(str(failed), failed.type, failed.kind, failed.retryable), failed.result
            )
        except Exception as error:
            return await attempt.failed(_told(error))

    async def _call(self, attempt: _Attempt) -> Json:
        kind, host = attempt.type, attempt.host
        step, context = attempt.step.body, attempt.context
        if kind.on_loop:
            result = kind.function(step, context, host)
            return await result if hasattr(result, "__await__") else result
        apart = ThreadHost(host, asyncio.get_running_loop())
        return await self._threads.run(kind.function, step, context, apart)

    # --- Heartbeats -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _beating(self, attempt: _Attempt) -> Iterator[None]:
        beating = _Later(self._beat_seconds, lambda: self._beat(attempt))
        try:
            yield
        finally:
            beating.cancel()

    @property
    def _beat_seconds(self) -> float:
        return CROWDED_BEAT_SECONDS if len(self._under_way) > CROWD else BEAT_SECONDS

    async def _beat(self, attempt: _Attempt) -> None:
        """A beat says that the worker lives and where; the server's answer brings a cancel."""
        checked = time.monotonic()
        while True:
            activity.heartbeat(StepOutcome(status="failed", host=self._host, diff=attempt.so_far()))
            if time.monotonic() - checked > PARENT_CHECK_SECONDS:
                checked = time.monotonic()
                await self._check_parent(attempt.task)
            await asyncio.sleep(self._beat_seconds)

    async def _check_parent(self, task: StepTask) -> None:
        """End the task if its suite is closed: a child with the policy ABANDON must look itself."""
        suite = task.suite_workflow_id
        with contextlib.suppress(RPCError):  # the server is away; the next look tells
            if suite and not await is_open(self._client, suite):
                await self._client.get_workflow_handle(task.run.workflow_id).cancel()


class _Attempt:
    """One attempt: its context before and after, and the outcome that these amount to."""

    def __init__(self, task: StepTask, host: str, place: RunPlace) -> None:
        self.task = task
        self.step = Step.from_dict(task.step)
        self.step_dir = _step_dir(place, task)
        self.expired: StepFailure | None = None
        self._host_name = host
        self._place = place
        self._began = time.monotonic()
        self._before: dict[str, Any] | None = None
        self._secrets = SecretFile(place.secrets)
        self._beaten: list[dict[str, Any]] = []

    def prepare(
        self, stored: dict[str, Any], environment: WorkerEnvironment, supervisor: Supervisor
    ) -> None:
        """Make what the step function is given.

        Raises StepFailed if this worker does not know the step's type.
        """
        kind = registered().get(self.step.type)
        if kind is None:
            raise StepFailed(
                f"this worker knows no step type {self.step.type!r}; start it with --steps MODULE",
                type="UnknownStepType",
                kind="bad_input",
                retryable=False,
            )
        self.type: StepType = kind
        self._before = stored
        known = self._secrets.load()
        whole = restore(stored, known) if known else stored
        # Built-in types only put new values at known places; other people's code gets a copy.
        mine = _top_copy(whole) if kind.on_loop else from_json(to_json(whole))
        self.context = Context(**mine)
        self.step_dir.mkdir(parents=True, exist_ok=True)
        self.host = StepHost(
            self.task,
            self.step,
            step_dir=self.step_dir,
            workdir=self._place.work,
            environment=environment,
            supervisor=supervisor,
            key=process_key(self.task, self.task.attempt),
            context=self.context,
            secrets=known,
            folder=Path(self.task.folder) if self.task.folder else None,
        )

    @property
    def shortest_limit(self) -> float:
        """Seconds before which no time limit of the step can have passed."""
        return min(self.step.timeout_seconds, self.step.idle_timeout_seconds or math.inf, 3600.0)

    async def limit(self, work: asyncio.Future[Json]) -> None:
        """Cancel `work` at the step's time limits; a process is ended by the supervisor first."""
        step, began = self.step, self._began
        while True:
            now = time.monotonic()
            slack = self.host.kill_slack_seconds
            left = began + step.timeout_seconds + slack - now
            if step.idle_timeout_seconds is not None:
                left = min(left, self.host.moved_at + step.idle_timeout_seconds + slack - now)
            if left <= 0:
                break
            await asyncio.sleep(min(left, 3600.0) + 0.01)
        late = began + step.timeout_seconds + self.host.kill_slack_seconds <= time.monotonic()
        self.expired = StepFailure(
            f"the step ran longer than its timeout of {step.timeout_seconds:g} s"
            if late
            else f"the step gave no sign of life for {step.idle_timeout_seconds:g} s",
            type="Timeout" if late else "IdleTimeout",
            kind="timeout",
        )
        work.cancel()

    def so_far(self) -> list[dict[str, Any]]:
        """What a running function has written by now, for the heartbeat; best effort."""
        if self._before is None or self.task.context is None or self.type.on_loop:
            return []
        with contextlib.suppress(Exception):  # it writes on another thread while this reads
            self._beaten = self._diff()
        return self._beaten

    async def succeeded(self, result: Json) -> StepOutcome:
        """The outcome of a function that returned `result`.

        Raises StepFailed if what it wrote cannot be kept: not JSON, or a reserved key.
        """
        return await self._apart(self._outcome, "succeeded", result, None)

    async def failed(self, failure: StepFailure, result: Json = None) -> StepOutcome:
        """The outcome of an attempt that failed, with what it had written by then."""
        return await self._apart(self._salvaged, "failed", result, failure)

    async def cancelled(self) -> StepOutcome:
        """The outcome of an attempt that was cancelled, with what it had written by then."""
        return await self._apart(self._salvaged, "cancelled", None, None)

    async def write(self, outcome: StepOutcome) -> None:
        """Put the outcome on disk, then remove what may hold secrets; in this order, since the
        next attempt needs those files if the worker dies in between."""
        await self._apart(self._write, outcome)

    async def _apart(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what may take long on another thread; the beats of all steps share this one.

        With a small context and no process behind it, the change of threads would cost more
        than the work.
        """
        if self.task.context is not None and not (self._before and self.host.has_files):
            return work(*arguments)
        return await _to_its_end(work, *arguments)

    def _write(self, outcome: StepOutcome) -> None:
        write_outcome(self.step_dir, outcome)
        if self._before is not None:
            self.host.close()

    def _salvaged(self, status: Any, result: Json, failure: StepFailure | None) -> StepOutcome:
        try:
            return self._outcome(status, result, failure)
        except StepFailed:  # what it wrote is of no use; the failure counts
            return StepOutcome(
                status=status,
                failure=failure and self._masked(failure),
                host=self._host_name,
                duration_seconds=self._elapsed,
            )

    def _outcome(self, status: Any, result: Json, failure: StepFailure | None) -> StepOutcome:
        if self._before is None:
            raise StepFailed("nothing was begun")
        usage = self.host.collect_output(self.context)
        if result is not None or status == "succeeded":
            self.context.results[self.step.id] = result
        ops = self._diff()
        return StepOutcome(
            status=status,
            diff=ops,
            result=None,
            failure=failure and self._masked(failure),
            host=self._host_name,
            duration_seconds=self._elapsed,
            usage=usage,
            artifacts=self.host.collect_artifacts(),
            creates=self.host.collect_creates(),
        )

    def _diff(self) -> list[dict[str, Any]]:
        assert self._before is not None
        try:
            check_json(vars(self.context))
        except NotJson as error:
            raise StepFailed(
                f"the step left something that is not JSON at {error}",
                type="BadResult",
                retryable=False,
            ) from None
        # The attempt is part of a secret's name: two parallel steps may write the same key.
        prefix = f"{self.step.id}.{self.task.attempt}"
        after, found = redact(
            vars(self.context), self.task.redact, known=self._secrets.load(), prefix=prefix
        )
        if found:
            self._secrets.merge(found)
        return mask_ops(diff(self._before, after), self.host.secret_values)

    def _masked(self, failure: StepFailure) -> StepFailure:
        values = self.host.secret_values if self._before is not None else ()
        text = mask(failure.message, values)
        if len(text) > MESSAGE_LIMIT_CHARS:
            text = text[:MESSAGE_LIMIT_CHARS] + "…"
        return replace(failure, message=text)

    @property
    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 3)


def process_key(task: StepTask, attempt: int) -> str:
    """What marks the processes of one attempt."""
    return f"{task.run.run_id}/{task.step['id']}.{attempt}"


def write_outcome(step_dir: Path, outcome: StepOutcome) -> None:
    """Put an outcome on disk, whole or not at all, before it is reported."""
    step_dir.mkdir(parents=True, exist_ok=True)
    draft = step_dir / ".outcome.json"
    draft.write_bytes(adapter(StepOutcome).dump_json(outcome))
    draft.replace(step_dir / "outcome.json")


def read_outcome(step_dir: Path) -> StepOutcome | None:
    """The outcome that an attempt left; None if it did not get that far."""
    try:
        left = (step_dir / "outcome.json").read_bytes()
        outcome: StepOutcome = adapter(StepOutcome).validate_json(left)
    except (FileNotFoundError, ValueError):
        return None
    return outcome


async def _adopted(place: RunPlace, task: StepTask) -> StepOutcome | None:
    """What a lost attempt left, unless that is only the word that it was cancelled."""
    for attempt in reversed(task.lost_attempts):
        outcome = await asyncio.to_thread(read_outcome, place.attempt(task.step["id"], attempt))
        if outcome is not None and outcome.status != "cancelled":
            return replace(outcome, adopted=True)
    return None


def _step_dir(place: RunPlace, task: StepTask) -> Path:
    """The attempt's own directory, or that of a lost attempt whose process had ended by itself.

    There the host finds the exit of the process and does not start another.
    """
    for attempt in reversed(task.lost_attempts):
        lost = place.attempt(task.step["id"], attempt)
        ended = read_exit(lost / "exit.json")
        if ended is not None and ended.ended_by != "cancelled":
            return lost
    return place.attempt(task.step["id"], task.attempt)


class _Later:
    """A task that begins after a while; most steps end before, and then it costs next to nothing.

    It runs with the variables of the activity that made it.
    """

    def __init__(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._work())

    def cancel(self) -> None:
        self._timer.cancel()
        if self._task:
            self._task.cancel()


async def _to_its_end(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on a thread. A cancel is too late by then: nothing may run beside it that
    takes it for done with, and what an attempt left is not thrown away."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    while not call.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({call})
    return call.result()


def _top_copy(context: dict[str, Any]) -> dict[str, Any]:
    """The context with containers of its own at the two upper levels."""
    copy = dict(context)
    for name, value in context.items():
        if isinstance(value, dict):
            copy[name] = dict(value)
        elif isinstance(value, list):
            copy[name] = list(value)
    copy["metadata"] = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in copy["metadata"].items()
    }
    return copy


def _told(error: Exception) -> StepFailure:
    """The failure behind an exception of a step function."""
    if isinstance(error, PerdureError):
        return StepFailure(str(error), type=type(error).__name__, retryable=False)
    return StepFailure(f"{type(error).__name__}: {error}", type=type(error).__name__)
