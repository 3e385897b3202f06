"""What every start of a suite or a task needs on one server: options, checks, a queue, a worker."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure.config import Settings
from perdure.connection import ensure_search_attributes
from perdure.documents import LoadedTask
from perdure.embedded import Embedded
from perdure.env_file import read_env_file
from perdure.environment_checks import missing_for, missing_in
from perdure.errors import PerdureError
from perdure.messages import SuiteTask, TaskOptions
from perdure.results import check_owner, check_writable
from perdure.secret_checks import missing_in_suite, missing_secrets
from perdure.server_id import server_id
from perdure.steps import load_step_modules
from perdure.storage import check_blob_dir
from perdure.suite_input import (
    check_text,
    default_suite_id,
    missing_types,
    stem_of,
    suite_queue,
)
from perdure.suites import Starter
from perdure.task_sources import TaskSource
from perdure.workers import WorkerConfig


class Preparation:
    """One connection's way to start things."""

    def __init__(self, client: Client, settings: Settings, embedded: Embedded | None) -> None:
        """`embedded`: None on a team's server, whose workers are others' concern."""
        self._client = client
        self._settings = settings
        self._embedded = embedded
        self._has_attributes: bool | None = None

    async def options(
        self, options: TaskOptions | None, results_dir: str | Path | None
    ) -> TaskOptions:
        """The options as this server needs them.

        Raises PerdureError for texts that cannot be sent.
        """
        check_blob_dir(self._settings, embedded=self._embedded is not None)
        if self._has_attributes is None:
            self._has_attributes = await ensure_search_attributes(self._client)
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
            multi_host=options.multi_host or self._embedded is None,
        )

    async def check_here(
        self, loaded: Sequence[LoadedTask], suite: str, options: TaskOptions, worker: WorkerConfig
    ) -> None:
        """Find what a worker of this process would lack; a team's workers have their own.

        Raises PerdureError: secrets or docker that are not there, results that cannot be written.
        """
        if self._embedded is None:
            return
        server = await server_id(self._client)

        def check() -> None:
            kept = options.results_dir
            results = Path(kept) if kept else self._settings.state.results
            check_writable(results, suite)
            check_owner(results, suite, server)
            known = read_env_file(worker.env_file)
            _refuse([*missing_secrets(loaded, known), *missing_for(loaded, known)])

        await asyncio.to_thread(check)

    async def check_again(
        self,
        tasks: Sequence[SuiteTask],
        environments: Mapping[str, dict[str, Any]],
        worker: WorkerConfig,
    ) -> None:
        """As `check_here`, for what tasks need that run again as a suite had them.

        Raises PerdureError, for modules that cannot be loaded, too.
        """
        await self.check_types(tasks, worker)
        if self._embedded is None:
            return

        def check() -> None:
            known = read_env_file(worker.env_file)
            _refuse([*missing_in_suite(tasks, known), *missing_in(tasks, environments, known)])

        await asyncio.to_thread(check)

    async def check_types(self, tasks: Sequence[SuiteTask], worker: WorkerConfig) -> None:
        """Refuse step types for which the worker would have no module. Raises PerdureError."""
        if self._embedded is not None:
            await asyncio.to_thread(load_step_modules, worker.steps)
            _refuse(missing_types(tasks))

    def queue(self, suite: str) -> str:
        """Where the tasks of a suite are served."""
        return suite_queue(self._settings.queue, suite) if self._embedded else self._settings.queue

    def starter(
        self, suite: str, worker: WorkerConfig, say: Callable[[str], None] | None
    ) -> Starter:
        """How the suite is started, with a worker of this process if the server is ours."""
        return Starter(
            client=self._client,
            queue=self.queue(suite),
            locks=self._settings.state.path / "suites",
            serve=lambda queue: self.serve(queue, worker, say),
            make_way=self.make_way,
            say=say or (lambda line: None),
        )

    async def serve(
        self, queue: str, worker: WorkerConfig, say: Callable[[str], None] | None = None
    ) -> None:
        """Have a worker on the queue; a team's server has its own. Raises WorkerFailed."""
        if self._embedded is None:
            return
        left = list(self._embedded.left_on(queue).values())
        if say and left and worker.arguments() not in left:
            said = shlex.join(left[0]) or "no options for steps"
            say(
                f"the worker that was left behind serves it as it was started ({said}); what is "
                "given now of --steps, --env-file, --pass-env, --inherit-env and --host is not used"
            )
        await self._embedded.serve(queue, worker)

    async def make_way(self, queue: str) -> None:
        """End the workers that earlier calls left on the queue of something new."""
        if self._embedded:
            await self._embedded.end_left(queue)


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        raise PerdureError("\n".join(missing))


def new_suite_id(tasks: TaskSource | Sequence[TaskSource], first_task: str) -> str:
    """A readable id of its own, after the first path, or the first task where there is none."""
    first = tasks[0] if isinstance(tasks, Sequence) and not isinstance(tasks, str) else tasks
    stem = stem_of(first) if isinstance(first, str | Path) else first_task
    return default_suite_id(stem, datetime.now(), secrets.token_hex(2))
