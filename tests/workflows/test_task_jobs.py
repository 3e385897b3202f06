"""The jobs of a task on a real server: who may launch them, and that none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from perdure.job_messages import JobOrigin
from perdure.messages import TaskOptions
from tests.waiting import until
from tests.workflows.fake_pool import MAIL, SHOP, USE, FakePool
from tests.workflows.fakes import World, world
from tests.workflows.job_kit import (
    Handle,
    begun,
    drawn,
    end_of,
    interrupt,
    jobs_of,
    launch,
    of,
    peek,
    refused,
)
from tests.workflows.task_ends import closed, same_record

HOLD = {"id": "a", "play": ["hold"]}


@pytest.fixture
async def pool(temporal: WorkflowEnvironment) -> FakePool:
    return FakePool(temporal.client, at_once=True)


@pytest.fixture
async def here(temporal: WorkflowEnvironment, pool: FakePool) -> AsyncIterator[World]:
    async with world(temporal.client, pool=pool.activities) as made:
        yield made


@pytest.fixture
async def task(here: World) -> Handle:
    """A task that goes on until the world is open."""
    return await here.start_task(HOLD)


async def finished(here: World, task: Handle) -> dict[str, Any]:
    """Let the task come to its end; its record."""
    here.open = True
    await closed(task)
    return await same_record(here.client, task)


async def test_the_same_id_again_starts_nothing(here: World, task: Handle) -> None:
    exec_id = drawn()
    await asyncio.gather(*(launch(task, "wait", exec_id=exec_id) for _ in range(3)))
    await begun(here.client, exec_id)
    assert await jobs_of(task) == {exec_id: "running"}
    await interrupt(here.client, exec_id)
    await end_of(here.client, exec_id)
    await launch(task, "wait", exec_id=exec_id)
    assert len(here.jobs.started) == 1


async def test_the_id_of_another_tasks_job_is_refused_and_takes_no_place(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "wait")
    other = await here.start_task(HOLD)
    assert "of another task" in await refused(other, exec_id=exec_id)
    assert await jobs_of(other) == {}
    record = await finished(here, other)
    assert "jobs" not in record
    await finished(here, task)


async def test_b10_b11_sixteen_jobs_may_run_and_launches_side_by_side_do_not_pass_that(
    here: World, task: Handle
) -> None:
    results = await asyncio.gather(
        *(launch(task, "wait") for _ in range(20)), return_exceptions=True
    )
    started = [result for result in results if isinstance(result, str)]
    assert len(started) == 16
    reason = await refused(task)
    assert reason.startswith("16 jobs of the task run, and at most 16 may; ")
    await begun(here.client, *started)
    await interrupt(here.client, started[0])
    await end_of(here.client, started[0])

    async def has_room() -> bool:
        return (await jobs_of(task))[started[0]] == "interrupted"

    await until(has_room)
    await launch(task, "wait")
    record = await finished(here, task)
    assert len(record["jobs"]) == 17
    assert {job["status"] for job in record["jobs"]} == {"interrupted"}


async def test_what_cannot_be_launched_is_refused_with_the_reason(
    here: World, task: Handle
) -> None:
    named = await launch(task, "wait", name="train")
    assert named in await refused(task, name="train")
    assert "has no environment" not in await refused(task, "a\0b")
    assert "NUL" in await refused(task, "a\0b")
    assert "is no id" in await refused(task, exec_id="exec-1")
    assert "environment 'shop'" in await refused(task, environment="shop")
    assert "longer than nothing" in await refused(task, time_limit_seconds=0)
    stale = JobOrigin("step", "a", 0, 2)
    assert "attempt 2 of step 'a' does not run" in await refused(task, origin=stale)
    own = JobOrigin("step", "a", 0, 1)
    assert await launch(task, "exit 0", origin=own)
    await begun(here.client, named)
    await interrupt(here.client, named)
    await end_of(here.client, named)

    async def is_known() -> bool:
        return (await jobs_of(task))[named] == "interrupted"

    await until(is_known)
    assert await launch(task, "exit 0", name="train"), "the name is free again"
    await finished(here, task)
    assert [spec.job.spec.name for spec in here.jobs.tasks].count("train") == 2


async def test_b16_b18_the_end_of_a_task_stops_its_jobs_before_the_lease_is_given_back(
    here: World, pool: FakePool
) -> None:
    task = await here.start_task(
        HOLD, use=USE, definitions=[SHOP, MAIL], environments=["shop", "mail"]
    )
    await until(lambda: here.running)
    inside = await launch(task, "wait", environment="shop")
    deaf = [await launch(task, "deaf") for _ in range(3)]
    await begun(here.client, inside, *deaf)
    assert [i["environment"] for i in here.jobs.tasks[0].job.instances] == ["shop", "mail"]
    record = await finished(here, task)
    assert record["status"] == "succeeded"
    assert {job["exec_id"]: job["status"] for job in record["jobs"]} == {
        inside: "interrupted",
        **dict.fromkeys(deaf, "killed"),
    }
    (asked,) = here.jobs.stops
    assert asked.exec_ids == [inside, *deaf], "all at once (BD7)"
    kinds = [event["type"] for event in await task.query("events", 0)]
    assert kinds[-6:] == [*["job.ended"] * 4, "lease.released", "task.completed"]
    assert len(pool.releases) == 1
    ended = await of(here.client, inside).describe()
    assert ended.status is WorkflowExecutionStatus.COMPLETED


async def test_c38_a_cancelled_task_leaves_no_job(here: World, task: Handle) -> None:
    jobs = [await launch(task, "wait"), await launch(task, "deaf")]
    await begun(here.client, *jobs)
    await task.cancel()
    await closed(task)
    assert here.jobs.running == {}
    record = await same_record(here.client, task)
    assert record["status"] == "cancelled"
    assert [job["status"] for job in record["jobs"]] == ["interrupted", "killed"]


async def test_b16_a_task_that_ends_takes_no_more_jobs(here: World, task: Handle) -> None:
    here.jobs.slow.clear()
    exec_id = await launch(task, "deaf")
    await begun(here.client, exec_id)
    here.open = True
    await until(lambda: here.jobs.stops)
    assert await refused(task) == "the task is ending: no job can be launched"
    assert (await peek(here.client, exec_id)).status == "running", "peeks still work"
    await task.cancel()  # too late: what is left to be done is done
    here.jobs.slow.set()
    await closed(task)
    record = await same_record(here.client, task)
    assert record["status"] == "succeeded"
    assert [job["status"] for job in record["jobs"]] == ["killed"]


async def test_a_job_that_is_terminated_by_hand_is_lost_to_its_task(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "wait")
    await begun(here.client, exec_id)
    await of(here.client, exec_id).terminate()

    async def is_told() -> bool:
        return await jobs_of(task) == {exec_id: "lost"}

    await until(is_told, "its place is free")
    record = await finished(here, task)
    assert [job["status"] for job in record["jobs"]] == ["lost"]


async def test_a_task_continues_as_new_under_a_running_job(here: World) -> None:
    task = await here.start_task(
        *({"id": f"s{number}"} for number in range(12)),
        {"id": "last", "play": ["hold"]},
        options=TaskOptions(history_limit_events=40),
    )
    await until(lambda: here.attempts("s1"))
    exec_id = await launch(task, "wait", name="long")
    await begun(here.client, exec_id)
    await until(lambda: here.attempts("last"))
    described = await task.describe()
    assert described.run_id != task.first_execution_run_id
    newest = here.client.get_workflow_handle(task.id)
    assert exec_id in await refused(newest, name="long"), "its name is known in the next run"
    await interrupt(here.client, exec_id)
    await end_of(here.client, exec_id)

    async def is_heard() -> bool:
        return await jobs_of(newest) == {exec_id: "interrupted"}

    await until(is_heard, "the newest run hears of its end")
    here.open = True
    await closed(newest)
    record = await newest.query("record")
    assert record["status"] == "succeeded"
    assert [job["exec_id"] for job in record["jobs"]] == [exec_id]


async def test_a_rollback_stops_the_jobs_of_its_span_and_leaves_others(
    here: World, task: Handle
) -> None:
    rolled = await here.start_task(
        {"id": "aside", "depends_on": [], "play": ["hold"]},
        {"id": "a", "depends_on": []},
        {"id": "b", "play": ["hold fail", "ok"], "retry_config": {"retry_from_step_id": "a"},
         "depends_on": [{"task_step_id": "a"}]},
    )  # fmt: skip
    await until(lambda: here.attempts("b"))
    b, aside = JobOrigin("step", "b", 0, 1), JobOrigin("step", "aside", 0, 1)
    inside = [await launch(rolled, "wait", origin=b) for _ in range(2)]
    others = [await launch(rolled, "wait", origin=aside), await launch(rolled, "wait")]
    await begun(here.client, *inside, *others)
    here.open = True
    await closed(rolled)
    record = await same_record(here.client, rolled)
    assert record["status"] == "succeeded"
    (rollback,) = record["rollbacks"]
    told = [(undo["step_id"], undo["kind"]) for undo in rollback["compensations"]]
    assert told == [("b", "jobs"), ("b", "type"), ("a", "type")]
    assert rollback["compensations"][0]["exec_ids"] == inside
    assert [stop.exec_ids for stop in here.jobs.stops] == [inside, others]
    stopped = max(here.log.index(f"end {exec_id}") for exec_id in inside)
    assert stopped < here.log.index("undo b.1")


async def test_jobs_of_others_inside_what_is_reset_are_stopped_before_the_reset(
    here: World, pool: FakePool
) -> None:
    pool.resets_at_once = False
    task = await here.start_task(
        {"id": "b", "play": ["hold fail", "ok"], "uses": ["shop"],
         "retry_config": {"retry_from_step_id": "b"}},
        use=USE, definitions=[SHOP, MAIL], environments=["shop", "mail"],
    )  # fmt: skip
    await until(lambda: here.attempts("b"))
    guest = await launch(task, "wait", environment="shop")
    elsewhere = await launch(task, "wait", environment="mail")
    await begun(here.client, guest, elsewhere)
    here.open = True
    await until(lambda: pool.resets)
    assert [*here.jobs.running] == [elsewhere]
    assert "is being reset" in await refused(task, environment="shop")
    await pool.renew(pool.resets[0])
    await closed(task)
    record = await same_record(here.client, task)
    assert record["status"] == "succeeded"
    undos = record["rollbacks"][0]["compensations"]
    assert [(undo["kind"], undo.get("exec_ids")) for undo in undos] == [
        ("type", None),
        ("guests", [guest]),
    ]


async def test_jobs_that_cannot_be_stopped_fail_the_rollback_and_are_stopped_again_at_the_end(
    here: World,
) -> None:
    here.jobs.cannot_stop = True
    task = await here.start_task(
        {"id": "b", "play": ["hold fail"], "retry_config": {"retry_from_step_id": "b"}}
    )
    await until(lambda: here.attempts("b"))
    exec_id = await launch(task, "wait", origin=JobOrigin("step", "b", 0, 1))
    await begun(here.client, exec_id)
    here.open = True
    await closed(task)
    record = await same_record(here.client, task)
    assert record["status"] == "failed"
    assert record["compensation_failures"][0]["error"] == "no way to stop them"
    assert len(here.jobs.stops) == 3, "for the rollback, and twice at the end"
    assert [job["status"] for job in record["jobs"]] == ["interrupted"]


async def test_a_task_that_loses_its_environments_starts_over_without_its_jobs(
    here: World, pool: FakePool
) -> None:
    task = await here.start_task(HOLD, use=USE, definitions=[SHOP], environments=["shop"])
    await until(lambda: here.attempts("a"))
    exec_id = await launch(task, "wait", environment="shop", name="job")
    await begun(here.client, exec_id)
    await pool.lose(pool.requests[0], "shop")
    await until(lambda: len(pool.requests) == 2)
    assert here.jobs.running == {}
    kinds = [event["type"] for event in await task.query("events", 0)]
    assert kinds.index("job.ended") < kinds.index("lease.released") < kinds.index("task.restarted")
    await until(lambda: here.attempts("a") == 2)
    again = await launch(task, "exit 0", environment="shop", name="job")
    await end_of(here.client, again)
    record = await finished(here, task)
    assert record["status"] == "succeeded"
    assert [job["status"] for job in record["jobs"]] == ["interrupted", "done"]
