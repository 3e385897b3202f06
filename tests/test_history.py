"""A record rebuilt from a history is the record that the workflow's own query gives."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from perdure.event_log import UnknownRun, find_execution
from perdure.history import happenings, history_of, record_of
from perdure.messages import SuiteProgress, TaskOptions
from perdure.suite_history import suite_of
from tests.waiting import until
from tests.workflows.fakes import World, task_document, world


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client) as made:
        yield made


async def closed(handle: WorkflowHandle[Any, Any]) -> None:
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()


async def assert_same_record(here: World, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """The record from the history, which must be the query's."""
    rebuilt = await record_of(here.client, handle.id)
    assert rebuilt == await handle.query("record")
    events = [event async for event, _ in happenings(here.client, handle.id, follow=False)]
    assert events == await handle.query("events", 0)
    assert (await history_of(here.client, handle.id)).progress() == await handle.query("progress")
    return rebuilt


STORIES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "success": ([{"id": "a"}, {"id": "b"}, {"id": "c"}], {}),
    "side by side": ([{"id": f"s{n}", "depends_on": []} for n in range(6)], {}),
    "retry": (
        [
            {"id": "a", "play": ["fail", "fail", "ok"],
             "retry": {"max_attempts": 3, "initial_interval": 0.05}},
            {"id": "b"},
        ],
        {},
    ),
    "tolerated failure": (
        [{"id": "a", "play": ["fail"], "fail_task_on_error": False}, {"id": "b"}],
        {},
    ),
    "fatal failure beside others": (
        [{"id": f"s{n}", "depends_on": [], "play": ["fail" if n == 1 else "ok"]} for n in range(4)],
        {},
    ),
    "lost workers": (
        [{"id": "a", "play": ["lose", "ok"], "heartbeat_timeout": 0.3}, {"id": "b"}],
        {},
    ),
    "handed back": ([{"id": "a", "play": ["shutdown", "ok"]}, {"id": "b"}], {}),
    "time limit": ([{"id": "a"}, {"id": "b", "play": ["hang"]}, {"id": "c"}], {"timeout": 0.5}),
    "large values": ([{"id": "a", "size": 200_000}, {"id": "b"}], {}),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
async def test_the_record_from_the_history_is_the_record_of_the_query(
    here: World, story: str
) -> None:
    steps, document = STORIES[story]
    handle = await here.start_task(*steps, **document)
    await closed(handle)
    record = await assert_same_record(here, handle)
    assert record["status"] in ("succeeded", "failed")
    assert record == here.finished[-1].record


async def test_a_run_in_the_middle_of_its_steps_is_rebuilt(here: World) -> None:
    handle = await here.start_task({"id": "a"}, {"id": "b", "play": ["hang"]})
    await until(lambda: here.attempts("b") == 1)
    record = await assert_same_record(here, handle)
    assert [step["status"] for step in record["steps"]] == ["succeeded", "running"]
    await handle.cancel()
    await closed(handle)


async def test_a_cancelled_run_is_rebuilt_with_its_reason(here: World) -> None:
    handle = await here.start_task(
        {"id": "a", "depends_on": []}, {"id": "b", "depends_on": [], "play": ["hang"]}
    )
    await until(lambda: here.running == 1 and here.attempts("b") == 1)
    await handle.cancel(reason="enough")
    await closed(handle)
    record = await assert_same_record(here, handle)
    assert (record["status"], record["cancelled"]) == ("cancelled", "enough")


@pytest.mark.parametrize("limit", [None, "openai"])
async def test_a_run_cancelled_before_a_worker_took_it_up_is_rebuilt(
    temporal: WorkflowEnvironment, limit: str | None
) -> None:
    nobody = World(temporal.client, f"q-{uuid.uuid4().hex[:8]}")
    step: dict[str, Any] = {"id": "a", "play": ["hang"]}
    if limit:
        step["limit"] = limit = f"limit-{uuid.uuid4().hex[:8]}"
    handle = await nobody.start_task(step, options=TaskOptions(limits={limit: 1} if limit else {}))
    await handle.cancel()
    async with world(temporal.client, queue=nobody.queue) as here:
        await closed(handle)
        record = await assert_same_record(here, handle)
        assert record["status"] == "cancelled"


async def test_a_run_that_continued_as_new_is_rebuilt_from_any_run_of_its_chain(
    here: World,
) -> None:
    steps = [{"id": f"s{n}", "retry": {"max_attempts": 2, "initial_interval": 0.01},
              "play": ["fail", "ok"] if n % 5 == 0 else ["ok"]} for n in range(20)]  # fmt: skip
    handle = await here.start_task(*steps, options=TaskOptions(history_limit_events=30))
    first_run_id = handle.result_run_id
    await closed(handle)
    found = await find_execution(here.client, handle.id)
    assert found is not None
    assert found.run_id != first_run_id == found.first_run_id
    record = await assert_same_record(here, handle)
    assert record["run_id"] == first_run_id
    assert record == await record_of(here.client, handle.id, first_run_id)
    told = [e async for e, _ in happenings(here.client, handle.id, first_run_id, follow=True)]
    assert told == await handle.query("events", 0)


async def test_looking_at_a_run_adds_nothing_to_its_history(here: World) -> None:
    handle = await here.start_task({"id": "a"})
    await closed(handle)
    before = [event.event_id async for event in handle.fetch_history_events()]
    await record_of(here.client, handle.id)
    assert [event.event_id async for event in handle.fetch_history_events()] == before


async def test_a_run_is_readable_when_no_worker_lives(temporal: WorkflowEnvironment) -> None:
    async with world(temporal.client) as gone:
        handle = await gone.start_task({"id": "a"}, {"id": "b", "play": ["hang"]})
        await until(lambda: gone.attempts("b") == 1)
    started = len(gone.started)
    record = await record_of(temporal.client, handle.id)
    assert [step["status"] for step in record["steps"]] == ["succeeded", "running"]
    assert len(gone.started) == started
    await handle.terminate()


async def test_a_run_that_no_worker_took_up_shows_its_steps_as_pending(
    temporal: WorkflowEnvironment,
) -> None:
    nobody = World(temporal.client, "a-queue-without-workers")
    handle = await nobody.start_task({"id": "a"}, {"id": "b"})
    record = await record_of(temporal.client, handle.id)
    assert record["status"] == "running"
    assert [step["status"] for step in record["steps"]] == ["pending", "pending"]
    await handle.terminate()


async def test_a_terminated_run_says_so_and_has_no_running_steps(here: World) -> None:
    handle = await here.start_task({"id": "a", "play": ["hang"]}, {"id": "b"})
    await until(lambda: here.running == 1)
    await handle.terminate(reason="by an operator")
    record = await record_of(here.client, handle.id)
    assert (record["status"], record["cancelled"]) == ("cancelled", "terminated: by an operator")
    assert [step["status"] for step in record["steps"]] == ["cancelled", "not_run"]


async def test_a_run_with_a_bad_range_shows_why_it_was_refused(here: World) -> None:
    handle = await here.start_task({"id": "a"}, options=TaskOptions(start_step=7))
    await closed(handle)
    record = await record_of(here.client, handle.id)
    assert record["status"] == "failed"
    assert record["failure"]["kind"] == "bad_input"
    assert "start_step 7" in record["failure"]["message"]


async def test_events_carry_the_context_as_it_was_then(here: World) -> None:
    handle = await here.start_task({"id": "a"}, {"id": "b"})
    seen = [
        (event["type"], event["step"], sorted(context["results"]))
        async for event, context in happenings(here.client, handle.id)
        if event["type"].startswith("step.")
    ]
    assert seen == [
        ("step.started", "a", []),
        ("step.completed", "a", ["a"]),
        ("step.started", "b", ["a"]),
        ("step.completed", "b", ["a", "b"]),
    ]


async def test_an_unknown_run_is_refused(here: World) -> None:
    with pytest.raises(UnknownRun, match="task/no/such/1"):
        await record_of(here.client, "task/no/such/1")


# --- Suites -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 40])
async def test_a_suites_progress_from_its_history_is_that_of_its_query(
    here: World, limit: int | None
) -> None:
    tasks = [
        task_document(f"t{n}", {"id": "a", "play": ["fail" if n % 4 == 0 else "ok"]})
        for n in range(12)
    ]
    handle = await here.start_suite(
        tasks, max_parallel=3, options=TaskOptions(history_limit_events=limit)
    )
    await closed(handle)
    history = await suite_of(here.client, handle.id)
    queried = await handle.query("progress", {"offset": 0}, result_type=SuiteProgress)
    assert history.over
    assert history.run_id == handle.result_run_id
    assert history.progress() == replace(queried, ended=history.progress().ended)
    assert [e.run_id for e in queried.ended] == [e.run_id for e in history.ended]
    assert (history.progress().succeeded, history.progress().failed) == (9, 3)


async def test_a_suite_in_the_middle_of_its_tasks_is_rebuilt(here: World) -> None:
    tasks = [
        task_document(f"t{n}", {"id": "a", "play": ["hang"] if n else ["ok"]}) for n in range(5)
    ]
    handle = await here.start_suite(tasks, max_parallel=2)

    async def two_run() -> bool:
        progress = (await suite_of(here.client, handle.id)).progress()
        return progress.succeeded == 1 and len(progress.running) == 2

    await until(two_run)
    await until(lambda: here.running == 2)
    progress = (await suite_of(here.client, handle.id)).progress()
    queried = await handle.query("progress", {"offset": 0}, result_type=SuiteProgress)
    assert progress.running == queried.running
    assert (progress.succeeded, progress.pending) == (1, 2)
    await handle.cancel()
    await closed(handle)
    progress = (await suite_of(here.client, handle.id)).progress()
    assert (progress.cancelled, progress.running, progress.not_run) == (2, [], 2)
    assert progress.pending == 0


async def test_a_task_that_is_terminated_by_hand_ends_in_its_suite(here: World) -> None:
    handle = await here.start_suite([task_document("t", {"id": "a", "play": ["hang"]})])
    await until(lambda: here.running == 1)
    suite = handle.id.removeprefix("suite/")
    await here.client.get_workflow_handle(f"task/{suite}/t/1").terminate()
    await closed(handle)
    (trial,) = (await suite_of(here.client, handle.id)).ended
    assert (trial.status, trial.failure_kind) == ("failed", "infrastructure")
