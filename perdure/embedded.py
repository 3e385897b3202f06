"""The embedded server and this process's workers on it, kept alive as long as they are used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.server import Server, users
from perdure.state import StateDir
from perdure.workers import (
    DRAIN_SECONDS,
    WorkerConfig,
    WorkerProcess,
    forget_left,
    left_pids,
    log_pids,
)

LOOK_SECONDS = 0.5
"""How often server and workers are looked after; a look reads a file and waits for nothing."""

T = TypeVar("T")


def workers_on(state: StateDir, queue: str) -> set[int]:
    """The live workers on a queue of the embedded server, of whichever process."""
    return {user.pid for user in users(state) if user.role == "worker"} & log_pids(state, queue)


def left_on(state: StateDir, queue: str) -> dict[int, list[str]]:
    """The live workers that `Embedded.detach` left on a queue, each with its options."""
    left = left_pids(state, queue)
    alive = workers_on(state, queue) if left else set()
    return {pid: options for pid, options in left.items() if pid in alive}


class ServerMoved(PerdureError):
    """The embedded server came back at another address."""


class Embedded:
    """One process's use of the embedded server."""

    def __init__(self, settings: Settings, server: Server) -> None:
        self._settings = settings
        self._server = server
        self._workers: dict[str, WorkerProcess] = {}
        self._abandoned: dict[str, WorkerConfig | None] = {}
        """Queues that somebody must serve, whoever it is; how, if it must be this process."""
        self._starting = asyncio.Lock()
        self._trouble: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watch = asyncio.create_task(self._look_after())

    @classmethod
    async def join(cls, settings: Settings, *, role: str) -> Embedded:
        """Use the server; start it if there is none. Raises as `Server.join`."""
        server = Server(settings, role=role)
        await server.join()
        return cls(settings, server)

    @property
    def address(self) -> str:
        """`127.0.0.1:port`"""
        return self._server.address

    @property
    def ui_url(self) -> str:
        """The server's UI."""
        return self._server.ui_url

    async def serve(self, queue: str, config: WorkerConfig | None = None) -> None:
        """Have a worker on the queue: one that was left behind there, else one of this process.

        If the one that was left is lost, ours takes its place. Raises WorkerFailed.
        """
        if queue in self._workers:
            return
        if self.left_on(queue):
            self._abandoned[queue] = config
        else:
            await self._start(queue, config)

    async def serve_if_nobody_does(self, queue: str) -> None:
        """Have a worker on the queue, from now until the end: another process's, else ours.

        A worker of another process may be about to end, as one does whose parent was killed: then
        ours takes its place. Raises WorkerFailed.
        """
        self._abandoned.setdefault(queue, None)
        if not self.is_served(queue):
            await self._start(queue, self._abandoned[queue])

    @property
    def has_worker(self) -> bool:
        """Whether any worker is up, or will be at once: one of this process, which is looked after.

        Each serves what all suites share, beside its own queue.
        """
        return bool(self._workers) or any(
            user.role == "worker" for user in users(self._settings.state)
        )

    def is_served(self, queue: str) -> bool:
        """Whether a worker that `serve` started, here or in another process, is on the queue."""
        return bool(workers_on(self._settings.state, queue))

    def looks_after(self, queue: str) -> bool:
        """Whether a worker that is lost on the queue is replaced by this process."""
        return queue in self._workers or queue in self._abandoned

    def left_on(self, queue: str) -> dict[int, list[str]]:
        """The live workers that `detach` left on the queue, by pid, each with its options."""
        return left_on(self._settings.state, queue)

    async def end_left(self, queue: str) -> None:
        """End the workers that `detach` left on the queue, in whichever process; they drain.

        They know the environment and the steps of an earlier call, so nothing that a new call
        starts may reach them.
        """
        state = self._settings.state
        self._abandoned.pop(queue, None)  # what takes their place is up to the new call
        for number, patience_seconds in ((signal.SIGTERM, DRAIN_SECONDS), (signal.SIGKILL, 5.0)):
            left = set(left_on(state, queue))
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience_seconds
            while left & workers_on(state, queue) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for pid in left_pids(state, queue).keys() - workers_on(state, queue):
            forget_left(state, queue, pid)

    def is_served_by_others(self, queue: str) -> bool:
        """Whether a worker is on the queue that goes on when this process leaves."""
        own = self._workers.get(queue)
        return bool(workers_on(self._settings.state, queue) - {own and own.pid})

    def detach(self, queue: str) -> None:
        """Leave the queue's worker, if it is ours, behind when this process ends.

        It ends by itself once nothing on its queue is open any more. Raises StateError.
        """
        self._abandoned.pop(queue, None)
        worker = self._workers.get(queue)
        if worker:
            worker.detach()
            del self._workers[queue]

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work; but raise at once if server or workers cannot be kept alive."""
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._trouble}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._trouble.result()
            return await task
        finally:
            task.cancel()

    async def close(self) -> None:
        """Stop the workers and use the server no longer. Harmless when repeated."""
        self._watch.cancel()
        await asyncio.wait({self._watch})
        self._trouble.cancel()
        workers, self._workers = list(self._workers.values()), {}
        try:
            await asyncio.gather(*(worker.stop() for worker in workers))
        finally:
            await self._server.leave()

    async def _start(self, queue: str, config: WorkerConfig | None) -> None:
        async with self._starting:  # a call and the one that looks after it may both want one
            if queue not in self._workers:
                worker = WorkerProcess(self._settings, queue, self.address, config)
                await worker.ensure_alive()
                self._workers[queue] = worker  # from now on it is looked after

    async def _look_after(self) -> None:
        address = self.address
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                await self._server.restart_if_dead()
                if self.address != address:
                    raise ServerMoved(
                        f"the embedded server was killed, and its port {address} was taken; it is "
                        f"at {self.address} now: type the same command again to go on"
                    )
                for worker in list(self._workers.values()):
                    await worker.ensure_alive()
                for queue in self._abandoned.keys() - self._workers.keys():
                    await self.serve_if_nobody_does(queue)
        except PerdureError as error:
            self._tell(error)
        except Exception as error:
            told = PerdureError(
                f"server and worker can no longer be looked after ({type(error).__name__}: "
                f"{error}); type the same command again to go on"
            )
            told.__cause__ = error
            self._tell(told)

    def _tell(self, error: PerdureError) -> None:
        if not self._trouble.done():
            self._trouble.set_exception(error)
            self._trouble.exception()  # seen: `guard` tells of it, if anybody waits
