"""Tasks that take a lease of a pool before their first step."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.core.pool_decisions import Grant, GrantedInstance
from perdure.messages import Holder, TaskOptions, TrialSummary
from perdure.names import LEASE_GRANTED, WITHDRAW, steps_queue
from tests.waiting import until
from tests.workflows.fake_pool import MAIL, SHOP, USE, FakePool, definition
from tests.workflows.fakes import World, world
from tests.workflows.task_ends import closed, failure_of, same_record

FIRST = replace(USE, local_words=False)
"""As runs of the first version use it: they say, too, that they have heard."""


@pytest.fixture
async def pool(temporal: WorkflowEnvironment) -> FakePool:
    return FakePool(temporal.client)


@pytest.fixture
async def here(temporal: WorkflowEnvironment, pool: FakePool) -> AsyncIterator[World]:
    async with world(temporal.client, pool=pool.activities) as made:
        yield made


async def test_a_task_begins_when_it_has_its_environments_and_gives_them_back(
    here: World, pool: FakePool
) -> None:
    handle = await here.start_task(
        {"id": "a"}, {"id": "b"}, use=USE, definitions=[SHOP, MAIL], environments=["shop", "mail"]
    )
    request = await pool.asked()
    first_run = handle.first_execution_run_id
    assert first_run
    assert request.request_id == f"{first_run}:1"
    assert request.holder == Holder(handle.id, first_run)
    assert request.environments == [SHOP, MAIL]
    assert request.bind, "one host serves the task's queue: the one that hands the request on"
    assert (await handle.query("progress"))["lease"]["state"] == "waiting"
    assert here.steps == []
    await pool.grant(request)
    assert (await handle.result()).status == "succeeded"
    first = here.steps[0].instances
    assert [(i.environment, i.project, i.number) for i in first] == [
        ("shop", "pool_shop_1", 1),
        ("mail", "pool_mail_2", 2),
    ]
    assert first[0].ports == {"SHOP_PORT": 9001}
    assert (first[0].pool, first[0].pool_uuid, first[0].definition) == ("recorded", "uuid", SHOP)
    assert pool.seen == [], "nobody makes use of that"
    assert [r.request_id for r in pool.releases] == [request.request_id]
    assert pool.releases[0].broken == {}
    record = await same_record(here.client, handle)
    assert [i["instance_id"] for i in record["instances"]] == [
        "shop:pool_shop_1", "mail:pool_mail_2",
    ]  # fmt: skip
    assert record["lease"]["pool"] == "recorded"
    kinds = [event["type"] for event in await handle.query("events", 0)]
    assert kinds[:3] == ["task.started", "lease.requested", "lease.granted"]
    assert kinds[-2:] == ["lease.released", "task.completed"]


async def test_a_task_without_environments_takes_a_slot_of_its_suite(
    here: World, pool: FakePool
) -> None:
    """PD11: a task that needs no environments runs."""
    handle = await here.start_task({"id": "a"}, use=USE)
    request = await pool.asked()
    assert request.environments == []
    await pool.grant(request)
    assert (await handle.result()).status == "succeeded"
    assert here.steps[0].instances == []
    assert len(pool.releases) == 1
    await same_record(here.client, handle)


async def test_a_lease_that_cannot_be_had_fails_the_task_with_its_reason(
    here: World, pool: FakePool
) -> None:
    handle = await here.start_task({"id": "a"}, use=USE, definitions=[SHOP])
    request = await pool.asked()
    await pool.refuse(request, log=["app  | no such table"])
    summary = await failure_of(handle)
    assert summary.failure_kind == "environment"
    assert "did not come up" in str(summary.failure_reason)
    assert "no such table" in str(summary.failure_reason)
    assert here.steps == []
    record = await same_record(here.client, handle)
    assert record["failure"]["type"] == "EnvironmentFailed"


async def test_a_lost_instance_starts_the_task_over_with_other_instances(
    here: World, pool: FakePool
) -> None:
    """PD25: a run outlives the death of its instance."""
    handle = await here.start_task(
        {"id": "a"},
        {"id": "b", "play": ["hang", "ok"]},
        use=USE,
        definitions=[SHOP, MAIL],
    )
    first = await pool.asked()
    await pool.grant(first)
    await until(lambda: here.running == 1)
    await pool.lose(first, "shop")
    second = await pool.asked(2)
    assert here.running == 0, "what ran has ended before another lease is asked for"
    assert [r.broken for r in pool.releases] == [{"shop": "its container died"}]
    await pool.grant(second)
    assert (await handle.result()).status == "succeeded"
    assert [(s.step["id"], s.attempt, s.epoch) for s in here.steps] == [
        ("a", 1, 0), ("b", 1, 0), ("a", 2, 1), ("b", 2, 1),
    ]  # fmt: skip
    assert here.steps[-1].instances[0].number == 3
    assert [s.restarts for s in here.steps] == [0, 0, 1, 1]
    context = here.steps[2].context
    assert context
    assert context["results"] == {}
    assert context["metadata"]["leases_lost"][0]["environments"] == ["shop"]
    record = await same_record(here.client, handle)
    assert [loss["reason"] for loss in record["leases_lost"]] == ["its container died"]
    assert record["instances"][0]["project"] == "pool_shop_3"


async def test_the_second_loss_fails_the_task(here: World, pool: FakePool) -> None:
    pool.at_once = True
    handle = await here.start_task({"id": "a", "play": ["hang"]}, use=USE, definitions=[SHOP])
    for number in (1, 2):
        request = await pool.asked(number)
        await until(lambda: here.running == 1)
        await pool.lose(request, "shop")
        await until(lambda: here.running == 0)
    summary = await failure_of(handle)
    assert summary.failure_kind == "infrastructure"
    assert "its container died" in str(summary.failure_reason)
    record = await same_record(here.client, handle)
    assert record["failure"]["type"] == "InstanceLost"
    assert len(record["leases_lost"]) == 2
    assert len(pool.releases) == 2


async def test_a_task_may_rather_fail_than_start_over(here: World, pool: FakePool) -> None:
    pool.at_once = True
    handle = await here.start_task(
        {"id": "a", "play": ["hang"]}, use=USE, definitions=[SHOP], on_instance_lost="fail"
    )
    request = await pool.asked()
    await until(lambda: here.running == 1)
    await pool.lose(request, "shop")
    assert (await failure_of(handle)).failure_kind == "infrastructure"
    await same_record(here.client, handle)


async def test_a_step_that_fails_because_its_instance_is_dead_is_not_blamed(
    here: World, pool: FakePool
) -> None:
    """PD8, PD9: what failed for want of an environment is told apart."""
    pool.at_once = True
    handle = await here.start_task(
        {"id": "a", "depends_on": [], "play": ["hang", "ok"]},
        {"id": "b", "depends_on": [], "play": ["orphaned", "ok"]},
        use=USE,
        definitions=[SHOP],
    )
    assert (await handle.result()).status == "succeeded"
    assert pool.releases[0].broken == {"shop": "shop is dead"}
    assert (await same_record(here.client, handle))["attempt_epoch"] == 1


async def test_a_cancelled_wait_leaves_the_queue(here: World, pool: FakePool) -> None:
    """C13: a waiter that is cancelled keeps no place."""
    handle = await here.start_task({"id": "a"}, use=USE, definitions=[SHOP])
    request = await pool.asked()
    await handle.cancel()
    await closed(handle)
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert [r.request_id for r in pool.releases] == [request.request_id]
    assert here.finished[0].summary.withdrawn is False
    await same_record(here.client, handle)


async def test_a_cancelled_task_gives_its_lease_back_after_its_steps_have_ended(
    here: World, pool: FakePool
) -> None:
    pool.at_once = True
    handle = await here.start_task({"id": "a", "play": ["hang"]}, use=USE, definitions=[SHOP])
    await until(lambda: here.running == 1)
    assert pool.releases == []
    await handle.cancel()
    await closed(handle)
    assert len(pool.releases) == 1
    assert here.finished[0].summary.status == "cancelled"
    await same_record(here.client, handle)


async def test_a_withdrawn_task_that_waits_ends_as_not_run(here: World, pool: FakePool) -> None:
    handle = await here.start_task({"id": "a"}, use=USE, definitions=[SHOP])
    request = await pool.asked()
    await handle.signal(WITHDRAW)
    await closed(handle)
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert here.finished[0].summary.withdrawn
    assert [r.request_id for r in pool.releases] == [request.request_id]
    assert (await same_record(here.client, handle))["status"] == "cancelled"


async def test_a_task_that_has_begun_is_not_withdrawn(here: World, pool: FakePool) -> None:
    pool.at_once = True
    handle = await here.start_task({"id": "a", "play": ["hold"]}, use=USE, definitions=[SHOP])
    await until(lambda: here.running == 1)
    await handle.signal(WITHDRAW)
    here.open = True
    assert (await handle.result()).status == "succeeded"
    await same_record(here.client, handle)


async def test_a_grant_that_nobody_waits_for_is_given_back_in_its_holders_name(
    here: World, pool: FakePool
) -> None:
    """C13, PD2: a lease of somebody else is neither used nor kept."""
    handle = await here.start_task({"id": "a"}, use=USE, definitions=[SHOP])
    request = await pool.asked()
    earlier = Holder(handle.id, "an earlier run")
    stray = Grant("an earlier run:1", earlier, "here", [], pool="other")
    await pool.tell(request, LEASE_GRANTED, stray)
    await until(lambda: len(pool.releases) == 1)
    assert (pool.releases[0].pool, pool.releases[0].holder) == ("other", earlier)
    assert here.steps == []
    await pool.grant(request)
    assert (await handle.result()).status == "succeeded"
    # A task that knows no pool gives it back all the same.
    plain = await here.start_task({"id": "a", "play": ["hang"]})
    await until(lambda: here.running == 1)
    holder = Holder(plain.id, "gone")
    instance = GrantedInstance(7, "shop@d", "shop", "p", {})
    await plain.signal(LEASE_GRANTED, Grant("gone:1", holder, "here", [instance], pool="other"))
    await until(lambda: pool.releases[-1].request_id == "gone:1")
    await plain.cancel()
    await closed(plain)
    await same_record(here.client, plain)


async def test_a_grant_told_twice_is_one(here: World, pool: FakePool) -> None:
    """PD1: the instance stays with the one task that has it."""
    handle = await here.start_task({"id": "a", "play": ["hold"]}, use=FIRST, definitions=[SHOP])
    request = await pool.asked()
    grant = await pool.grant(request)
    await until(lambda: here.running == 1)
    await pool.tell(request, LEASE_GRANTED, grant)
    await until(lambda: len(pool.seen) == 2)
    assert pool.releases == []
    here.open = True
    assert (await handle.result()).status == "succeeded"
    assert len(pool.releases) == 1


async def test_the_tasks_clock_stands_still_while_it_waits_for_its_environments(
    here: World, pool: FakePool
) -> None:
    handle = await here.start_task(
        {"id": "a", "play": ["hang"]}, use=USE, definitions=[SHOP], timeout=1
    )
    request = await pool.asked()
    started = (await handle.describe()).start_time.timestamp()

    async def is_late() -> bool:
        record = await handle.query("record")
        return bool(record["status"] != "running" or time.time() > started + 2)

    await until(is_late)
    assert (await handle.query("record"))["status"] == "running"
    await pool.grant(request)
    assert (await failure_of(handle)).failure_kind == "timeout"
    assert len(pool.releases) == 1
    await same_record(here.client, handle)


async def test_a_task_continues_as_new_while_it_waits_and_while_it_has_its_lease(
    here: World, pool: FakePool
) -> None:
    options = TaskOptions(history_limit_events=20, slot_reminder_seconds=0.1)
    steps = [{"id": f"s{n}"} for n in range(8)]
    handle = await here.start_task(*steps, options=options, use=USE, definitions=[SHOP])
    request = await pool.asked()
    first = handle.first_execution_run_id

    async def is_another_run() -> bool:
        return bool((await handle.describe()).run_id != first)

    await until(is_another_run)
    assert pool.reminders[0].request_id == request.request_id
    await pool.grant(request)
    newest = here.client.get_workflow_handle(handle.id, result_type=TrialSummary)
    assert (await newest.result()).status == "succeeded"
    assert len(pool.requests) == 1
    assert len(pool.releases) == 1
    assert all(step.instances[0].number == 1 for step in here.steps)
    assert [s.step["id"] for s in here.steps] == [f"s{n}" for n in range(8)]
    await same_record(here.client, newest)


async def test_two_environments_that_set_one_variable_are_refused(
    here: World, pool: FakePool
) -> None:
    """PD26: the last one would win unseen."""
    twin = definition("shop2", "SHOP_PORT")
    handle = await here.start_task({"id": "a"}, use=USE, definitions=[SHOP, twin])
    summary = await failure_of(handle)
    assert summary.failure_kind == "bad_input"
    assert "SHOP_PORT is set by the environments shop and shop2" in str(summary.failure_reason)
    assert pool.requests == []


async def test_a_task_of_several_hosts_goes_where_its_instances_are(
    here: World, pool: FakePool
) -> None:
    def at(host: str) -> Worker:
        return Worker(
            here.client,
            task_queue=steps_queue(here.queue, host),
            activities=[here.run_step, here.finish_task],
        )

    options = TaskOptions(multi_host=True)
    handle = await here.start_task(
        {"id": "a", "play": ["hang", "ok"]}, options=options, use=FIRST, definitions=[SHOP]
    )
    first = await pool.asked()
    assert not first.bind
    # Nobody serves the first host: its worker has gone with it.
    await pool.grant(first, host="gone")
    await until(lambda: len(pool.seen) == 1)
    await pool.lose(first, "shop")
    second = await pool.asked(2)
    here.host = "there"
    async with at("there"):
        await pool.grant(second, host="there")
        here.open = True
        assert (await handle.result()).status == "succeeded"
    assert [(s.attempt, s.restarts) for s in here.steps] == [(2, 1)]
    record = await same_record(here.client, handle)
    assert (record["lease"]["host"], record["leases_lost"][0]["host"]) == ("there", "gone")


async def test_a_slot_on_several_hosts_binds_the_task_to_the_host_that_takes_it_up(
    here: World, pool: FakePool
) -> None:
    pool.at_once = True
    async with Worker(
        here.client,
        task_queue=steps_queue(here.queue, "here"),
        activities=[here.run_step, here.finish_task],
    ):
        steps = [{"id": "a"}, {"id": "b"}]
        handle = await here.start_task(*steps, options=TaskOptions(multi_host=True), use=USE)
        assert (await handle.result()).status == "succeeded"
    await same_record(here.client, handle)
