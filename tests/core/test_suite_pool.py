"""The rules of a suite whose tasks wait for environments in a pool."""

from __future__ import annotations

from typing import Any

from perdure.core import suite_control as control
from perdure.core.suite import POOL_WINDOW, Suite
from perdure.core.suite_order import StartOrder
from perdure.messages import PoolUse, SuiteInput, SuiteTask
from tests.core.test_suite import begin, end, infra, over_a_continue_as_new, progress, refusal


def start(*ids: str, **more: Any) -> SuiteInput:
    """A suite of these tasks; `shop:a` needs the environment shop, `a` needs none."""
    tasks = []
    for named in ids:
        environments, _, id = named.rpartition(":")
        tasks.append(SuiteTask({"id": id, "environments": environments.split("+")}, id))
        if not environments:
            tasks[-1] = SuiteTask({"id": id}, id)
    return SuiteInput("s", tasks, **{"max_parallel": 1, "pool": PoolUse(), **more})


def withdrawn(suite: Suite, task: str) -> None:
    end(suite, task, "cancelled", withdrawn=True)


def test_a_suite_with_a_pool_starts_more_than_may_have_environments_at_once() -> None:
    suite = Suite(start(*(f"shop:t{i}" for i in range(POOL_WINDOW + 5))))
    assert len(begin(suite, 1000)) == POOL_WINDOW
    end(suite, "t0")
    assert len(begin(suite, 1000)) == 1


def test_a_max_parallel_above_the_window_widens_it() -> None:
    count = POOL_WINDOW + 20
    suite = Suite(start(*(f"shop:t{i}" for i in range(count)), max_parallel=POOL_WINDOW + 10))
    assert len(begin(suite, 1000)) == POOL_WINDOW + 10


def test_what_is_coming_is_counted_by_the_environments_that_it_needs() -> None:
    suite = Suite(start("shop:a", "shop:b", "shop+mail:c", "d"))
    assert suite.coming() == {(): 1, ("shop",): 2, ("shop", "mail"): 1}
    assert begin(suite, 1) == ["a"]
    assert suite.coming() == {(): 1, ("shop",): 1, ("shop", "mail"): 1}
    assert suite.coming(["task/s/a/1"]) == {(): 1, ("shop",): 2, ("shop", "mail"): 1}
    begin(suite)
    assert suite.coming() == {}
    end(suite, "a", "failed")
    control.requeue(suite, "a")
    assert suite.coming() == {("shop",): 1}


def test_counts_by_kind_follow_whatever_enters_and_leaves_the_order() -> None:
    order = StartOrder({"a": (0, 0, 1), "b": (0, 1, 1)}, {"a": ("x",), "b": ("x",)})
    for name in ("a", "a", "b"):
        order.add(name)
    order.prioritise(["b"])
    assert order.by_kind[("x",)] == 2
    assert order.pop() == "b"
    order.remove("b")
    assert order.by_kind[("x",)] == 1
    order.remove("a")
    assert order.by_kind[("x",)] == 0


def test_a_limit_that_is_reached_stops_tasks_that_only_wait_in_the_pool() -> None:
    suite = Suite(start("shop:a", "shop:b", "shop:c", max_failures=1))
    assert begin(suite) == ["a", "b", "c"]
    end(suite, "a", "failed")
    assert begin(suite) == []
    assert suite.stopped == "1 failure (max_failures: 1)"
    end(suite, "b")  # it had its environments
    withdrawn(suite, "c")
    told = progress(suite)
    assert suite.over
    assert (told.succeeded, told.failed, told.cancelled, told.not_run) == (1, 1, 0, 1)
    assert told.stopped == "1 failure (max_failures: 1)"


def test_a_limit_that_is_reached_when_all_had_their_environments_stopped_nothing() -> None:
    suite = Suite(start("shop:a", "shop:b", max_failures=1))
    begin(suite)
    end(suite, "a", "failed")
    assert begin(suite) == []
    end(suite, "b")
    told = progress(suite)
    assert suite.over
    assert (told.succeeded, told.failed, told.not_run, told.stopped) == (1, 1, 0, None)


def test_a_withdrawn_trial_keeps_the_end_that_it_had_before() -> None:
    of = start("shop:a", "shop:b", "shop:c", max_failures=1, retry_infrastructure=1)
    suite = Suite(of)
    begin(suite)
    infra(suite, "a")
    assert begin(suite) == ["a"]
    suite = over_a_continue_as_new(suite, of)
    end(suite, "b", "failed")
    begin(suite)
    assert suite.stopped
    withdrawn(suite, "a")
    withdrawn(suite, "c")
    told = progress(suite)
    assert (told.failed, told.cancelled, told.not_run) == (2, 0, 1)
    assert suite.ends["task/s/a/1"].failure_kind == "infrastructure"
    assert suite.over


def test_a_requeued_trial_that_is_withdrawn_is_as_it_was() -> None:
    of = start("shop:a", "shop:b", max_failures=2)
    suite = Suite(of)
    begin(suite)
    end(suite, "a", "cancelled")
    control.requeue(suite, "a")
    begin(suite)
    suite = over_a_continue_as_new(suite, of)
    suite.cancel()
    withdrawn(suite, "a")
    assert suite.ends["task/s/a/1"].status == "cancelled"
    assert [trial.task_id for trial in suite.news] == ["a"]
    assert progress(suite).not_run == 0


def test_a_trial_that_was_withdrawn_though_the_suite_goes_on_is_started_again() -> None:
    suite = Suite(start("shop:a"))
    begin(suite)
    withdrawn(suite, "a")
    assert not suite.over
    assert begin(suite) == ["a"]


def test_a_task_that_was_started_can_be_put_first_in_the_pool() -> None:
    suite = Suite(start("shop:a", "shop:b", "shop:c", "shop:d"))
    assert begin(suite, 3) == ["a", "b", "c"]
    control.check_prioritise(suite, "b")
    told = control.prioritise(suite, "b")
    assert told == "task 'b' is next, unless it has its environments already"
    control.prioritise(suite, "d")
    assert suite.prioritised == ["task/s/b/1"]
    begin(suite)
    assert suite.prioritised == ["task/s/b/1", "task/s/d/1"], "the one that is next comes last"
    end(suite, "b")
    assert suite.prioritised == ["task/s/d/1"]
    assert "has ended" in refusal(control.check_prioritise, suite, "b")


def test_answers_speak_of_environments_where_tasks_wait_for_them() -> None:
    suite = Suite(start("shop:a", "shop:b", max_parallel=2))
    begin(suite)
    goes_on = "what has its environments goes on"
    assert control.set_max_parallel(suite, 1) == f"max_parallel is 1 (was 2); {goes_on}"
    assert goes_on in control.pause(suite)
