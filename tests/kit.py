"""A real worker inside the test's process, and short ways to run tasks on it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from perdure.documents import load_document
from perdure.messages import PoolUse, RunRef, TaskInput, TaskOptions, TrialSummary
from perdure.names import task_workflow_id
from perdure.steps import custom_types
from worker import WorkerOptions, serving


@dataclass
class Bench:
    """A worker on a queue of its own, and where it keeps its files."""

    client: Client
    options: WorkerOptions
    suite: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")

    async def start(
        self,
        *steps: dict[str, Any],
        options: TaskOptions | None = None,
        use: PoolUse | None = None,
        definitions: Sequence[dict[str, Any]] = (),
        **document: Any,
    ) -> WorkflowHandle[Any, TrialSummary]:
        """Start a task of these steps, checked like any document.

        `use`: where it takes a lease of the environments of these `definitions`.
        """
        id = document.pop("id", f"t{uuid.uuid4().hex[:8]}")
        folder = document.pop("folder", None)
        (loaded,) = load_document(
            {"id": id, "steps": list(steps), **document}, custom_types=custom_types()
        ).checked()
        return await self.client.start_workflow(
            "TaskWorkflow",
            TaskInput(
                task=loaded.task.to_dict(),
                suite=self.suite,
                options=options or TaskOptions(),
                seed=loaded.seed,
                folder=folder,
                pool=use,
                environments=[*definitions],
            ),
            id=task_workflow_id(self.suite, id, 1),
            task_queue=self.options.queue,
            result_type=TrialSummary,
        )

    async def run(self, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Run a task to its end, whatever that is; its record, as it stands on disk."""
        handle = await self.start(*steps, **more)
        with suppress(WorkflowFailureError):
            await handle.result()
        return self.record(handle)

    def record(self, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
        """The record of a task that has ended."""
        found: dict[str, Any] = json.loads((self.results_of(handle) / "record.json").read_text())
        return found

    def results_of(self, handle: WorkflowHandle[Any, Any]) -> Path:
        """The directory of a task's results."""
        return self.options.results / handle.id.removeprefix("task/")

    def work_of(self, handle: WorkflowHandle[Any, Any]) -> Path:
        """The working directory of a task's run."""
        run_id = handle.first_execution_run_id
        return self.options.runs / handle.id.removeprefix("task/") / str(run_id) / "work"

    def ref_of(self, handle: WorkflowHandle[Any, Any]) -> RunRef:
        """The name of a task's run."""
        _, suite, task, trial = handle.id.split("/")
        return RunRef(handle.id, str(handle.first_execution_run_id), suite, task, int(trial))


@asynccontextmanager
async def bench(client: Client, folder: Path, **options: Any) -> AsyncIterator[Bench]:
    """A worker with its directories below `folder`."""
    made = WorkerOptions(
        queue=f"q-{uuid.uuid4().hex[:8]}",
        host="here",
        runs=folder / "runs",
        results=folder / "results",
        **options,
    )
    async with serving(client, made):
        yield Bench(client, made)


def processes_with(mark: str) -> list[int]:
    """The processes whose command line holds `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(mark in word for word in process.cmdline()):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return found


def step_named(record: Mapping[str, Any], step_id: str) -> dict[str, Any]:
    """One step of a record."""
    found: dict[str, Any] = next(s for s in record["steps"] if s["id"] == step_id)
    return found
