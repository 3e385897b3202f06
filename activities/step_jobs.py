"""The background jobs of a task, as one attempt of its steps launches, sees and stops them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from perdure.core.job_checks import as_checked, is_exec_id
from perdure.core.problems import listed, shown
from perdure.core.redaction import mask
from perdure.errors import PerdureError
from perdure.event_log import PATIENCE_SECONDS, UnknownRun
from perdure.job_messages import JobLaunch, JobLaunched, JobOrigin, JobSpec
from perdure.jobs import BEYOND, JobRefused, JobsApi, JobUnreadable, UnknownJob
from perdure.messages import Json, StepTask
from perdure.peeks import Peek
from perdure.steps import StepFailed

if TYPE_CHECKING:
    from activities.jobs_endpoint import JobsEndpoint

T = TypeVar("T")

END_SECONDS = 15.0
"""For the end of a job that a lost attempt launched, once it is killed."""

SECRET_CHARACTERS = 8
"""A shorter secret may well be a word of somebody's code."""

_PAUSE_SECONDS = 0.5

_log = logging.getLogger("perdure.jobs")


class StepJobs:
    """Implements `perdure.steps.Jobs` for one attempt; its calls run on the worker's loop."""

    def __init__(
        self,
        api: JobsApi,
        task: StepTask,
        *,
        secrets: Callable[[], Collection[str]] = tuple,
        endpoint: JobsEndpoint | None = None,
    ) -> None:
        """`secrets`: those that the attempt has met. `endpoint`: for the attempt's processes."""
        self.loop = asyncio.get_running_loop()
        self.task_workflow_id = task.run.workflow_id
        self._api = api
        self._task = task
        self._secrets = secrets
        self._endpoint = endpoint
        self._address: str | None = None
        self._calls = 0
        self._named: dict[str, str] = {}
        self._own: set[str] = set()
        """Exec ids that are known to be of this task."""
        self._over = False

    # --- The attempt's life ---------------------------------------------------------------------

    @property
    def address(self) -> str | None:
        """`PERDURE_JOBS`: where the attempt's own processes ask; made when it is first needed."""
        if self._address is None and self._endpoint is not None and not self._over:
            try:
                self._address = self._endpoint.open(self)
            except OSError as error:
                _log.warning("PERDURE_JOBS is left out: no port to listen on (%s)", error)
                self._endpoint = None
        return self._address

    def end(self) -> None:
        """The attempt is over: nobody launches, sees or stops anything in its name any more."""
        self._over = True
        if self._endpoint is not None and self._address is not None:
            self._endpoint.shut(self._address)

    # --- As of `perdure.steps.Jobs` -------------------------------------------------------------

    async def launch(
        self,
        code: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        name: str | None = None,
        entrypoint: str | None = None,
        args: Json = None,
        cwd: str | None = None,
        env: Mapping[str, Json] | None = None,
        stdin: str | None = None,
        ok_exit_codes: Sequence[int] = (0,),
        environment: str | None = None,
        service: str | None = None,
        user: str | None = None,
        workdir: str | None = None,
        restartable: bool = False,
        max_worker_losses: int = 3,
        time_limit: float | None = None,
        kill_after: float = 5.0,
    ) -> str:
        spec = JobSpec(
            code=code,
            argv=None if argv is None else list(argv),
            entrypoint=entrypoint,
            args=args,
            cwd=cwd,
            env=dict(env or {}),
            stdin=stdin,
            ok_exit_codes=list(ok_exit_codes),
            environment=environment,
            service=service,
            user=user,
            workdir=workdir,
            name=name,
            restartable=restartable,
            max_worker_losses=max_worker_losses,
            time_limit_seconds=time_limit,
            kill_after_seconds=kill_after,
        )
        return (await self.start(spec)).exec_id

    async def peek(self, job: str, *, offset: int = 0, stderr_offset: int = 0) -> Peek:
        exec_id = await self.find(job)
        peek = await self._api.peek(exec_id, offset, stderr_offset)
        if peek.done:
            self._named.pop(job, None)  # from now on the name may be another job's
        return peek

    async def interrupt(
        self, job: str, *, kill: bool = False, kill_after: float | None = None
    ) -> Peek:
        exec_id = await self.find(job)
        await self._api.interrupt(exec_id, 0.0 if kill else kill_after)
        return await self._api.peek(exec_id)

    async def wait(self, job: str, *, timeout: float | None = None) -> Peek:
        exec_id = await self.find(job)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                return await self._api.wait(exec_id, left)
            except JobUnreadable as error:
                if not error.passing or left == 0:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)  # a job may outlast the server's absence

    async def list(self, *, output: bool = True) -> list[Peek]:
        self._check_open()
        return await self._api.list(self.task_workflow_id, output=output)

    # --- What the built-in types and the endpoint use -------------------------------------------

    async def start(self, spec: JobSpec, exec_id: str | None = None) -> JobLaunched:
        """Launch a job. `exec_id`: chosen by the caller, who may ask for the same job again.

        What a lost attempt launched by the same call is not run a second time beside it: a
        restartable job is taken over, another one is killed first.

        Raises StepFailed (BadJob, not retried; JobRefused), and PerdureError if nobody answers.
        """
        self._check_open()
        spec = self._checked(spec)
        self._calls += 1
        call = self._calls
        if exec_id is None:
            for attempt in reversed(self._task.lost_attempts):
                left = await self._left(self._exec_id(attempt, call, spec), spec)
                if left is not None:
                    return left
        task = self._task
        origin = JobOrigin("step", str(task.step["id"]), task.epoch, task.attempt)
        launch = JobLaunch(exec_id or self._exec_id(task.attempt, call, spec), spec, origin)
        launched = await self._launched(launch)
        self._own.add(launched.exec_id)
        if spec.name is not None:
            self._named[spec.name] = launched.exec_id
        return launched

    async def find(self, job: str) -> str:
        """The exec id of a job, which may be given by its name: of several, the newest one's.

        Raises UnknownJob.
        """
        self._check_open()
        if is_exec_id(job):
            return job
        if job not in self._named:
            known = await self._api.list(self.task_workflow_id, output=False)
            self._named |= {peek.name: peek.exec_id for peek in known if peek.name}
            if job not in self._named:
                names = sorted({peek.name for peek in known if peek.name})
                raise UnknownJob(
                    f"the task has no job {shown(job)}; those with a name: "
                    f"{listed(map(shown, names)) or 'none'}"
                )
        return self._named[job]

    async def is_own(self, job: str) -> bool:
        """Whether a job is one of this task. Raises UnknownJob."""
        if is_exec_id(job) and job not in self._own:
            if (await self._api.peek(job, BEYOND, BEYOND)).run_id != self.task_workflow_id:
                return False
            self._own.add(job)
        return True

    # --- Inside ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._over:
            raise StepFailed(
                "this attempt of the step is over; jobs are launched and seen while it runs",
                type="AttemptOver",
                retryable=False,
            )

    def _checked(self, spec: JobSpec) -> JobSpec:
        spec, problems = as_checked(spec)
        secrets = [secret for secret in self._secrets() if len(secret) >= SECRET_CHARACTERS]
        if secrets and not problems:
            told = to_json(asdict(spec)).decode()
            if mask(told, secrets) != told:
                problems = [
                    "it holds a secret, which would stand in the history; give that under env as "
                    "{from_env: NAME} or {from_file: PATH}"
                ]
        if problems:
            raise StepFailed(
                f"the job cannot be launched: {'; '.join(problems)}",
                type="BadJob",
                kind="bad_input",
                retryable=False,
            )
        return spec

    def _exec_id(self, attempt: int, call: int, spec: JobSpec) -> str:
        """Derived, so that whoever asks again means the same job."""
        task = self._task
        named = [task.run.run_id, task.restarts, task.step["id"], attempt, call, asdict(spec)]
        return f"exec-{hashlib.sha256(to_json(named)).hexdigest()[:12]}"

    async def _left(self, exec_id: str, spec: JobSpec) -> JobLaunched | None:
        """The job of a lost attempt, if it goes on in place of a new one."""
        try:
            peek = await self._api.peek(exec_id, BEYOND, BEYOND)
        except UnknownJob:
            return None
        if spec.restartable and peek.status != "lost":
            return JobLaunched(exec_id, peek.status)
        if not peek.done:
            await self._api.interrupt(exec_id, 0.0)
            await self._api.wait(exec_id, END_SECONDS)
        return None

    async def _launched(self, launch: JobLaunch) -> JobLaunched:
        patient_until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self._api.launch(self.task_workflow_id, launch)
            except JobRefused as error:
                raise StepFailed(str(error), type="JobRefused") from None
            except UnknownRun:
                raise
            except PerdureError:  # the same id again starts nothing twice
                if time.monotonic() > patient_until:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)


class ThreadJobs:
    """As `StepJobs`, for a function on another thread.

    An async function awaits each call; a plain one, on whose thread no event loop runs, is given
    the value itself once it is there. Once the step was told to stop, a plain function can only
    interrupt jobs: whatever else it asks for raises StepFailed, since it cannot be told otherwise.
    """

    def __init__(self, jobs: StepJobs) -> None:
        self._jobs = jobs
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._cancelled = False

    def launch(self, code: str | None = None, **settings: Any) -> Any:
        return self._answer(self._jobs.launch(code, **settings))

    def peek(self, job: str, **more: Any) -> Any:
        return self._answer(self._jobs.peek(job, **more))

    def interrupt(self, job: str, **more: Any) -> Any:
        return self._answer(self._jobs.interrupt(job, **more), stops=True)

    def wait(self, job: str, **more: Any) -> Any:
        return self._answer(self._jobs.wait(job, **more))

    def list(self, **more: Any) -> Any:
        return self._answer(self._jobs.list(**more))

    def cancel(self) -> None:
        """The step is told to stop: end the calls under way."""
        self._cancelled = True
        for call in tuple(self._pending):
            call.cancel()

    def _answer(self, asked: Coroutine[Any, Any, T], *, stops: bool = False) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._value(asked, stops)
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._jobs.loop))

    def _value(self, asked: Coroutine[Any, Any, T], stops: bool) -> T:
        call = asyncio.run_coroutine_threadsafe(asked, self._jobs.loop)
        if not stops:
            self._pending.add(call)
            call.add_done_callback(self._pending.discard)
            if self._cancelled:  # looked at after it can be found there
                call.cancel()
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            raise StepFailed(
                "the step was told to stop", type="Cancelled", retryable=False
            ) from None
