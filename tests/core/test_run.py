"""The rules of a run, without a server."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.context import size_bytes
from perdure.core.run import BadRange, Dispatch, TaskRun, instance_id
from perdure.core.summary import summarise
from perdure.core.task import Task
from perdure.messages import (
    SUMMARY_LIMIT_BYTES,
    ContextRequest,
    RunRef,
    StepFailure,
    StepOutcome,
)

REF = RunRef("task/s/t/1", "0f1e2d3c-0000-4000-8000-000000000000", "s", "t", 1)


def task(*steps: dict[str, Any], **more: Any) -> Task:
    return Task.from_dict({"id": "t", "steps": [{"type": "noop", **s} for s in steps], **more})


def start(task: Task, **options: Any) -> TaskRun:
    return TaskRun(task, REF, now=0.0, **options)


def after(*ids: str) -> list[dict[str, str]]:
    return [{"task_step_id": id} for id in ids]


def done(step_id: str, value: Any = None) -> StepOutcome:
    return StepOutcome("succeeded", [{"op": "set", "path": ["results", step_id], "value": value}])


def failed(message: str = "no", **more: Any) -> StepOutcome:
    return StepOutcome("failed", failure=StepFailure(message, **more))


def ids(dispatches: list[Dispatch]) -> list[str]:
    return [d.step.id for d in dispatches]


def finish_all(run: TaskRun, now: float = 1.0) -> None:
    while ready := run.take_ready(now):
        for dispatch in ready:
            run.finish(dispatch, done(dispatch.step.id), now)


# --- What is ready ----------------------------------------------------------------------------


def test_without_dependencies_of_its_own_a_step_waits_for_every_earlier_one() -> None:
    run = start(task({"id": "a"}, {"id": "b"}))
    (a,) = run.take_ready(0)
    assert run.take_ready(0) == []
    run.finish(a, done("a"), 1)
    assert ids(run.take_ready(1)) == ["b"]


def test_independent_steps_start_at_once_in_step_order() -> None:
    run = start(task({"id": "b", "depends_on": []}, {"id": "a", "depends_on": []}))
    assert ids(run.take_ready(0)) == ["b", "a"]


def test_start_and_end_step_cut_the_run_down_to_a_range() -> None:
    run = start(task(*({"id": i} for i in "abcd")), start_step=1, end_step=3)
    finish_all(run)
    assert run.status == "succeeded"
    record = run.record()
    assert [s["step_id"] for s in record["completed_steps"]] == ["a", "b", "c"]
    run.close(2)
    assert run.record()["steps"][3]["status"] == "not_run"


@pytest.mark.parametrize(("first", "last"), [(-1, None), (2, None), (0, 0), (1, 1), (0, 3)])
def test_a_range_outside_the_task_is_refused_with_value_and_range(
    first: int, last: int | None
) -> None:
    with pytest.raises(BadRange, match="is outside"):
        start(task({"id": "a"}, {"id": "b"}), start_step=first, end_step=last)


def test_a_chain_of_five_thousand_steps_needs_no_recursion() -> None:
    run = start(task(*({"id": f"s{i}"} for i in range(5000))))
    finish_all(run)
    assert run.status == "succeeded"


# --- What an outcome means --------------------------------------------------------------------


def test_a_fatal_failure_starts_nothing_more_and_lets_running_steps_finish() -> None:
    """T22."""
    run = start(task({"id": "a", "depends_on": []}, {"id": "b", "depends_on": []}, {"id": "c"}))
    a, b = run.take_ready(0)
    run.finish(a, failed("broken"), 1)
    assert not run.over
    run.finish(b, done("b", 7), 2)
    assert run.over
    assert run.status == "failed"
    assert run.take_ready(3) == []
    assert run.context["results"] == {"b": 7}
    assert run.failure
    assert run.failure.message == "broken"


def test_of_several_fatal_failures_the_first_is_the_tasks_and_all_are_recorded() -> None:
    """T22."""
    run = start(task({"id": "a", "depends_on": []}, {"id": "b", "depends_on": []}))
    a, b = run.take_ready(0)
    run.finish(b, failed("second step, first failure"), 1)
    run.finish(a, failed("later"), 2)
    assert run.failure
    assert run.failure.step == "b"
    assert [f["step_id"] for f in run.context["metadata"]["failed_steps"]] == ["b", "a"]


def test_a_tolerated_failure_releases_its_dependents_and_keeps_what_it_wrote() -> None:
    """T21."""
    run = start(task({"id": "a", "fail_task_on_error": False}, {"id": "b"}))
    (a,) = run.take_ready(0)
    half = [{"op": "set", "path": ["metadata", "half"], "value": 1}]
    run.finish(a, StepOutcome("failed", half, failure=StepFailure("no")), 1)
    finish_all(run)
    assert run.status == "succeeded"
    assert run.context["metadata"]["half"] == 1
    assert run.record()["completed_steps"][0] == {"step_id": "a", "status": "failure"}


def test_what_a_fatal_step_had_half_written_stays_visible() -> None:
    """T57."""
    run = start(task({"id": "a"}))
    (a,) = run.take_ready(0)
    half = [{"op": "set", "path": ["metadata", "half"], "value": 1}]
    run.finish(a, StepOutcome("failed", half, failure=StepFailure("no")), 1)
    assert run.context["metadata"]["half"] == 1


def test_failed_steps_of_the_context_name_each_failed_attempt() -> None:
    """T20."""
    run = start(task({"id": "a", "retry": {"max_attempts": 2}}))
    (first,) = run.take_ready(10)
    run.finish(first, failed("one", type="Oops"), 12)
    (second,) = run.take_ready(20)
    run.finish(second, done("a"), 21)
    (entry,) = run.context["metadata"]["failed_steps"]
    assert entry == {
        "step_id": "a",
        "step_type": "noop",
        "error": "one",
        "error_type": "Oops",
        "started_at_utc": "1970-01-01T00:00:10+00:00",
        "duration_seconds": 2.0,
        "is_fatal": True,
    }


def test_a_retry_waits_for_its_growing_delay() -> None:
    retry = {"max_attempts": 3, "initial_interval": 2, "backoff": 3}
    run = start(task({"id": "a", "retry": retry}))
    (a,) = run.take_ready(0)
    run.finish(a, failed(), 0)
    assert run.wake_at() == 2
    assert run.take_ready(1.9) == []
    (a,) = run.take_ready(2)
    run.finish(a, failed(), 2)
    assert run.wake_at() == 8
    (a,) = run.take_ready(8)
    run.finish(a, failed(), 8)
    assert run.status == "failed"


@pytest.mark.parametrize(
    "failure", [StepFailure("no", type="BadPrompt"), StepFailure("no", retryable=False)]
)
def test_what_is_not_retryable_is_not_retried(failure: StepFailure) -> None:
    retry = {"max_attempts": 9, "non_retryable_errors": ["BadPrompt"]}
    run = start(task({"id": "a", "retry": retry}))
    (a,) = run.take_ready(0)
    run.finish(a, StepOutcome("failed", failure=failure), 0)
    assert run.over


def test_once_a_step_failed_for_good_no_other_is_retried() -> None:
    run = start(
        task(
            {"id": "a", "depends_on": [], "retry": {"max_attempts": 5}},
            {"id": "b", "depends_on": []},
        )
    )
    a, b = run.take_ready(0)
    run.finish(b, failed(), 1)
    run.finish(a, failed(), 2)
    assert run.over


def test_worker_losses_are_counted_apart_from_failures() -> None:
    run = start(task({"id": "a", "retry": {"max_attempts": 2}, "max_worker_losses": 2}))
    for number in (1, 2):
        (a,) = run.take_ready(number)
        run.lose(a, None, number)
    (a,) = run.take_ready(3)
    assert a.attempt == 3
    assert a.lost_attempts == (1, 2)
    run.finish(a, failed(), 3)
    (a,) = run.take_ready(9)
    assert a.lost_attempts == ()
    run.finish(a, done("a"), 10)
    assert run.status == "succeeded"


def test_a_step_whose_worker_is_lost_too_often_fails_with_what_was_known_of_it() -> None:
    run = start(task({"id": "a", "max_worker_losses": 1}))
    (a,) = run.take_ready(0)
    run.lose(a, None, 1)
    (a,) = run.take_ready(1)
    half = [{"op": "set", "path": ["metadata", "half"], "value": 1}]
    run.lose(a, StepOutcome("failed", half, host="h"), 2)
    assert run.failure
    assert (run.failure.type, run.failure.kind) == ("WorkerLost", "infrastructure")
    assert run.context["metadata"]["half"] == 1


def test_a_step_handed_back_by_a_stopping_worker_costs_nothing() -> None:
    run = start(task({"id": "a", "max_worker_losses": 0}))
    for _ in range(5):
        (a,) = run.take_ready(0)
        run.interrupt(a, 0)
    (a,) = run.take_ready(0)
    run.finish(a, done("a"), 1)
    assert run.status == "succeeded"


def test_an_outcome_of_a_superseded_attempt_changes_nothing() -> None:
    """T35."""
    run = start(task({"id": "a"}))
    (first,) = run.take_ready(0)
    run.lose(first, None, 1)
    (second,) = run.take_ready(1)
    run.finish(first, done("a", "old"), 2)
    assert not run.over
    run.finish(second, done("a", "new"), 3)
    run.finish(first, done("a", "old"), 4)
    assert run.context["results"] == {"a": "new"}


# --- Cancelling, time limits ------------------------------------------------------------------


def test_a_cancelled_run_ends_when_its_running_steps_have_answered() -> None:
    """T24, TD11."""
    run = start(task({"id": "a", "retry": {"max_attempts": 9}}, {"id": "b"}))
    (a,) = run.take_ready(0)
    run.cancel("enough", 1)
    assert not run.over
    run.finish(a, failed("killed"), 2)
    assert run.status == "cancelled"
    run.close(3)
    assert [s["status"] for s in run.record()["steps"]] == ["cancelled", "not_run"]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("enough", "enough"),
        ("Cancel requested by workflow with run id 0-1 with reason: its suite", "its suite"),
        ("Cancel requested by workflow with run id 0-1 with reason: ", "cancelled"),
        ("Cancel requested by workflow with run id 0-1", "cancelled"),
        ("", "cancelled"),
    ],
)
def test_why_a_run_was_cancelled_is_told_without_the_server_s_words(told: str, reason: str) -> None:
    run = start(task({"id": "a"}))
    run.cancel(told, 1)
    assert (run.cancelled, run.events[-1]["reason"]) == (reason, reason)


def test_a_failure_that_came_before_the_cancel_stays_the_runs_end() -> None:
    """T24."""
    run = start(task({"id": "a", "depends_on": []}, {"id": "b", "depends_on": []}))
    a, b = run.take_ready(0)
    run.finish(a, failed("first"), 1)
    run.cancel("enough", 2)
    run.finish(b, StepOutcome("cancelled"), 3)
    assert run.status == "failed"


def test_a_task_that_runs_too_long_fails_with_the_kind_timeout() -> None:
    """TD12."""
    run = start(task({"id": "a"}))
    (a,) = run.take_ready(0)
    run.time_out(5, 5)
    run.finish(a, StepOutcome("cancelled"), 6)
    assert run.status == "failed"
    assert run.failure
    assert run.failure.kind == "timeout"


# --- The context ------------------------------------------------------------------------------


def test_the_context_starts_with_the_seeds_the_metadata_and_the_runs_names() -> None:
    """T54."""
    run = start(task({"id": "a"}, metadata={"domain": "crm"}), seed={"order": "7"}, agent_model="m")
    context = run.context
    assert context["metadata"]["seed"] == {"order": "7"}
    assert context["metadata"]["domain"] == "crm"
    assert context["metadata"]["run_group_id"] == "0f1e2d3c000040008000000000000000"
    assert context["agent_model"] == "m"
    assert context["instance_id"] == instance_id(REF) == "t-0f1e2d3c"


def test_a_worker_asks_for_the_diffs_it_lacks_and_a_straggler_is_told_so() -> None:
    run = start(task({"id": "a"}, {"id": "b"}, {"id": "c"}))
    finish_all(run)
    whole = run.diffs(ContextRequest(epoch=0, have=-1, want=2))
    assert whole.seed is not None
    assert len(whole.diffs) == 2
    rest = run.diffs(ContextRequest(epoch=0, have=2, want=3))
    assert rest.seed is None
    assert len(rest.diffs) == 1
    assert run.diffs(ContextRequest(epoch=1, have=-1, want=2)).stale
    assert run.diffs(ContextRequest(epoch=0, have=-1, want=4)).stale


# --- Any order of events ----------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> Task:
    steps = []
    for number in range(draw(st.integers(1, 8))):
        earlier = [f"s{i}" for i in range(number)]
        step: dict[str, Any] = {
            "id": f"s{number}",
            "fail_task_on_error": draw(st.booleans()),
            "retry": {"max_attempts": draw(st.integers(1, 3)), "initial_interval": 1},
            "max_worker_losses": draw(st.integers(0, 2)),
        }
        if draw(st.booleans()):
            chosen = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
            step["depends_on"] = after(*chosen)
        steps.append(step)
    return task(*steps)


def dependencies(task: Task, index: int) -> set[str]:
    known = task.steps[index].depends_on
    return {s.id for s in task.steps[:index]} if known is None else set(known)


def carried(run: TaskRun) -> TaskRun:
    fresh = start(run.task)
    fresh.restore(run.state())
    return fresh


@given(graphs(), st.integers(0, 2**32), st.booleans())
def test_any_order_of_events_ends_the_run_by_the_rules(
    task: Task, luck: int, cancels: bool
) -> None:
    chance = random.Random(luck)
    run, now = start(task), 0.0
    flying: list[Dispatch] = []
    starts: dict[str, int] = {}
    ended: set[str] = set()
    while not run.over:
        now += 0.5
        if not flying and chance.random() < 0.3:
            run = carried(run)  # a continue-as-new changes nothing
        for dispatch in run.take_ready(now):
            assert dependencies(task, dispatch.index) <= ended
            assert dispatch.step.id not in ended
            starts[dispatch.step.id] = starts.get(dispatch.step.id, 0) + 1
            assert dispatch.attempt == starts[dispatch.step.id]
            flying.append(dispatch)
        if cancels and chance.random() < 0.05:
            run.cancel("enough", now)
        if not flying:
            continue
        dispatch = flying.pop(chance.randrange(len(flying)))
        step_id, draw = dispatch.step.id, chance.random()
        if draw < 0.6:
            run.finish(dispatch, done(step_id), now)
        elif draw < 0.8:
            run.finish(dispatch, failed(), now)
        elif draw < 0.9:
            run.lose(dispatch, None, now)
        else:
            run.interrupt(dispatch, now)
        ended = {s["step_id"] for s in run.record()["completed_steps"]}
    assert not flying
    assert not run.running
    run.close(now)
    record = run.record()
    statuses = {s["status"] for s in record["steps"]}
    assert not statuses & {"pending", "running", "waiting"}
    for step in task.steps:
        attempts = [a["status"] for s in record["steps"] if s["id"] == step.id
                    for a in s["attempts"]]  # fmt: skip
        assert attempts.count("failed") <= step.retry.max_attempts + 1
        assert attempts.count("lost") <= step.max_worker_losses + 1
        assert attempts.count("succeeded") <= 1
    if run.status == "succeeded":
        assert len(record["completed_steps"]) == len(task.steps)
    assert run.context_bytes >= size_bytes(run.context) - 64
    assert [e["seq"] for e in run.events] == list(range(1, len(run.events) + 1))


@given(st.text(max_size=5000), st.dictionaries(st.text(max_size=300), st.floats(0, 1e9)))
def test_a_summary_never_exceeds_its_limit(reason: str, usage: dict[str, float]) -> None:
    import json
    from dataclasses import asdict

    run = start(task({"id": "a"}))
    (a,) = run.take_ready(0)
    run.finish(a, StepOutcome("failed", failure=StepFailure(reason), usage=usage), 1)
    run.close(2)
    assert len(json.dumps(asdict(summarise(run)))) <= SUMMARY_LIMIT_BYTES
