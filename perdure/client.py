"""The Python client: start suites and tasks, follow them, read them.

```python
from perdure.client import Perdure

async with await Perdure.connect() as perdure:
    print(await perdure.run_suite("tasks/", max_parallel=8, repeats=3))
```

Without Temporal settings it uses the embedded server, starts it if need be, and runs what it starts
by a worker process of its own, which ends with this one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import temporalio.client

from perdure.callbacks import StepCompleted, StepStarted
from perdure.config import Settings, temporal_configured
from perdure.connection import connect, ensure_search_attributes
from perdure.core.problems import nearest
from perdure.documents import LoadedTask
from perdure.embedded import Embedded
from perdure.env_file import read_env_file
from perdure.errors import PerdureError
from perdure.event_log import UnknownRun, find_execution
from perdure.link import Link
from perdure.listing import RunEntry, SuiteEntry, list_runs, list_suites
from perdure.messages import Json, TaskOptions
from perdure.names import suite_workflow_id
from perdure.results import check_writable
from perdure.secret_checks import missing_secrets
from perdure.storage import check_blob_dir
from perdure.suite_history import definition_of
from perdure.suite_input import (
    check_id,
    check_text,
    default_suite_id,
    stem_of,
    suite_input,
    suite_queue,
    suite_task,
)
from perdure.suite_run import SuiteRun
from perdure.suites import Begun, Changed, Starter, SuiteChanged
from perdure.task_handle import TaskFailed, TaskHandle, TaskResult, parse_run
from perdure.task_sources import TaskSource, load_tasks
from perdure.task_start import start_trial
from perdure.workers import WorkerConfig

__all__ = [
    "Perdure",
    "RunEntry",
    "StepCompleted",
    "StepStarted",
    "SuiteChanged",
    "SuiteEntry",
    "SuiteRun",
    "TaskFailed",
    "TaskHandle",
    "TaskResult",
    "TaskSource",
    "UnknownRun",
    "UnknownSuite",
    "WorkerConfig",
]

ADHOC = "adhoc"
"""The suite of tasks that are started by themselves."""


class UnknownSuite(PerdureError):
    """The server knows no such suite."""


class SuiteSettings(TypedDict, total=False):
    """The keywords of `Perdure.start_suite`."""

    suite: str | None
    max_parallel: int
    repeats: int | None
    options: TaskOptions | None
    only: Sequence[str]
    seed: Mapping[str, Json] | None
    steps: Sequence[str]
    fresh: bool
    changed: Changed | None
    results_dir: str | Path | None
    worker: WorkerConfig | None
    say: Callable[[str], None] | None


class Perdure:
    """A connection to the embedded server, or to the Temporal service of the settings."""

    def __init__(
        self, client: temporalio.client.Client, settings: Settings, embedded: Embedded | None
    ) -> None:
        """Use `Perdure.connect`."""
        self.client = client
        """Temporal's own client, with perdure's data converter."""
        self.settings = settings
        self._embedded = embedded
        self._link = Link(client, settings.state.results, embedded)
        self._has_attributes: bool | None = None

    @classmethod
    async def connect(cls, settings: Settings | None = None, *, role: str = "run") -> Perdure:
        """Connect to the service that Temporal's settings name, else to the embedded server.

        `settings`: default, those of the environment. `role`: how other users of the embedded
        server see this process. Raises PerdureError: settings, state directory, server or
        connection, each with the remedy.
        """
        settings = settings or Settings.from_env()
        if temporal_configured(settings.temporal_env):
            return cls(await connect(settings, role=role), settings, None)
        embedded = await Embedded.join(settings, role=role)
        try:
            client = await connect(settings, address=embedded.address, role=role)
        except BaseException:
            await embedded.close()
            raise
        return cls(client, settings, embedded)

    async def __aenter__(self) -> Perdure:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the workers of this process and leave the server; harmless when repeated."""
        if self._embedded:
            await self._embedded.close()

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded server."""
        return self._embedded is not None

    @property
    def ui_url(self) -> str | None:
        """The embedded server's UI; None with a team's server."""
        return self._embedded.ui_url if self._embedded else None

    # --- Suites -----------------------------------------------------------------------------

    async def start_suite(
        self,
        tasks: TaskSource | Sequence[TaskSource],
        *,
        suite: str | None = None,
        max_parallel: int = 5,
        repeats: int | None = None,
        options: TaskOptions | None = None,
        only: Sequence[str] = (),
        seed: Mapping[str, Json] | None = None,
        steps: Sequence[str] = (),
        fresh: bool = False,
        changed: Literal["keep", "rerun"] | None = None,
        results_dir: str | Path | None = None,
        worker: WorkerConfig | None = None,
        say: Callable[[str], None] | None = None,
    ) -> SuiteRun:
        """Start tasks as one suite, or go on with the suite of that id.

        An open suite of the same tasks is attached to; what succeeded before, from the same
        document, is not run again; when nothing is left to run, nothing is started
        (`SuiteRun.how`). `repeats` goes over the documents' own; `only` picks tasks by id; `steps`
        are modules with step types; `fresh` ignores what was done before; `changed` says what to
        do if the suite is open with other tasks. `worker` is for the embedded server's worker
        process. `say` is called with notes for people.

        Raises SuiteChanged, InvalidDocuments with every problem, and PerdureError; on the embedded
        server also for secrets that are not there, and results that cannot be written.
        """
        worker = _with_steps(worker, steps)
        loaded = await load_tasks(tasks, seed=seed, only=only, steps=worker.steps)
        options = await self._options(options, results_dir)
        name = suite if suite is not None else _new_suite_id(tasks, loaded[0].task.id)
        start = suite_input(
            name,
            [suite_task(task, options, repeats) for task in loaded],
            max_parallel=max_parallel,
            options=options,
        )
        await self._check_here(loaded, name, options, worker)
        starter = Starter(
            client=self.client,
            queue=self._queue(name),
            locks=self.settings.state.path / "suites",
            serve=lambda queue: self._serve(queue, worker),
            say=say or (lambda line: None),
        )
        return SuiteRun(self._link, await starter.begin(start, fresh=fresh, changed=changed))

    async def run_suite(
        self,
        tasks: TaskSource | Sequence[TaskSource],
        *,
        on_step_start: StepStarted | None = None,
        on_step_complete: StepCompleted | None = None,
        **settings: Unpack[SuiteSettings],
    ) -> dict[str, Any]:
        """Start or go on with a suite as `start_suite` does, and wait for its end.

        Returns the document of `perdure run --json`. The callbacks, plain or async, are called in
        this process: `on_step_start(index, total, step, context)` before each attempt of a step,
        `on_step_complete(index, total, step, context, seconds)` after each success. One that
        fails is logged and changes nothing. Raises as `start_suite`.
        """
        run = await self.start_suite(tasks, **settings)
        if run.how != "finished":
            await run.follow(on_step_start=on_step_start, on_step_complete=on_step_complete)
        return await run.outcome()

    async def suite(self, suite: str) -> SuiteRun:
        """A suite that was started before; starts no worker.

        Raises UnknownSuite, which names a suite of a similar name.
        """
        workflow_id = suite_workflow_id(check_id("suite", suite))
        found = await find_execution(self.client, workflow_id)
        if found is None:
            known = [entry.suite for entry in await self.suites()]
            near = nearest(suite, known)
            remedy = f"did you mean {near!r}?" if near else "`perdure list` shows those it knows"
            raise UnknownSuite(f"the server knows no suite {suite!r}; {remedy}")
        definition = await definition_of(self.client, workflow_id, found.run_id)
        return SuiteRun(self._link, Begun("found", found, definition))

    async def suites(self) -> list[SuiteEntry]:
        """The suites that the server knows, newest first."""
        return await list_suites(self.client)

    # --- Tasks ------------------------------------------------------------------------------

    async def start_task(
        self,
        task: TaskSource,
        *,
        seed: Mapping[str, Json] | None = None,
        suite: str = ADHOC,
        trial: int | None = None,
        options: TaskOptions | None = None,
        steps: Sequence[str] = (),
        results_dir: str | Path | None = None,
        worker: WorkerConfig | None = None,
    ) -> TaskHandle:
        """Start one task by itself.

        It is named `task/<suite>/<task>/<trial>`; without `trial` it gets the next free one, so a
        task can be started any number of times. Tasks of one `suite` share a worker: name one
        for tasks that need another `worker`.

        Raises InvalidDocuments, TaskRunning if the named trial is open, and PerdureError.
        """
        worker = _with_steps(worker, steps)
        loaded = await load_tasks(task, seed=seed, only=(), steps=worker.steps)
        if len(loaded) != 1:
            raise PerdureError(
                f"start_task starts one task, and this is {len(loaded)}: use start_suite"
            )
        options = await self._options(options, results_dir)
        queue = self._queue(check_id("suite", suite))
        await self._check_here(loaded, suite, options, worker)
        trial, run_id = await start_trial(
            self.client, suite_task(loaded[0], options), suite, trial, options, queue
        )
        await self._serve(queue, worker)
        return TaskHandle(self._link, suite, loaded[0].task.id, trial, run_id)

    def run(self, name: str) -> TaskHandle:
        """The newest run of a task: by its workflow id, or `<suite>/<task>[/<trial>]` for short.

        Asks the server nothing yet. Raises PerdureError for what cannot be a run's name.
        """
        suite, task_id, trial = parse_run(name)
        return TaskHandle(self._link, suite, task_id, trial, None)

    async def runs(self, suite: str | None = None) -> list[RunEntry]:
        """The runs of tasks that the server knows, of all suites or of one, newest first."""
        return await list_runs(self.client, None if suite is None else check_id("suite", suite))

    # --- Inside -----------------------------------------------------------------------------

    async def _options(
        self, options: TaskOptions | None, results_dir: str | Path | None
    ) -> TaskOptions:
        """The options as this server needs them.

        Raises PerdureError for texts that cannot be sent.
        """
        check_blob_dir(self.settings, embedded=self.embedded)
        if self._has_attributes is None:
            self._has_attributes = await ensure_search_attributes(self.client)
        options = options or TaskOptions()
        kept = options.results_dir if results_dir is None else str(results_dir)
        kept = None if kept is None else str(Path(kept).absolute())
        check_text("agent_model", options.agent_model)
        check_text("agent_artifact_id", options.agent_artifact_id)
        check_text("results_dir", kept)
        return replace(
            options,
            results_dir=kept,
            search_attributes=options.search_attributes and self._has_attributes,
            # Others may serve a team's queue, and a run stays on the host of its first step.
            multi_host=options.multi_host or not self.embedded,
        )

    async def _check_here(
        self, loaded: Sequence[LoadedTask], suite: str, options: TaskOptions, worker: WorkerConfig
    ) -> None:
        """Find what a worker of this process would lack; a team's workers have their own.

        Raises PerdureError: secrets that are not there, results that cannot be written.
        """
        if not self.embedded:
            return

        def check() -> None:
            results = options.results_dir
            check_writable(Path(results) if results else self.settings.state.results, suite)
            missing = missing_secrets(loaded, read_env_file(worker.env_file))
            if missing:
                raise PerdureError("\n".join(missing))

        await asyncio.to_thread(check)

    def _queue(self, suite: str) -> str:
        return suite_queue(self.settings.queue, suite) if self.embedded else self.settings.queue

    async def _serve(self, queue: str, worker: WorkerConfig) -> None:
        if self._embedded:
            await self._embedded.serve(queue, worker)


def _with_steps(worker: WorkerConfig | None, steps: Iterable[str]) -> WorkerConfig:
    worker = worker or WorkerConfig()
    return replace(worker, steps=tuple(dict.fromkeys([*worker.steps, *steps])))


def _new_suite_id(tasks: TaskSource | Sequence[TaskSource], first_task: str) -> str:
    """A readable id of its own, after the first path, or the first task where there is none."""
    first = tasks[0] if isinstance(tasks, Sequence) and not isinstance(tasks, str) else tasks
    stem = stem_of(first) if isinstance(first, str | Path) else first_task
    return default_suite_id(stem, datetime.now(), secrets.token_hex(2))
