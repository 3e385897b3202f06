"""Step types: what a step function is given, and how one is registered.

A custom type is one Python function::

    from perdure.steps import step

    @step("score", keys={"rubric"})
    async def score(step, context, host):
        context.metadata["score"] = grade(step["rubric"], context.results["agent"])

What it changes in `context` is the diff; what it returns is its result. The function runs on a
thread of its own, so it may block; a plain `def` works as well. The built-in types are registered
in the same way (`activities/steps`).

A type whose steps act on the world beyond their files may say how that is taken back::

    @step("order", keys={"item"}, undo=cancel_order)
    def order(step, context, host): ...

When a step of it is rolled back, `cancel_order(step, context, host)` is called once for each of its
attempts, the failed and the cancelled ones too, with an `UndoHost`. It may be called again for the
same attempt after a worker was lost, and for one that got nowhere: there it does nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from perdure.core.step_types import BUILT_IN_TYPES
from perdure.errors import PerdureError
from perdure.messages import FailureKind, Json
from perdure.peeks import Peek

ENTRY_POINTS = "perdure.steps"


class StepFailed(Exception):
    """Raised by a step function to end its attempt as failed.

    `type` is what `retry.non_retryable_errors` names; `retryable=False` ends the step whatever
    `retry` says; `result` is kept in the context, as a failed command's output is. Any other
    exception fails the attempt too, with its class name as the type.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str = "StepFailed",
        kind: FailureKind = "task",
        retryable: bool = True,
        result: Json = None,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.kind: FailureKind = kind
        self.retryable = retryable
        self.result = result


@dataclass
class Context:
    """The context as one step sees it: a private copy, changed freely.

    The fields are those of T54, and `results`: the finished steps' results by step id.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    deployed_envs: list[Any] = field(default_factory=list)
    deployed_agents: list[Any] = field(default_factory=list)
    deployed_sandboxes: list[Any] = field(default_factory=list)
    prompt_responses: list[Any] = field(default_factory=list)
    agent_model: str | None = None
    default_agent_model: str | None = None
    agent_artifact_id: str | None = None
    agent_harness: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended; its output lies in `stdout_path` and `stderr_path`."""

    exit_code: int
    """Negative: ended by that signal."""
    duration_seconds: float
    stdout_path: Path
    stderr_path: Path
    ended_by: str = "exit"
    """`exit`, `timeout`, `idle_timeout`, or `cancelled`."""


class Jobs(Protocol):
    """The background jobs of a step's task: `host.jobs`.

    A `job` is an exec id, or a name: of several jobs that had one name, the newest is meant. An
    `async def` awaits each call; a plain `def` is given the value itself, once it is there. What an
    attempt launched goes on when the attempt ends, and ends with the task at the latest. All raise
    `perdure.jobs.UnknownJob` for a job that is not there, and PerdureError if nobody answers.
    """

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
        """Start a job, a python cell (`code`) or a command (`argv`), and return its exec id.

        The keywords mean what the fields of `perdure.job_messages.JobSpec` mean; `time_limit` and
        `kill_after` are in seconds. An attempt that comes after a lost worker and makes the same
        calls takes over a `restartable` job, and launches another one anew once what was left of it
        is killed.

        Raises StepFailed: `JobRefused` with the reason (16 jobs run already, the name is taken, the
        task is ending); `BadJob`, not retried, for what cannot be launched at all.
        """

    async def peek(self, job: str, *, offset: int = 0, stderr_offset: int = 0) -> Peek:
        """A job as it is now, with its output from these offsets on, in characters."""

    async def interrupt(
        self, job: str, *, kill: bool = False, kill_after: float | None = None
    ) -> Peek:
        """Ask for one SIGINT for a job's process; returns at once, with the job as it is then.

        `kill_after`: seconds until it is killed, if it still runs; `kill`: at once.
        """

    async def wait(self, job: str, *, timeout: float | None = None) -> Peek:
        """Wait until a job has ended, or so many seconds: then its peek is not `done`."""

    async def list(self, *, output: bool = True) -> list[Peek]:
        """All jobs of the task, those that ended included, in the order of their launch."""


class Host(Protocol):
    """What one attempt of a step has of the machine it runs on."""

    @property
    def workdir(self) -> Path:
        """The run's directory; shared by all steps of the run."""

    step_dir: Path
    """This attempt's own directory: logs, script, context file."""
    ports: Mapping[str, int]
    """Port variables of the task's environments."""
    log: logging.LoggerAdapter[logging.Logger]
    attempt: int
    run_id: str
    task_id: str
    trial: int

    @property
    def jobs(self) -> Jobs:
        """The background jobs of the task. Raises StepFailed (type `NoJobs`) for what undoes a
        step."""

    def heartbeat(self, note: str = "") -> None:
        """Say that the step moves: restarts the clock of `idle_timeout`. Any thread."""

    def add_usage(self, **amounts: float) -> None:
        """Count what the attempt has used: `host.add_usage(cost=0.2, tokens=120)`. Any thread.

        Calls add up by name, and with the `usage` that the step's processes report; it counts
        whatever the attempt's end is. Raises StepFailed (type `BadUsage`, not retried) for what is
        no finite number from 0 on; nothing of that call is counted then.
        """

    def secret(self, reference: Json) -> str:
        """Resolve `{from_env: NAME}` or `{from_file: PATH}`; its value is masked from then on.

        Raises StepFailed (type `MissingSecret`, not retried), naming the reference.
        """

    async def run_process(
        self,
        argv: list[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, Json] | None = None,
        stdin: bytes | None = None,
    ) -> ProcessResult:
        """Run a process under the supervisor, with the step's environment, limits and files.

        `env` adds to what every step's process sees; values are texts or secret references.
        Raises StepFailed (type `SpawnFailed`, not retried) if it cannot be started.
        """


class UndoHost(Host, Protocol):
    """What a function has that undoes one attempt of a step; `attempt` is the number of that."""

    diff: list[dict[str, Any]]
    """What the attempt wrote (operations of `perdure.core.context`), as far as it is known;
    secrets in their places."""
    status: str
    """How the attempt ended: `succeeded`, `failed`, `cancelled`, `lost` or `interrupted`."""


StepFunction = Callable[[dict[str, Any], Context, Any], Awaitable[Json] | Json]


@dataclass(frozen=True)
class StepType:
    """A registered step type."""

    name: str
    keys: frozenset[str]
    """The keys of its own that a document may use, beside those of every step."""
    function: StepFunction
    on_loop: bool = False
    """Whether it runs on the worker's own event loop: it never blocks."""
    undo: StepFunction | None = None
    """Takes back what one attempt did."""


_registered: dict[str, StepType] = {}


def step(
    name: str,
    *,
    keys: Iterable[str] = (),
    on_loop: bool = False,
    undo: StepFunction | None = None,
) -> Callable[[StepFunction], StepFunction]:
    """Register a function as the step type `name`; `keys` are the document keys it takes.

    `on_loop` is for an `async def` that never blocks, not even for some milliseconds: it runs on
    the worker's own event loop, beside the heartbeats of all other steps, and saves the way to a
    thread and back. What it had written is not known if its worker is lost.

    `undo` takes back what one attempt did; it is called on a thread of its own. What it changes in
    its context and returns is of no account, what it raises fails it, and it is tried again.

    Raises PerdureError if another function holds the name already.
    """

    def register(function: StepFunction) -> StepFunction:
        known = _registered.get(name)
        if known and (known.function.__module__, known.function.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise PerdureError(
                f"step type {name!r} is registered twice: by {known.function.__module__} and "
                f"{function.__module__}; rename one"
            )
        _registered[name] = StepType(name, frozenset(keys), function, on_loop, undo)
        return function

    return register


def registered() -> Mapping[str, StepType]:
    """The step types known to this process, by name."""
    return _registered


def custom_types() -> dict[str, frozenset[str]]:
    """Name and keys of the types that are not perdure's own, for validating documents."""
    return {t.name: t.keys for t in _registered.values() if t.name not in BUILT_IN_TYPES}


def load_step_modules(modules: Iterable[str]) -> None:
    """Import the installed plugins (entry points `perdure.steps`) and the named modules.

    Raises PerdureError naming the module or plugin that cannot be imported.
    """
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        _import(entry.value, f"plugin {entry.name!r} of {ENTRY_POINTS}")
    for module in modules:
        _import(module, f"--steps {module}")


def _import(target: str, origin: str) -> None:
    try:
        importlib.import_module(target.partition(":")[0])
    except PerdureError:
        raise
    except Exception as error:
        raise PerdureError(
            f"{origin}: cannot be imported ({type(error).__name__}: {error}); "
            "install it, or put its folder on PYTHONPATH"
        ) from error
