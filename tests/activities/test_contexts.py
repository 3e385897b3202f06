"""Contexts that the workflow is asked for, while whoever answers may be away."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from activities import contexts
from activities.contexts import Contexts, ContextUnavailable, StaleAttempt
from perdure.messages import RunRef, StepTask, TaskInput
from worker import WorkerOptions, serving

STEP = {"id": "a", "type": "command", "command": "sleep 600"}


def asking(workflow_id: str) -> StepTask:
    """A step whose context is too large to ride along."""
    run = RunRef(workflow_id, "run", "s", "t", 1)
    return StepTask(run, STEP, 0, 1, attempt=1, epoch=0, version=0)


@pytest.fixture
def options(tmp_path: Path) -> WorkerOptions:
    return WorkerOptions(
        queue=f"q-{uuid.uuid4().hex[:8]}",
        host="here",
        runs=tmp_path / "runs",
        results=tmp_path / "results",
    )


async def start(temporal: WorkflowEnvironment, options: WorkerOptions) -> str:
    """A task that no worker has seen yet; its workflow id."""
    id = f"task/s/{uuid.uuid4().hex[:8]}/1"
    task = TaskInput(task={"id": "t", "steps": [STEP]}, suite="s", seed={"n": 1})
    await temporal.client.start_workflow("TaskWorkflow", task, id=id, task_queue=options.queue)
    return id


async def test_a_worker_of_the_workflow_that_is_away_is_waited_for(
    temporal: WorkflowEnvironment, options: WorkerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "QUERY_SECONDS", 1.0)
    id = await start(temporal, options)
    asked = asyncio.create_task(Contexts(temporal.client).of(asking(id)))
    await asyncio.wait({asked}, timeout=1.5)
    assert not asked.done()
    async with serving(temporal.client, options):
        context = await asyncio.wait_for(asked, 60)
        await temporal.client.get_workflow_handle(id).terminate()
    assert context["metadata"]["seed"] == {"n": 1}


async def test_one_that_stays_away_is_no_fault_of_the_step(
    temporal: WorkflowEnvironment, options: WorkerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(contexts, "QUERY_SECONDS", 1.0)
    id = await start(temporal, options)
    with pytest.raises(ContextUnavailable, match="did not tell the step's context"):
        await Contexts(temporal.client).of(asking(id))
    await temporal.client.get_workflow_handle(id).terminate()


async def test_a_workflow_that_is_gone_wants_no_more_steps(temporal: WorkflowEnvironment) -> None:
    with pytest.raises(StaleAttempt):
        await Contexts(temporal.client).of(asking(f"task/none/{uuid.uuid4().hex}/1"))
