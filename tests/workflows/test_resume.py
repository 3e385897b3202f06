"""Tasks that go on from one of their steps on, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from perdure.event_log import UnknownRun
from perdure.history import record_of
from perdure.later_runs import open_tasks, suite_by_now
from perdure.messages import SuiteInput, SuiteTask, TaskOptions, TrialSummary
from perdure.resuming import RunRefused, resumed_task
from perdure.task_start import begin_task
from tests.waiting import until
from tests.workflows.fake_pool import SHOP, USE, FakePool
from tests.workflows.fakes import World, world
from tests.workflows.task_ends import closed, same_record

Handle = WorkflowHandle[Any, TrialSummary]


@pytest.fixture
async def pool(temporal: WorkflowEnvironment) -> FakePool:
    return FakePool(temporal.client, at_once=True)


@pytest.fixture
async def here(temporal: WorkflowEnvironment, pool: FakePool) -> AsyncIterator[World]:
    async with world(temporal.client, pool=pool.activities) as made:
        yield made


async def resume(here: World, old: Handle, step: str) -> Handle:
    """A new run of a task that has ended, from a step on."""
    await closed(old)
    suite = old.id.split("/")[1]
    again = await resumed_task(here.client, suite, "t", 1, step)
    run_id = await begin_task(here.client, again.start, here.queue)
    assert run_id is not None
    return here.client.get_workflow_handle(old.id, run_id=run_id, result_type=TrialSummary)


async def test_a_failed_task_goes_on_in_a_new_run_of_the_same_name(here: World) -> None:
    old = await here.start_task(
        {"id": "a", "size": 40_000}, {"id": "b"}, {"id": "c", "play": ["fail", "ok"]}
    )
    handle = await resume(here, old, "b")
    assert (await handle.result()).status == "succeeded"
    assert here.log == ["do a.1", "do b.1", "do c.1", "carry", "do b.2", "do c.2"]
    record = await same_record(here.client, handle)
    assert record["resumed_from"]["run_id"] == old.first_execution_run_id != record["run_id"]
    assert record["resumed_from"]["work"]["found"]
    assert [s["attempts"][-1]["epoch"] for s in record["steps"]] == [0, 1, 1]
    assert record["context"]["results"]["a"]["attempt"] == 1
    (asked,) = here.carried
    assert (asked.from_run_id, asked.hosts) == (old.first_execution_run_id, ["here"])
    assert (await record_of(here.client, old.id, old.first_execution_run_id))["status"] == "failed"


async def test_a_large_context_is_told_on_demand_as_ever(here: World) -> None:
    old = await here.start_task({"id": "a", "size": 300_000}, {"id": "b", "play": ["read"]})
    handle = await resume(here, old, "b")
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    # What the run itself noted, what was kept of the steps: two diffs over the seed.
    assert record["context"]["results"]["b"] == {"attempt": 2, "diffs": 2}


async def test_environments_are_new_and_so_are_who_used_them(here: World, pool: FakePool) -> None:
    old = await here.start_task(
        {"id": "aside", "uses": []},
        {"id": "buy"},
        {"id": "last", "uses": [], "depends_on": [{"task_step_id": "aside"}]},
        use=USE,
        definitions=[SHOP],
        environments=["shop"],
    )
    handle = await resume(here, old, "last")
    assert (await handle.result()).status == "succeeded"
    assert [here.attempts(name) for name in ("aside", "buy", "last")] == [1, 2, 2]
    await same_record(here.client, handle)
    assert len(pool.requests) == 2


async def test_a_task_that_lost_its_environments_meanwhile_begins_with_nothing_of_old(
    here: World, pool: FakePool
) -> None:
    old = await here.start_task(
        {"id": "aside", "uses": []},
        {"id": "buy", "play": ["ok", "hang", "ok"], "depends_on": []},
        use=USE,
        definitions=[SHOP],
        environments=["shop"],
    )
    handle = await resume(here, old, "buy")
    await until(lambda: here.attempts("buy") == 2)
    await pool.lose(pool.requests[1], "shop")
    assert (await handle.result()).status == "succeeded"
    assert here.attempts("aside") == 2
    record = await same_record(here.client, handle)
    assert record["attempt_epoch"] == 2
    assert record["resumed_from"]["step"] == "buy"


async def test_files_that_are_not_there_are_told_of_and_no_hindrance(here: World) -> None:
    old = await here.start_task({"id": "a"})
    here.files = "gone"
    handle = await resume(here, old, "a")
    summary = await handle.result()
    assert summary.note == "without the files of the earlier run: they are on there"
    record = await same_record(here.client, handle)
    assert record["resumed_from"]["work"]["reason"] == "they are on there"


async def test_a_cancel_while_the_files_are_brought_starts_nothing(here: World) -> None:
    old = await here.start_task({"id": "a"})
    here.files = "hold"
    handle = await resume(here, old, "a")
    await until(lambda: here.carried)
    await handle.cancel()
    await closed(handle)
    record = await same_record(here.client, handle)
    assert record["status"] == "cancelled"
    assert here.attempts("a") == 1


async def test_a_resumed_run_continues_as_new(here: World) -> None:
    old = await here.start_task({"id": "a"}, {"id": "b"}, {"id": "c"})
    await closed(old)
    again = await resumed_task(here.client, old.id.split("/")[1], "t", 1, "b")
    options = TaskOptions(history_limit_events=5)
    start = replace(again.start, options=options)
    run_id = await begin_task(here.client, start, here.queue)
    handle = here.client.get_workflow_handle(old.id, result_type=TrialSummary)
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    assert record["run_id"] == run_id
    assert record["resumed_from"]["step"] == "b"
    assert [here.attempts(name) for name in "abc"] == [1, 2, 2]
    assert len(here.carried) == 1


async def test_a_run_that_is_open_or_unknown_is_refused(here: World) -> None:
    old = await here.start_task({"id": "a", "play": ["hold"]})
    suite = old.id.split("/")[1]
    with pytest.raises(RunRefused, match="is still running: follow it by `perdure events"):
        await resumed_task(here.client, suite, "t", 1, "a")
    here.open = True
    await closed(old)
    with pytest.raises(RunRefused, match=f"{suite}/t: task 't' has no step 'b'"):
        await resumed_task(here.client, suite, "t", 1, "b")
    with pytest.raises(UnknownRun, match=f"knows no run {suite}/t/2"):
        await resumed_task(here.client, suite, "t", 2, "a")
    first, second = [await resumed_task(here.client, suite, "t", 1, "a") for _ in range(2)]
    here.open = False
    assert await begin_task(here.client, first.start, here.queue)
    assert await begin_task(here.client, second.start, here.queue) is None, "one at a time"
    here.open = True
    await closed(here.client.get_workflow_handle(old.id))


async def test_a_suite_that_is_over_counts_the_runs_that_went_on_from_its_own(here: World) -> None:
    tasks: list[dict[str, Any]] = [
        {"id": "t", "steps": [{"id": "a", "type": "fake"}, {"id": "b", "type": "fake",
         "play": ["fail", "fail", "ok", "hold"]}]},
        {"id": "u", "steps": [{"id": "c", "type": "fake", "play": ["hold", "fail"]}]},
    ]  # fmt: skip
    suite = await here.start_suite(tasks)
    name = suite.id.partition("/")[2]
    await until(lambda: here.attempts("c") == 1 and here.finished)
    await closed(here.client.get_workflow_handle(f"task/{name}/t/1"))
    with pytest.raises(RunRefused, match=f"suite '{name}' is open: .* requeue t"):
        await resumed_task(here.client, name, "t", 1, "a")
    here.open = True
    await suite.result()

    async def counts() -> list[tuple[str, str]]:
        ends = (await suite_by_now(here.client, suite.id)).ended
        return sorted((end.task_id, end.status) for end in ends)

    async def go_on(task: str, step: str) -> Handle:
        again = await resumed_task(here.client, name, task, 1, step)
        assert await begin_task(here.client, again.start, here.queue)
        return here.client.get_workflow_handle(f"task/{name}/{task}/1")

    assert await counts() == [("t", "failed"), ("u", "succeeded")]
    await closed(await go_on("t", "b"))
    assert await counts() == [("t", "failed"), ("u", "succeeded")]
    await closed(await go_on("t", "a"))
    assert await counts() == [("t", "succeeded"), ("u", "succeeded")]
    await closed(await go_on("u", "c"))
    by_now = await suite_by_now(here.client, suite.id)
    progress = by_now.progress()
    assert (progress.succeeded, progress.failed) == (1, 1)
    (t_now,) = [end for end in by_now.ended if end.task_id == "t"]
    assert t_now.attempts == 5, "it has all that was made before, too"

    here.open = False
    running = await go_on("t", "b")
    await until(lambda: here.attempts("b") == 4)
    open_now = await suite_by_now(here.client, suite.id)
    assert open_now.going_on == [running.id]
    assert open_now.progress().succeeded == 1, "until it ends"
    assert await open_tasks(here.client, name) == {running.id}
    await running.terminate("by hand")
    assert await counts() == [("t", "cancelled"), ("u", "failed")]

    # One that is started whole, by itself, goes on from none: it stands apart.
    here.open = True
    whole = replace((await resumed_task(here.client, name, "u", 1, "c")).start, resumed=None)
    assert await begin_task(here.client, whole, here.queue)
    await closed(here.client.get_workflow_handle(f"task/{name}/u/1"))
    assert await counts() == [("t", "cancelled"), ("u", "failed")]

    ends = (await suite_by_now(here.client, suite.id)).ended
    changed = SuiteInput(name, [SuiteTask(task, "changed") for task in tasks], finished=ends)
    await here.client.execute_workflow("SuiteWorkflow", changed, id=suite.id, task_queue=here.queue)
    with pytest.raises(RunRefused, match=f"'t' has changed .* by `perdure retry {name}`"):
        await resumed_task(here.client, name, "t", 1, "b")
