"""The command that one start of a job becomes: beside the worker, or inside of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from activities import cells, leftovers, marker
from activities.backend import InnerCommand
from activities.commands import run_command
from activities.inside import (
    END_SECONDS,
    Inside,
    end_inside,
    environment_around,
    nudge_inside,
    variables_inside,
)
from activities.job_host import JobHost
from activities.step_instances import AtHand
from activities.supervise import ProcessExit
from perdure.docker_check import engine_environment
from perdure.errors import PerdureError
from perdure.job_messages import JobTask
from perdure.steps import StepFailed

_REPORT_SECONDS = 10.0
_NOT_FOUND_CODES = (126, 127)


def job_key(exec_id: str, attempt: int) -> str:
    """What marks the processes of one start; those inside of a container add `/inside`."""
    return f"job/{exec_id}.{attempt}"


def numbered(name: str, attempt: int) -> str:
    """A file's name among those of several starts: `stdout.log`, `stdout.2.log`."""
    stem, _, end = name.partition(".")
    return name if attempt == 1 else f"{stem}.{attempt}.{end}"


@dataclass(frozen=True)
class OnHost:
    """What the supervisor is to run on this host."""

    argv: list[str]
    cwd: Path
    env: Mapping[str, str]
    hold_sigint: bool = False


class JobCommand:
    """What is run, what it is given, and how it is reached where it runs."""

    def __init__(self, task: JobTask, host: JobHost, instance: AtHand | None) -> None:
        """`instance`: of the job's environment; None: it runs beside the worker."""
        self._spec = task.job.spec
        self._host = host
        self._instance = instance
        self._key = job_key(task.job.exec_id, task.attempt)
        name = numbered("report.json", task.attempt)
        self._reports = (
            cells.reports_inside(f"perdure-{task.job.exec_id}-{name}")
            if self.is_in_container
            else [str(host.step_dir / name)]
        )

    @property
    def is_in_container(self) -> bool:
        """Whether what runs on this host is but the client of what runs inside."""
        return self._instance is not None and not self._instance.environment.process

    @property
    def stdin(self) -> bytes | None:
        """What it reads. Raises StepFailed for a secret that cannot be had."""
        spec = self._spec
        if spec.code is None:
            return None if spec.stdin is None else spec.stdin.encode("utf-8", "replace")
        args = self._host.resolved(spec.args)
        return cells.input_of(spec, args, self._host.call_context, self._reports)

    async def on_host(self) -> OnHost:
        """What is to be run. Raises StepFailed: what it asks for cannot be had."""
        instance, is_cell = self._instance, self._spec.code is not None
        if instance is None:
            argv = self._spec.argv or cells.argv_here()
            return OnHost(argv, self._cwd(), self._host.environ(), hold_sigint=is_cell)
        cell = cells.argv_inside() if self.is_in_container else cells.argv_here()
        variables = variables_inside(instance, self._host)
        return OnHost(
            await self._leading_inside(instance, self._spec.argv or cell, variables),
            self._host.workdir,
            environment_around(instance, variables, self._host),
            hold_sigint=is_cell and not self.is_in_container,
        )

    async def report(self, ended: ProcessExit, said: str) -> cells.Report | None:
        """How a cell ended by its own account; None for a command, or if it could not tell.

        `said`: what was printed first.
        """
        if self._spec.code is None:
            return None
        if self._instance is None or not self.is_in_container:
            return cells.take_report(Path(self._reports[0]))
        if ended.exit_code in _NOT_FOUND_CODES and "python3" in said:
            return cells.Report(
                f"the image of service {self._spec.service} has no python3, which a python cell "
                "needs; add it to the image, or launch a command (argv)"
            )
        taking = cells.argv_taking(self._reports)
        try:
            outer = await self._leading_inside(self._instance, taking, {})
            env = engine_environment(self._host.worker_variables)
            return cells.parsed((await run_command(outer, env, _REPORT_SECONDS)).out)
        except (StepFailed, PerdureError, OSError, TimeoutError):
            return None  # the container is gone

    async def nudge_inside(self) -> str | None:
        """One SIGINT to what runs in the container; None, or why it reached nobody."""
        assert self._instance is not None
        return await nudge_inside(self._inside(self._instance), f"{self._key}/", self._host)

    async def end_inside(self, key: str = "", limit_seconds: float = END_SECONDS) -> bool:
        """Kill what runs in the container, if it does; False if some of it may be left.

        `key`: of what; by default, of this start.
        """
        if self._instance is None or not self.is_in_container:
            return True
        inside = self._inside(self._instance)
        return await end_inside(inside, key or f"{self._key}/", self._host, limit_seconds)

    def _inside(self, instance: AtHand) -> Inside:
        return Inside(instance, self._spec.service, self._spec.user)

    def _cwd(self) -> Path:
        here, cwd = self._host.workdir, self._spec.cwd
        if cwd is None:
            return here
        return Path(cwd) if cwd.startswith("/") else leftovers.inside(here, cwd, "cwd")

    async def _leading_inside(
        self, instance: AtHand, argv: list[str], variables: Mapping[str, str]
    ) -> list[str]:
        spec, marked = self._spec, {**variables, marker.MARKER: f"{self._key}/inside"}
        inner = InnerCommand(argv, spec.service, marked, spec.user, spec.workdir)
        try:
            return await instance.backend.exec_argv(instance.call, instance.folder, inner)
        except PerdureError as error:
            raise StepFailed(str(error), type="ExecFailed", kind="environment") from None
