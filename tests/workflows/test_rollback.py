"""Rollbacks on a real server: the whole story of a span that is taken back and runs again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.messages import TaskOptions
from perdure.names import COMPENSATE_STEP, steps_queue, undo_queue
from tests.waiting import until
from tests.workflows.fake_pool import MAIL, SHOP, USE, FakePool
from tests.workflows.fakes import World, world
from tests.workflows.task_ends import closed, failure_of, same_record

DRAWN_TASKS = 8


@pytest.fixture
async def pool(temporal: WorkflowEnvironment) -> FakePool:
    return FakePool(temporal.client, at_once=True)


@pytest.fixture
async def here(temporal: WorkflowEnvironment, pool: FakePool) -> AsyncIterator[World]:
    async with world(temporal.client, pool=pool.activities) as made:
        yield made


def needs(*ids: str) -> list[dict[str, str]]:
    return [{"task_step_id": id} for id in ids]


def retried(id: str, target: str | None = None, **more: Any) -> dict[str, Any]:
    """A step that fails once, and goes back to `target`."""
    config = {"retry_from_step_id": target or id, **more.pop("config", {})}
    return {"id": id, "play": ["fail", "ok"], "retry_config": config, **more}


async def test_a_span_is_undone_newest_first_and_runs_again(here: World) -> None:
    handle = await here.start_task({"id": "a"}, {"id": "b"}, retried("c", "b"), {"id": "d"})
    assert (await handle.result()).status == "succeeded"
    assert here.log == [
        *("do a.1", "do b.1", "do c.1"),
        *("undo c.1", "undo b.1"),
        *("do b.2", "do c.2", "do d.1"),
    ]
    record = await same_record(here.client, handle)
    assert record["attempt_epoch"] == 1
    (rollback,) = record["rollbacks"]
    assert (rollback["failed"], rollback["span"]) == (["c"], ["b", "c"])
    assert [c["attempt"] for c in rollback["compensations"]] == [1, 1]
    (reset,) = record["context"]["metadata"]["retry_resets"]
    assert (reset["step_id"], reset["attempt"]) == ("c", 2)
    (failed,) = record["context"]["metadata"]["failed_steps"]
    assert failed["retried"] is True
    assert record["context"]["results"]["b"] == {"attempt": 2}
    assert [step.epoch for step in here.steps] == [0, 0, 0, 1, 1, 1]
    names = [
        event.activity_task_scheduled_event_attributes.activity_id
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert names[3:5] == ["undo c#0.1 type", "undo b#0.1 type"]


async def test_failures_together_are_one_rollback_of_the_union(here: World) -> None:
    """TD3"""
    handle = await here.start_task(
        {"id": "a"},
        {"id": "x", "depends_on": needs("a")},
        retried("y", "x", depends_on=needs("x")),
        retried("z", depends_on=needs("a"), play=["hold fail", "ok"]),
        {"id": "end"},
    )
    await until(lambda: here.attempts("z") == 1)
    here.open = True
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    assert {name for r in record["rollbacks"] for name in r["failed"]} == {"y", "z"}
    assert here.attempts("a") == here.attempts("end") == 1


async def test_a_step_outside_the_span_goes_on_and_is_heard_in_the_next_epoch(
    here: World,
) -> None:
    """TD18, and the context of an earlier epoch is still told."""
    handle = await here.start_task(
        {"id": "big", "size": 40_000},
        {"id": "other", "depends_on": needs("big"), "play": ["read late"]},
        retried("a", depends_on=needs("big"), play=["fail", "hold"]),
        {"id": "end"},
    )
    await until(lambda: here.attempts("a") == 2)
    here.open = True
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    assert here.attempts("other") == 1
    assert record["context"]["results"]["other"]["diffs"] == 1
    assert record["rollbacks"][0]["cancelled"] == []


async def test_running_steps_of_the_span_are_stopped_before_anything_is_undone(
    here: World,
) -> None:
    handle = await here.start_task(
        {"id": "a"},
        {"id": "slow", "play": ["hang", "ok"], "depends_on": needs("a")},
        retried("b", "a", depends_on=needs("a"), play=["hold fail", "ok"]),
    )
    await until(lambda: here.running == 2)
    here.open = True
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    (rollback,) = record["rollbacks"]
    assert rollback["cancelled"] == ["slow"]
    assert here.log[3:6] == ["undo slow.1", "undo b.1", "undo a.1"]
    slow = next(c for c in here.undone if c.step["id"] == "slow")
    assert slow.status == "cancelled"
    assert not slow.is_written
    assert slow.diff[0]["path"] == ["results", "slow"]


async def test_the_pool_resets_environments_after_all_is_undone(
    here: World, pool: FakePool
) -> None:
    handle = await here.start_task(
        {"id": "a"},
        {"id": "mailed", "uses": ["mail"], "depends_on": []},
        retried("b", "a", depends_on=needs("a"), uses=["shop"]),
        use=USE,
        definitions=[SHOP, MAIL],
        environments=["shop", "mail"],
    )
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    (asked,) = pool.resets
    assert (asked.request_id, asked.number) == (pool.requests[0].request_id, 1)
    assert asked.environments == ["shop", "mail"]
    assert record["rollbacks"][0]["environments"] == ["shop", "mail"]
    assert record["rollbacks"][0]["span"] == ["a", "mailed", "b"]
    kinds = [event["type"] for event in await handle.query("events", 0)]
    assert kinds.index("environments.reset") == kinds.index("rollback.completed") - 1
    assert max(n for n, kind in enumerate(kinds) if kind == "compensation.completed") == (
        kinds.index("environments.reset") - 1
    )


async def test_an_instance_that_cannot_be_reset_is_replaced_under_the_lease(
    here: World, pool: FakePool
) -> None:
    pool.broken = {"shop"}
    handle = await here.start_task(
        {"id": "aside", "uses": ["mail"]},
        {"id": "a", "uses": ["shop"]},
        retried("b", uses=["shop"]),
        use=USE,
        definitions=[SHOP, MAIL],
        environments=["shop", "mail"],
    )
    assert (await handle.result()).status == "succeeded"
    record = await same_record(here.client, handle)
    assert [request.request_id for request in pool.requests] == [record["lease"]["request_id"]]
    assert [release.broken for release in pool.releases] == [{}]
    assert here.attempts("aside") == 1, "it used the instance that stays"
    steps = [step for step in here.steps if step.step["id"] == "b"]
    ports = [{**i.ports} for step in steps for i in step.instances if i.environment == "shop"]
    assert ports == [{"SHOP_PORT": 9001}, {"SHOP_PORT": 9003}]
    assert record["rollbacks"][0]["replaced"] == ["shop"]


async def test_a_reset_goes_on_over_a_continue_as_new_and_a_pool_that_is_reminded(
    here: World, pool: FakePool
) -> None:
    pool.resets_at_once = False
    handle = await here.start_task(
        {"id": "a"},
        {"id": "b"},
        retried("c", "a"),
        use=USE,
        definitions=[SHOP],
        environments=["shop"],
        options=TaskOptions(history_limit_events=25, slot_reminder_seconds=0.1),
    )
    await until(lambda: len(pool.resets) >= 3, "the pool is asked again")
    (asked, *again) = pool.resets
    assert again == [asked] * len(again)
    runs = await handle.describe()
    assert runs.run_id != handle.first_execution_run_id
    await pool.renew(asked)
    assert (await handle.result()).status == "succeeded"
    await same_record(here.client, handle)


async def test_a_cancel_during_a_reset_gives_the_lease_back_at_once(
    here: World, pool: FakePool
) -> None:
    pool.resets_at_once = False
    handle = await here.start_task(retried("a"), use=USE, definitions=[SHOP], environments=["shop"])
    await until(lambda: len(pool.resets) == 1)
    await handle.cancel()
    await closed(handle)
    assert [release.broken for release in pool.releases] == [{}]
    record = await same_record(here.client, handle)
    assert record["status"] == "cancelled"
    assert record["rollbacks"][0]["abandoned"]


async def test_a_pool_that_has_no_other_instance_has_the_task_start_over(
    here: World, pool: FakePool
) -> None:
    pool.resets_at_once = False
    handle = await here.start_task(
        {"id": "a"}, retried("b"), use=USE, definitions=[SHOP], environments=["shop"]
    )
    await until(lambda: len(pool.resets) == 1)
    await pool.lose(pool.requests[0], "shop")
    assert (await handle.result()).status == "succeeded"
    assert here.attempts("a") == 2
    record = await same_record(here.client, handle)
    assert record["leases_lost"][0]["environments"] == ["shop"]


async def test_a_compensation_is_tried_again(here: World) -> None:
    handle = await here.start_task(retried("a", undo=["fail", "ok"]))
    assert (await handle.result()).status == "succeeded"
    assert here.log == ["do a.1", "undo a.1", "undo a.1", "do a.2"]
    record = await same_record(here.client, handle)
    assert record["compensation_failures"] == []


async def test_a_compensation_that_keeps_failing_ends_the_task_with_its_own_error(
    here: World, pool: FakePool
) -> None:
    handle = await here.start_task(
        {"id": "a"},
        {"id": "b", "undo": ["give up"]},
        retried("c", "a", error="Original"),
        use=USE,
        definitions=[SHOP],
        environments=["shop"],
    )
    summary = await failure_of(handle)
    assert (summary.failure_step, summary.failure_reason) == ("c", "asked to fail")
    assert "not undone: step 'b', attempt 1" in str(summary.note)
    assert here.log[3:] == ["undo c.1", "undo b.1", "undo a.1"]
    record = await same_record(here.client, handle)
    (failed,) = record["compensation_failures"]
    assert (failed["step_id"], failed["error_type"]) == ("b", "Stuck")
    assert record["failure"]["type"] == "Original"
    assert "was not undone" in pool.releases[0].broken["shop"]
    assert pool.resets == []


async def test_a_cancel_during_a_rollback_waits_for_what_was_planned(here: World) -> None:
    handle = await here.start_task({"id": "a"}, {"id": "b", "undo": ["hold"]}, retried("c", "a"))
    await until(lambda: "undo b.1" in here.log)
    await handle.cancel()
    await until(lambda: is_cancelling(handle))
    here.open = True
    await closed(handle)
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert here.log == ["do a.1", "do b.1", "do c.1", "undo c.1", "undo b.1", "undo a.1"]
    record = await same_record(here.client, handle)
    assert record["status"] == "cancelled"
    assert record["rollbacks"][0]["abandoned"]


async def is_cancelling(handle: WorkflowHandle[Any, Any]) -> bool:
    events = await handle.query("events", 0)
    return any(event["type"] == "task.cancelling" for event in events)


async def test_the_tasks_time_limit_waits_for_what_was_planned(here: World) -> None:
    handle = await here.start_task(
        {"id": "a"}, {"id": "b", "undo": ["hold"]}, retried("c", "a"), timeout=2
    )
    await until(lambda: "undo b.1" in here.log)

    async def is_late() -> bool:
        events = await handle.query("events", 0)
        return any(event["type"] == "task.timed_out" for event in events)

    await until(is_late)
    here.open = True
    summary = await failure_of(handle)
    assert summary.failure_kind == "timeout"
    assert here.log[3:] == ["undo c.1", "undo b.1", "undo a.1"]
    await same_record(here.client, handle)


async def test_a_fatal_failure_meanwhile_waits_for_what_was_planned(here: World) -> None:
    handle = await here.start_task(
        {"id": "a", "depends_on": [], "undo": ["ok", "hold"]},
        {"id": "other", "depends_on": [], "play": ["hold fail"], "error": "Fatal"},
        retried("b", "a", depends_on=needs("a"), undo=["hold"]),
    )
    await until(lambda: "undo b.1" in here.log)
    here.open = True
    summary = await failure_of(handle)
    assert summary.failure_step == "other"
    assert "undo a.1" in here.log
    assert here.attempts("b") == 1
    await same_record(here.client, handle)


async def test_retries_are_counted_and_waited_for(here: World) -> None:
    handle = await here.start_task(
        retried("a", play=["fail"], config={"max_retries": 2, "delay": 0.3})
    )
    summary = await failure_of(handle)
    assert summary.attempts == 3
    record = await same_record(here.client, handle)
    assert record["attempt_epoch"] == 2
    first, second, _ = (step for step in record["steps"][0]["attempts"])
    assert second["started_at"] - record["rollbacks"][0]["ended_at"] >= 0.3
    assert first["status"] == "failed"


async def test_a_run_continues_as_new_in_the_delay_and_between_compensations(
    here: World,
) -> None:
    steps = [{"id": f"s{number}"} for number in range(3)]
    handle = await here.start_task(
        *steps,
        retried("last", "s0", play=["fail", "fail", "ok"], config={"max_retries": 3, "delay": 0.2}),
        options=TaskOptions(history_limit_events=25),
    )
    summary = await handle.result()
    assert summary.status == "succeeded"
    undone = [entry for entry in here.log if entry.startswith("undo")]
    order = ["last", "s2", "s1", "s0"]
    assert undone == [f"undo {id}.{n}" for n in (1, 2) for id in order], here.log
    record = await same_record(here.client, handle)
    assert record["attempt_epoch"] == 2
    assert [r["number"] for r in record["rollbacks"]] == [1, 2]


async def test_instances_lost_during_a_rollback_are_replaced_after_what_was_planned(
    here: World, pool: FakePool
) -> None:
    handle = await here.start_task(
        {"id": "a"},
        retried("b", "a", undo=["hold"]),
        use=USE,
        definitions=[SHOP],
        environments=["shop"],
    )
    await until(lambda: "undo b.1" in here.log)
    await pool.lose(pool.requests[0], "shop")

    async def is_lost() -> bool:
        return any(event["type"] == "lease.lost" for event in await handle.query("events", 0))

    await until(is_lost)
    here.open = True
    assert (await handle.result()).status == "succeeded"
    assert here.log[2:] == ["undo b.1", "undo a.1", "do a.2", "do b.2"]
    record = await same_record(here.client, handle)
    assert len(record["leases_lost"]) == 1


async def test_a_compensation_whose_worker_is_lost_is_made_again(here: World) -> None:
    handle = await here.start_task(retried("a", undo=["lose", "ok"], heartbeat_timeout=1))
    assert (await handle.result()).status == "succeeded"
    assert here.log == ["do a.1", "undo a.1", "undo a.1", "do a.2"]
    await same_record(here.client, handle)


async def test_a_bound_tasks_steps_are_undone_on_its_host(
    temporal: WorkflowEnvironment, here: World
) -> None:
    options = TaskOptions(multi_host=True)
    async with (
        Worker(
            temporal.client,
            task_queue=steps_queue(here.queue, "here"),
            activities=[here.run_step, here.finish_task],
        ),
        Worker(
            temporal.client,
            task_queue=undo_queue(here.queue, "here"),
            activities=[here.compensate_step],
        ),
    ):
        handle = await here.start_task(retried("a"), options=options)
        assert (await handle.result()).status == "succeeded"
    queues = {
        scheduled.task_queue.name
        for event in (await handle.fetch_history()).events
        if (scheduled := event.activity_task_scheduled_event_attributes).activity_type.name
        == COMPENSATE_STEP
    }
    assert queues == {f"{here.queue}/here/steps/control"}
    await same_record(here.client, handle)


async def test_a_host_that_is_gone_is_not_waited_for(
    temporal: WorkflowEnvironment, here: World, pool: FakePool
) -> None:
    async with (
        Worker(
            temporal.client,
            task_queue=steps_queue(here.queue, "gone"),
            activities=[here.run_step, here.finish_task],
        ),
        Worker(
            temporal.client,
            task_queue=steps_queue(here.queue, "here"),
            activities=[here.run_step, here.finish_task],
        ),
    ):
        pool.at_once = False
        handle = await here.start_task(
            retried("a"),
            use=USE,
            definitions=[SHOP],
            environments=["shop"],
            options=TaskOptions(multi_host=True),
        )
        await pool.grant(await pool.asked(), "gone")

        async def is_undoing() -> bool:
            events = await handle.query("events", 0)
            return any(event["type"] == "compensation.started" for event in events)

        await until(is_undoing)
        await pool.lose(pool.requests[0], "shop")
        await pool.grant(await pool.asked(2), "here")
        assert (await handle.result()).status == "succeeded"
    assert here.undone == []
    record = await same_record(here.client, handle)
    (failed,) = record["compensation_failures"]
    assert failed["error_type"] == "Cancelled"
    assert record["leases_lost"][0]["host"] == "gone"


def drawn(chance: random.Random) -> list[dict[str, Any]]:
    """A task of up to eight steps that fail, get lost, are retried and taken back by chance."""
    steps: list[dict[str, Any]] = []
    for number in range(chance.randint(3, 8)):
        earlier = [step["id"] for step in steps]
        above = chance.sample(earlier, min(len(earlier), chance.randint(0, 2)))
        words = [chance.choice(["fail", "fail", "shutdown"]) for _ in range(chance.randint(0, 2))]
        step: dict[str, Any] = {
            "id": f"s{number}",
            "depends_on": needs(*above),
            "play": [*words, "ok"],
            "size": chance.choice([1, 9_000]),
            "undo": chance.choice([["ok"], ["ok"], ["fail", "ok"]]),
        }
        if chance.random() < 0.3:
            step["retry"] = {"max_attempts": 2, "initial_interval": 0.05}
        if chance.random() < 0.8:
            target = chance.choice([step["id"], *above])
            delay = chance.choice([0, 0.1])
            step["retry_config"] = {"retry_from_step_id": target, "max_retries": 3, "delay": delay}
        steps.append(step)
    return steps


async def test_histories_tell_of_any_rollbacks_what_the_workflow_does(here: World) -> None:
    async def play(seed: int) -> None:
        chance = random.Random(f"rollbacks {seed}")
        options = TaskOptions(history_limit_events=chance.choice([None, 20, 40]))
        handle = await here.start_task(*drawn(chance), options=options)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0, 1.5))
            await handle.cancel()
        await closed(handle)
        await same_record(here.client, handle)

    await asyncio.gather(*map(play, range(DRAWN_TASKS)))
