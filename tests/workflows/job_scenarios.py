"""Lives of background jobs and of tasks that have some, whose histories are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.job_messages import JobOrigin
from perdure.messages import TaskOptions
from tests.waiting import until
from tests.workflows.fake_pool import MAIL, SHOP, USE, FakePool
from tests.workflows.fakes import World, world
from tests.workflows.job_kit import (
    Handle,
    begun,
    end_of,
    interrupt,
    jobs_of,
    launch,
    of,
    refused,
)
from tests.workflows.task_ends import closed

JobPlay = Callable[[World], Awaitable[Handle]]
"""Ends with the workflow whose history is kept, or with one that is about to end."""

HOLD = {"id": "a", "play": ["hold"]}


async def _job(here: World, *script: str, act: Any = None, **spec: Any) -> Handle:
    """A job of a task of its own, to its end; `act` does something to it once it has begun."""
    here.open = False
    task = await here.start_task(HOLD)
    exec_id = await launch(task, *script, **spec)
    if act:
        await begun(here.client, exec_id)
        await act(exec_id)
    await end_of(here.client, exec_id)
    here.open = True
    await closed(task)
    return of(here.client, exec_id)


async def done(here: World) -> Handle:
    return await _job(here, "say one ", "again two ", "stale never", "beat three", "exit 0")


async def interrupted(here: World) -> Handle:
    async def twice(exec_id: str) -> None:
        here.jobs.mute = True
        await interrupt(here.client, exec_id)
        await until(lambda: here.jobs.interrupts and here.jobs.interrupts[-1].exec_id == exec_id)
        here.jobs.mute = False
        await interrupt(here.client, exec_id, kill_after=60)

    return await _job(here, "say begun", "wait", act=twice, name="train")


async def killed(here: World) -> Handle:
    async def escalate(exec_id: str) -> None:
        await interrupt(here.client, exec_id, kill_after=60)
        await interrupt(here.client, exec_id, kill_after=0.2)

    return await _job(here, "deaf", act=escalate, time_limit_seconds=600.0)


async def called_off(here: World) -> Handle:
    async with world(here.client, job_slots=1) as own:
        task = await own.start_task(HOLD)
        first = await launch(task, "wait")
        await begun(own.client, first)
        second = await launch(task, "wait")
        await interrupt(own.client, second, kill_after=0)
        await end_of(own.client, second)
        own.open = True
        await closed(task)
    return of(here.client, second)


async def lost(here: World) -> Handle:
    return await _job(here, "say heard ", "beat last words", "lose")


async def started_again(here: World) -> Handle:
    return await _job(here, "1:beat first", "1:lose", "2:shutdown", "say third", restartable=True)


async def broken(here: World) -> Handle:
    return await _job(here, "say before", "break")


async def cancelled(here: World) -> Handle:
    async def cancel(exec_id: str) -> None:
        await of(here.client, exec_id).cancel()

    return await _job(here, "wait", act=cancel)


async def stopped(here: World) -> Handle:
    here.open = False
    task = await here.start_task(HOLD)
    jobs = [await launch(task, "wait", name="train"), await launch(task, "deaf")]
    ended = await launch(task, "exit 3", origin=JobOrigin("step", "a", 0, 1))
    await refused(task, name="train")
    await refused(await here.start_task(HOLD), exec_id=jobs[0])
    await end_of(here.client, ended)
    await begun(here.client, *jobs)
    here.open = True
    await closed(task)
    return task


async def carried_over(here: World) -> Handle:
    here.open = False
    task = await here.start_task(
        *({"id": f"s{number}"} for number in range(10)),
        HOLD,
        options=TaskOptions(history_limit_events=40),
    )
    exec_id = await launch(task, "wait", name="long")
    await begun(here.client, exec_id)
    newest = here.client.get_workflow_handle(task.id)
    await until(lambda: here.attempts("s9"))
    await refused(newest, name="long")
    await interrupt(here.client, exec_id)
    await end_of(here.client, exec_id)

    async def is_heard() -> bool:
        return await jobs_of(newest) == {exec_id: "interrupted"}

    await until(is_heard)
    here.open = True
    return newest


async def rolled_back(here: World) -> Handle:
    pool = FakePool(here.client, at_once=True)
    async with world(here.client, pool=pool.activities) as own:
        task = await own.start_task(
            {"id": "b", "play": ["hold fail", "ok"], "uses": ["shop"],
             "retry_config": {"retry_from_step_id": "b"}},
            use=USE, definitions=[SHOP, MAIL], environments=["shop", "mail"],
        )  # fmt: skip
        await until(lambda: own.attempts("b"))
        jobs = [
            await launch(task, "wait", origin=JobOrigin("step", "b", 0, 1)),
            await launch(task, "wait", environment="shop"),
            await launch(task, "wait", environment="mail"),
        ]
        await begun(own.client, *jobs)
        own.open = True
        await closed(task)
    return task


async def lease_lost(here: World) -> Handle:
    pool = FakePool(here.client, at_once=True)
    async with world(here.client, pool=pool.activities) as own:
        task = await own.start_task(HOLD, use=USE, definitions=[SHOP], environments=["shop"])
        await until(lambda: own.attempts("a"))
        await begun(own.client, await launch(task, "wait", environment="shop"))
        await pool.lose(pool.requests[0], "shop")
        await until(lambda: own.attempts("a") == 2)
        own.open = True
        await closed(task)
    return task


JOB_PLAYS: dict[str, JobPlay] = {
    "job/done_in_pieces": done,
    "job/interrupted": interrupted,
    "job/deaf_and_killed": killed,
    "job/called_off_before_it_began": called_off,
    "job/lost": lost,
    "job/started_again": started_again,
    "job/failed_and_broken": broken,
    "job/cancelled": cancelled,
    "task/jobs_launched_refused_and_stopped": stopped,
    "task/jobs_over_a_continue_as_new": carried_over,
    "task/jobs_of_a_rollback": rolled_back,
    "task/jobs_of_a_lost_lease": lease_lost,
}
"""By `<workflow>/<what happened>`."""
