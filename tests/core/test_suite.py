"""The rules of a suite, one by one; `test_suite_model.py` tries them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure.core import suite_control as control
from perdure.core.suite import Suite
from perdure.core.suite_order import StartOrder
from perdure.messages import (
    ClosedTrial,
    ProgressRequest,
    SuiteInput,
    SuiteProgress,
    SuiteTask,
    TrialSummary,
)


def start(*ids: str, repeats: int = 1, **more: Any) -> SuiteInput:
    tasks = [SuiteTask({"id": id}, id, repeats=repeats) for id in ids]
    return SuiteInput("s", tasks, **{"max_parallel": 10, **more})


def begin(suite: Suite, limit: int = 10) -> list[str]:
    """Start what may start; each run is called after its trial and how often that was started."""
    taken = [trial.workflow_id for trial in suite.take_startable(limit)]
    for name in taken:
        suite.started(name, f"{name}#{len(suite.news)}")
    return [name.removeprefix("task/s/").removesuffix("/1") for name in taken]


def end(suite: Suite, task: str, status: str = "succeeded", trial: int = 1, **more: Any) -> None:
    run_id = suite.run_ids[f"task/s/{task}/{trial}"]
    suite.hear(TrialSummary(task, trial, run_id, status, **more))  # type: ignore[arg-type]


def infra(suite: Suite, task: str) -> None:
    end(suite, task, "failed", failure_kind="infrastructure")


def progress(suite: Suite) -> SuiteProgress:
    return suite.progress(ProgressRequest())


def refusal(check: Any, *arguments: Any) -> str:
    with pytest.raises(control.Refused) as caught:
        check(*arguments)
    return str(caught.value)


def over_a_continue_as_new(suite: Suite, of: SuiteInput) -> Suite:
    return Suite(replace(of, finished=[], state={"suite": suite.state()}))


# --- Order ------------------------------------------------------------------------------------


def test_waiting_trials_come_by_lift_then_rank_then_place() -> None:
    order = StartOrder({"a": (2, 0, 1), "b": (2, 1, 1), "c": (0, 2, 1), "d": (2, 3, 1)})
    for name in "abcd":
        order.add(name)
    order.prioritise(["d"])
    order.prioritise(["b"])
    assert [order.pop() for _ in range(4)] == ["b", "d", "c", "a"]
    order.add("a")
    order.add("d")
    assert [order.pop() for _ in range(2)] == ["d", "a"]
    with pytest.raises(IndexError):
        order.pop()


def test_what_left_the_order_does_not_come_up() -> None:
    order = StartOrder({"a": (0, 0, 1), "b": (0, 1, 1)})
    order.add("a")
    order.add("b")
    order.remove("a")
    assert ("a" in order, len(order)) == (False, 1)
    assert order.pop() == "b"


def test_trials_of_earlier_suites_start_in_order_of_the_list() -> None:
    tasks = [SuiteTask({"id": id, "priority": p}, id) for id, p in (("a", "low"), ("b", "high"))]
    assert begin(Suite(SuiteInput("s", tasks))) == ["a", "b"]
    assert begin(Suite(SuiteInput("s", tasks, by_priority=True))) == ["b", "a"]


def test_a_retried_trial_keeps_its_place() -> None:
    suite = Suite(start("a", "b", "c", max_parallel=1, retry_infrastructure=1))
    assert begin(suite) == ["a"]
    infra(suite, "a")
    assert begin(suite) == ["a"]


# --- Ends -------------------------------------------------------------------------------------


def test_news_that_come_before_the_start_is_acknowledged_are_kept() -> None:
    suite = Suite(start("a"))
    (trial,) = suite.take_startable(1)
    suite.hear(TrialSummary("a", 1, "run", "succeeded"))
    suite.hear(TrialSummary("a", 1, "older", "failed"))
    assert suite.running
    suite.started(trial.workflow_id, "run")
    assert (suite.over, progress(suite).succeeded) == (True, 1)


def test_a_loss_of_an_older_run_does_not_end_the_one_that_runs_now() -> None:
    suite = Suite(start("a"))
    begin(suite)
    old = suite.run_ids["task/s/a/1"]
    end(suite, "a", "failed")
    suite.requeue(["task/s/a/1"])
    begin(suite)
    suite.lose("task/s/a/1", old, "terminated")
    suite.found_closed(ClosedTrial("task/s/a/1", None, "terminated"))
    assert suite.is_running("task/s/a/1")


def test_a_trial_in_whose_place_a_probe_finds_another_run_is_lost() -> None:
    of = start("a", "b")
    suite = Suite(of)
    begin(suite)
    suite = over_a_continue_as_new(suite, of)
    stranger = TrialSummary("a", 1, "stranger", "succeeded")
    suite.found_closed(ClosedTrial("task/s/a/1", stranger))
    suite.found_closed(ClosedTrial("task/s/a/1", stranger))
    lost = suite.ends["task/s/a/1"]
    assert (lost.run_id, lost.status, lost.failure_kind) == (
        "task/s/a/1#0", "failed", "infrastructure",
    )  # fmt: skip
    end(suite, "b")
    assert suite.over


def test_a_trial_that_waits_for_a_retry_has_failed_if_it_does_not_get_it() -> None:
    suite = Suite(start("a", "b", "c", max_parallel=2, max_failures=1, retry_infrastructure=3))
    begin(suite)
    infra(suite, "a")
    assert (progress(suite).failed, progress(suite).pending) == (0, 2)
    end(suite, "b", "failed")
    assert begin(suite) == []
    now = progress(suite)
    assert (now.failed, now.not_run, now.pending, now.stopped) == (
        2, 1, 0, "1 failure (max_failures: 1)",
    )  # fmt: skip


def test_a_requeued_trial_that_never_starts_has_ended_as_it_did() -> None:
    suite = Suite(start("a", "b"))
    begin(suite)
    end(suite, "a", "failed")
    suite.requeue(["task/s/a/1"])
    assert progress(suite).failed == 0
    suite.cancel()
    assert (progress(suite).failed, len(suite.news)) == (1, 1)


def test_totals_of_an_open_and_of_a_closed_suite_add_up() -> None:
    suite = Suite(start("a", "b", "c", "d", max_parallel=2))
    begin(suite)
    end(suite, "a")
    now = progress(suite)
    assert (now.succeeded, len(now.running), now.pending, now.not_run) == (1, 1, 2, 0)
    suite.cancel()
    end(suite, "b", "cancelled")
    now = progress(suite)
    assert (now.succeeded, now.cancelled, now.pending, now.not_run) == (1, 1, 0, 2)


def test_finished_trials_that_are_none_of_the_suites_are_left_out() -> None:
    suite = Suite(start("a", finished=[TrialSummary("gone", 1, "r", "succeeded")]))
    assert progress(suite).succeeded == 0


# --- Limits -----------------------------------------------------------------------------------


def test_cost_counts_every_run_and_usage_the_newest_alone() -> None:
    taken_over = [TrialSummary("a", 1, "r", "succeeded", usage={"cost": 1.0})]
    suite = Suite(start("a", "b", "c", max_parallel=1, max_cost=3.0, finished=taken_over))
    begin(suite)
    end(suite, "b", "failed", usage={"cost": 1.0, "tokens": 7.0})
    suite.requeue(["task/s/b/1"])
    begin(suite)
    end(suite, "b", usage={"cost": 1.0})
    assert begin(suite) == []
    assert progress(suite).stopped == "cost 3 (max_cost: 3)"
    assert progress(suite).usage == {"cost": 2.0}


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -5.0])
def test_a_cost_that_is_none_does_not_count(cost: float) -> None:
    suite = Suite(start("a", "b", max_parallel=1, max_cost=1.0))
    begin(suite)
    end(suite, "a", usage={"cost": cost})
    assert begin(suite) == ["b"]


def test_a_limit_reached_by_the_last_trial_stops_nothing() -> None:
    suite = Suite(start("a", max_failures=1))
    begin(suite)
    end(suite, "a", "failed")
    assert suite.over
    assert progress(suite).stopped is None


def test_a_stop_is_for_good() -> None:
    suite = Suite(start("a", "b", "c", max_parallel=2, max_failures=1))
    begin(suite)
    end(suite, "a", "failed")
    assert begin(suite) == []
    suite.requeue(["task/s/a/1"])  # as a reader of the history might
    assert begin(suite) == []


# --- What people ask for ----------------------------------------------------------------------


def test_wishes_are_answered_with_sentences() -> None:
    suite = Suite(start("a", "b", "c", repeats=2, max_parallel=4))
    begin(suite)
    assert control.set_max_parallel(suite, 4) == "max_parallel is 4 already"
    assert control.set_max_parallel(suite, 2) == (
        "max_parallel is 2 (was 4); 4 tasks run, and nothing is started until fewer than 2 do"
    )
    assert "is paused: nothing more is started, 4 tasks run" in control.pause(suite)
    with pytest.raises(control.Refused, match="is paused already"):
        control.check_pause(suite)
    end(suite, "a", "failed")
    end(suite, "a", "cancelled", trial=2)
    control.check_requeue(suite, "a")
    assert control.requeue(suite, "a").told == (
        "task 'a' runs again: 2 trials; the suite is paused (`perdure suite s resume`)"
    )
    assert control.prioritise(suite, "c/2").startswith("trial 2 of task 'c' is next")
    assert control.resume(suite) == "suite s goes on: 4 waiting"


def test_refusals_name_what_is_near_and_what_to_do() -> None:
    suite = Suite(start("alpha", "beta", "gamma", repeats=2, max_parallel=3))
    begin(suite)
    end(suite, "alpha")
    assert refusal(control.check_requeue, suite, "aplha") == (
        "the suite has no task 'aplha'; did you mean 'alpha'?"
    )
    assert "has trials 1 to 2, and no trial '3'" in refusal(control.check_requeue, suite, "alpha/3")
    for wanted in ("", "/", "alpha/", "alpha/1/2", "alpha/01", "alpha/-1", "x" * 5000, "\0"):
        assert len(refusal(control.check_requeue, suite, wanted)) < 300
    assert "trial 1 of task 'alpha' has succeeded" in refusal(
        control.check_requeue, suite, "alpha/1"
    )
    assert "`perdure cancel s/beta/1`" in refusal(control.check_requeue, suite, "beta")
    assert "still waits" in refusal(control.check_requeue, suite, "gamma")
    assert "the suite is not paused" in refusal(control.check_resume, suite)


def test_a_requeue_is_refused_where_its_trials_could_not_start() -> None:
    suite = Suite(start("a", "b", max_cost=1.0))
    begin(suite)
    end(suite, "a", "failed", usage={"cost": 2.0})
    assert "cost 2 (max_cost: 1)" in refusal(control.check_requeue, suite, "a")


def test_a_requeue_takes_its_failures_off_the_count() -> None:
    suite = Suite(start("a", "b", max_failures=1))
    begin(suite)
    end(suite, "a", "failed")
    control.check_requeue(suite, "a")
    control.requeue(suite, "a")
    assert begin(suite) == ["a"]


def test_a_suite_that_is_over_refuses_everything() -> None:
    suite = Suite(start("a"))
    begin(suite)
    end(suite, "a", "failed")
    for check, arguments in (
        (control.check_max_parallel, (3,)),
        (control.check_pause, ()),
        (control.check_resume, ()),
        (control.check_requeue, ("a",)),
        (control.check_prioritise, ("a",)),
    ):
        assert "`perdure retry s`" in refusal(check, suite, *arguments)


# --- Over a continue-as-new -------------------------------------------------------------------


def test_everything_that_was_asked_for_goes_over_a_continue_as_new() -> None:
    of = start("a", "b", "c", "d", "e", max_parallel=3, retry_infrastructure=1, max_failures=4)
    suite = Suite(of)
    begin(suite)
    end(suite, "a", "failed", usage={"cost": 2.0})
    infra(suite, "b")
    control.requeue(suite, "a")
    control.prioritise(suite, "e")
    control.set_max_parallel(suite, 4)
    control.pause(suite)
    after = over_a_continue_as_new(suite, of)
    assert after.state() == suite.state()
    assert progress(after) == progress(suite)
    assert after.unheard == ["task/s/c/1"]
    control.resume(after)
    assert begin(after) == ["e", "a", "b"]
    infra(after, "b")
    assert progress(after).failed == 1  # it has had its retry


def test_a_state_of_an_earlier_version_is_understood() -> None:
    old = {
        "max_parallel": 2,
        "running": {"task/s/b/1": "run-b"},
        "ended": [{"task_id": "a", "trial": 1, "run_id": "run-a", "status": "succeeded",
                   "usage": {"cost": 1.5}}],
        "cancelled": False,
    }  # fmt: skip
    suite = Suite(start("a", "b", "c", state={"suite": old}, max_cost=1.5))
    now = progress(suite)
    assert (now.succeeded, now.running, now.pending) == (1, ["task/s/b/1"], 1)
    assert begin(suite) == []
    assert suite.stopped


# --- Records that could not be written, and size ----------------------------------------------


def test_what_is_written_at_last_is_no_longer_missing() -> None:
    suite = Suite(start("a", "b"))
    begin(suite)
    for task in ("a", "b"):
        end(suite, task, unwritten=True, note="no room")
    still = replace(suite.ends["task/s/b/1"], note="no room yet")
    suite.written([still])
    assert [t.note for t in suite.ends.values()] == [None, "no room yet"]
    assert suite.unwritten == [still]


def test_ten_thousand_trials_run_to_their_end() -> None:
    of = start(*(f"t{n}" for n in range(5_000)), repeats=2, max_parallel=50)
    suite = Suite(of)
    running: list[str] = []
    started = 0
    while not suite.over:
        begun = suite.take_startable(25)
        for trial in begun:
            suite.started(trial.workflow_id, f"run-{started}")
            started += 1
        running += [trial.workflow_id for trial in begun]
        assert len(running) <= 50
        name = running.pop(0)
        _, _, task, number = name.split("/")
        suite.hear(TrialSummary(task, int(number), suite.run_ids[name], "succeeded"))
    assert (started, progress(suite).succeeded) == (10_000, 10_000)


def test_a_bound_that_was_a_share_is_told_as_it_was_written() -> None:
    suite = Suite(replace(start("a", "b"), max_failures=1, max_failures_share="10%"))
    begin(suite)
    end(suite, "a", "failed")
    assert suite.limit_reached() == "1 failure (max_failures: 10%, here 1)"


# --- After its end -----------------------------------------------------------------------------


def test_an_end_is_replaced_whatever_was_known_of_the_trial() -> None:
    suite = Suite(start("ended", "running", "waiting", max_parallel=2))
    begin(suite)
    end(suite, "ended", "failed", usage={"cost": 1})
    suite.cancel()
    for task in ("ended", "running", "waiting"):
        suite.replace_end(TrialSummary(task, 1, "later", "succeeded", usage={"cost": 2}))
    now = progress(suite)
    assert (now.succeeded, now.failed, now.running, now.not_run) == (3, 0, [], 0)
    assert now.usage == {"cost": 6}
