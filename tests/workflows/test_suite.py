"""SuiteWorkflow on a real server, with activities that play a script."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure.messages import ProgressRequest, SuiteProgress, SuiteResult, TaskOptions, TrialSummary
from tests.waiting import until
from tests.workflows.fakes import World, task_document, world
from tests.workflows.test_task import event_types


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client) as made:
        yield made


def tasks(count: int, play: str = "ok") -> list[dict[str, object]]:
    return [task_document(f"t{i}", {"id": "a", "play": [play]}) for i in range(count)]


async def result(handle: object) -> SuiteResult:
    return SuiteResult(**await handle.result())  # type: ignore[attr-defined]


async def test_a_suite_runs_every_task_and_counts_how_they_ended(here: World) -> None:
    handle = await here.start_suite(
        [*tasks(3), task_document("bad", {"id": "a", "play": ["fail"]})]
    )
    ended = await result(handle)
    assert (ended.total, ended.succeeded, ended.failed, ended.cancelled) == (4, 3, 1, 0)
    # A word that arrives while the suite closes makes it write its end once more.
    assert (here.suites[0].status, {s.status for s in here.suites[1:]}) == ("running", {"failed"})


async def test_no_more_than_max_parallel_tasks_run_at_once(here: World) -> None:
    handle = await here.start_suite(tasks(12), max_parallel=3)
    await handle.result()
    assert here.most_running <= 3
    assert len(here.started) == 12


async def test_a_suite_that_continues_as_new_often_runs_each_task_once(here: World) -> None:
    handle = await here.start_suite(
        tasks(30), max_parallel=4, options=TaskOptions(history_limit_events=40)
    )
    ended = await result(handle)
    assert ended.succeeded == 30
    assert sorted(t for t, _, _ in here.started) == sorted(f"t{i}" for i in range(30))


async def test_a_suite_hears_of_tasks_that_outlive_its_own_run(here: World) -> None:
    documents = [task_document("slow", {"id": "a", "play": ["hang"]}), *tasks(8)]
    handle = await here.start_suite(
        documents, max_parallel=3, options=TaskOptions(history_limit_events=30)
    )

    async def only_slow() -> bool:
        progress = await handle.query("progress", ProgressRequest(), result_type=SuiteProgress)
        return bool(progress.succeeded == 8)

    await until(only_slow)
    assert handle.first_execution_run_id != (await handle.describe()).run_id
    slow = here.client.get_workflow_handle(f"task/{documents_suite(handle.id)}/slow/1")
    await slow.cancel()
    ended = await result(handle)
    assert (ended.succeeded, ended.cancelled) == (8, 1)


def documents_suite(workflow_id: str) -> str:
    return workflow_id.removeprefix("suite/")


async def test_a_cancelled_suite_cancels_its_tasks_and_starts_no_more(here: World) -> None:
    handle = await here.start_suite(tasks(6, "hang"), max_parallel=2)
    await until(lambda: here.running == 2)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert here.running == 0
    assert len(here.started) == 2
    assert here.suites[-1].status == "cancelled"
    assert [t.status for t in here.suites[-1].trials] == ["cancelled", "cancelled"]
    assert [t.failure_reason for t in here.suites[-1].trials] == ["its suite was cancelled"] * 2


async def test_a_task_terminated_by_hand_is_a_failure_and_the_suite_goes_on(here: World) -> None:
    handle = await here.start_suite(
        [task_document("dead", {"id": "a", "play": ["hang"]}), *tasks(2)], max_parallel=1
    )
    await until(lambda: here.running == 1)
    dead = here.client.get_workflow_handle(f"task/{documents_suite(handle.id)}/dead/1")
    await dead.terminate("by hand")
    ended = await result(handle)
    assert (ended.succeeded, ended.failed) == (2, 1)


async def test_finished_trials_that_are_taken_over_do_not_run_again(here: World) -> None:
    known = TrialSummary("t0", 1, "old-run", "succeeded")
    handle = await here.start_suite(tasks(3), finished=[known])
    ended = await result(handle)
    assert ended.succeeded == 3
    assert sorted(t for t, _, _ in here.started) == ["t1", "t2"]


async def test_repeats_are_trials_with_workflow_ids_of_their_own(here: World) -> None:
    handle = await here.start_suite(tasks(2), repeats=3)
    assert (await result(handle)).succeeded == 6
    suite = documents_suite(handle.id)
    ids = sorted(f.run.workflow_id for f in here.finished)
    assert ids == sorted(f"task/{suite}/t{i}/{n}" for i in range(2) for n in (1, 2, 3))


async def test_a_task_left_by_a_terminated_suite_is_ended_and_run_anew(here: World) -> None:
    first = await here.start_suite(
        [task_document("t", {"id": "a", "play": ["hang"]})], suite=f"again-{here.queue}"
    )
    await until(lambda: here.running == 1)
    await first.terminate()
    second = await here.start_suite([task_document("t", {"id": "a"})], suite=f"again-{here.queue}")
    ended = await result(second)
    assert (ended.total, ended.succeeded) == (1, 1)
    assert [t for t, _, _ in here.started] == ["t", "t"]


async def test_news_that_arrive_twice_or_from_an_older_run_count_once(here: World) -> None:
    handle = await here.start_suite(
        [task_document("t", {"id": "a", "play": ["hang"]}), *tasks(1)], max_parallel=1
    )
    await until(lambda: here.running == 1)
    for _ in range(2):
        await handle.signal("trial_ended", TrialSummary("t", 1, "older-run", "succeeded"))
        await handle.signal("trial_ended", TrialSummary("unknown", 1, "x", "succeeded"))
    progress = await handle.query("progress", ProgressRequest(), result_type=SuiteProgress)
    assert progress.succeeded == 0
    await here.client.get_workflow_handle(f"task/{documents_suite(handle.id)}/t/1").cancel()
    ended = await result(handle)
    assert (ended.total, ended.succeeded, ended.cancelled) == (2, 1, 1)


async def test_a_task_that_ends_without_a_word_is_still_heard_by_its_handle(here: World) -> None:
    here.mute.add("t0")
    handle = await here.start_suite(tasks(2))
    assert (await result(handle)).succeeded == 2


async def test_a_suites_history_stays_below_fourteen_events_a_task(here: World) -> None:
    handle = await here.start_suite(tasks(40), max_parallel=5)
    await handle.result()
    assert len(await event_types(handle)) < 40 * 14
