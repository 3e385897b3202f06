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

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import temporalio.client

from perdure.callbacks import StepCompleted, StepStarted
from perdure.config import Settings, temporal_configured
from perdure.connection import connect
from perdure.core.problems import nearest
from perdure.embedded import Embedded
from perdure.errors import PerdureError
from perdure.event_log import Execution, UnknownRun, find_execution
from perdure.job_handle import JobHandle
from perdure.jobs import JobRefused, JobUnreadable, UnknownJob
from perdure.link import Link
from perdure.listing import RunEntry, SuiteEntry, list_runs, list_suites
from perdure.messages import Json, SuiteInput, TaskOptions
from perdure.names import suite_workflow_id
from perdure.peeks import Peek
from perdure.pool_handle import PoolHandle, PoolRefused
from perdure.preparation import Preparation, new_suite_id
from perdure.resuming import RunRefused, go_on
from perdure.stored_tasks import StoredTasks
from perdure.suite_history import definition_of
from perdure.suite_input import (
    check_id,
    definitions_of,
    suite_input,
    suite_task,
)
from perdure.suite_run import SuiteRefused, SuiteRun
from perdure.suite_settings import (
    MAX_PARALLEL,
    RETRY_INFRASTRUCTURE,
    RetrySettings,
    SuiteSettings,
    bounded,
    check_keywords,
    chosen,
    list_options,
    pool_use,
    rebound,
    worker_of,
)
from perdure.suites import Begun, SuiteChanged, SuiteOpen, TaskOpen
from perdure.task_handle import TaskFailed, TaskHandle, TaskResult, parse_run
from perdure.task_sources import TaskSource, load_tasks
from perdure.task_start import NO_LEASE, Leasing, start_trial
from perdure.task_store import StoredTask, TaskStore
from perdure.workers import WorkerConfig

__all__ = [
    "JobHandle",
    "JobRefused",
    "JobUnreadable",
    "Peek",
    "Perdure",
    "PoolHandle",
    "PoolRefused",
    "RetrySettings",
    "RunEntry",
    "RunRefused",
    "StepCompleted",
    "StepStarted",
    "StoredTask",
    "StoredTasks",
    "SuiteChanged",
    "SuiteEntry",
    "SuiteOpen",
    "SuiteRefused",
    "SuiteRun",
    "SuiteSettings",
    "TaskFailed",
    "TaskHandle",
    "TaskOpen",
    "TaskResult",
    "TaskSource",
    "UnknownJob",
    "UnknownRun",
    "UnknownSuite",
    "WorkerConfig",
]

ADHOC = "adhoc"
"""The suite of tasks that are started by themselves."""


class UnknownSuite(PerdureError):
    """The server knows no such suite."""


class Perdure:
    """A connection to the embedded server, or to the Temporal service of the settings."""

    def __init__(
        self, client: temporalio.client.Client, settings: Settings, embedded: Embedded | None
    ) -> None:
        """Use `Perdure.connect`."""
        self.client = client
        """Temporal's own client, with perdure's data converter."""
        self.settings = settings
        self.tasks = StoredTasks(TaskStore(settings.state.tasks))
        """Versions of task documents; `store:ID@VERSION` stands for one wherever a path may."""
        self._embedded = embedded
        self._link = Link(client, settings.state.results, embedded)
        self._preparation = Preparation(client, settings, embedded)

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

    def is_served(self, queue: str) -> bool:
        """Whether a worker is on the queue; on a team's server that is taken for granted."""
        return self._embedded is None or self._embedded.is_served(queue)

    def looks_after(self, queue: str) -> bool:
        """Whether a worker that is lost on the queue is replaced by this process."""
        return self._embedded is not None and self._embedded.looks_after(queue)

    def detach(self, queue: str) -> None:
        """Leave this process's worker on the queue behind when it ends. Raises StateError."""
        if self._embedded:
            self._embedded.detach(queue)

    def is_served_by_others(self, queue: str) -> bool:
        """Whether a queue has a worker beside this process's; a team's server has."""
        return self._embedded is None or self._embedded.is_served_by_others(queue)

    @property
    def ui_url(self) -> str | None:
        """The embedded server's UI; None with a team's server."""
        return self._embedded.ui_url if self._embedded else None

    # --- Suites -----------------------------------------------------------------------------

    async def start_suite(
        self, tasks: TaskSource | Sequence[TaskSource], **settings: Unpack[SuiteSettings]
    ) -> SuiteRun:
        """Start tasks as one suite, or go on with the suite of that id.

        The keywords are those of `perdure.suite_settings.SuiteSettings`, each with its meaning. An
        open suite of the same tasks is attached to, and an explicit `max_parallel` holds for it
        from now on; what succeeded before, from the same document, is not run again; when nothing
        is left to run, nothing is started (`SuiteRun.how`).

        Raises SuiteChanged, InvalidDocuments with every problem, and PerdureError; on the embedded
        server also for secrets that are not there, and results that cannot be written.
        """
        check_keywords(settings, SuiteSettings)
        worker, max_parallel = worker_of(settings), settings.get("max_parallel")
        loaded = await load_tasks(
            tasks,
            seed=settings.get("seed"),
            only=settings.get("only", ()),
            steps=worker.steps,
            lists=list_options(settings),
            store=self.tasks.store,
        )
        options = bounded(settings.get("options") or TaskOptions(), settings)
        options = await self._preparation.options(options, settings.get("results_dir"))
        suite = settings.get("suite")
        if suite is not None and not settings.get("fresh"):
            options = await self._with_limits_of_open(suite, options)
        name = suite if suite is not None else new_suite_id(tasks, loaded[0].task.id)
        start = suite_input(
            name,
            [suite_task(task, options, settings.get("repeats")) for task in loaded],
            max_parallel=chosen(max_parallel, MAX_PARALLEL),
            options=options,
            max_failures=settings.get("max_failures"),
            max_cost=settings.get("max_cost"),
            retry_infrastructure=chosen(settings.get("retry_infrastructure"), RETRY_INFRASTRUCTURE),
            pool=pool_use(settings),
            environments=definitions_of(loaded),
        )
        await self._preparation.check_here(loaded, name, options, worker)
        starter = self._preparation.starter(name, worker, settings.get("say"))
        begun = await starter.begin(
            start, fresh=settings.get("fresh", False), changed=settings.get("changed")
        )
        run = SuiteRun(self._link, begun)
        if run.how == "attached" and max_parallel is not None:
            await _widen(run, max_parallel, settings.get("say"))
        return run

    async def _with_limits_of_open(self, suite: str, options: TaskOptions) -> TaskOptions:
        """The options, where nothing is said with the limits of the suite if it is open."""
        found = await find_execution(self.client, suite_workflow_id(check_id("suite", suite)))
        if found is None or not found.is_open:
            return options
        old = await definition_of(self.client, found.workflow_id, found.run_id)
        return replace(options, limits={**old.options.limits, **options.limits})

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

    async def retry_suite(
        self, suite: str, *, only_failed_trials: bool = False, **settings: Unpack[RetrySettings]
    ) -> SuiteRun:
        """Run again every task of a closed suite with a trial that did not succeed.

        The documents are those of its newest run; what succeeded is taken over. A task runs again
        with all of its trials, or, with `only_failed_trials`, with those alone that did not
        succeed. A suite that is open because its command was killed, perhaps a retry, goes on. The
        keywords are those of `perdure.suite_settings.RetrySettings`.

        Raises UnknownSuite, SuiteOpen, and PerdureError; on the embedded server also for secrets
        that are not there.
        """
        check_keywords(settings, RetrySettings)
        worker = worker_of(settings)
        found, old = await self._known_suite(suite)
        await self._preparation.check_here([], suite, old.options, worker)
        if found.is_open and self._embedded and not self._embedded.is_served(found.queue):
            await self._preparation.check_types(old.tasks, worker)
            await self._preparation.serve(found.queue, worker)
            return SuiteRun(self._link, Begun("attached", found, old))
        starter = self._preparation.starter(suite, worker, settings.get("say"))
        begun = await starter.retry(
            suite,
            only_failed_trials=only_failed_trials,
            changed=lambda start: rebound(start, settings),
            check=lambda tasks: self._preparation.check_again(tasks, old.environments, worker),
        )
        return SuiteRun(self._link, begun)

    async def suite(self, suite: str) -> SuiteRun:
        """A suite that was started before; starts no worker.

        Raises UnknownSuite, which names a suite of a similar name.
        """
        return SuiteRun(self._link, Begun("found", *await self._known_suite(suite)))

    async def _known_suite(self, suite: str) -> tuple[Execution, SuiteInput]:
        workflow_id = suite_workflow_id(check_id("suite", suite))
        found = await find_execution(self.client, workflow_id)
        if found is None:
            known = [entry.suite for entry in await self.suites()]
            near = nearest(suite, known)
            remedy = f"did you mean {near!r}?" if near else "`perdure list` shows those it knows"
            raise UnknownSuite(f"there is no suite {suite!r} on the server; {remedy}")
        return found, await definition_of(self.client, workflow_id, found.run_id)

    async def suites(self) -> list[SuiteEntry]:
        """The suites that the server knows, newest first."""
        is_served = self._embedded.is_served if self._embedded else None
        return await list_suites(self.client, is_served)

    # --- Pools ------------------------------------------------------------------------------

    def pool(self, name: str = "default", *, worker: WorkerConfig | None = None) -> PoolHandle:
        """A pool of environments; asks the server nothing yet.

        `worker`: for workers of the embedded server that orders need. Raises PerdureError for what
        cannot be a pool's name.
        """
        return PoolHandle(self._link, self.settings, name, worker)

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
        env_config: str | Path | None = None,
        root: str | Path | None = None,
        pool: str | None = None,
    ) -> TaskHandle:
        """Start one task by itself.

        It is named `task/<suite>/<task>/<trial>`; without `trial` it gets the next free one, so a
        task can be started any number of times. Tasks of one `suite` share a worker: name one
        for tasks that need another `worker`. `env_config`, `root` and `pool`: as of `start_suite`.

        Raises InvalidDocuments, TaskRunning if the named trial is open, and PerdureError.
        """
        worker = worker_of({"worker": worker, "steps": steps})
        loaded = await load_tasks(
            task,
            seed=seed,
            only=(),
            steps=worker.steps,
            lists=list_options({"env_config": env_config, "root": root}),
            store=self.tasks.store,
        )
        if len(loaded) != 1:
            raise PerdureError(
                f"start_task starts one task, and this is {len(loaded)}: use start_suite"
            )
        options = await self._preparation.options(options, results_dir)
        queue = self._preparation.queue(check_id("suite", suite))
        await self._preparation.check_here(loaded, suite, options, worker)
        beside = await find_execution(self.client, suite_workflow_id(suite))
        if beside is None or not beside.is_open:  # one that is open shares its worker with the task
            await self._preparation.make_way(queue)
        definitions = tuple(definition.to_json() for definition in loaded[0].definitions)
        leasing = Leasing(pool_use({"pool": pool}), definitions) if definitions else NO_LEASE
        trial, run_id = await start_trial(
            self.client, suite_task(loaded[0], options), suite, trial, options, queue, leasing
        )
        await self._preparation.serve(queue, worker)
        return TaskHandle(self._link, suite, loaded[0].task.id, trial, run_id)

    async def retry_task(
        self,
        run: str,
        from_step: str,
        *,
        steps: Sequence[str] = (),
        worker: WorkerConfig | None = None,
        say: Callable[[str], None] | None = None,
    ) -> TaskHandle:
        """Run a task again from a step on, as a new run that goes on where its newest one was.

        What had ended and does not depend on the step is not run again; but who used an
        environment is, since environments are new. In its suite the new run counts once it has
        ended. If it runs from this step on already, perhaps left by a process that was killed, it
        goes on. `run`: as of `Perdure.run`. `say` is told which steps run, and why.

        Raises UnknownRun; RunRefused if the run or its suite is open, for a step that it has not,
        and for a document that has changed since; and PerdureError, on the embedded server also
        for secrets that are not there.
        """
        worker = worker_of({"worker": worker, "steps": steps})
        start, run_id = await go_on(
            self.client, self._preparation, run, from_step, worker, say or (lambda line: None)
        )
        return TaskHandle(self._link, start.suite, start.task["id"], start.trial, run_id)

    def run(self, name: str) -> TaskHandle:
        """The newest run of a task: by its workflow id, or `<suite>/<task>[/<trial>]` for short.

        Asks the server nothing yet. Raises PerdureError for what cannot be a run's name.
        """
        suite, task_id, trial = parse_run(name)
        return TaskHandle(self._link, suite, task_id, trial, None)

    async def runs(self, suite: str | None = None) -> list[RunEntry]:
        """The runs of tasks that the server knows, of all suites or of one, newest first."""
        return await list_runs(self.client, None if suite is None else check_id("suite", suite))

    # --- Background jobs, of any task: each also as a method of `JobHandle` --------------------

    def job(self, exec_id: str) -> JobHandle:
        """A job by its id; asks the server nothing yet."""
        return JobHandle(self._link.jobs, exec_id)

    async def peek(self, exec_id: str, *, offset: int = 0, stderr_offset: int = 0) -> Peek:
        """What a job has printed so far, and how it is; as `JobHandle.peek`."""
        return await self.job(exec_id).peek(offset=offset, stderr_offset=stderr_offset)

    async def interrupt(
        self, exec_id: str, *, kill: bool = False, kill_after: float | None = None
    ) -> Peek:
        """Have a job sent one SIGINT; as `JobHandle.interrupt`."""
        return await self.job(exec_id).interrupt(kill=kill, kill_after=kill_after)

    async def wait_job(self, exec_id: str, timeout: float | None = None) -> Peek:
        """Wait for a job's end, without polling; as `JobHandle.wait`."""
        return await self.job(exec_id).wait(timeout)

    def follow_job(
        self, exec_id: str, *, offset: int = 0, stderr: bool = False
    ) -> AsyncGenerator[str]:
        """New text of a job as it comes, to its end; as `JobHandle.follow`."""
        return self.job(exec_id).follow(offset=offset, stderr=stderr)


async def _widen(run: SuiteRun, max_parallel: int, say: Callable[[str], None] | None) -> None:
    """Have a suite that was attached to run so many tasks at once, if it still runs."""
    if (await run.progress()).max_parallel == max_parallel:
        return
    try:
        told = await run.set_max_parallel(max_parallel)
    except SuiteRefused as error:  # it has just ended, or is about to: there is nothing to widen
        told = f"max_parallel stays as it was: {error}"
    if say:
        say(told)
