"""Named limits with real workers and real processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from perdure.messages import TaskInput, TaskOptions, TrialSummary
from perdure.names import limit_workflow_id, task_workflow_id
from tests import warm
from tests.cli.support import CommandLine
from tests.kit import bench
from tests.waiting import until, written


def limited(name: str, slots: int, **more: Any) -> TaskOptions:
    return TaskOptions(limits={name: slots}, **more)


def spans(records: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """From when to when each attempt of any step held its slot."""
    return [
        (attempt["started_at"], attempt["ended_at"])
        for record in records
        for step in record["steps"]
        for attempt in step["attempts"]
    ]


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    return max(sum(1 for s, e in spans if s <= moment < e) for moment, _ in spans)


async def test_two_suites_of_one_worker_share_a_limit(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    name = f"limit-{uuid.uuid4().hex[:8]}"
    async with bench(temporal.client, tmp_path) as here:
        handles = []
        for suite in ("one", "two"):
            here.suite = f"{suite}-{uuid.uuid4().hex[:8]}"
            for _ in range(3):
                step = {"type": "command", "command": "sleep 0.2", "limit": name}
                handles.append(
                    await here.start(
                        *({"id": f"s{n}", "depends_on": [], **step} for n in range(2)),
                        options=limited(name, 2),
                    )
                )
        for handle in handles:
            assert (await handle.result()).status == "succeeded"
        records = [here.record(handle) for handle in handles]
        assert most_at_once(spans(records)) == 2
        assert len(spans(records)) == 12


async def test_a_slot_outlives_the_worker_that_is_killed_with_it_and_is_not_lost(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    name = f"limit-{uuid.uuid4().hex[:8]}"
    queue, mark = f"q-{uuid.uuid4().hex[:8]}", tmp_path / "began"
    # The first attempt would sleep for long; the one after the loss ends at once.
    script = f"test -s '{mark}' || {{ echo 1 > '{mark}'; sleep 600; }}"
    command = {"type": "command", "heartbeat_timeout": 1, "limit": name}

    async def start(task_id: str, script: str) -> WorkflowHandle[Any, TrialSummary]:
        task = {"id": task_id, "steps": [{"id": "a", "command": script, **command}]}
        return await temporal.client.start_workflow(
            "TaskWorkflow",
            TaskInput(task=task, suite=queue, options=limited(name, 1)),
            id=task_workflow_id(queue, task_id, 1),
            task_queue=queue,
            result_type=TrialSummary,
        )

    async def waits() -> bool:
        limit = temporal.client.get_workflow_handle(limit_workflow_id(name))
        return len((await limit.query("limit"))["waiting"]) == 1

    with worker(temporal, tmp_path, queue) as first:
        killed = await start("killed", script)
        await written(mark)
        waiter = await start("waiter", "true")
        await until(waits, "the second task in the queue")
        first.kill()
    with worker(temporal, tmp_path, queue):
        for handle in (killed, waiter):
            assert (await handle.result()).status == "succeeded"
        records = [await handle.query("record") for handle in (killed, waiter)]
    statuses = [[a["status"] for a in record["steps"][0]["attempts"]] for record in records]
    assert statuses == [["lost", "succeeded"], ["succeeded"]]
    assert most_at_once(spans(records)) == 1


async def test_workers_of_two_queues_keep_one_limit_together(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    name = f"limit-{uuid.uuid4().hex[:8]}"
    limit = temporal.client.get_workflow_handle(limit_workflow_id(name))
    step = {"id": "a", "type": "command", "command": "true", "limit": name}

    async def run_on(queue: str) -> None:
        ended = await temporal.client.execute_workflow(
            "TaskWorkflow",
            TaskInput(task={"id": "t", "steps": [step]}, suite=queue, options=limited(name, 1)),
            id=task_workflow_id(queue, "t", 1),
            task_queue=queue,
            result_type=TrialSummary,
        )
        assert ended.status == "succeeded"

    for team in ("one", "two"):  # the second finds the limit that the first had begun
        queue = f"{team}-{uuid.uuid4().hex[:8]}"
        with worker(temporal, tmp_path, queue):
            await run_on(queue)
        assert (await limit.describe()).task_queue == "perdure/shared"


@contextmanager
def worker(temporal: WorkflowEnvironment, folder: Path, queue: str) -> Iterator[warm.Popen]:
    """`perdure worker` as a process of its own."""
    perdure = CommandLine(folder / "state", folder)
    process = warm.Popen(
        [*perdure.python, "-m", "perdure", "worker", "--host", "here", "--address",
         temporal.client.service_client.config.target_host],
        cwd=folder,
        env=perdure.environment(PERDURE_QUEUE=queue, PERDURE_BLOBS_SHARED="1"),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
