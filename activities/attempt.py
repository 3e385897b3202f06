"""One attempt of a step: its context before and after, and the outcome that these amount to."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

import activities.steps  # noqa: F401  (registers the built-in types)
from activities.adoption import note_outcome, process_key, take_over, write_outcome
from activities.backend import Backends
from activities.host import StepHost
from activities.leftovers import mask_logs
from activities.places import RunPlace
from activities.ports import FreePorts
from activities.safe_files import own_folder
from activities.secrets import SecretFile, WorkerEnvironment
from activities.step_instances import StepInstances
from activities.supervise import Supervisor
from perdure.core.context import NotJson, check_json, diff
from perdure.core.redaction import mask, mask_ops, redact, restore, texts_of
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.core.task import Step
from perdure.messages import Json, StepFailure, StepOutcome, StepTask
from perdure.steps import Context, StepFailed, StepType, registered

T = TypeVar("T")

MESSAGE_LIMIT_CHARS = 4000

SO_FAR_LIMIT_BYTES = 32 * 1024
"""Of a diff in a heartbeat; a larger one is left out, since each beat carries it anew."""
LOOK_SHARE = 0.05
"""Of the time, what may go into looking at what a running function has written."""

SECRETS_FRESH_SECONDS = 0.05
"""So long what the run's secret file held is not read again: most steps are over by then."""


class AttemptHost(StepHost):
    """Makes the attempt's directory when something asks for it: most small steps need none."""

    has_folder = False

    @property
    def step_dir(self) -> Path:
        if not self.has_folder:
            own_folder(self._step_dir)
            self.has_folder = True
        return self._step_dir

    @step_dir.setter
    def step_dir(self, path: Path) -> None:
        self._step_dir = path


class Attempt:
    """One attempt, from its context to its outcome."""

    host_type: type[AttemptHost] = AttemptHost

    def __init__(
        self,
        task: StepTask,
        host: str,
        place: RunPlace,
        backends: Backends | None = None,
        *,
        own_dir: Path | None = None,
    ) -> None:
        """`backends`: of the environments whose instances are on this host. `own_dir`: another
        directory than the place has for the attempt."""
        self.task = task
        self.instances = StepInstances(task.instances, backends)
        self.step = Step.from_dict(task.step)
        self.step_dir = self._own_dir = own_dir or place.attempt(task.step["id"], task.attempt)
        """Its own directory, or that of a lost attempt whose ended process it takes over."""
        self.expired: StepFailure | None = None
        self._host_name = host
        self._place = place
        self._began = time.monotonic()
        self._before: dict[str, Any] | None = None
        self._secrets = SecretFile(place.secrets)
        self._known: dict[str, Json] = {}
        """What the secret file held at the last look."""
        self._known_at = -math.inf
        self._met: set[str] = set()
        """Secret texts that were found in what the run's steps wrote, this one's included."""
        self._seen: list[dict[str, Any]] = []
        self._look: asyncio.Task[None] | None = None
        self._look_again = 0.0
        self._over = False

    def prepare(
        self,
        stored: dict[str, Any],
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        free_ports: FreePorts | None = None,
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
        known = self._known = self._secrets.load()
        self._known_at = time.monotonic()
        whole = restore(stored, known) if known else stored
        # Built-in types only put new values at known places; other people's code gets a copy.
        own = kind.name in BUILT_IN_TYPES
        mine = _top_copy(whole) if own else from_json(to_json(whole))
        self.context = Context(**mine)
        self.host = self.host_type(
            self.task,
            self.step,
            step_dir=self.step_dir,
            workdir=self._place.work_after(self.task.restarts),
            environment=environment,
            supervisor=supervisor,
            key=process_key(self.task, self.task.attempt),
            context=self.context,
            secrets=known,
            instances=self.instances,
            folder=Path(self.task.folder) if self.task.folder else None,
            free_ports=free_ports,
        )
        self._before = stored

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
        """What a running function had written at the last look, for the heartbeat; best effort.

        Looks are taken on another thread: the diff of a large context would hold up the beats of
        every step. The server keeps the last beat only, so each repeats what is known.
        """
        if self._before is None or self.task.context is None or self.type.on_loop:
            return []
        looking = self._look is not None and not self._look.done()
        if not self._over and not looking and time.monotonic() >= self._look_again:
            self._look = asyncio.create_task(asyncio.to_thread(self._see))
        return self._seen

    def _see(self) -> None:
        began = time.monotonic()
        with contextlib.suppress(Exception):  # it writes on another thread while this reads
            ops = self._diff()
            self._seen = ops if len(to_json(ops)) <= SO_FAR_LIMIT_BYTES else []
        ended = time.monotonic()
        self._look_again = ended + (ended - began) / LOOK_SHARE

    async def succeeded(self, result: Json) -> StepOutcome:
        """The outcome of a function that returned `result`.

        Raises StepFailed if what it wrote cannot be kept: not JSON, or a reserved key.
        """
        return await self.apart(self._outcome, "succeeded", result, None)

    async def failed(self, failure: StepFailure, result: Json = None) -> StepOutcome:
        """The outcome of an attempt that failed, with what it had written by then."""
        return await self.apart(self._salvaged, "failed", result, failure)

    async def cancelled(self) -> StepOutcome:
        """The outcome of an attempt that was cancelled, with what it had written by then."""
        return await self.apart(self._salvaged, "cancelled", None, None)

    async def judged(self, outcome: StepOutcome) -> StepOutcome:
        """The same outcome; of a failure it says which of the task's instances are dead."""
        failure = outcome.failure
        if failure is None or failure.kind == "bad_input" or not self.task.instances:
            return outcome
        look = asyncio.ensure_future(self.instances.dead())
        await _ended(look)
        return replace(outcome, lost=look.result())

    async def write(self, outcome: StepOutcome) -> None:
        """Put the outcome on disk, then remove what may hold secrets; in this order, since the
        next attempt needs those files if the worker dies in between."""
        await self.apart(self._write, outcome)

    async def apart(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what may take long on another thread; the beats of all steps share this one.

        With a small context and no process behind it, the change of threads would cost more
        than the work.
        """
        self._over = True
        if self._look is not None:  # it may write secrets, which go with the run
            await _ended(self._look)
        if self.task.context is not None and not (self._before and self.host.has_files):
            return work(*arguments)
        return await _to_its_end(work, *arguments)

    def _write(self, outcome: StepOutcome) -> None:
        if self._before is not None and self.host.has_files and self._met:
            mask_logs(self.step_dir, self._values)
        if self._has_folder:
            write_outcome(self.step_dir, outcome)
        else:
            note_outcome(self._place, self.step_dir.name, outcome)
        if self.step_dir != self._own_dir:
            take_over(self.step_dir)
        # One that was cancelled may be adopted for a process that had ended; what that left is
        # removed at the end of the run.
        if self._before is not None and outcome.status != "cancelled":
            self.host.close()

    @property
    def _has_folder(self) -> bool:
        # After lost attempts always: the record takes the files that lie beside the outcome.
        made = self._before is not None and self.host.has_folder
        return made or bool(self.task.lost_attempts)

    def _salvaged(self, status: Any, result: Json, failure: StepFailure | None) -> StepOutcome:
        try:
            return self._outcome(status, result, failure)
        except StepFailed:  # what it wrote is of no use; the failure counts
            if self._before is not None:
                with contextlib.suppress(Exception):  # anything may stand there
                    self._redacted()  # what it printed is kept, and masked
            return StepOutcome(
                status=status,
                failure=failure and self._masked(failure),
                host=self._host_name,
                duration_seconds=self._elapsed,
                usage=self.host.usage if self._before is not None else {},
            )

    def _outcome(self, status: Any, result: Json, failure: StepFailure | None) -> StepOutcome:
        if self._before is None:
            raise StepFailed("nothing was begun")
        if result is not None or status == "succeeded":
            self.context.results[self.step.id] = result
        usage = self.host.collect_output(self.context)
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
        return mask_ops(diff(self._before, self._redacted()), self._values)

    def _redacted(self) -> dict[str, Any]:
        """The context with references in place of secrets, which are kept on this host."""
        # The attempt is part of a secret's name: two parallel steps may write the same key.
        prefix = f"{self.step.id}.{self.task.attempt}"
        if time.monotonic() - self._known_at > SECRETS_FRESH_SECONDS:
            self._known = self._secrets.load()  # a step beside this one may have written some
            self._known_at = time.monotonic()
        known = self._known
        after, found = redact(vars(self.context), self.task.redact, known=known, prefix=prefix)
        if found:
            self._secrets.merge(found)
            self._known = {**known, **found}
        if known or found:
            # A step often prints what it hands on; its output had been taken in by then.
            self._met.update(texts_of([*known.values(), *found.values()]))
        redacted: dict[str, Any] = after
        return redacted

    @property
    def _values(self) -> set[str]:
        return self._met.union(self.host.secret_values) if self._before is not None else set()

    def _masked(self, failure: StepFailure) -> StepFailure:
        text = _whole(mask(failure.message, self._values))
        if len(text) > MESSAGE_LIMIT_CHARS:
            text = text[:MESSAGE_LIMIT_CHARS] + "…"
        return replace(failure, message=text, type=_whole(failure.type))

    @property
    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 3)


def _whole(text: str) -> str:
    """The text with `?` for half a character, which no message can carry."""
    return text.encode("utf-8", "replace").decode()


async def _to_its_end(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on a thread. A cancel is too late by then: nothing may run beside it that
    takes it for done with, and what an attempt left is not thrown away."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    await _ended(call)
    return call.result()


async def _ended(call: asyncio.Future[Any]) -> None:
    while not call.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({call})


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
