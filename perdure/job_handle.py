"""A background job, as the Python client holds it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypedDict, cast

from perdure.job_messages import JobSpec
from perdure.jobs import BEYOND, JobsApi
from perdure.messages import Json
from perdure.peeks import Peek
from perdure.suite_settings import check_keywords


class JobSettings(TypedDict, total=False):
    """The keywords with which a job is launched; each means what that field of `JobSpec` means."""

    argv: Sequence[str] | None
    entrypoint: str | None
    args: Json
    cwd: str | None
    env: Mapping[str, Json]
    stdin: str | None
    ok_exit_codes: Sequence[int]
    environment: str | None
    service: str | None
    user: str | None
    workdir: str | None
    name: str | None
    restartable: bool
    max_worker_losses: int
    time_limit_seconds: float | None
    kill_after_seconds: float


def spec_of(code: str | None, settings: JobSettings) -> JobSpec:
    """What is to be launched. Raises TypeError for a keyword that there is not."""
    check_keywords(settings, JobSettings)
    return JobSpec(code, **cast(dict[str, Any], settings))


class JobHandle:
    """A job, running or ended; reading it runs nothing."""

    def __init__(self, jobs: JobsApi, exec_id: str) -> None:
        """Use `TaskHandle.launch_job` or `Perdure.job`."""
        self.exec_id = exec_id
        """`exec-` and 12 hexadecimal digits."""
        self._jobs = jobs

    async def peek(self, *, offset: int = 0, stderr_offset: int = 0) -> Peek:
        """What it has printed from these offsets on, in characters, and how it is.

        Never waits for output. Answers after the end and without any worker, too. Raises
        UnknownJob, JobUnreadable.
        """
        return await self._jobs.peek(self.exec_id, offset, stderr_offset)

    async def interrupt(self, *, kill: bool = False, kill_after: float | None = None) -> Peek:
        """Have its process sent one SIGINT; returns at once with a peek.

        `kill`: have it killed at once. `kill_after`: so many seconds later, if it still runs.
        Harmless when repeated, and for a job that has ended. If it turns out that the interrupt
        reached nobody, peeks say so under `interrupt_undelivered`. Raises as `peek`.
        """
        await self._jobs.interrupt(self.exec_id, 0.0 if kill else kill_after)
        return await self.peek()

    async def wait(self, timeout: float | None = None) -> Peek:
        """Wait for its end, without asking again and again.

        `timeout`: in seconds; after it the peek is not `done`. Raises as `peek`.
        """
        return await self._jobs.wait(self.exec_id, timeout)

    def peeks(self, *, offset: int = 0, stderr_offset: int = 0) -> AsyncGenerator[Peek]:
        """Peeks with what is new since the one before, to the end: the last one is `done`.

        Raises as `peek`.
        """
        return self._jobs.follow(self.exec_id, offset, stderr_offset)

    async def follow(self, *, offset: int = 0, stderr: bool = False) -> AsyncGenerator[str]:
        """New text of its stdout, or of its stderr, as it comes, to the end of the job.

        A line that is redrawn is given once it is finished. Raises as `peek`.
        """
        offsets = (BEYOND, offset) if stderr else (offset, BEYOND)
        async with aclosing(self._jobs.follow(self.exec_id, *offsets)) as peeks:
            async for peek in peeks:
                if text := peek.stderr if stderr else peek.stdout:
                    yield text


def draw_exec_id() -> str:
    """An id for a job that nobody can guess, and nobody else has."""
    return f"exec-{secrets.token_hex(6)}"
