"""Background jobs in containers whose worker is lost: what it left there is killed (C27, C33)."""

from __future__ import annotations

from dataclasses import replace

from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from perdure.job_history import JobHistory
from perdure.job_messages import InterruptOrder
from perdure.sandbox import sandbox
from tests.waiting import until
from tests.workflows.fake_pool import SHOP, USE, FakePool
from tests.workflows.fakes import world
from tests.workflows.job_kit import end_of, launch, of
from tests.workflows.task_ends import closed
from workflows.job import JobWorkflow


async def test_what_a_lost_worker_left_in_a_container_is_killed_before_its_end_is_told(
    temporal: WorkflowEnvironment,
) -> None:
    """And a job that starts again does so, whose next start comes after that."""
    pool = FakePool(temporal.client, at_once=True)
    async with world(temporal.client, pool=pool.activities) as here:
        task = await here.start_task(
            {"id": "a", "play": ["hold"]}, use=USE, definitions=[SHOP], environments=["shop"]
        )
        await until(lambda: here.attempts("a"))
        lost = await launch(task, "say heard", "lose", environment="shop")
        again = await launch(task, "1:lose", "2:say back", environment="shop", restartable=True)
        ends = {exec_id: await end_of(temporal.client, exec_id) for exec_id in (lost, again)}
        assert (ends[lost].status, ends[lost].error) == ("lost", "its worker was lost")
        assert (ends[again].status, ends[again].attempts) == ("done", 2)
        told = sorted(here.jobs.interrupts, key=lambda order: order.exec_id)
        assert told == [
            InterruptOrder(exec_id, 1, kill=True, leftovers=True) for exec_id in sorted(ends)
        ]
        here.open = True
        await closed(task)
    replayer = Replayer(
        workflows=[JobWorkflow],
        workflow_runner=sandbox(),
        data_converter=temporal.client.data_converter,
    )
    for exec_id, end in ends.items():
        history = await of(temporal.client, exec_id).fetch_history()
        await replayer.replay_workflow(history)
        read = JobHistory(temporal.client, f"job/{exec_id}")
        for event in history.events[:-1]:  # without the one that tells the end itself
            await read.take(event)
        assert read.life.end
        clock = {"started_at": end.started_at, "ended_at": end.ended_at}
        assert replace(read.life.end, **clock) == end
