"""Named limits on a real server: LimitWorkflow, and tasks whose steps take its slots."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure.history import happenings, history_of, record_of
from perdure.messages import (
    Holder,
    LimitOptions,
    ProbeHolders,
    SlotRelease,
    SlotRequest,
    TaskOptions,
)
from perdure.names import limit_workflow_id
from tests.waiting import until
from tests.workflows.fakes import World, task_document, world
from tests.workflows.task_ends import closed

QUICK = LimitOptions(probe_seconds=0.5, idle_seconds=0.5)


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client, limits=QUICK) as made:
        yield made


@pytest.fixture
def name() -> str:
    """A limit of this test's own: limits are the server's."""
    return f"limit-{uuid.uuid4().hex[:8]}"


def limited(name: str, slots: int = 1, **more: Any) -> TaskOptions:
    return TaskOptions(limits={name: slots}, **more)


def side_by_side(count: int, limit: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"s{n}", "depends_on": [], "limit": limit, **more} for n in range(count)]


async def view(here: World, name: str) -> dict[str, Any]:
    """Who holds and who waits; of a limit that nobody has asked yet, nobody."""
    try:
        found: dict[str, Any] = await here.client.get_workflow_handle(
            limit_workflow_id(name)
        ).query("limit")
    except RPCError:
        return {"held": [], "waiting": []}
    return found


async def counts(here: World, name: str) -> tuple[int, int]:
    found = await view(here, name)
    return len(found["held"]), len(found["waiting"])


async def reached(here: World, name: str, held: int, waiting: int) -> None:
    async def is_so() -> bool:
        return await counts(here, name) == (held, waiting)

    await until(is_so, f"{held} held, {waiting} waiting")


async def ended(here: World, name: str) -> None:
    async def is_so() -> bool:
        found = await here.client.get_workflow_handle(limit_workflow_id(name)).describe()
        return found.status is WorkflowExecutionStatus.COMPLETED

    await until(is_so, "the limit's end")


async def assert_same_record(here: World, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """The record from the history, which must be the query's."""
    rebuilt = await record_of(here.client, handle.id)
    assert rebuilt == await handle.query("record")
    events = [e async for e, _ in happenings(here.client, handle.id, follow=False)]
    assert events == (await handle.query("events", 0))
    assert (await history_of(here.client, handle.id)).progress() == await handle.query("progress")
    return rebuilt


# --- Sharing ----------------------------------------------------------------------------------


async def test_steps_of_a_task_take_turns_at_its_slots(here: World, name: str) -> None:
    handle = await here.start_task(*side_by_side(6, name), options=limited(name, 2))
    summary = await handle.result()
    assert summary.steps_done == 6
    assert here.most_running <= 2
    await assert_same_record(here, handle)
    await reached(here, name, 0, 0)


async def test_two_suites_on_queues_of_their_own_share_a_limit(
    temporal: WorkflowEnvironment, name: str
) -> None:
    async with (
        world(temporal.client, limits=QUICK) as one,
        world(await another(temporal.client), shared=one.shared) as other,
    ):
        suites = [
            await there.start_suite(
                [task_document(f"t{n}", *side_by_side(3, name, play=["hold"])) for n in range(3)],
                options=limited(name, 2),
            )
            for there in (one, other)
        ]
        await reached(one, name, 2, 16)
        await until(lambda: one.running + other.running == 2)
        one.open = other.open = True
        for suite in suites:
            assert (await suite.result())["succeeded"] == 3
        await reached(one, name, 0, 0)
        spans = [
            (attempt["started_at"], attempt["ended_at"])
            for end in (*one.finished, *other.finished)
            for step in end.record["steps"]
            for attempt in step["attempts"]
        ]
        assert len(spans) == 18
        for moment, _ in spans:
            assert sum(1 for start, end in spans if start <= moment < end) <= 2


async def another(client: Client) -> Client:
    """A second connection: one has one worker a queue."""
    return await Client.connect(
        client.service_client.config.target_host, data_converter=client.data_converter
    )


async def test_a_higher_number_is_not_kept_waiting_by_a_lower_one(here: World, name: str) -> None:
    first = await here.start_task(*side_by_side(2, name, play=["hold"]), options=limited(name, 2))
    await until(lambda: here.running == 2)
    small = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name, 1))
    await reached(here, name, 2, 1)
    large = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name, 3))
    await reached(here, name, 3, 1)
    here.open = True
    for handle in (first, small, large):
        assert (await handle.result()).status == "succeeded"


async def test_the_urgent_task_goes_first(here: World, name: str) -> None:
    holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
    await reached(here, name, 1, 0)
    low = await here.start_task({"id": "low", "limit": name}, options=limited(name), priority="low")
    await reached(here, name, 1, 1)
    urgent = await here.start_task(
        {"id": "urgent", "limit": name}, options=limited(name), priority="critical"
    )
    await reached(here, name, 1, 2)
    here.open = True
    for handle in (holder, low, urgent):
        await handle.result()
    assert [step for _, step, _ in here.started] == ["s0", "urgent", "low"]


# --- Waiting can be seen ----------------------------------------------------------------------


async def test_waiting_for_a_slot_is_seen_and_recorded(here: World, name: str) -> None:
    holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
    await reached(here, name, 1, 0)
    waiter = await here.start_task({"id": "w", "limit": name}, options=limited(name))
    await reached(here, name, 1, 1)
    progress = await waiter.query("progress")
    assert (progress["waiting"], progress["waiting_for"]) == (["w"], {"w": name})
    record = await assert_same_record(here, waiter)
    assert record["steps"][0]["status"] == "waiting"
    here.open = True
    await waiter.result()
    record = await assert_same_record(here, waiter)
    assert record["steps"][0]["waited"] > 0
    events = [event async for event, _ in happenings(here.client, waiter.id)]
    assert [(e["type"], e.get("limit")) for e in events if e.get("step") == "w"] == [
        ("step.waiting", name),
        ("step.started", None),
        ("step.completed", None),
    ]
    await holder.result()


async def test_a_tasks_time_does_not_pass_while_it_waits_for_a_slot(here: World, name: str) -> None:
    holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
    await reached(here, name, 1, 0)
    waiter = await here.start_task(
        {"id": "w", "limit": name, "play": ["hang"]},
        options=limited(name, task_timeout_seconds=0.5),
        timeout=3600,
    )
    free = await here.start_task({"id": "f", "play": ["hang"]}, options=limited(name), timeout=1.5)
    await closed(free)  # its clock ran, all the longer
    assert (await waiter.query("progress"))["waiting_for"] == {"w": name}
    here.open = True
    await holder.result()
    await closed(waiter)
    record = await assert_same_record(here, waiter)
    assert record["failure"]["kind"] == "timeout"
    assert "0.5 s" in record["failure"]["message"]
    (step,) = record["steps"]
    assert step["waited"] > 1
    assert step["attempts"][0]["status"] == "cancelled", "it had begun"
    await reached(here, name, 0, 0)


# --- Retries, losses, ends --------------------------------------------------------------------


async def test_each_attempt_takes_a_slot_anew(here: World, name: str) -> None:
    retry = {"max_attempts": 3, "initial_interval": 0.05}
    handle = await here.start_task(
        {"id": "a", "limit": name, "play": ["fail", "lose", "ok"], "retry": retry,
         "heartbeat_timeout": 0.5},
        {"id": "b", "limit": name},
        options=limited(name),
    )  # fmt: skip
    assert (await handle.result()).attempts == 4
    await assert_same_record(here, handle)
    await reached(here, name, 0, 0)


async def test_a_cancelled_task_leaves_the_queue_and_gives_its_slot_back(
    here: World, name: str
) -> None:
    holder = await here.start_task(*side_by_side(3, name, play=["hang"]), options=limited(name))
    other = await here.start_task(*side_by_side(1, name, play=["hang"]), options=limited(name))
    await reached(here, name, 1, 3)
    await other.cancel()
    await closed(other)
    assert await counts(here, name) == (1, 2), "by the time the task has ended"
    await holder.cancel()
    await closed(holder)
    assert await counts(here, name) == (0, 0)
    for handle in (holder, other):
        record = await assert_same_record(here, handle)
        assert record["status"] == "cancelled"


async def test_a_failed_task_leaves_the_queue(here: World, name: str) -> None:
    holder = await here.start_task(*side_by_side(1, name, play=["hang"]), options=limited(name))
    await reached(here, name, 1, 0)
    handle = await here.start_task(
        {"id": "a", "depends_on": [], "play": ["fail"]},
        {"id": "b", "depends_on": [], "limit": name},
        options=limited(name),
    )
    await closed(handle)
    assert await counts(here, name) == (1, 0)
    record = await assert_same_record(here, handle)
    assert [s["status"] for s in record["steps"]] == ["failed", "not_run"]
    await holder.terminate()


async def test_a_terminated_task_loses_its_slots_and_its_places(here: World, name: str) -> None:
    holder = await here.start_task(*side_by_side(3, name, play=["hang"]), options=limited(name))
    waiter = await here.start_task({"id": "w", "limit": name}, options=limited(name))
    await reached(here, name, 1, 3)
    await holder.terminate()
    assert (await waiter.result()).status == "succeeded"
    await reached(here, name, 0, 0)


async def test_a_task_terminated_before_its_grant_does_not_keep_the_slot(
    temporal: WorkflowEnvironment, name: str
) -> None:
    never_looks = LimitOptions(probe_seconds=3600)
    async with world(temporal.client, limits=never_looks) as here:
        holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
        await reached(here, name, 1, 0)
        gone = await here.start_task({"id": "g", "limit": name}, options=limited(name))
        await reached(here, name, 1, 1)
        waiter = await here.start_task({"id": "w", "limit": name}, options=limited(name))
        await reached(here, name, 1, 2)
        await gone.terminate()
        here.open = True
        assert (await waiter.result()).status == "succeeded"
        await holder.result()
        await reached(here, name, 0, 0)


async def test_a_task_that_does_not_know_a_grant_gives_it_back(here: World, name: str) -> None:
    task = await here.start_task({"id": "a", "play": ["hang"]})
    await until(lambda: here.running == 1)
    slots = here.slots
    for number in range(2):
        request = SlotRequest(name, f"gone-{number}:a#0.1", 1, task.id, "an-earlier-run")
        await slots.ask_slot(request)
    await until(lambda: task_got(task, 2), "two grants, one after the other")
    await reached(here, name, 0, 0)
    await task.cancel()
    await closed(task)
    await assert_same_record(here, task)


async def task_got(task: WorkflowHandle[Any, Any], count: int) -> bool:
    signals = [
        event
        async for event in task.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]
    return len(signals) == count


# --- The limit's own life ---------------------------------------------------------------------


async def test_a_limit_ends_when_nobody_is_there_and_starts_again(here: World, name: str) -> None:
    for _ in range(2):
        handle = await here.start_task({"id": "a", "limit": name}, options=limited(name))
        await handle.result()
        await ended(here, name)


async def test_a_limit_continues_as_new_under_load_and_loses_nothing(
    temporal: WorkflowEnvironment, name: str
) -> None:
    tiny = LimitOptions(history_limit_events=30, idle_seconds=0.5)
    async with world(temporal.client, limits=tiny) as here:
        handles = [
            await here.start_task(*side_by_side(6, name), options=limited(name, 3))
            for _ in range(5)
        ]
        for handle in handles:
            assert (await handle.result()).steps_done == 6
        assert here.most_running <= 3
        await reached(here, name, 0, 0)
        found = await here.client.get_workflow_handle(limit_workflow_id(name)).describe()
        assert found.raw_info.first_run_id != found.run_id, "it did continue as new"
        await ended(here, name)


async def test_who_waits_for_a_limit_that_is_terminated_is_remembered(
    here: World, name: str
) -> None:
    holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
    await reached(here, name, 1, 0)
    waiters = [
        await here.start_task(
            *side_by_side(2, name), options=limited(name, slot_reminder_seconds=0.5)
        )
        for _ in range(2)
    ]
    await reached(here, name, 1, 4)
    await here.client.get_workflow_handle(limit_workflow_id(name)).terminate()
    for handle in waiters:
        assert (await handle.result()).status == "succeeded"
        await assert_same_record(here, handle)
    here.open = True
    await holder.result()
    await reached(here, name, 0, 0)


async def test_a_task_that_continues_as_new_keeps_its_places(here: World, name: str) -> None:
    handle = await here.start_task(
        *side_by_side(12, name), options=limited(name, 2, history_limit_events=40)
    )
    summary = await handle.result()
    assert (summary.steps_done, summary.attempts) == (12, 12)
    record = await assert_same_record(here, handle)
    assert record["run_id"] != (await handle.describe()).run_id
    first = here.client.get_workflow_handle(handle.id, run_id=record["run_id"])
    assert await record_of(here.client, handle.id, record["run_id"]) == record
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    await reached(here, name, 0, 0)


async def test_a_long_wait_makes_no_history_without_end(here: World, name: str) -> None:
    holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
    await reached(here, name, 1, 0)
    often = limited(name, slot_reminder_seconds=0.05, history_limit_events=40)
    waiter = await here.start_task({"id": "w", "limit": name}, options=often)

    async def handed_over() -> bool:
        return bool((await waiter.describe()).run_id != waiter.first_execution_run_id)

    await until(handed_over)
    here.open = True
    for handle in (holder, waiter):
        assert (await handle.result()).status == "succeeded"
    await assert_same_record(here, waiter)


async def test_a_task_tells_its_end_when_its_slots_are_given_back(here: World, name: str) -> None:
    # Who hears of the end of a suite's last task may take the worker away.
    handle = await here.start_task(*side_by_side(3, name), options=limited(name, 3))
    await handle.result()
    kinds = [event.event_type async for event in handle.fetch_history_events()]
    given_back = max(
        n for n, kind in enumerate(kinds) if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    )
    told = max(n for n, kind in enumerate(kinds) if kind == EventType.EVENT_TYPE_MARKER_RECORDED)
    assert given_back < told


async def test_words_may_come_twice_and_to_nobody(here: World, name: str) -> None:
    slots = here.slots
    await slots.release_slot(SlotRelease(name, "nobody"))
    request = SlotRequest(name, "r:a#0.1", 1, "no/such/task", "r")
    await slots.ask_slot(request)
    await slots.ask_slot(request)
    await reached(here, name, 0, 0)
    await slots.release_slot(SlotRelease(name, "r:a#0.1"))
    await slots.release_slot(SlotRelease(name, "r:a#0.1"))
    await ended(here, name)


async def test_a_probe_finds_the_closed_the_unknown_and_the_reborn(here: World) -> None:
    task = await here.start_task({"id": "a", "play": ["hang"]})
    run_id = str(task.first_execution_run_id)
    alive = Holder(task.id, run_id)
    others = [Holder(task.id, str(uuid.uuid4())), Holder("task/no/such/1", run_id)]
    assert await here.slots.probe_holders(ProbeHolders([*others, alive])) == others
    await task.terminate()
    assert await here.slots.probe_holders(ProbeHolders([alive])) == [alive]


# --- Refusals and edges -----------------------------------------------------------------------


async def test_a_task_whose_limit_is_not_set_is_refused(here: World, name: str) -> None:
    handle = await here.start_task({"id": "a", "limit": name})
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert name in str(caught.value.cause)
    record = await record_of(here.client, handle.id)
    assert record["failure"]["kind"] == "bad_input"


async def test_a_cancel_that_comes_with_the_grant_is_rebuilt(
    temporal: WorkflowEnvironment, name: str
) -> None:
    async with world(temporal.client, limits=QUICK) as here:
        holder = await here.start_task(*side_by_side(1, name, play=["hold"]), options=limited(name))
        await reached(here, name, 1, 0)
        client = await another(temporal.client)
        async with world(client, shared=here.shared) as gone:
            waiter = await gone.start_task({"id": "w", "limit": name}, options=limited(name))
            await reached(here, name, 1, 1)
        # No worker takes up the grant before the cancel is there, too.
        here.open = True
        await holder.result()
        await until(lambda: task_got(waiter, 1), "the grant")
        await waiter.cancel()
        async with world(client, queue=gone.queue, shared=here.shared) as back:
            await closed(waiter)
            record = await assert_same_record(here, waiter)
            assert record["status"] == "cancelled"
            assert back.started == []
            await reached(here, name, 0, 0)


@pytest.mark.parametrize("luck", [1, 2])
async def test_any_mix_of_tasks_returns_every_slot_and_is_rebuilt(
    temporal: WorkflowEnvironment, name: str, luck: int
) -> None:
    chance = random.Random(luck)
    limits = {f"{name}-a": 2, f"{name}-b": 3}
    often = LimitOptions(history_limit_events=50, probe_seconds=1, idle_seconds=1)
    async with world(temporal.client, limits=often) as here:
        handles = []
        for _ in range(9):
            options = TaskOptions(
                limits=limits,
                history_limit_events=chance.choice([None, 30, 45]),
                task_timeout_seconds=chance.choice([None, None, 0.5, 2]),
            )
            steps = [random_step(chance, number, list(limits)) for number in range(6)]
            handles.append(await here.start_task(*steps, options=options))
            if chance.random() < 0.2:
                with suppress(RPCError):  # it has just ended
                    await chance.choice(handles).cancel()
        for handle in handles:
            await closed(handle)
            record = await assert_same_record(here, handle)
            assert await record_of(here.client, handle.id, handle.first_execution_run_id) == record
        for limit in limits:
            await reached(here, limit, 0, 0)


def random_step(chance: random.Random, number: int, limits: list[str]) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"play": ["fail", "ok"], "retry": {"max_attempts": 2, "initial_interval": 0.05}},
        {"play": ["fail"], "fail_task_on_error": False},
        {"play": ["lose", "ok"], "heartbeat_timeout": 0.5},
        {"play": ["shutdown", "ok"]},
        {"play": ["fail"]},
    ]
    kind = chance.choices([{}, *kinds], weights=[20, 4, 2, 1, 2, 1])[0]
    free = {"depends_on": []} if chance.random() < 0.6 else {}
    limit = {"limit": chance.choice(limits)} if chance.random() < 0.7 else {}
    return {"id": f"s{number}", **kind, **free, **limit}
