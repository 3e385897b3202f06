"""What people ask of a running suite, and what its limits do: on a real server."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment

from perdure.messages import (
    ProgressRequest,
    Requeued,
    SuiteProgress,
    SuiteResult,
    TaskOptions,
    TrialSummary,
)
from perdure.suite_history import suite_of
from perdure.suite_updates import SuiteRefused, SuiteUpdates
from tests.waiting import until
from tests.workflows.fakes import World, task_document, world


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client) as made:
        yield made


def tasks(count: int, play: str = "ok", **step: Any) -> list[dict[str, Any]]:
    return [task_document(f"t{i}", {"id": "a", "play": [play], **step}) for i in range(count)]


async def progress_of(handle: Any) -> SuiteProgress:
    found: SuiteProgress = await handle.query(
        "progress", ProgressRequest(), result_type=SuiteProgress
    )
    return found


async def result_of(here: World, handle: Any) -> SuiteResult:
    """How the suite ended; its history must tell the same as its query, the totals add up."""
    told = await handle.result()
    await agreed(here, handle)
    result = SuiteResult(**told)
    assert result.succeeded + result.failed + result.cancelled + result.not_run == result.total
    return result


async def agreed(here: World, handle: Any) -> SuiteProgress:
    """The progress that both the query and the history tell."""
    history = (await suite_of(here.client, handle.id)).progress()
    assert asdict(history) == asdict(await progress_of(handle))
    return history


async def ask(here: World, handle: Any, update: str, *arguments: Any) -> str:
    """What the suite answers."""
    answer = Requeued if update == "requeue" else str
    told = await updates(here, handle).ask(update, *arguments, answer=answer)
    return told.told if isinstance(told, Requeued) else str(told)


async def refused(here: World, handle: Any, update: str, *arguments: Any) -> str:
    """The reason for which the suite refuses."""
    with pytest.raises(SuiteRefused) as caught:
        await ask(here, handle, update, *arguments)
    return str(caught.value)


def updates(here: World, handle: Any) -> SuiteUpdates:
    suite = handle.id.removeprefix("suite/")
    return SuiteUpdates(here.client, suite, handle.first_execution_run_id, here.queue, None)


async def cancels_its_tasks(handle: Any) -> bool:
    """Whether the suite has begun to cancel what runs."""
    word = EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
    return any(event.event_type == word for event in (await handle.fetch_history()).events)


async def ended(handle: Any, count: int) -> None:
    async def so_many() -> bool:
        progress = await progress_of(handle)
        return progress.succeeded + progress.failed + progress.cancelled >= count

    await until(so_many)


def starts(here: World) -> list[str]:
    return [task for task, _, _ in here.started]


# --- max_parallel -----------------------------------------------------------------------------


async def test_a_higher_max_parallel_starts_tasks_at_once(here: World) -> None:
    handle = await here.start_suite(tasks(6, "hold"), max_parallel=1)
    await until(lambda: here.running == 1)
    told = await ask(here, handle, "set_max_parallel", 4)
    assert told == "max_parallel is 4 (was 1)"
    await until(lambda: here.running == 4)
    assert (await agreed(here, handle)).max_parallel == 4
    here.open = True
    assert (await result_of(here, handle)).succeeded == 6
    assert here.most_running == 4


async def test_a_lower_max_parallel_starts_nothing_until_fewer_run(here: World) -> None:
    documents = [*tasks(3, "hold"), task_document("late", {"id": "a"})]
    handle = await here.start_suite(documents, max_parallel=3)
    await until(lambda: here.running == 3)
    told = await ask(here, handle, "set_max_parallel", 1)
    assert "is 1 (was 3); 3 tasks run" in told
    suite = handle.id.removeprefix("suite/")
    for n in range(2):
        await here.client.get_workflow_handle(f"task/{suite}/t{n}/1").cancel()
    await ended(handle, 2)
    assert "late" not in starts(here)
    here.open = True
    assert (await result_of(here, handle)).succeeded == 2


# --- Pause and resume -------------------------------------------------------------------------


async def test_a_paused_suite_starts_nothing_and_lets_running_tasks_end(here: World) -> None:
    handle = await here.start_suite(tasks(4, "hold"), max_parallel=2)
    await until(lambda: here.running == 2)
    assert "2 tasks run" in await ask(here, handle, "pause")
    here.open = True
    await ended(handle, 2)
    progress = await agreed(here, handle)
    assert (progress.paused, progress.pending, progress.running) == (True, 2, [])
    assert "2 waiting" in await ask(here, handle, "resume")
    assert (await result_of(here, handle)).succeeded == 4


async def test_a_paused_suite_can_be_cancelled(here: World) -> None:
    handle = await here.start_suite(tasks(4, "hang"), max_parallel=1)
    await until(lambda: here.running == 1)
    await ask(here, handle, "pause")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    progress = await agreed(here, handle)
    assert (progress.cancelled, progress.not_run, progress.pending) == (1, 3, 0)


async def test_a_suite_that_reaches_a_limit_while_it_is_paused_ends(here: World) -> None:
    documents = [*tasks(2, "hold"), task_document("bad", {"id": "a", "play": ["fail"]}), *tasks(4)]
    documents = [document | {"id": f"t{n}"} for n, document in enumerate(documents)]
    handle = await here.start_suite(
        documents, max_parallel=2, max_failures=1, options=TaskOptions(history_limit_events=40)
    )
    await until(lambda: here.running == 2)
    await ask(here, handle, "pause")
    suite = handle.id.removeprefix("suite/")
    await here.client.get_workflow_handle(f"task/{suite}/t0/1").terminate()
    await ended(handle, 1)
    progress = await agreed(here, handle)
    assert (progress.paused, progress.stopped) == (True, "1 failure (max_failures: 1)")
    here.open = True
    result = await result_of(here, handle)
    assert (result.failed, result.succeeded, result.not_run) == (1, 1, 5)


# --- Requeue and prioritise -------------------------------------------------------------------


async def test_a_requeued_task_runs_again_and_only_its_newest_end_counts(here: World) -> None:
    documents = [task_document("bad", {"id": "a", "runs": ["fail", "ok"]}), *tasks(1, "hold")]
    handle = await here.start_suite(documents)
    await ended(handle, 1)
    answer = await updates(here, handle).ask("requeue", "bad", answer=Requeued)
    assert answer.told == "task 'bad' runs again"
    await ended(handle, 1)
    here.open = True
    result = await result_of(here, handle)
    assert (result.total, result.succeeded, result.failed) == (2, 2, 0)
    history = await suite_of(here.client, handle.id)
    assert sorted((t.task_id, t.status) for t in history.ended) == [
        ("bad", "succeeded"),
        ("t0", "succeeded"),
    ]
    assert len(history.progress().ended) == 3  # what was told stays told
    assert [t.status for t in here.suites[-1].trials] == ["succeeded", "succeeded"]


async def test_only_the_trials_that_did_not_succeed_are_requeued(here: World) -> None:
    documents = [task_document("t", {"id": "a", "play": ["hold"]})]
    handle = await here.start_suite(documents, repeats=3)
    await until(lambda: here.running == 3)
    suite = handle.id.removeprefix("suite/")
    for n in (1, 3):
        await here.client.get_workflow_handle(f"task/{suite}/t/{n}").cancel()
    await ended(handle, 2)
    one = await updates(here, handle).ask("requeue", "t/3", answer=Requeued)
    assert one.trials == [f"task/{suite}/t/3"]
    rest = await updates(here, handle).ask("requeue", "t", answer=Requeued)
    assert rest.trials == [f"task/{suite}/t/1"]
    here.open = True
    assert (await result_of(here, handle)).succeeded == 3


async def test_a_prioritised_task_is_next(here: World) -> None:
    documents = [*tasks(1, "hold"), *tasks(4)[1:]]
    handle = await here.start_suite(documents, max_parallel=1)
    await until(lambda: here.running == 1)
    await ask(here, handle, "prioritise", "t2")
    assert await ask(here, handle, "prioritise", "t3/1") == "trial 1 of task 't3' is next"
    here.open = True
    await result_of(here, handle)
    assert starts(here) == ["t0", "t3", "t2", "t1"]


async def test_tasks_of_higher_priority_start_first(here: World) -> None:
    levels = ["low", "medium", "critical", "high", "medium"]
    documents = [
        task_document(f"t{i}", {"id": "a"}, priority=level) for i, level in enumerate(levels)
    ]
    handle = await here.start_suite(documents, max_parallel=1, by_priority=True)
    await result_of(here, handle)
    assert starts(here) == ["t2", "t3", "t1", "t4", "t0"]


# --- Refusals ---------------------------------------------------------------------------------


async def test_what_makes_no_sense_is_refused_with_the_reason_and_leaves_no_trace(
    here: World,
) -> None:
    documents = [*tasks(1, "hold"), task_document("good", {"id": "a"}), *tasks(3, "hold")[1:]]
    handle = await here.start_suite(documents, max_parallel=2)
    await ended(handle, 1)
    await until(lambda: here.running == 2)
    events = len((await handle.fetch_history()).events)
    suite = handle.id.removeprefix("suite/")
    assert "at least 1" in await refused(here, handle, "set_max_parallel", 0)
    assert "not paused" in await refused(here, handle, "resume")
    assert "did you mean 'good'?" in await refused(here, handle, "requeue", "goood")
    assert "trial 1 alone" in await refused(here, handle, "requeue", "good/2")
    assert "has succeeded" in await refused(here, handle, "requeue", "good")
    assert f"`perdure cancel {suite}/t0/1`" in await refused(here, handle, "requeue", "t0")
    assert "still waits" in await refused(here, handle, "requeue", "t2")
    assert "runs already" in await refused(here, handle, "prioritise", "t0")
    assert "has ended" in await refused(here, handle, "prioritise", "good")
    assert len((await handle.fetch_history()).events) == events
    here.open = True
    await result_of(here, handle)


async def test_a_suite_that_is_being_cancelled_refuses_everything(here: World) -> None:
    # Cancelling waits for the clean-up of every task; this one's worker does not answer.
    handle = await here.start_suite([task_document("t", {"id": "a", "play": ["hold"]})])
    await until(lambda: here.running == 1)
    here.deaf = True
    await handle.cancel()
    await until(lambda: cancels_its_tasks(handle), "the suite hears of its cancel")
    for update, *arguments in (
        ("set_max_parallel", 9), ("pause",), ("resume",), ("requeue", "t"), ("prioritise", "t"),
    ):  # fmt: skip
        reason = await refused(here, handle, update, *arguments)
        assert reason == "the suite is being cancelled: nothing more is started"
    here.open = True
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await agreed(here, handle)).not_run == 0


async def test_a_closed_suite_says_that_it_is_closed(here: World) -> None:
    handle = await here.start_suite(tasks(1))
    await result_of(here, handle)
    reason = await refused(here, handle, "pause")
    assert "is closed" in reason
    assert "perdure retry" in reason


# --- Across continue-as-new -------------------------------------------------------------------


async def test_what_was_asked_for_holds_after_a_continue_as_new(here: World) -> None:
    documents = [
        task_document("bad", {"id": "a", "runs": ["fail", "ok"]}),
        *tasks(1, "hold"),
        *tasks(30)[1:],
        task_document("first", {"id": "a"}),
    ]
    handle = await here.start_suite(
        documents, max_parallel=2, options=TaskOptions(history_limit_events=60)
    )
    await ended(handle, 4)
    await ask(here, handle, "pause")
    await ask(here, handle, "requeue", "bad")
    await ask(here, handle, "prioritise", "first")
    await ask(here, handle, "prioritise", "bad")
    await ask(here, handle, "set_max_parallel", 3)
    before = len(starts(here))

    async def continued() -> bool:
        await ask(here, handle, "set_max_parallel", 3)  # makes the history grow
        return bool((await handle.describe()).run_id != handle.first_execution_run_id)

    await until(continued)
    progress = await agreed(here, handle)
    assert (progress.paused, progress.max_parallel) == (True, 3)
    await ask(here, handle, "resume")
    await until(lambda: len(starts(here)) > before + 2)
    here.open = True
    result = await result_of(here, handle)
    assert (result.succeeded, result.failed) == (32, 0)
    again = starts(here)[before:]
    assert set(again[:3]) >= {"bad", "first"}
    assert len(again) == len(set(again))


async def test_wishes_sent_all_the_time_are_all_answered_over_many_continue_as_news(
    here: World,
) -> None:
    documents = [*tasks(1, "hold"), *tasks(30)[1:]]  # it cannot end while it is asked
    handle = await here.start_suite(
        documents, max_parallel=2, options=TaskOptions(history_limit_events=40)
    )
    answers = []
    while not answers or (await progress_of(handle)).succeeded < 20:
        answers.append(await ask(here, handle, "set_max_parallel", 2 + len(answers) % 3))
    here.open = True
    assert (await result_of(here, handle)).succeeded == 30
    assert all(answer.startswith("max_parallel is") for answer in answers)
    assert sorted(starts(here)) == sorted(f"t{i}" for i in range(30))


@pytest.mark.parametrize("wishes", [[("pause",), ("resume",)], [("prioritise", "t2")]])
async def test_wishes_that_start_nothing_make_no_history_without_end(
    here: World, wishes: list[tuple[str, ...]]
) -> None:
    handle = await here.start_suite(
        [*tasks(1, "hold"), *tasks(3)[1:]],
        max_parallel=1,
        options=TaskOptions(history_limit_events=60),
    )
    await until(lambda: here.running == 1)
    for number in range(30):  # a run takes 2,000 in all, and then not even `resume`
        await ask(here, handle, *wishes[number % len(wishes)])
    assert (await handle.describe()).history_length < 100
    here.open = True
    assert (await result_of(here, handle)).succeeded == 3


async def test_a_cancel_that_comes_with_a_signal_is_heard_by_a_suite_about_to_hand_over(
    temporal: WorkflowEnvironment,
) -> None:
    async with world(temporal.client) as first:
        alike = await first.start_suite(tasks(1, "hang"))
        await until(lambda: first.running == 1)
        length = (await alike.describe()).history_length
        await alike.terminate()
        options = TaskOptions(history_limit_events=length + 1)
        handle = await first.start_suite(tasks(1, "hang"), options=options)
        await until(lambda: first.running == 2)
    # No worker takes up the signal before the cancel is there, too.
    await handle.signal("trial_ended", TrialSummary("unknown", 1, "x", "succeeded"))
    await handle.cancel()
    async with world(temporal.client, queue=first.queue) as here:
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert (await agreed(here, handle)).cancelled == 1


@pytest.mark.parametrize("seed", range(3))
async def test_query_and_history_agree_whatever_is_asked_and_whenever(
    here: World, seed: int
) -> None:
    chance = random.Random(seed)
    plays = [["ok"], ["fail", "ok"], ["infra", "ok"], ["infra", "infra", "fail"], ["fail"]]
    documents = [
        task_document(f"t{n}", {"id": "a", "runs": chance.choice(plays), "cost": 1.0})
        for n in range(8)
    ]
    handle = await here.start_suite(
        documents,
        repeats=2,
        max_parallel=3,
        retry_infrastructure=1,
        options=TaskOptions(history_limit_events=chance.choice([40, 120])),
    )
    for _ in range(25):
        update, *arguments = chance.choice(
            [
                ("pause",),
                ("resume",),
                ("set_max_parallel", chance.randint(1, 5)),
                ("requeue", f"t{chance.randrange(8)}"),
                ("requeue", f"t{chance.randrange(8)}/1"),
                ("prioritise", f"t{chance.randrange(8)}"),
            ]
        )
        with contextlib.suppress(SuiteRefused):
            await ask(here, handle, update, *arguments)
    with contextlib.suppress(SuiteRefused):
        await ask(here, handle, "resume")
    result = await result_of(here, handle)
    assert (result.total, result.not_run) == (16, 0)
    ends = (await suite_of(here.client, handle.id)).ended
    assert len({(t.task_id, t.trial) for t in ends}) == len(ends) == 16


# --- Retries of the infrastructure ------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 30])
async def test_a_failure_of_the_infrastructure_is_followed_by_another_run(
    here: World, limit: int | None
) -> None:
    documents = [
        task_document("once", {"id": "a", "runs": ["infra", "ok"], "cost": 1.0}),
        task_document("always", {"id": "a", "runs": ["infra"], "cost": 1.0}),
        task_document("own", {"id": "a", "runs": ["fail"], "cost": 1.0}),
        *tasks(6),
    ]
    handle = await here.start_suite(
        documents, retry_infrastructure=2, options=TaskOptions(history_limit_events=limit)
    )
    result = await result_of(here, handle)
    assert (result.succeeded, result.failed) == (7, 2)
    assert result.usage == {"cost": 3.0}  # of the newest ends
    counts = {id: starts(here).count(id) for id in ("once", "always", "own")}
    assert counts == {"once": 2, "always": 3, "own": 1}
    history = await suite_of(here.client, handle.id)
    assert len(history.progress().ended) == 9


async def test_a_task_terminated_or_cancelled_by_hand_is_not_retried(here: World) -> None:
    handle = await here.start_suite(tasks(2, "hang"), retry_infrastructure=5)
    await until(lambda: here.running == 2)
    suite = handle.id.removeprefix("suite/")
    await here.client.get_workflow_handle(f"task/{suite}/t0/1").terminate()
    await here.client.get_workflow_handle(f"task/{suite}/t1/1").cancel()
    result = await result_of(here, handle)
    assert (result.failed, result.cancelled) == (1, 1)
    assert len(here.started) == 2


# --- Failures and money -----------------------------------------------------------------------


async def test_after_so_many_failures_nothing_more_is_started(here: World) -> None:
    documents = [*tasks(2, "fail"), *tasks(3, "hold")[2:], *tasks(9)[3:]]
    handle = await here.start_suite(documents, max_parallel=1, max_failures=2)
    result = await result_of(here, handle)
    assert (result.failed, result.succeeded, result.not_run) == (2, 0, 7)
    progress = await agreed(here, handle)
    assert progress.stopped == "2 failures (max_failures: 2)"
    assert (here.suites[-1].status, here.suites[-1].stopped) == ("failed", progress.stopped)
    assert starts(here) == ["t0", "t1"]


async def test_running_tasks_end_by_themselves_after_a_stop_and_wishes_are_refused(
    here: World,
) -> None:
    documents = [task_document("bad", {"id": "a", "play": ["fail"]}), *tasks(4, "hold")]
    handle = await here.start_suite(documents, max_parallel=3, max_failures=1)
    await ended(handle, 1)
    await until(lambda: here.running >= 2)
    progress = await agreed(here, handle)
    assert progress.stopped == "1 failure (max_failures: 1)"
    for update, *arguments in (("pause",), ("resume",), ("requeue", "bad"), ("prioritise", "t3")):
        reason = await refused(here, handle, update, *arguments)
        assert "1 failure (max_failures: 1)" in reason
        assert "perdure retry" in reason
    here.open = True
    result = await result_of(here, handle)
    assert (result.failed, result.succeeded, result.not_run) == (1, 2, 2)


async def test_an_infrastructure_failure_that_is_retried_is_not_counted_as_a_failure(
    here: World,
) -> None:
    documents = [task_document("t", {"id": "a", "runs": ["infra", "ok"]}), *tasks(2)]
    handle = await here.start_suite(
        documents, max_parallel=1, max_failures=1, retry_infrastructure=1
    )
    assert (await result_of(here, handle)).succeeded == 3


async def test_once_the_cost_is_reached_nothing_more_is_started(here: World) -> None:
    documents = [
        task_document("t", {"id": "a", "runs": ["infra", "ok"], "cost": 2.0}),
        *tasks(6, cost=1.5),
    ]
    handle = await here.start_suite(documents, max_parallel=1, max_cost=5.0, retry_infrastructure=1)
    result = await result_of(here, handle)
    assert (result.succeeded, result.not_run) == (2, 5)
    progress = await agreed(here, handle)
    assert progress.stopped == "cost 5.5 (max_cost: 5)"
    assert progress.usage == {"cost": 3.5}  # the failed run is paid for, and superseded


async def test_a_stop_is_kept_over_a_continue_as_new(here: World) -> None:
    documents = [*tasks(2, "fail"), *tasks(6, "hold")[2:]]
    handle = await here.start_suite(
        documents, max_parallel=4, max_failures=2, options=TaskOptions(history_limit_events=25)
    )
    await ended(handle, 2)
    await until(lambda: here.running >= 2)
    before = await agreed(here, handle)
    assert before.stopped
    here.open = True
    result = await result_of(here, handle)
    assert (result.failed, result.succeeded) == (2, len(before.running))
    assert result.not_run == 6 - 2 - len(before.running) + 0


# --- Trials, and records that cannot be written -----------------------------------------------


async def test_trials_of_a_task_with_repeats_know_which_one_they_are(here: World) -> None:
    handle = await here.start_suite([task_document("t", {"id": "a"})], repeats=2)
    await result_of(here, handle)
    known = sorted(end.record["context"]["metadata"]["pass_at_k_execution_id"]
                   for end in here.finished)  # fmt: skip
    assert known == ["t/1", "t/2"]
    alone = await here.start_suite([task_document("alone", {"id": "a"})])
    await result_of(here, alone)
    assert "pass_at_k_execution_id" not in here.finished[-1].record["context"]["metadata"]


async def test_records_that_could_not_be_written_are_written_at_the_end(here: World) -> None:
    here.no_room_for = {"t1"}
    documents = [*tasks(3), task_document("slow", {"id": "a", "play": ["hold"]})]
    handle = await here.start_suite(documents)
    await ended(handle, 3)
    assert [t.task_id for t in (await suite_of(here.client, handle.id)).ended if t.unwritten] == [
        "t1"
    ]
    here.no_room_for = set()
    here.open = True
    assert (await result_of(here, handle)).succeeded == 4
    assert [[t.task_id for t in asked.trials] for asked in here.missing] == [["t1"]]
    history = await suite_of(here.client, handle.id)
    assert not any(t.unwritten or t.note for t in history.ended)
    assert not any(t.unwritten for t in here.suites[-1].trials)


async def test_a_cancel_that_comes_when_all_has_ended_changes_nothing(here: World) -> None:
    here.no_room_for = {"t0"}
    handle = await here.start_suite(tasks(2))
    await until(lambda: here.missing)
    await handle.cancel()
    here.no_room_for = set()
    assert (await result_of(here, handle)).succeeded == 2
    assert not (await suite_of(here.client, handle.id)).cancelled
    assert here.suites[-1].status == "succeeded"


async def test_a_disk_that_stays_full_keeps_no_cancelled_suite_open(here: World) -> None:
    here.no_room_for = {"t0"}
    handle = await here.start_suite(tasks(2, "hang"))
    await until(lambda: here.running == 2)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert len(here.missing) == 1
    (left,) = [t for t in (await suite_of(here.client, handle.id)).ended if t.unwritten]
    assert (left.task_id, left.note) == ("t0", "still no room")
