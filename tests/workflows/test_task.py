"""TaskWorkflow on a real server, with activities that play a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.messages import SUMMARY_LIMIT_BYTES, TaskOptions
from perdure.names import FINISH_TASK, RUN_STEP, steps_queue
from tests.waiting import until
from tests.workflows.fakes import World, world


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client) as made:
        yield made


async def failure_of(handle: WorkflowHandle[Any, Any]) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


async def event_types(handle: WorkflowHandle[Any, Any]) -> list[int]:
    return [e.event_type async for e in handle.fetch_history_events()]


async def asked_for(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """The types of all activities that a workflow has asked the server for."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]


async def test_a_task_runs_its_graph_and_hands_in_its_record(here: World) -> None:
    handle = await here.start_task({"id": "a"}, {"id": "b"}, {"id": "c"})
    summary = await handle.result()
    assert summary.status == "succeeded"
    assert (summary.steps_done, summary.attempts) == (3, 3)
    assert [s for _, s, _ in here.started] == ["a", "b", "c"]
    (end,) = here.finished
    assert end.record["context"]["results"] == {i: {"attempt": 1} for i in "abc"}
    assert end.record == await handle.query("record")


async def test_independent_steps_run_side_by_side(here: World) -> None:
    steps = [{"id": f"s{i}", "depends_on": [], "play": ["hang"]} for i in range(5)]
    handle = await here.start_task(*steps)
    await until(lambda: here.running == 5)
    await handle.cancel()
    await until(lambda: here.running == 0)


async def test_a_failed_task_is_a_failed_workflow_that_names_step_and_reason(here: World) -> None:
    handle = await here.start_task({"id": "a"}, {"id": "b", "play": ["fail"]}, {"id": "c"})
    error = await failure_of(handle)
    assert error.type == "TaskFailed"
    assert "'b'" in error.message
    assert "asked to fail" in error.message
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    assert here.attempts("c") == 0


async def test_what_a_failed_step_wrote_is_in_the_record(here: World) -> None:
    handle = await here.start_task({"id": "a", "play": ["fail"]})
    await failure_of(handle)
    assert here.finished[0].record["context"]["results"] == {"a": {"attempt": 1}}


async def test_a_step_is_retried_after_its_delay_and_counts_its_attempts(here: World) -> None:
    retry = {"max_attempts": 3, "initial_interval": 0.05, "backoff": 1}
    handle = await here.start_task({"id": "a", "play": ["fail", "fail", "ok"], "retry": retry})
    assert (await handle.result()).attempts == 3
    record = here.finished[0].record
    assert [a["status"] for a in record["steps"][0]["attempts"]] == [
        "failed",
        "failed",
        "succeeded",
    ]
    assert len(record["context"]["metadata"]["failed_steps"]) == 2


async def test_a_step_whose_worker_is_lost_starts_again_and_knows_of_the_lost_attempt(
    here: World,
) -> None:
    handle = await here.start_task({"id": "a", "play": ["lose", "ok"], "heartbeat_timeout": 2})
    assert (await handle.result()).status == "succeeded"
    assert [s.lost_attempts for s in here.steps] == [[], [1]]


async def test_a_step_whose_worker_is_always_lost_fails_with_its_last_heartbeat(
    here: World,
) -> None:
    handle = await here.start_task(
        {"id": "a", "play": ["lose"], "heartbeat_timeout": 1.5, "max_worker_losses": 1}
    )
    error = await failure_of(handle)
    assert "worker was lost 2 times" in error.message
    assert here.finished[0].record["context"]["results"]["a"] == {"attempt": 2}


async def test_a_step_that_a_stopping_worker_hands_back_starts_again(here: World) -> None:
    handle = await here.start_task({"id": "a", "play": ["shutdown", "ok"], "max_worker_losses": 0})
    assert (await handle.result()).attempts == 2


async def test_a_cancelled_task_awaits_its_steps_and_is_cancelled_not_failed(here: World) -> None:
    handle = await here.start_task({"id": "a", "play": ["hang"]}, {"id": "b"})
    await until(lambda: here.running == 1)
    await handle.cancel()
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    record = here.finished[0].record
    assert record["status"] == "cancelled"
    assert [s["status"] for s in record["steps"]] == ["cancelled", "not_run"]
    assert record["context"]["results"]["a"] == {"attempt": 1}, "what it wrote is known"


async def test_a_task_is_cancelled_between_two_attempts(here: World) -> None:
    retry = {"max_attempts": 2, "initial_interval": 3600}
    handle = await here.start_task({"id": "a", "play": ["fail"], "retry": retry})

    async def waiting() -> bool:
        return bool((await handle.query("progress"))["waiting"])

    await until(waiting)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert here.finished[0].record["status"] == "cancelled"


async def test_a_task_over_its_time_limit_fails_with_kind_timeout(here: World) -> None:
    handle = await here.start_task({"id": "a", "play": ["hang"]}, timeout=0.3)
    await failure_of(handle)
    assert here.finished[0].summary.failure_kind == "timeout"
    assert here.running == 0


async def test_a_long_task_continues_as_new_and_loses_nothing(here: World) -> None:
    steps = [{"id": f"s{i}"} for i in range(12)]
    handle = await here.start_task(*steps, options=TaskOptions(history_limit_events=20))
    first_run = handle.first_execution_run_id
    assert (await handle.result()).steps_done == 12
    assert [s for _, s, _ in here.started] == [s["id"] for s in steps]
    record = here.finished[0].record
    assert list(record["context"]["results"]) == [s["id"] for s in steps]
    assert record["run_id"] == first_run
    assert {s.run.run_id for s in here.steps} == {first_run}
    first = here.client.get_workflow_handle(handle.id, run_id=first_run)
    assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW in await event_types(first)


async def test_a_retry_that_waits_survives_a_continue_as_new(here: World) -> None:
    retry = {"max_attempts": 3, "initial_interval": 0.2, "backoff": 1}
    handle = await here.start_task(
        {"id": "a"},
        {"id": "b", "play": ["fail", "fail", "ok"], "retry": retry},
        options=TaskOptions(history_limit_events=10),
    )
    assert (await handle.result()).attempts == 4


async def test_a_small_context_rides_along_and_a_large_one_is_asked_for(here: World) -> None:
    handle = await here.start_task(
        {"id": "a", "size": 20_000}, {"id": "b", "size": 20_000}, {"id": "c", "play": ["read"]}
    )
    await handle.result()
    assert [s.context is not None for s in here.steps] == [True, True, False]
    results = here.finished[0].record["context"]["results"]
    assert results["c"]["diffs"] == 2


async def test_a_range_outside_the_task_fails_the_run_with_value_and_range(here: World) -> None:
    handle = await here.start_task({"id": "a"}, options=TaskOptions(start_step=3))
    error = await failure_of(handle)
    assert error.type == "BadInput"
    assert "start_step 3 is outside 0 to 0" in error.message


async def test_what_a_task_hands_on_stays_within_two_kibibytes(here: World) -> None:
    handle = await here.start_task({"id": "a", "play": ["fail"], "error": "E" * 200})
    await failure_of(handle)
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            size = event.workflow_execution_failed_event_attributes.failure.ByteSize()
            assert size < SUMMARY_LIMIT_BYTES + 1024


async def test_ten_steps_in_sequence_make_one_event_more_than_a_plain_workflow(
    here: World,
) -> None:
    handle = await here.start_task(*({"id": f"s{i}"} for i in range(10)))
    await handle.result()
    plain = 1 + 3 + 10 * 6 + 1
    assert len(await event_types(handle)) == plain + 1


async def test_a_task_that_is_cancelled_before_anything_began_on_its_host_does_not_wait_for_it(
    here: World,
) -> None:
    # Nobody serves that host's steps.
    handle = await here.start_task({"id": "a"}, options=TaskOptions(multi_host=True))

    async def asks() -> bool:
        return RUN_STEP in await asked_for(handle)

    # A cancel before that may meet the answer which host it is, and have its end written twice.
    await until(asks, "the step")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert [end.summary.status for end in here.finished] == ["cancelled"]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT not in await event_types(handle)


async def test_a_host_that_went_with_its_task_does_not_keep_it_open(here: World) -> None:
    async with Worker(
        here.client,
        task_queue=steps_queue(here.queue, here.host),
        activities=[here.run_step],
        graceful_shutdown_timeout=timedelta(seconds=30),
    ) as host:
        options = TaskOptions(multi_host=True, host_patience_seconds=0.3)
        handle = await here.start_task({"id": "a", "play": ["hold"]}, options=options)
        await until(lambda: here.running == 1)
        # It takes nothing more by the time the step ends.
        going = asyncio.create_task(host.shutdown())
        await asyncio.sleep(0.5)
        here.open = True
        await going
    assert (await handle.result()).status == "succeeded"
    assert len(here.finished) == 1, "written by somebody else"
    assert (await asked_for(handle)).count(FINISH_TASK) == 1, "the host was asked before"
