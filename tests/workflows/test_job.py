"""Background jobs on a real server: from launch to end, whoever stops them and whatever dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.core.job_state import EXECUTION_FAILED, INTERRUPTED
from tests.waiting import until
from tests.workflows.fakes import World, world
from tests.workflows.job_kit import (
    Handle,
    begun,
    end_of,
    interrupt,
    jobs_of,
    launch,
    of,
    peek,
)
from tests.workflows.task_ends import closed, same_record

HOLD = {"id": "a", "play": ["hold"]}


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client) as made:
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


async def test_a_peek_tells_of_a_job_while_it_runs_and_after_its_end(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "say hello ", "say world", "wait", name="greeter")
    await begun(here.client, exec_id)
    await until(lambda: exec_id in here.jobs.running)

    async def has_spoken() -> bool:
        return (await peek(here.client, exec_id)).stdout == "hello world"

    await until(has_spoken)
    page = await peek(here.client, exec_id, 6)
    assert (page.status, page.done, page.name) == ("running", False, "greeter")
    assert (page.stdout, page.offset, page.next_offset, page.committed) == ("world", 6, 11, 11)
    assert page.run_id == task.id
    assert page.started_at
    assert page.ended_at is None
    assert await jobs_of(task) == {exec_id: "running"}
    await interrupt(here.client, exec_id)
    end = await end_of(here.client, exec_id)
    assert (end.status, end.error, end.interrupted) == ("interrupted", INTERRUPTED, True)
    after = await peek(here.client, exec_id)
    assert (after.done, after.stdout, after.waiting) == (True, "hello world", False)
    assert after.started_at == page.started_at
    assert after.ended_at is not None
    record = await finished(here, task)
    (known,) = record["jobs"]
    assert (known["exec_id"], known["status"], known["name"]) == (exec_id, "interrupted", "greeter")
    kinds = [event["type"] for event in await task.query("events", 0)]
    assert kinds.index("job.launched") < kinds.index("job.ended")


async def test_a_job_without_output_ends_done_and_its_record_says_all_but_the_output(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "exit 0")
    end = await end_of(here.client, exec_id)
    assert (end.status, end.error, end.exit_code, end.attempts) == ("done", None, 0, 1)
    record = await of(here.client, exec_id).query("record")
    assert record["status"] == "done"
    assert "stdout" not in record


async def test_exit_codes_tell_whether_a_job_failed(here: World, task: Handle) -> None:
    bad = await launch(task, "exit 3")
    good = await launch(task, "exit 3", ok_exit_codes=[0, 3])
    assert await end_of(here.client, bad) == replace(
        await end_of(here.client, bad), status="failed", error="exit code 3", exit_code=3
    )
    assert (await end_of(here.client, good)).status == "done"


async def test_b8_an_error_of_perdures_own_tells_nothing_of_the_machine(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "say before", "break")
    end = await end_of(here.client, exec_id)
    assert (end.status, end.error) == ("failed", EXECUTION_FAILED)
    assert (await peek(here.client, exec_id)).stdout == "before"


async def test_output_that_comes_twice_or_from_an_earlier_start_is_taken_once(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "say one ", "again two ", "stale never", "say three")
    await end_of(here.client, exec_id)
    assert (await peek(here.client, exec_id)).stdout == "one two three"


async def test_b12_one_interrupt_at_a_time_reaches_a_job_and_more_are_harmless(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "deaf")
    await begun(here.client, exec_id)
    here.jobs.slow.clear()
    for _ in range(3):
        await interrupt(here.client, exec_id)
    await until(lambda: here.jobs.interrupts)
    await peek(here.client, exec_id)  # the others have been heard of by now
    here.jobs.slow.set()

    async def is_told() -> bool:
        return (await peek(here.client, exec_id)).interrupted

    await until(is_told)
    assert len(here.jobs.interrupts) == 1
    await interrupt(here.client, exec_id)
    await until(lambda: here.jobs.running[exec_id].interrupts == 2, "each is one SIGINT")
    assert (await peek(here.client, exec_id)).status == "running"
    await interrupt(here.client, exec_id, kill_after=0)
    end = await end_of(here.client, exec_id)
    assert (end.status, end.interrupted) == ("killed", True)


async def test_b13_an_interrupt_that_reaches_nobody_says_so_until_one_does(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "wait")
    await begun(here.client, exec_id)
    here.jobs.mute = True
    await interrupt(here.client, exec_id)

    async def is_undelivered() -> bool:
        return (await peek(here.client, exec_id)).interrupt_undelivered is not None

    await until(is_undelivered)
    page = await peek(here.client, exec_id)
    assert page.interrupt_undelivered == "no process of it runs here"
    assert (page.interrupted, page.status) == (False, "running")
    here.jobs.mute = False
    await interrupt(here.client, exec_id)
    assert (await end_of(here.client, exec_id)).status == "interrupted"
    assert (await peek(here.client, exec_id)).interrupt_undelivered is None


async def test_bd4_a_deaf_job_is_killed_after_its_grace_and_tells_that_it_was(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "say kept", "deaf")
    await begun(here.client, exec_id)
    await interrupt(here.client, exec_id, kill_after=0.3)
    end = await end_of(here.client, exec_id)
    assert (end.status, end.interrupted) == ("killed", True)
    assert end.error == "killed: it still ran 0.3 s after its interrupt"
    assert [order.kill for order in here.jobs.interrupts] == [False, True]
    assert (await peek(here.client, exec_id)).stdout == "kept"


async def test_a_kill_at_once_sends_no_interrupt_before_it(here: World, task: Handle) -> None:
    exec_id = await launch(task, "deaf")
    await begun(here.client, exec_id)
    await interrupt(here.client, exec_id, kill_after=0)
    end = await end_of(here.client, exec_id)
    assert (end.status, end.error, end.interrupted) == ("killed", "killed", False)
    assert [order.kill for order in here.jobs.interrupts] == [True]


async def test_a_kill_may_be_had_sooner_than_was_asked_first(here: World, task: Handle) -> None:
    exec_id = await launch(task, "deaf")
    await begun(here.client, exec_id)
    await interrupt(here.client, exec_id, kill_after=3600)
    await interrupt(here.client, exec_id, kill_after=0.1)
    await interrupt(here.client, exec_id, kill_after=3600)
    assert (await end_of(here.client, exec_id)).status == "killed"
    assert [order.kill for order in here.jobs.interrupts].count(True) == 1


async def test_a_kill_that_reaches_nobody_becomes_a_cancel_of_the_work(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "deaf")
    await begun(here.client, exec_id)
    here.jobs.mute = True
    await interrupt(here.client, exec_id, kill_after=0)
    assert (await end_of(here.client, exec_id)).status == "killed"


async def test_bd3_a_job_that_waits_for_a_worker_is_called_off(
    temporal: WorkflowEnvironment,
) -> None:
    async with world(temporal.client, job_slots=1) as here:
        task = await here.start_task(HOLD)
        first = await launch(task, "wait")
        await begun(here.client, first)
        second = await launch(task, "say never", "wait")
        page = await peek(here.client, second)
        assert (page.status, page.waiting, page.started_at) == ("running", True, None)
        await interrupt(here.client, second)
        end = await end_of(here.client, second)
        assert (end.status, end.attempts, end.started_at) == ("interrupted", 0, None)
        assert end.error == f"{INTERRUPTED} before it began"
        assert [exec_id for exec_id, _ in here.jobs.started] == [first]
        await interrupt(here.client, first)
        await end_of(here.client, first)
        here.open = True
        await closed(task)


async def test_bd3_an_interrupt_that_comes_just_before_a_job_begins_reaches_it(
    temporal: WorkflowEnvironment,
) -> None:
    """BD3: whoever is to signal it looks for its process while a worker takes it up."""
    async with world(temporal.client, job_slots=1) as here:
        task = await here.start_task(HOLD)
        first = await launch(task, "wait")
        await begun(here.client, first)
        second = await launch(task, "wait")
        here.jobs.slow.clear()
        await interrupt(here.client, second)
        await until(lambda: here.jobs.interrupts, "nobody was found")
        await interrupt(here.client, first)
        await begun(here.client, second)
        here.jobs.slow.set()
        end = await end_of(here.client, second)
        assert (end.status, end.error, end.attempts) == ("interrupted", INTERRUPTED, 1)
        assert [order.exec_id for order in here.jobs.interrupts] == [second, first, second]
        here.open = True
        await closed(task)


async def test_a_lost_worker_costs_a_job_and_what_it_said_last_is_kept(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "say heard ", "beat last words", "lose")
    end = await end_of(here.client, exec_id)
    assert (end.status, end.error, end.attempts) == ("lost", "its worker was lost", 1)
    assert (await peek(here.client, exec_id)).stdout == "heard last words"
    assert end.usage.cpu_seconds == 0.5
    await same_record(here.client, task)


async def test_a_restartable_job_starts_again_after_a_loss_and_goes_on_behind_a_line(
    here: World, task: Handle
) -> None:
    exec_id = await launch(
        task, "1:beat first", "1:lose", "2:say second", "2:shutdown", "say third", restartable=True
    )
    end = await end_of(here.client, exec_id)
    assert (end.status, end.attempts) == ("done", 3)
    again = "[perdure: the worker was lost; started again]"
    assert (await peek(here.client, exec_id)).stdout == f"first\n{again}\nsecond\n{again}\nthird"
    assert here.jobs.started == [(exec_id, 1), (exec_id, 2), (exec_id, 3)]
    assert end.usage.wall_seconds == 4.0
    assert end.usage.peak_memory_bytes == 1000


async def test_a_job_that_is_handed_back_is_told_from_one_that_is_lost(
    here: World, task: Handle
) -> None:
    exec_id = await launch(task, "beat words", "shutdown")
    end = await end_of(here.client, exec_id)
    assert (end.status, end.error) == ("lost", "its worker was stopped")
    assert (await peek(here.client, exec_id)).stdout == "words"


async def test_who_is_to_stop_does_not_start_again(here: World, task: Handle) -> None:
    exec_id = await launch(task, "deaf", restartable=True)
    await begun(here.client, exec_id)
    await interrupt(here.client, exec_id)
    await until(lambda: here.jobs.running[exec_id].interrupts)
    first = here.jobs.running[exec_id]
    second = await launch(task, "sleep 0.3", "shutdown", restartable=True)
    await begun(here.client, second)
    await interrupt(here.client, second)
    end = await end_of(here.client, second)
    assert (end.status, end.attempts) == ("lost", 1)
    first.killed = True
    assert (await end_of(here.client, exec_id)).status == "killed"


async def test_a_cancel_of_its_workflow_is_an_interrupt_and_then_a_kill(
    here: World, task: Handle
) -> None:
    polite = await launch(task, "wait")
    await begun(here.client, polite)
    await of(here.client, polite).cancel()
    assert (await end_of(here.client, polite)).status == "interrupted"
