"""Custom step functions, each on a thread with an event loop of its own.

They are other people's code: one that blocks must not hold up the heartbeats of every other step
(C17), so none runs on the worker's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from activities.host import StepHost
from activities.step_jobs import ThreadJobs
from perdure.messages import Json
from perdure.steps import ProcessResult, StepFailed

CANCEL_GRACE_SECONDS = 10.0
"""How long a cancelled function is waited for. A thread cannot be killed: one that goes on is
left behind, and nothing it still does is recorded."""


class StillRunning(StepFailed):
    """A function ignored its cancellation; `call` is done when it ends after all."""

    def __init__(self, function: Callable[..., Any], call: asyncio.Future[Any]) -> None:
        name = getattr(function, "__qualname__", repr(function))
        super().__init__(
            f"step function {name} did not stop within {CANCEL_GRACE_SECONDS:g} s and still runs; "
            "it is not started again",
            type="StillRunning",
            retryable=False,
        )
        self.call = call


class StepThreads:
    """A pool of threads for step functions."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="step")

    async def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        on_cancel: Callable[[], None] = lambda: None,
    ) -> Json:
        """Run a plain or an async function to its end, on a thread of its own.

        A cancel is passed on to an async function; a plain one cannot be told, but by what
        `on_cancel` ends that it waits for. Raises StillRunning in place of CancelledError for one
        that goes on all the same.
        """
        call = _Call(function, arguments)
        running = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            call.cancel()
            on_cancel()
            until = time.monotonic() + CANCEL_GRACE_SECONDS
            while not running.done() and call.begun and time.monotonic() < until:
                with contextlib.suppress(asyncio.CancelledError):  # told twice
                    await asyncio.wait({running}, timeout=until - time.monotonic())
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            if call.begun and not running.done():
                raise StillRunning(function, running) from None
            raise

    def close(self) -> None:
        """Take no more functions; those under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


_of_thread = threading.local()


def _runner() -> asyncio.Runner:
    """This thread's event loop, made once: making one costs more than a small step."""
    runner: asyncio.Runner | None = getattr(_of_thread, "runner", None)
    if runner is None:
        runner = _of_thread.runner = asyncio.Runner()
    return runner


async def _end_others() -> None:
    """Cancel what a function left running on the loop, which the next one gets."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.gather(*others, return_exceptions=True)


class _Call:
    """One call on one thread, and the way to cancel it from another."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.begun = False
        self._variables = contextvars.copy_context()

    def __call__(self) -> Json:
        return self._variables.run(self._call)

    def _call(self) -> Json:
        with self._lock:
            if self._cancelled:  # all threads were taken until now
                return None
            self.begun = True
        if not inspect.iscoroutinefunction(self._function):
            result = self._function(*self._arguments)
            if not inspect.isawaitable(result):
                return result
            awaitable = result
        else:
            awaitable = self._function(*self._arguments)
        return _runner().run(self._await(awaitable), context=contextvars.copy_context())

    async def _await(self, awaitable: Any) -> Json:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            if self._cancelled and self._task:
                self._task.cancel()
        try:
            return await awaitable
        finally:
            with self._lock:
                self._loop = self._task = None
            await _end_others()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._loop and self._task:
                self._loop.call_soon_threadsafe(self._task.cancel)


class ThreadHost:
    """A Host for a function on another thread: processes are run on the worker's loop, and jobs
    asked for there."""

    def __init__(self, host: StepHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._jobs: ThreadJobs | None = None
        self._cancelled = False

    @property
    def jobs(self) -> ThreadJobs:
        """As `Host.jobs`; a plain function is given the values themselves."""
        if self._jobs is None:
            self._jobs = ThreadJobs(self._host.jobs)
            if self._cancelled:
                self._jobs.cancel()
        return self._jobs

    def cancel(self) -> None:
        """End what the function waits for."""
        self._cancelled = True
        if self._jobs is not None:
            self._jobs.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def run_process(
        self,
        argv: list[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, Json] | None = None,
        stdin: bytes | None = None,
    ) -> ProcessResult:
        """As `Host.run_process`."""
        process = self._host.run_process(argv, cwd=cwd, env=env, stdin=stdin)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(process, self._loop))
