"""What one attempt of a step has of its machine: processes, secrets, files it leaves."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from activities.adoption import own_end
from activities.leftovers import Artifacts, created, merge_output, read_output
from activities.ports import FreePorts, PortProbe, port_range
from activities.safe_files import folder_below, own_folder
from activities.secrets import MissingSecret, WorkerEnvironment, resolve, write_private
from activities.step_instances import StepInstances
from activities.step_jobs import StepJobs
from activities.step_log import TRIAL_MARK, StepLog
from activities.supervise import ProcessExit, ProcessSpec, SpawnFailed, Supervisor
from perdure.core.context import FIELDS
from perdure.core.problems import shown
from perdure.core.record import summed
from perdure.core.redaction import STORED, restore, spellings, texts_of
from perdure.core.secret_references import is_reference
from perdure.core.task import Step
from perdure.messages import Artifact, Json, StepTask
from perdure.steps import Context, ProcessResult, StepFailed

OWN_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
"""Of the worker's own environment, what every step sees."""

KILL_GRACE_SECONDS = 5.0
KILL_SLACK_SECONDS = 15.0
"""What the supervisor may take to end a process at its limit, the grace after SIGTERM included."""

PRIVATE_FILES = (
    *("context.json", "output.json", "script.py", "call.json", "answer.json"),
    "mcp.yaml",
)
"""Of an attempt's directory: what its process was given and what it answered, secrets in place."""

_SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SECRET_LENGTH = 8
"""A variable's name is but a hint; a shorter value ("true") would be masked where it is none."""

LARGEST_AMOUNT = 1e300
"""Of a usage."""


class StepHost:
    """Implements `perdure.steps.Host` for one attempt of a step.

    Made anew for each attempt. `step_dir` is the attempt's own directory, or that of an attempt
    whose worker was lost: a process whose exit lies there is not run again.
    """

    def __init__(
        self,
        task: StepTask,
        step: Step,
        *,
        step_dir: Path,
        workdir: Path,
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        key: str,
        context: Context,
        secrets: Mapping[str, Json] | None = None,
        instances: StepInstances | None = None,
        folder: Path | None = None,
        free_ports: FreePorts | None = None,
    ) -> None:
        """`key` marks the attempt's processes.

        `context` is what the step is given, secrets in their places; `secrets` are those of the
        run's secret file, by name. `instances`: of the task's environments. `folder` is where
        relative paths of `from_file` start; None: the worker's current one. `free_ports` chooses
        those of servers that the step starts itself.
        """
        self._workdir = workdir
        self.step_dir = step_dir
        self.instances = instances or StepInstances()
        self.ports: Mapping[str, int] = self.instances.ports
        self.free_ports = free_ports or FreePorts(PortProbe(), port_range(environment.get))
        self.attempt = task.attempt
        self.run_id = task.run.run_id
        self.task_id = task.run.task_id
        self.trial = task.run.trial
        name = f"{task.run.suite}/{task.run.task_id}/{task.run.trial} {step.id}.{task.attempt}"
        metadata: Any = context.metadata  # a step's function may have put anything there
        mark = metadata.get(TRIAL_MARK) if isinstance(metadata, dict) else None
        self.log: logging.LoggerAdapter[logging.Logger] = StepLog(name, mark)
        self._step = step
        self._environment = environment
        self._supervisor = supervisor
        self._key = key
        self._context = context
        self._stored = dict(secrets or {})
        self._folder = folder
        self._values = set(texts_of(list(self._stored.values())))
        self._began = self._moved_at = time.monotonic()
        self._processes = 0
        self._private = False
        self._running: set[str] = set()
        self._context_written = False
        self._usage: dict[str, float] = {}
        self._counting = threading.Lock()
        self._jobs: StepJobs | None = None
        self._note_passed_secrets()
        self._values.update(self.instances.secrets(environment))

    @property
    def workdir(self) -> Path:
        """The run's working directory, made when a step first asks for it: small ones never do."""
        if not self._workdir.is_dir():
            self._workdir.mkdir(parents=True, exist_ok=True)
        return self._workdir

    @property
    def comes_again(self) -> bool:
        """Whether the same was tried before, and may have left something that runs."""
        return self.attempt > 1

    # --- Files of the attempt -------------------------------------------------------------------

    @property
    def context_path(self) -> Path:
        """`PERDURE_CONTEXT`; there while processes run, since it may hold secrets."""
        return self.step_dir / "context.json"

    @property
    def output_path(self) -> Path:
        """`PERDURE_OUTPUT`."""
        return self.step_dir / "output.json"

    @property
    def artifacts_dir(self) -> Path:
        """`PERDURE_ARTIFACTS`."""
        return self.step_dir / "artifacts"

    def private_file(self, name: str, content: bytes) -> Path:
        """Write one of PRIVATE_FILES, readable by its owner only; it goes with `close`."""
        self._private = True
        path = self.step_dir / name
        path.unlink(missing_ok=True)
        write_private(path, content)
        return path

    def close(self) -> None:
        """Remove what may hold secrets. A second call changes nothing.

        For after the outcome is on disk: until then, whoever adopts the attempt needs the files.
        """
        if self.has_files:
            forget(self.step_dir)

    @property
    def has_files(self) -> bool:
        """Whether the attempt ran a process, which may have left something."""
        return self._processes > 0 or self._private

    # --- Time -----------------------------------------------------------------------------------

    def heartbeat(self, note: str = "") -> None:
        """Say that the step moves: restarts the clock of `idle_timeout`. Any thread."""
        self._moved_at = time.monotonic()
        for key in tuple(self._running):
            self._supervisor.touch(key)
        if note:
            self.log.info("%s", note)

    @property
    def moved_at(self) -> float:
        """When the step last gave a sign of life (monotonic); a process is watched elsewhere."""
        return time.monotonic() if self._running else self._moved_at

    @property
    def kill_slack_seconds(self) -> float:
        """How much longer than its limit the attempt may take, because the supervisor ends it."""
        return KILL_SLACK_SECONDS if self._processes else 0.0

    # --- Secrets --------------------------------------------------------------------------------

    @property
    def secret_values(self) -> list[str]:
        """Every secret that this attempt has met; to be masked in whatever it leaves."""
        return sorted(self._values)

    def secret(self, reference: Json) -> str:
        """Resolve `{from_env: NAME}` or `{from_file: PATH}`; its value is masked from then on.

        Raises StepFailed (type `MissingSecret`, not retried), naming the reference.
        """
        try:
            value = resolve(reference, self._environment, self._folder)
        except MissingSecret as error:
            raise StepFailed(
                str(error), type="MissingSecret", kind="bad_input", retryable=False
            ) from None
        self._values.add(value)
        return value

    def resolved(self, value: Json) -> Json:
        """A copy with the values of secrets where references stand, at every depth.

        Raises StepFailed as `secret` does.
        """
        if is_reference(value):
            return self.secret(value)
        if isinstance(value, dict):
            if STORED in value:
                return restore(value, self._stored)
            return {key: self.resolved(item) for key, item in value.items()}
        return [self.resolved(item) for item in value] if isinstance(value, list) else value

    def _note_passed_secrets(self) -> None:
        """Mask what `--pass-env` lets through, if its name says that it is a secret."""
        for name, value in self._passed().items():
            if _SECRET_NAME.search(name) and len(value) >= _SECRET_LENGTH:
                self._values.add(value)

    # --- Jobs -----------------------------------------------------------------------------------

    def give_jobs(self, jobs: StepJobs) -> None:
        """Let the step and its processes launch background jobs, until `end_jobs`."""
        self._jobs = jobs

    @property
    def jobs(self) -> StepJobs:
        """The background jobs of the task.

        Raises StepFailed (type `NoJobs`, not retried) for what undoes a step.
        """
        if self._jobs is None:
            raise StepFailed(
                "what undoes a step launches and sees no jobs", type="NoJobs", retryable=False
            )
        return self._jobs

    def end_jobs(self) -> None:
        """The attempt is over: nothing is launched in its name any more."""
        if self._jobs is not None:
            self._jobs.end()

    # --- Processes ------------------------------------------------------------------------------

    async def run_process(
        self,
        argv: list[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, Json] | None = None,
        stdin: bytes | None = None,
        adopt: bool = True,
        whole_env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Run a process under the supervisor, with the step's environment, limits and files.

        `env` adds to what every step's process sees; values are texts or secret references.
        `whole_env` is all that it sees, in place of that. The
        step's time limits count from the start of the attempt. `adopt`: take over the end of this
        process if a lost attempt left it. Raises StepFailed (type `SpawnFailed`, not retried) if it
        cannot be started.
        """
        self._processes += 1
        number = self._processes
        own_folder(self.artifacts_dir)
        stdout, stderr, exit_file = (
            self.step_dir / (name if number == 1 else f"{stem}.{number}.{end}")
            for name in ("stdout.log", "stderr.log", "exit.json")
            for stem, _, end in [name.partition(".")]
        )
        ended = own_end(exit_file) if adopt else None
        if ended is not None:
            return _result(ended, stdout, stderr)
        exit_file.unlink(missing_ok=True)
        spec = ProcessSpec(
            key=self._key if number == 1 else f"{self._key}/{number}",
            argv=list(argv),
            cwd=self.workdir if cwd is None else cwd,
            env=self.environ(env) if whole_env is None else whole_env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            exit_file=exit_file,
            timeout_seconds=max(0.05, self._began + self._step.timeout_seconds - time.monotonic()),
            idle_timeout_seconds=self._step.idle_timeout_seconds,
            kill_grace_seconds=KILL_GRACE_SECONDS,
            secrets=tuple(spellings(self._values)),
        )
        self._write_context()
        self._running.add(spec.key)
        try:
            ended = await self._supervisor.run(spec)
        except SpawnFailed as error:
            raise StepFailed(
                str(error), type="SpawnFailed", kind="bad_input", retryable=False
            ) from None
        finally:
            self._running.discard(spec.key)
            self._moved_at = time.monotonic()
        if ended.output_error:
            self.log.warning("output is missing from the logs: %s", ended.output_error)
        return _result(ended, stdout, stderr)

    def environ(self, env: Mapping[str, Json] | None = None) -> dict[str, str]:
        """The whole environment of the step's processes, `env` added.

        perdure's own variables win over the step's. Raises StepFailed as `secret` does.
        """
        own = self._environment.variables
        variables = {name: own[name] for name in OWN_VARIABLES if name in own}
        variables |= self._passed()
        variables |= self.instances.variables
        return {**variables, **self.step_variables(env), **self.own_variables()}

    @property
    def worker_variables(self) -> Mapping[str, str]:
        """The worker's own environment."""
        return self._environment.variables

    def step_variables(self, env: Mapping[str, Json] | None = None) -> dict[str, str]:
        """Those that the step names under `env`, and those given. Raises StepFailed as `secret`."""
        named = {**self._step.body.get("env", {}), **(env or {})}
        return {name: _variable(self.resolved(value)) for name, value in named.items()}

    def own_variables(self) -> dict[str, str]:
        """perdure's own, by which a process knows what it is for and where its files are."""
        jobs = self._jobs.address if self._jobs is not None else None
        return {
            **({"PERDURE_JOBS": jobs} if jobs else {}),
            "PERDURE_TASK_ID": self.task_id,
            "PERDURE_STEP_ID": self._step.id,
            "PERDURE_RUN_ID": self.run_id,
            "PERDURE_TRIAL": str(self.trial),
            "PERDURE_ATTEMPT": str(self.attempt),
            "PERDURE_WORKDIR": str(self.workdir),
            "PERDURE_CONTEXT": str(self.context_path),
            "PERDURE_OUTPUT": str(self.output_path),
            "PERDURE_ARTIFACTS": str(self.artifacts_dir),
        }

    def _passed(self) -> dict[str, str]:
        """What `--inherit-env` and `--pass-env` let through; never what is perdure's own."""
        worker = self._environment
        passed = {**worker.variables, **worker.env_file} if worker.inherit_env else {}
        for name in worker.pass_env:
            if (value := worker.get(name)) is not None:
                passed[name] = value
        return {name: value for name, value in passed.items() if not name.startswith("PERDURE_")}

    def _write_context(self) -> None:
        if self._context_written:
            return
        self._context_written = True
        context = {name: getattr(self._context, name) for name in FIELDS}
        self.private_file("context.json", json.dumps(context).encode())

    # --- What the step leaves -------------------------------------------------------------------

    def add_usage(self, **amounts: float) -> None:
        """Count what the attempt has used: `host.add_usage(cost=0.2, tokens=120)`. Any thread.

        Raises StepFailed (type `BadUsage`, not retried) for what is no finite number from 0 on.
        """
        counted = {name: _amount(name, value) for name, value in amounts.items()}
        with self._counting:
            self._usage = summed([self._usage, counted])

    @property
    def usage(self) -> dict[str, float]:
        """What `add_usage` has counted so far."""
        return dict(self._usage)

    def collect_output(self, context: Context) -> dict[str, float]:
        """Merge what the step's processes wrote to `PERDURE_OUTPUT`; return its `usage`, to which
        that of `add_usage` is added.

        Raises StepFailed (type `BadOutput`): not a JSON object, or a reserved key in it; the
        context is then as it was.
        """
        output = read_output(self.output_path) if self.has_files else None
        return (
            self.usage if output is None else summed([self._usage, merge_output(output, context)])
        )

    def collect_artifacts(self) -> list[Artifact]:
        """What lies in `PERDURE_ARTIFACTS`, sorted by path; links and what is too large are
        listed, not kept."""
        return Artifacts().of(self.artifacts_dir) if self.has_files else []

    def collect_creates(self) -> list[str]:
        """The paths under the step's `creates` that exist, in the document's order.

        Raises StepFailed (type `BadPath`) for one that leads out of the working directory.
        """
        return [name for name in self._step.creates if created(self.workdir, name)]


def forget(step_dir: Path) -> None:
    """Remove from an attempt's directory what may hold secrets; tolerant of all that is missing.

    Follows no link in the directory's place.
    """
    with contextlib.suppress(OSError), folder_below(step_dir.parent, step_dir.name) as folder:
        forget_in(folder)


def forget_in(folder: int) -> None:
    """As `forget`, for an open directory."""
    for name in PRIVATE_FILES:
        for file in (name, f"{name}.draft"):
            with contextlib.suppress(OSError):  # a step may have put a directory in its place
                os.unlink(file, dir_fd=folder)


def _result(ended: ProcessExit, stdout: Path, stderr: Path) -> ProcessResult:
    return ProcessResult(ended.exit_code, ended.duration_seconds, stdout, stderr, ended.ended_by)


def _amount(name: str, value: object) -> float:
    """A usage as it is counted. Raises StepFailed (type `BadUsage`) for one that cannot be."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            amount = float(value)
            # Below the largest number by so much that no sum becomes infinite.
            if 0 <= amount <= LARGEST_AMOUNT and name.isprintable():
                return amount
    raise StepFailed(
        f"add_usage: {shown(name)} is {shown(value)}; give a finite number from 0 on, by a "
        "name that can be printed",
        type="BadUsage",
        kind="bad_input",
        retryable=False,
    )


def _variable(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
