"""A running job's output on its way to its workflow: committed in batches, the rest in beats."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities.job_streams import Stream
from activities.job_usage import RunningUsage
from perdure.core.job_output import COMMIT_BYTES, CommitRule
from perdure.job_messages import JobBeat, OutputBatch
from perdure.names import JOB_OUTPUT

LOOK_SECONDS = 0.1
BEAT_SECONDS = 0.2
"""Between two beats while there is news; the server notices by the next ones if there is none."""
QUIET_BEAT_SECONDS = 1.0

REST_BYTES = 64 * 1024
"""What may ride in the end of a job; what is more goes before it."""

_PATIENCE_SECONDS = 1.0
"""Before something is handed on again to a server that was away."""

_log = logging.getLogger("perdure.jobs")


class Handover:
    """Hands on what one start of a job prints."""

    def __init__(
        self,
        job: WorkflowHandle[Any, Any],
        beat: JobBeat,
        stdout: Stream,
        stderr: Stream,
        pid: Callable[[], int | None],
        commits: int = 0,
    ) -> None:
        """`beat`: what is the same in all beats. `pid`: of the process, once it runs. `commits`:
        those of earlier starts."""
        self._job = job
        self._beat = beat
        self._stdout, self._stderr = stdout, stderr
        self._pid = pid
        self._usage = RunningUsage()
        self._rule = CommitRule()
        self._began = self._committed_at = time.monotonic()
        self._commits = commits
        self._under_way: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._beaten_at = 0.0
        self._is_news = False
        """Something has come since the last beat."""
        self._is_refused = False
        """The server takes no more of it: what is left rides in the end, or is in the files."""
        self._is_ending = False
        self._is_done = asyncio.Event()

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Look, commit and beat until the block is left."""
        self._begin_commit()  # at once: it says that the job has begun
        going_on = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            going_on.cancel()
            if self._under_way:
                self._under_way.cancel()
            for stream in (self._stdout, self._stderr):
                stream.close()

    async def finish(self, is_hurried: asyncio.Event, within_seconds: float) -> None:
        """After the end of the process: commit until the rest is small enough to ride along.

        It waits for a server that is away; once `is_hurried` is set, only `within_seconds` more.
        """
        self._is_ending = True
        hurried = asyncio.ensure_future(is_hurried.wait())
        done = asyncio.ensure_future(self._is_done.wait())
        try:
            await asyncio.wait({hurried, done}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({done}, timeout=within_seconds)
        finally:
            hurried.cancel()
            done.cancel()

    def beat(self) -> JobBeat:
        """What is not committed yet, and how the job stands."""
        stdout_from, stdout = self._stdout.newest()
        stderr_from, stderr = self._stderr.newest()
        pid = self._pid()
        return replace(
            self._beat,
            pid=pid,
            stdout_from=stdout_from,
            stdout=stdout,
            stderr_from=stderr_from,
            stderr=stderr,
            live_stdout=self._stdout.live,
            live_stderr=self._stderr.live,
            tail_stdout=self._stdout.tail,
            tail_stderr=self._stderr.tail,
            usage=self._usage.of(pid),
        )

    async def _go_on(self) -> None:
        while True:
            try:
                await self._go_round()
            except Exception:
                # A job without beats would be given up, and killed.
                _log.exception("%s: its output cannot be handed on", self._job.id)
                await asyncio.sleep(_PATIENCE_SECONDS)

    async def _go_round(self) -> None:
        # Not by `or`: each look has its effect.
        news = any([stream.look() for stream in (self._stdout, self._stderr)])  # noqa: C419
        self._is_news = self._is_news or news
        if self._commit_is_due():
            self._begin_commit()
        elif self._is_ending and not news and not self._under_way and self._is_small:
            self._is_done.set()
        now = time.monotonic()
        if now - self._beaten_at >= (BEAT_SECONDS if self._is_news else QUIET_BEAT_SECONDS):
            activity.heartbeat(self.beat())
            self._beaten_at, self._is_news = now, False
        if self._under_way:  # the next batch of many may go as soon as this one has arrived
            await asyncio.wait({self._under_way}, timeout=LOOK_SECONDS)
        else:
            await asyncio.sleep(0 if self._is_ending and news else LOOK_SECONDS)

    @property
    def _is_small(self) -> bool:
        return self._is_refused or self._waiting_bytes <= REST_BYTES

    @property
    def _waiting_bytes(self) -> int:
        return self._stdout.waiting_bytes + self._stderr.waiting_bytes

    def _commit_is_due(self) -> bool:
        if self._under_way and self._under_way.done():
            self._under_way = None
        now = time.monotonic()
        if self._under_way or self._is_refused or now < self._not_before:
            return False
        if self._is_ending:
            return not self._is_small
        return self._rule.due(
            age_seconds=now - self._began,
            since_last_seconds=now - self._committed_at,
            pending_bytes=self._waiting_bytes,
            commits=self._commits,
        )

    def _begin_commit(self) -> None:
        self._committed_at = time.monotonic()
        self._commits += 1
        self._under_way = asyncio.create_task(self._commit())

    async def _commit(self) -> None:
        """Send a batch. What of it does not arrive is in the next one."""
        err_bytes = min(self._stderr.waiting_bytes, COMMIT_BYTES // 2)
        out = self._stdout.waiting(COMMIT_BYTES - err_bytes)
        err = self._stderr.waiting(COMMIT_BYTES - out.size)
        batch = OutputBatch(
            attempt=self._beat.attempt,
            stdout_from=self._stdout.handed_on,
            stdout=out.text,
            stderr_from=self._stderr.handed_on,
            stderr=err.text,
            started_at=self._beat.started_at,
        )
        try:
            await self._job.signal(JOB_OUTPUT, batch)
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:  # too many signals: never again
                _log.error("%s: no more output is handed on: %s", self._job.id, error)
                self._is_refused = True
                return
            if error.status is not RPCStatusCode.NOT_FOUND:
                _log.warning("%s: output is handed on later: %s", self._job.id, error)
                self._not_before = time.monotonic() + _PATIENCE_SECONDS
                return
        # One that is closed hears nothing more, and misses nothing.
        self._stdout.hand_on(out)
        self._stderr.hand_on(err)
