"""One start of a job: what it is given, the process that it becomes, and how that is stopped."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from activities import cells, host, marker
from activities.backend import Backends
from activities.inside import (
    NUDGE_SECONDS,
)
from activities.job_command import JobCommand, job_key, numbered
from activities.job_host import JobHost
from activities.places import RunPlace, UnsafeName
from activities.safe_files import own_folder
from activities.secrets import WorkerEnvironment
from activities.supervise import ProcessExit, ProcessSpec, Supervisor
from perdure.core.job_checks import is_exec_id
from perdure.core.redaction import mask, spellings
from perdure.job_messages import JobTask

HAS_ENDED = "its process has ended"

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

JOB_NICENESS = 15
"""So that sixteen jobs that are never idle leave steps, and whoever looks at jobs, their pace."""


class JobStart:
    """One start, known to its worker from before its process exists until all is told of it."""

    def __init__(
        self,
        task: JobTask,
        place: RunPlace,
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        backends: Backends | None,
    ) -> None:
        """Raises UnsafeName."""
        if not is_exec_id(task.job.exec_id):  # it is a part of the marker that is swept
            raise UnsafeName(f"{task.job.exec_id!r} is not the id of a job")
        self.task = task
        self.spec = task.job.spec
        self.folder = place.job(task.job.exec_id)
        self.stdout = self.folder / numbered("stdout.log", task.attempt)
        self.stderr = self.folder / numbered("stderr.log", task.attempt)
        self.key = job_key(task.job.exec_id, task.attempt)
        self.was_interrupted = False
        """A SIGINT was delivered to it."""
        self.was_killed = False
        self.is_unwanted = False
        """Its activity was cancelled."""
        self.is_handed_back = False
        """Its worker is stopping."""
        self.is_hurried = asyncio.Event()
        """One of the last two: nobody waits long for it any more."""
        self.gone = asyncio.Event()
        """Nothing of it runs any more, and all is told."""
        self._place = place
        self._environment = environment
        self._supervisor = supervisor
        self._backends = backends
        self._host: JobHost | None = None
        self._command: JobCommand | None = None
        self._is_spawned = False
        self._is_over = False

    @property
    def pid(self) -> int | None:
        """Of its first process on this host."""
        return self._supervisor.pid_of(self.key)

    @property
    def host(self) -> JobHost:
        """What it has of its machine, once it is prepared."""
        assert self._host is not None
        return self._host

    @property
    def is_in_container(self) -> bool:
        """Whether its process on this host is but the client of what runs inside."""
        return self._command is not None and self._command.is_in_container

    @property
    def is_called_off(self) -> bool:
        """It was told to stop before its process was there."""
        return self.was_interrupted or self.was_killed or self.is_unwanted or self.is_handed_back

    # --- From the beginning to the end ------------------------------------------------------

    async def prepare(self) -> ProcessSpec:
        """End what earlier starts left, and make ready what the process needs.

        Raises StepFailed and PerdureError for what the job cannot be given; the text is for whoever
        launched it.
        """
        self._host = JobHost.of(
            self.task, self._place, self.key, self._environment, self._supervisor, self._backends
        )
        own_folder(self.folder.parent)
        own_folder(self.folder)
        earlier = f"job/{self.task.job.exec_id}."
        if self.task.attempt > 1:
            # No process of a lost worker lives on; this finds those whose supervisor was killed.
            await asyncio.to_thread(marker.sweep, earlier, prefix=True)
        where = self.spec.environment
        instance = None if where is None else self.host.instances.at_hand(where)
        command = self._command = JobCommand(self.task, self.host, instance)
        if self.task.attempt > 1:
            await command.end_inside(earlier)
        self.host.write_context()
        process = await command.on_host()
        return ProcessSpec(
            key=self.key,
            argv=process.argv,
            cwd=process.cwd,
            env=process.env,
            stdin=command.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            exit_file=None,
            timeout_seconds=self.spec.time_limit_seconds,
            kill_grace_seconds=host.KILL_GRACE_SECONDS,
            secrets=tuple(spellings(self.host.secret_values)),
            fold_redraws=True,
            hold_sigint=process.hold_sigint,
            niceness=JOB_NICENESS,
        )

    async def run(self, process: ProcessSpec) -> ProcessExit:
        """Run its process to the end. Raises SpawnFailed, SupervisorLost."""
        self._is_spawned = True
        try:
            return await self._supervisor.run(process)
        finally:
            self._is_over = True

    async def report(self, ended: ProcessExit) -> cells.Report | None:
        """How a cell ended by its own account; None for a command, or if it could not tell."""
        assert self._command is not None
        # On which stream an engine says that it found no program depends on its version.
        said = _start_of(self.stderr) + _start_of(self.stdout)
        return await self._command.report(ended, said)

    async def clear(self) -> bool:
        """Leave nothing: no process inside, no file that may hold secrets. False if it failed."""
        if self._host is not None:
            self._host.close()
        return self._command is None or await self._command.end_inside()

    def masked(self, text: str) -> str:
        """The text without the secrets that the job has met."""
        return mask(text, self._host.secret_values) if self._host else text

    # --- Stopping it ------------------------------------------------------------------------

    async def interrupt(self) -> str | None:
        """One SIGINT; None if it was delivered, or will be: else why not."""
        if self._is_over:
            return HAS_ENDED
        if not self._is_spawned:
            self.was_interrupted = True
            return None
        if self._command and self._command.is_in_container:
            reason = await self._command.nudge_inside()
        else:
            reason = await self._supervisor.interrupt(self.key)
        self.was_interrupted = self.was_interrupted or reason is None
        return reason

    async def kill(self) -> str | None:
        """SIGKILL for all of it; None, or why there was nobody."""
        if self._is_over:
            return HAS_ENDED
        self.was_killed = True
        if self._command and self._is_spawned:
            await self._command.end_inside(limit_seconds=NUDGE_SECONDS)
            self._supervisor.kill(self.key)
        return None

    def call_off(self, *, handed_back: bool) -> None:
        """End it, since its activity is cancelled; `handed_back`: since its worker stops."""
        self.is_hurried.set()
        if handed_back:
            self.is_handed_back = True
            self._supervisor.end(self.key)
        else:
            self.is_unwanted = True
            self._supervisor.kill(self.key)


def _start_of(path: Path) -> str:
    try:
        # The job may have put a pipe there, whose reading would hold up the worker's loop.
        with open(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""
