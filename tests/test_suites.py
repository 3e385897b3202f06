"""`--suite ID` again: every row of the table, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure.errors import PerdureError
from perdure.event_log import UnknownRun, find_execution
from perdure.messages import SuiteInput, SuiteTask, TaskOptions
from perdure.names import suite_workflow_id, task_workflow_id
from perdure.suite_history import suite_of
from perdure.suite_input import (
    BadId,
    check_id,
    default_suite_id,
    parse_max_failures,
    suite_input,
    suite_queue,
    work_digest,
)
from perdure.suites import Begun, Starter, SuiteChanged, SuiteOpen
from tests.waiting import until
from tests.workflows.fakes import World, task_document, world


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[World]:
    async with world(temporal.client) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


def task(id: str, *play: str, digest: str = "", repeats: int = 1) -> SuiteTask:
    """A task of one step that plays this, `ok` by default."""
    document = task_document(id, {"id": "only", "play": list(play) or ["ok"]})
    return SuiteTask(document, digest or f"{id}-1", repeats=repeats)


def suite(name: str, *tasks: SuiteTask, options: TaskOptions | None = None) -> SuiteInput:
    return suite_input(name, tasks, max_parallel=5, options=options or TaskOptions())


class Desk:
    """Starts suites, and remembers what it asked for."""

    def __init__(self, world: World, locks: Path) -> None:
        self.served: list[str] = []
        self.said: list[str] = []
        self._world = world
        self.starter = Starter(world.client, world.queue, locks, self._serve, self.said.append)

    async def begin(self, start: SuiteInput, **how: Any) -> Begun:
        return await self.starter.begin(start, **how)

    async def run(self, start: SuiteInput, **how: Any) -> Begun:
        """Start, and wait until it is closed."""
        begun = await self.begin(start, **how)
        await self.end(start.suite)
        return begun

    async def end(self, name: str) -> None:
        handle = self._world.client.get_workflow_handle(suite_workflow_id(name))
        with contextlib.suppress(Exception):
            await handle.result()

    async def _serve(self, queue: str) -> None:
        self.served.append(queue)


@pytest.fixture
def desk(here: World, tmp_path: Path) -> Desk:
    return Desk(here, tmp_path / "locks")


async def runs_of(client: Client, name: str) -> list[str]:
    """Run ids of every run of the suite, counted by the server."""
    query = f"WorkflowId = '{suite_workflow_id(name)}'"
    return [execution.run_id async for execution in client.list_workflows(query)]


# --- Open, and the documents are the same -----------------------------------------------------


async def test_an_open_suite_with_the_same_documents_is_attached_to(
    here: World, desk: Desk, name: str
) -> None:
    start = suite(name, task("a", "hang"))
    first = await desk.begin(start)
    again = await desk.begin(start)
    assert (first.how, again.how) == ("started", "attached")
    assert again.execution.first_run_id == first.execution.first_run_id
    assert desk.served == [here.queue, here.queue]
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


async def test_of_five_starters_at_once_one_starts_and_the_others_attach(
    here: World, tmp_path: Path, name: str
) -> None:
    start = suite(name, task("a", "hang"))
    desks = [Desk(here, tmp_path / f"machine-{n % 2}") for n in range(5)]
    begun = await asyncio.gather(*(desk.begin(start) for desk in desks))
    assert sorted(b.how for b in begun) == ["attached"] * 4 + ["started"]
    assert len({b.execution.first_run_id for b in begun}) == 1
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desks[0].end(name)
    await until(lambda: _has_runs(here.client, name, 1))


async def _has_runs(client: Client, name: str, count: int) -> bool:
    return len(await runs_of(client, name)) == count


async def test_of_five_starters_of_a_suite_that_ends_at_once_one_run_comes(
    here: World, desk: Desk, name: str
) -> None:
    start = suite(name, task("a"))
    await asyncio.gather(*(desk.run(start) for _ in range(5)))
    assert here.attempts("only") == 1
    await until(lambda: _has_runs(here.client, name, 1))


# --- Open, and the documents have changed -----------------------------------------------------


async def test_an_open_suite_with_other_documents_is_refused_and_the_changes_are_named(
    here: World, desk: Desk, name: str
) -> None:
    await desk.begin(suite(name, task("a", "hang"), task("b", "hang"), task("c", "hang")))
    other = suite(name, task("a", "hang"), task("b", "hang", digest="b-2"), task("d"))
    with pytest.raises(SuiteChanged) as caught:
        await desk.begin(other)
    assert (caught.value.changed, caught.value.added, caught.value.removed) == (["b"], ["d"], ["c"])
    assert "--changed keep" in str(caught.value)
    with pytest.raises(SuiteChanged, match="another order"):
        await desk.begin(suite(name, *(task(i, "hang") for i in "bac")))
    with pytest.raises(SuiteChanged, match="changed: a"):
        await desk.begin(suite(name, task("a", "hang", repeats=2), task("b"), task("c")))
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


async def test_other_options_of_an_open_suite_are_named_in_the_refusal(
    here: World, desk: Desk, name: str
) -> None:
    await desk.begin(suite(name, task("a", "hang")))
    options = TaskOptions(agent_model="other")
    changed = SuiteTask(task("a").task, work_digest("a-1", options))
    with pytest.raises(SuiteChanged, match="other agent_model"):
        await desk.begin(suite(name, changed, options=options))
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


async def test_changed_keep_goes_on_with_the_old_documents(
    here: World, desk: Desk, name: str
) -> None:
    await desk.begin(suite(name, task("a", "hang")))
    begun = await desk.begin(suite(name, task("a", digest="a-2")), changed="keep")
    assert begun.how == "attached"
    assert begun.definition.tasks[0].digest == "a-1"
    assert "goes on" in desk.said[0]
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


async def test_changed_rerun_cancels_cleans_up_and_runs_what_is_new(
    here: World, desk: Desk, name: str
) -> None:
    await desk.begin(suite(name, task("same"), task("other", "hang"), task("slow", "hang")))

    async def same_ended() -> bool:
        return len((await suite_of(here.client, suite_workflow_id(name))).ended) == 1

    await until(same_ended)
    await until(lambda: here.running == 2)
    new = suite(name, task("same"), task("other", digest="other-2"), task("slow", digest="slow-2"))
    begun = await desk.run(new, changed="rerun")
    assert (begun.how, begun.taken_over) == ("took_over", 1)
    ended = (await suite_of(here.client, suite_workflow_id(name))).ended
    assert {t.task_id: t.status for t in ended} == dict.fromkeys(
        ("same", "other", "slow"), "succeeded"
    )
    assert [t for t, _, _ in here.started].count("same") == 1


# --- Closed -----------------------------------------------------------------------------------


async def test_a_suite_that_has_succeeded_is_not_started_again(
    here: World, desk: Desk, name: str
) -> None:
    start = suite(name, task("a", repeats=2), task("b"))
    first = await desk.run(start)
    desk.served.clear()
    again = await desk.begin(start)
    assert again.how == "finished"
    assert again.execution.first_run_id == first.execution.first_run_id
    assert again.taken_over == 3
    assert desk.served == []
    await until(lambda: _has_runs(here.client, name, 1))


async def test_a_suite_that_writes_no_results_where_it_is_asked_to_says_where_they_are(
    here: World, desk: Desk, name: str
) -> None:
    def into(results: str | None, play: str) -> SuiteInput:
        return suite(name, task("a", play), options=TaskOptions(results_dir=results))

    await desk.begin(into("/old", "hold"))
    await desk.begin(into("/new", "hold"))
    here.open = True
    await desk.end(name)
    for results in ("/old", None, "/new"):
        assert (await desk.begin(into(results, "hold"))).how == "finished"
    told = "are in /old, and not in /new"
    assert [told in said for said in desk.said] == [True, True]


async def test_a_closed_suite_with_failures_keeps_its_successes_and_runs_the_rest(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("good"), task("bad", "fail")))
    begun = await desk.run(suite(name, task("good"), task("bad", "fail")))
    assert (begun.how, begun.taken_over) == ("took_over", 1)
    assert sorted(t for t, _, _ in here.started) == ["bad", "bad", "good"]


async def test_a_success_of_another_digest_is_not_taken_over(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("a"), task("b")))
    begun = await desk.run(suite(name, task("a", digest="a-2"), task("b")))
    assert begun.taken_over == 1
    assert sorted(t for t, _, _ in here.started) == ["a", "a", "b"]
    # What the first run did under the first digest is stale now, though it succeeded.
    again = await desk.run(suite(name, task("a"), task("b")))
    assert again.taken_over == 1
    assert [t for t, _, _ in here.started].count("a") == 3


async def test_other_options_are_other_work(here: World, desk: Desk, name: str) -> None:
    short = TaskOptions(end_step=1)
    partly = SuiteTask(task("a").task, work_digest("a-1", short))
    await desk.run(suite(name, partly, options=short))
    begun = await desk.run(suite(name, task("a")))
    assert (begun.how, begun.taken_over) == ("started", 0)


async def test_a_cancelled_suite_goes_on_with_what_it_had_not_done(
    here: World, desk: Desk, name: str
) -> None:
    start = suite(name, task("a"), task("b", "hang"))
    await desk.begin(start)

    async def one_ended() -> bool:
        return len((await suite_of(here.client, suite_workflow_id(name))).ended) == 1

    await until(one_ended)
    await until(lambda: here.running == 1)
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)
    begun = await desk.begin(start)
    assert (begun.how, begun.taken_over) == ("took_over", 1)
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


async def test_what_a_task_finished_after_its_suite_was_terminated_is_found(
    here: World, desk: Desk, name: str
) -> None:
    here.mute.add("a")
    start = suite(name, task("a"), task("b", "hang"))
    await desk.begin(start)
    await until(lambda: here.running == 1 and len(here.started) == 2)
    handle = here.client.get_workflow_handle(suite_workflow_id(name))
    await here.client.get_workflow_handle(task_workflow_id(name, "a", 1)).result()
    await handle.terminate()
    begun = await desk.begin(start)
    assert begun.taken_over == 1
    await handle.cancel()
    await desk.end(name)
    assert [t for t, _, _ in here.started].count("a") == 1


async def test_a_part_of_a_suite_that_is_run_alone_does_not_lose_the_rest(
    here: World, desk: Desk, name: str
) -> None:
    whole = suite(name, task("a"), task("b", "fail"), task("c"))
    await desk.run(whole)
    await desk.run(suite(name, task("b", "fail")))
    begun = await desk.run(whole)
    assert begun.taken_over == 2
    assert sorted(t for t, _, _ in here.started) == ["a", "b", "b", "b", "c"]


async def test_more_repeats_run_only_the_trials_that_are_missing(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("a")))
    begun = await desk.run(suite(name, task("a", repeats=3)))
    assert (begun.how, begun.taken_over) == ("took_over", 1)
    assert here.attempts("only") == 3


# --- Fresh ------------------------------------------------------------------------------------


async def test_fresh_takes_nothing_over(here: World, desk: Desk, name: str) -> None:
    await desk.run(suite(name, task("a")))
    begun = await desk.run(suite(name, task("a")), fresh=True)
    assert (begun.how, begun.taken_over) == ("started", 0)
    assert here.attempts("only") == 2


async def test_what_was_done_before_a_fresh_start_is_not_taken_over_after_an_interruption(
    here: World, desk: Desk, name: str
) -> None:
    start = replace(suite(name, task("a"), task("b"), task("c")), max_parallel=1)
    await desk.run(start)
    slow = replace(suite(name, task("a"), task("b", "hang"), task("c")), max_parallel=1)
    await desk.begin(slow, fresh=True)
    await until(lambda: here.running == 1)
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)
    for _ in range(2):  # the second time, of a run that is not itself the fresh one
        begun = await desk.begin(slow)
        assert (begun.how, begun.taken_over) == ("took_over", 1)
        await until(lambda: here.running == 1)
        await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
        await desk.end(name)
    assert [t for t, _, _ in here.started].count("c") == 1
    begun = await desk.run(start)
    assert begun.taken_over == 1
    assert [t for t, _, _ in here.started].count("c") == 2


async def test_fresh_ends_an_open_run_first(here: World, desk: Desk, name: str) -> None:
    first = await desk.begin(suite(name, task("a", "hang")))
    await until(lambda: here.running == 1)
    second = await desk.run(suite(name, task("a", digest="a-2")), fresh=True)
    assert second.how == "started"
    old = await find_execution(here.client, suite_workflow_id(name), first.execution.first_run_id)
    assert old is not None
    assert old.status is WorkflowExecutionStatus.CANCELED
    assert here.running == 0


# --- Retry ------------------------------------------------------------------------------------


async def test_a_retry_runs_whole_tasks_again_of_which_a_trial_did_not_succeed(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("good", repeats=2), half_failing("half")))
    begun = await desk.starter.retry(name)
    await desk.end(name)
    assert (begun.how, begun.taken_over) == ("took_over", 2)
    assert [t for t, _, _ in here.started].count("good") == 2
    assert [t for t, _, _ in here.started].count("half") == 4


async def test_a_retry_of_failed_trials_alone_takes_the_others_over(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("good", repeats=2), half_failing("half")))
    begun = await desk.starter.retry(name, only_failed_trials=True)
    await desk.end(name)
    assert begun.taken_over == 3
    assert [t for t, _, _ in here.started].count("half") == 3


def half_failing(id: str) -> SuiteTask:
    """A task of two trials, of which the first fails."""
    step = {"id": "only", "by_trial": ["fail", "ok"]}
    return SuiteTask(task_document(id, step), f"{id}-1", repeats=2)


async def test_a_retry_needs_no_documents_and_may_have_other_bounds(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("a", "fail"), task("b", "fail")))
    begun = await desk.starter.retry(
        name, changed=lambda start: replace(start, max_failures=1, max_parallel=1)
    )
    await desk.end(name)
    assert begun.definition.max_failures == 1
    progress = (await suite_of(here.client, suite_workflow_id(name))).progress()
    assert (progress.failed, progress.not_run) == (1, 1)


async def test_a_retry_after_an_interruption_runs_what_had_not_ended(
    here: World, desk: Desk, name: str
) -> None:
    await desk.begin(suite(name, task("a"), task("b", "hold"), task("c", "hold")))
    await until(lambda: len(here.started) == 3)
    await here.client.get_workflow_handle(task_workflow_id(name, "a", 1)).result()
    await here.client.get_workflow_handle(suite_workflow_id(name)).terminate()
    here.open = True
    begun = await desk.starter.retry(name)
    await desk.end(name)
    assert begun.how == "took_over"
    progress = (await suite_of(here.client, suite_workflow_id(name))).progress()
    assert progress.succeeded == 3
    assert [t for t, _, _ in here.started].count("a") == 1


async def test_a_retry_of_an_open_suite_is_refused(here: World, desk: Desk, name: str) -> None:
    await desk.begin(suite(name, task("a", "hang")))
    with pytest.raises(SuiteOpen, match=f"perdure cancel {name}"):
        await desk.starter.retry(name)
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


async def test_a_retry_where_all_succeeded_starts_nothing(
    here: World, desk: Desk, name: str
) -> None:
    await desk.run(suite(name, task("a")))
    assert (await desk.starter.retry(name)).how == "finished"
    assert len(here.started) == 1


async def test_a_retry_of_an_unknown_suite_is_refused(desk: Desk, name: str) -> None:
    with pytest.raises(UnknownRun, match=name):
        await desk.starter.retry(name)


# --- Records that could not be written ----------------------------------------------------------


async def test_a_start_after_a_full_disk_takes_all_over_and_writes_what_is_missing(
    here: World, desk: Desk, name: str
) -> None:
    here.no_room_for = {"a"}
    start = suite(name, task("a"), task("b", "hold"))
    await desk.begin(start)
    await until(lambda: here.running == 1 and len(here.finished) == 1)
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)
    here.no_room_for, here.open = set(), True
    begun = await desk.run(start)
    assert (begun.how, begun.taken_over) == ("took_over", 1)
    assert "without a record" in desk.said[-1]
    assert [t for t, _, _ in here.started].count("a") == 1
    assert [t.task_id for t in here.missing[-1].trials] == ["a"]
    assert (await desk.begin(start)).how == "finished"


# --- Other bounds of an open suite ------------------------------------------------------------


async def test_an_open_suite_goes_on_with_its_bounds_and_says_so(
    here: World, desk: Desk, name: str
) -> None:
    tasks = [task("a", "hang")]
    options = TaskOptions(limits={"openai": 4}, task_timeout_seconds=600)
    await desk.begin(
        suite_input(name, tasks, max_parallel=5, options=options, max_failures="50%", max_cost=3)
    )
    again = suite_input(name, tasks, max_parallel=5, options=TaskOptions(), retry_infrastructure=1)
    assert (await desk.begin(again)).how == "attached"
    (said,) = desk.said
    for kept in ("max_failures 1", "max_cost 3", "retry_infrastructure 0", "limits openai=4",
                 "task_timeout 600"):  # fmt: skip
        assert kept in said
    same = suite_input(name, tasks, max_parallel=2, options=options, max_failures=1, max_cost=3.0)
    await desk.begin(same)
    assert len(desk.said) == 1
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)


# --- A start whose answer is lost -------------------------------------------------------------


class Deaf:
    """A client whose start requests arrive, but whose first answers do not."""

    def __init__(self, client: Client, lost: int) -> None:
        self._client = client
        self.lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def start_workflow(self, *args: Any, **more: Any) -> Any:
        handle = await self._client.start_workflow(*args, **more)
        if self.lost:
            self.lost -= 1
            raise RPCError("Timeout expired", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        return handle


async def test_a_start_whose_answer_was_lost_is_found_and_not_made_again(
    here: World, tmp_path: Path, name: str
) -> None:
    desk = Desk(here, tmp_path)
    deaf: Any = Deaf(here.client, lost=1)
    starter = Starter(deaf, here.queue, tmp_path, desk._serve, desk.said.append)
    begun = await starter.begin(suite(name, task("a", "hang")))
    assert begun.how == "attached"
    await here.client.get_workflow_handle(suite_workflow_id(name)).cancel()
    await desk.end(name)
    await until(lambda: _has_runs(here.client, name, 1))


# --- Ids and digests --------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["", "../x", "a b", "x" * 129, "ünï", ".", "a/b"])
def test_an_id_that_is_none_is_refused(id: str) -> None:
    with pytest.raises(BadId, match="suite"):
        check_id("suite", id)


def test_the_refusal_names_the_nearest_legal_id() -> None:
    with pytest.raises(BadId, match="'my-suite'"):
        check_id("suite", "my suite")


def test_a_default_id_is_readable_and_legal() -> None:
    moment = datetime(2026, 11, 30, 8, 22, 1)
    assert default_suite_id("my täsks", moment, "4fce") == "my-tasks-20261130-082201-4fce"
    assert check_id("suite", default_suite_id("x" * 500, moment, "4fce"))


def test_numbers_below_one_and_ranges_outside_a_task_are_refused() -> None:
    """P9: where the driver of the field takes 1 without a word."""
    with pytest.raises(PerdureError, match="max_parallel 0"):
        suite_input("s", [task("a")], max_parallel=0, options=TaskOptions())
    with pytest.raises(PerdureError, match="repeats"):
        suite("s", task("a", repeats=0))
    with pytest.raises(PerdureError, match=r"task 'a': start_step 1 is outside 0 to 0"):
        suite("s", task("a"), options=TaskOptions(start_step=1))


@pytest.mark.parametrize(
    ("value", "trials", "meant"),
    [(None, 9, None), (3, 9, 3), ("3", 9, 3), ("10%", 9, 1), ("50%", 9, 5), ("100 %", 7, 7)],
)
def test_max_failures_is_a_number_or_a_share_of_the_trials(
    value: int | str | None, trials: int, meant: int | None
) -> None:
    assert parse_max_failures(value, trials) == meant
    start = suite_input("s", [task("a", repeats=trials)], max_parallel=1, options=TaskOptions(),
                        max_failures=value)  # fmt: skip
    assert start.max_failures == meant


@pytest.mark.parametrize(
    ("bound", "value"),
    [
        *(("max_failures", value) for value in (0, -1, "0%", "101%", "some", True, "", "1e3")),
        *(("max_cost", value) for value in (0, -1.0, float("nan"), float("inf"), True)),
        *(("retry_infrastructure", value) for value in (-1, True)),
    ],
)
def test_bounds_that_are_none_are_refused_by_name(bound: str, value: Any) -> None:
    with pytest.raises(PerdureError, match=bound):
        suite_input("s", [task("a")], max_parallel=1, options=TaskOptions(), **{bound: value})


def test_a_step_whose_limit_the_suite_does_not_name_is_refused() -> None:
    limited = SuiteTask(task_document("a", {"id": "only", "limit": "openai"}), "a-1")
    with pytest.raises(PerdureError, match=r"'a': step 'only'.*'openai'.*--limit openai=N"):
        suite("s", limited)
    with pytest.raises(PerdureError, match="named are other"):
        suite("s", limited, options=TaskOptions(limits={"other": 2}))
    assert suite("s", limited, options=TaskOptions(limits={"openai": 2})).options.limits
    with pytest.raises(PerdureError, match="at least 1 slot"):
        suite("s", limited, options=TaskOptions(limits={"openai": 0}))


def test_the_suites_digest_tells_documents_repeats_and_order_apart() -> None:
    a, b = task("a"), task("b")
    digests = {
        suite("s", *tasks).digest
        for tasks in ([a, b], [b, a], [a], [a, task("b", digest="x")], [a, task("b", repeats=2)])
    }
    assert len(digests) == 5
    assert suite("s", a, b).digest == suite("other", a, b).digest


def test_options_that_change_nothing_leave_the_digest_alone() -> None:
    assert work_digest("d", TaskOptions(results_dir="/x", multi_host=True)) == "d"
    assert work_digest("d", TaskOptions(end_step=1)) != work_digest("d", TaskOptions(start_step=1))


def test_each_suite_has_a_queue_of_its_own() -> None:
    assert suite_queue("perdure", "nightly") == "perdure.nightly"


@pytest.mark.parametrize(
    ("tasks", "settings", "said"),
    [
        ([task("t", repeats=100_001)], {}, "repeats 100001"),
        ([task(f"t{n}", repeats=100_000) for n in range(11)], {},
         "1,100,000 trials"),
        ([task(f"t{n}", repeats=60_000) for n in range(2)], {},
         "120,000 trials, and a suite has at most 100,000"),
        ([task("t"), task("t")], {}, "the task id 't' is there twice"),
        ([task("t")], {"max_parallel": 10**12}, "max_parallel"),
        ([task("t")], {"max_parallel": 2.5}, "max_parallel"),
        ([task("t")], {"max_parallel": "5"}, "max_parallel '5'"),
    ],
)  # fmt: skip
def test_a_suite_that_no_server_could_hold_is_refused(
    tasks: list[SuiteTask], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(PerdureError, match=said):
        suite_input("s", tasks, **{"max_parallel": 1, "options": TaskOptions(), **settings})
