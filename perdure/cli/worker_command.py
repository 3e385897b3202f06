"""`perdure worker`: serve a queue until asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.console import say
from perdure.cli.options import (
    EnvFileOption,
    HostOption,
    InheritEnvOption,
    MaxMemoryOption,
    PassEnvOption,
    StepsOption,
    host_name,
    max_memory,
    variable_names,
)

if TYPE_CHECKING:
    from perdure.cli.signals import Asked
    from perdure.config import Settings
    from perdure.server import Server
    from worker import WorkerOptions

LOOK_SECONDS = 0.5
"""How often a worker looks after the embedded server."""

LEAVE_SECONDS = 30.0
"""A drain that takes longer hangs (its server may be gone): then the process just ends."""

_STAY = b"stay"

_log = logging.getLogger("perdure.worker")


@dataclass(frozen=True)
class _Call:
    """What the command line says."""

    queue: str | None
    address: str | None
    host: str
    exit_with_parent: bool
    ready_fd: int | None


def worker(
    host: HostOption = None,
    max_instances: Annotated[
        int | None,
        typer.Option(
            "--max-instances",
            metavar="N",
            min=0,
            max=10_000,
            help="Instances of environments at a time on this host; by default as many as memory "
            "and ports allow.",
            show_default=False,
        ),
    ] = None,
    max_jobs: Annotated[
        int,
        typer.Option(
            "--max-jobs",
            metavar="N",
            min=1,
            max=1_000,
            help="Background jobs at a time; more of them wait.",
        ),
    ] = 64,
    memory: MaxMemoryOption = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="The task queue to serve; by default PERDURE_QUEUE, else perdure.",
            show_default=False,
        ),
    ] = None,
    steps: StepsOption = [],  # noqa: B006
    pass_env: PassEnvOption = [],  # noqa: B006
    inherit_env: InheritEnvOption = False,
    env_file: EnvFileOption = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="The Temporal server; by default that of Temporal's own settings, "
            "else the embedded one.",
            show_default=False,
        ),
    ] = None,
    exit_with_parent: Annotated[
        bool,
        typer.Option(
            "--exit-with-parent",
            hidden=True,
            help="Stdin is a pipe of the parent's: end with it, unless the line `stay` came.",
        ),
    ] = False,
    ready_fd: Annotated[
        int | None,
        typer.Option(
            "--ready-fd",
            metavar="N",
            hidden=True,
            help="Write the line `ready` to this descriptor once the queue is served.",
        ),
    ] = None,
) -> None:
    """Run the steps of tasks, until Ctrl-C or SIGTERM.

    `perdure run` has a worker of its own; this one serves suites that were started elsewhere, on a
    team's server above all, and brings up their environments. Asked to stop, it lets running steps
    go on for 10 s, then hands them back to the next worker; asked twice, it leaves at once.

    Logs go to stderr; PERDURE_LOG is their level (debug, info, warning, error).
    """
    from perdure.cli.logs import set_up_logs
    from perdure.env_file import read_env_file

    set_up_logs()
    call = _Call(queue, address, host_name(host) or _own_host(), exit_with_parent, ready_fd)
    names, values = variable_names(pass_env), read_env_file(env_file)
    most_gb = max_memory(memory)

    import worker as wiring
    from activities.secrets import WorkerEnvironment
    from perdure.config import Settings
    from perdure.names import DEFAULT_QUEUE, shared_queue
    from perdure.steps import load_step_modules

    wiring.check_packages()
    load_step_modules(steps)
    if sys.platform == "darwin":
        say(
            "note: on macOS the processes of a worker that was killed are found by a marker in "
            "their environment, at the next start; Linux ends them at once"
        )
    settings = Settings.from_env()
    options = wiring.WorkerOptions(
        queue=call.queue or settings.queue,
        host=call.host,
        runs=settings.state.runs,
        results=settings.state.results,
        # Not of --queue or PERDURE_QUEUE: whoever uses a namespace shares its limits.
        shared_queue=shared_queue(DEFAULT_QUEUE),
        environment=WorkerEnvironment(
            pass_env=tuple(names), inherit_env=inherit_env, env_file=values
        ),
        max_instances=max_instances,
        job_slots=max_jobs,
        max_memory_gb=most_gb or settings.max_memory_gb,
    )
    asyncio.run(_work(settings, call, options))


async def _work(settings: Settings, call: _Call, options: WorkerOptions) -> None:
    from perdure.cli.signals import asked_to_end

    async with asked_to_end(_leave_at_once) as asked, _server(settings, call) as server:
        serving = _Serving(settings, call, options, asked, server)
        await serving.until_asked()


@asynccontextmanager
async def _server(settings: Settings, call: _Call) -> AsyncIterator[Server | None]:
    """This process's use of the embedded server; None if another one is served."""
    from perdure.config import temporal_configured
    from perdure.server import embedded_server, status

    settings.state.prepare()
    if call.address is None:
        embedded = not temporal_configured(settings.temporal_env)
    else:
        # The parent's is the embedded one, even if it has just died and nobody knows its address.
        embedded = call.exit_with_parent or status(settings.state).address == call.address
    if not embedded:
        yield None
        return
    async with embedded_server(settings, role="worker") as server:
        yield server


class _Serving:
    """Serves a queue until asked to end, wherever the embedded server is by then."""

    def __init__(
        self,
        settings: Settings,
        call: _Call,
        options: WorkerOptions,
        asked: Asked,
        server: Server | None,
    ) -> None:
        self._settings = settings
        self._address = call.address
        self._options = replace(options, single_host=server is not None)
        self._asked = asked
        self._server = server
        self._has_parent = call.exit_with_parent
        self._left = False
        self._ready = _Ready(call.ready_fd)

    async def until_asked(self) -> None:
        parent = asyncio.create_task(self._heed_parent()) if self._has_parent else None
        while not self._asked.event.is_set():
            await self._serve()
        if parent:
            parent.cancel()
        if self._left:
            from perdure.workers import forget_left

            forget_left(self._settings.state, self._options.queue, os.getpid())

    async def _serve(self) -> None:
        """Serve until asked to end, or until the embedded server has another address."""
        from perdure.cli.vacancy import Vacancy
        from perdure.connection import connect
        from perdure.storage import check_blob_dir
        from worker import serving

        check_blob_dir(self._settings, embedded=self._server is not None)
        address = self._server.address if self._server else self._address
        client = await connect(self._settings, address=address, role="worker")
        where = address or client.service_client.config.target_host
        options = self._options
        async with serving(client, options):
            _log.info("serving queue %s of %s as host %s", options.queue, where, options.host)
            self._ready.tell()
            vacancy = Vacancy(client, options.queue, options.host)
            while not await self._asked.within(LOOK_SECONDS):
                # A parent looks after the server itself.
                if self._server and not self._has_parent:
                    await self._look_after(self._server)
                    if self._server.address != address:
                        return
                if self._left and await vacancy.is_certain():
                    _log.info("nothing on the queue is open any more")
                    self._asked.event.set()
            _log.info("stopping; running steps have %.0f s", options.drain.total_seconds())
            _end_by_force_after(LEAVE_SECONDS)

    async def _look_after(self, server: Server) -> None:
        from perdure.server import ServerStopped

        try:
            if await server.restart_if_dead():
                _log.warning("the embedded server had died and was started again")
        except ServerStopped:
            _log.info("the embedded server was stopped")
            self._asked.event.set()

    async def _heed_parent(self) -> None:
        """Read what the parent says on stdin; at its end, this worker ends.

        Unless it said `stay`: then this worker is on its own from there on, and ends once nothing
        on its queue is open any more.
        """
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader),
                os.fdopen(os.dup(0), "rb", buffering=0),
            )
        except (OSError, ValueError):  # no pipe: there is no parent to wait for
            self._asked.event.set()
            return
        try:
            while line := await reader.readline():
                if line.strip() == _STAY:
                    self._has_parent, self._left = False, True
                    _log.info("left behind to go on alone")
                    return
            _log.info("the command that started this worker has ended")
            self._asked.event.set()
        finally:
            transport.close()


class _Ready:
    """Tells whoever waits, once, that the queue is served."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)  # no process of a step may keep it open

    def tell(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # nobody waits any more
                os.write(self._fd, b"ready\n")
                os.close(self._fd)
            self._fd = None


def _own_host() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("._-")
    return name[:100] or "localhost"


def _leave_at_once(number: signal.Signals) -> None:
    # The supervisor sees its pipe close and kills whatever the steps started.
    os._exit(128 + number)


def _end_by_force_after(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
