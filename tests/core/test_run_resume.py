"""A run goes on from one of its steps on, in a new run, with what the old one came to."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.pool_decisions import Grant, GrantedInstance
from perdure.core.run import TaskRun
from perdure.core.run_resume import CannotResume, Resumption
from perdure.messages import CarriedWork, PoolUse, Resumed, StepOutcome, TaskInput
from perdure.payloads import adapter
from perdure.pool_messages import LeaseRequest
from tests.core.rollback_kit import (
    REF,
    UNDO,
    Driver,
    back_to,
    chain,
    deployed,
    done,
    drive,
    kinds,
    step,
    task,
)
from tests.core.rollback_world import Chances, random_task
from tests.workflows.fake_pool import SHOP

LATER = replace(REF, run_id="aaaaaaaa-0000-4000-8000-000000000000")
FILES = CarriedWork(found=True, host="h", files=3)


def resumed(driver: Driver, step_id: str, files: CarriedWork | None = FILES) -> Driver:
    """The closed run, gone on with from a step."""
    driver.run.close(driver.now)
    return started(driver.run, driver.run.resumption(step_id), files, now=driver.now + 10)


def started(
    old: TaskRun, plan: Resumption, files: CarriedWork | None = FILES, now: float = 100.0
) -> Driver:
    given = TaskInput(
        old.task.to_dict(),
        "s",
        resumed=plan.start,
        pool=PoolUse() if old.task.environments else None,
        environments=[SHOP] if old.task.environments else [],
    )
    travelled = adapter(TaskInput).validate_json(
        adapter(TaskInput).dump_json(given, exclude_defaults=True)
    )
    made = Driver(TaskRun.of(travelled, LATER, now))
    made.now = now
    if files:
        assert made.run.work_due
        made.run.work_carried(files, now)
    return made


def failed_chain() -> Driver:
    """a -> b -> c, of which c has failed."""
    driver = drive(step("a"), step("b", "a"), step("c", "b"))
    for step_id in "ab":
        driver.go()
        driver.end(step_id, done(step_id, f"{step_id}1"))
    driver.go()
    driver.fail("c")
    assert driver.run.over
    return driver


def finish(driver: Driver) -> list[str]:
    """Let everything succeed; the steps that ran, in order."""
    ran = []
    while driver.go() or driver.flying:
        for step_id, dispatch in sorted(driver.flying.items()):
            driver.end(step_id, done(step_id, f"{step_id}{dispatch.attempt}"))
            ran.append(step_id)
    assert driver.run.over
    return ran


def grant(driver: Driver) -> None:
    (request,) = (w for w in driver.run.take_lease_words() if isinstance(w, LeaseRequest))
    instances = [GrantedInstance(1, "shop", "shop", "p-shop", {})]
    driver.run.lease_granted(
        Grant(request.request_id, request.holder, "h", instances, pool="default"), driver.now
    )


# --- What runs, and with what -----------------------------------------------------------------


def test_what_depends_on_the_step_runs_again_and_the_rest_counts_as_done() -> None:
    later = resumed(failed_chain(), "b")
    assert later.run.completed == 1
    assert later.run.context["results"] == {"a": "a1"}
    assert later.go() == ["b"]
    assert (later.flying["b"].attempt, later.flying["b"].epoch) == (2, 1)
    assert finish(later) == ["b", "c"]
    assert later.run.status == "succeeded"
    assert later.run.context["results"] == {"a": "a1", "b": "b2", "c": "c2"}
    assert [len(s["attempts"]) for s in later.run.record()["steps"]] == [1, 2, 2]


def test_a_run_that_succeeded_is_gone_on_with_as_well() -> None:
    """T46."""
    driver = drive(step("a"), step("b", "a"))
    finish(driver)
    later = resumed(driver, "b")
    assert finish(later) == ["b"]
    assert later.run.context["results"] == {"a": "a1", "b": "b2"}


def test_the_new_run_is_linked_to_the_old_one_and_keeps_its_marks() -> None:
    later = resumed(failed_chain(), "c")
    metadata, record = later.run.context["metadata"], later.run.record()
    assert metadata["resumed_from"] == {"run_id": REF.run_id, "step": "c"}
    assert record["resumed_from"] == {
        "run_id": REF.run_id,
        "step": "c",
        "work": {"found": True, "host": "h", "files": 3, "reason": ""},
    }
    (failure,) = metadata["failed_steps"]
    assert (failure["step_id"], failure["retried"]) == ("c", True)
    assert record["instance_id"] == later.run.context["instance_id"] == "t-aaaaaaaa"
    assert metadata["run_group_id"] == LATER.run_id.replace("-", "")
    assert record["attempt_epoch"] == 1
    assert kinds(later.run)[:3] == ["task.started", "task.resumed", "work.copied"]
    assert drive(step("a")).run.record()["resumed_from"] is None


def test_what_the_span_wrote_beside_its_results_is_gone() -> None:
    driver = drive(step("a"), step("b", "a"))
    driver.go()
    driver.end("a", StepOutcome("succeeded", [*done("a").diff, *deployed("one")]))
    driver.go()
    driver.end("b", StepOutcome("succeeded", [*done("b").diff, *deployed("two")]))
    later = resumed(driver, "b")
    names = [item["sandbox_id"] for item in later.run.context["deployed_sandboxes"]]
    assert names == ["one"]


def test_siblings_that_did_not_come_to_their_end_run_as_well() -> None:
    """T46."""
    driver = drive(step("a"), step("b"), step("c", "b"), step("d", "a"))
    driver.go()
    driver.end("a")
    driver.go()
    driver.fail("b")
    driver.end("d")
    driver.run.close(driver.now)
    plan = driver.run.resumption("d")
    assert (plan.span, plan.unfinished, plan.kept) == (("d",), ("b", "c"), ("a",))
    assert finish(started(driver.run, plan)) == ["b", "d", "c"]


def test_a_failure_that_was_tolerated_stays_one() -> None:
    driver = drive(step("a", fail_task_on_error=False), step("b", "a"))
    driver.go()
    driver.fail("a")
    driver.go()
    driver.end("b")
    later = resumed(driver, "b")
    assert later.run.record()["completed_steps"] == [{"step_id": "a", "status": "failure"}]
    assert finish(later) == ["b"]


def test_steps_before_the_runs_range_stay_out_of_it() -> None:
    old = Driver(TaskRun(task(step("a"), step("b"), step("c"), step("d")), REF, now=0.0,
                         start_step=1, end_step=3))  # fmt: skip
    finish(old)
    old.run.close(old.now)
    assert old.run.resumption("c").kept == ("a", "b")
    for outside in "ad":
        with pytest.raises(CannotResume, match="from 'b' to 'c'"):
            old.run.resumption(outside)


def test_a_run_that_was_resumed_is_resumed_again() -> None:
    first = resumed(failed_chain(), "b")
    first.go()
    first.end("b", done("b", "b2"))
    first.go()
    first.fail("c")
    first.run.close(first.now)
    second = started(first.run, first.run.resumption("c"))
    assert finish(second) == ["c"]
    assert second.run.record()["attempt_epoch"] == 2
    assert second.run.context["results"] == {"a": "a1", "b": "b2", "c": "c3"}
    assert second.run.context["metadata"]["resumed_from"]["run_id"] == LATER.run_id
    assert [f["retried"] for f in second.run.context["metadata"]["failed_steps"]] == [True, True]


# --- Environments -----------------------------------------------------------------------------


def test_files_that_a_cancelled_run_never_had_are_those_of_the_run_before() -> None:
    old = failed_chain()
    first = resumed(old, "b", files=None)
    assert first.run.work_due
    first.run.cancel("Ctrl-C", first.now)
    second = resumed(first, "b", files=None)
    third = resumed(second, "b")
    assert second.run.resumed
    assert third.run.resumed
    assert second.run.resumed.run_id == LATER.run_id
    assert second.run.resumed.files_of == third.run.resumed.files_of == REF.run_id
    finish(third)
    assert third.run.resumption("b").start.files_of is None


def test_who_used_an_environment_runs_again_since_environments_are_new() -> None:
    document = task(
        step("buy", uses=["shop"]),
        step("look", "buy", uses=[]),
        step("aside", uses=[]),
        step("last", "aside", uses=[]),
        environments=["shop"],
    )
    driver = Driver(TaskRun(document, REF, now=0.0, pool=PoolUse(), environments=[SHOP]))
    grant(driver)
    finish(driver)
    driver.run.close(driver.now)
    plan = driver.run.resumption("last")
    assert (plan.span, plan.widened, plan.kept) == (("last",), ("buy", "look"), ("aside",))
    later = started(driver.run, plan)
    assert later.go() == [], "it waits for its own lease"
    grant(later)
    assert sorted(finish(later)) == ["buy", "last", "look"]


def test_without_a_lease_nothing_is_widened() -> None:
    driver = drive(step("a"), step("b"))
    finish(driver)
    driver.run.close(driver.now)
    assert driver.run.resumption("b").kept == ("a",)


# --- What is refused --------------------------------------------------------------------------


def test_a_step_that_the_task_has_not_is_refused_with_the_nearest() -> None:
    driver = drive(step("agent"), step("check", "agent"))
    with pytest.raises(CannotResume, match=r"no step 'agnet'; did you mean 'agent'\?"):
        driver.run.resumption("agnet")
    with pytest.raises(CannotResume, match="its steps are agent, check"):
        driver.run.resumption("zzz")


def test_a_step_whose_secret_is_gone_must_run_again_itself() -> None:
    driver = drive(step("login"), step("use", "login"))
    driver.go()
    secret = {"op": "set", "path": ["metadata", "token"], "value": [{"$secret": "login:token"}]}
    driver.end("login", StepOutcome("succeeded", [*done("login").diff, secret]))
    driver.go()
    driver.end("use")
    driver.run.close(driver.now)
    with pytest.raises(CannotResume, match=r"step 'login' left a secret.* go on from 'login'"):
        driver.run.resumption("use")
    assert finish(started(driver.run, driver.run.resumption("login"))) == ["login", "use"]


# --- Together with rollbacks ------------------------------------------------------------------


def test_a_rollback_of_the_new_run_undoes_what_the_old_one_did() -> None:
    driver = drive(
        step("a", **UNDO), step("b", "a", **UNDO), step("c", "b", **back_to("a"), **UNDO)
    )  # fmt: skip
    driver.go()
    driver.end("a")
    driver.go()
    driver.end("b")
    driver.go()
    driver.run.cancel("enough", driver.now)
    driver.end("c", StepOutcome("cancelled"))
    later = resumed(driver, "c")
    later.go()
    later.fail("c")
    assert later.undo() == ["c#1.2 declared", "b#0.1 declared", "a#0.1 declared"]
    assert finish(later) == ["a", "b", "c"]
    assert later.run.record()["attempt_epoch"] == 2


def test_what_was_undone_by_a_rollback_without_an_end_runs_again() -> None:
    driver = chain()
    driver.fail("c")
    driver.stop()
    assert driver.undo(failing="b") == ["c#0.1 declared", "b#0.1 declared"]
    assert driver.run.over
    driver.run.close(driver.now)
    plan = driver.run.resumption("c")
    assert (plan.span, plan.kept) == (("b", "c"), ("a",))
    assert plan.not_undone == ("b", "c")


def test_retries_are_granted_anew() -> None:
    driver = chain(times=1)
    for _ in range(2):
        driver.fail("c")
        driver.stop()
        driver.undo()
        if driver.go():
            driver.end("b")
            driver.go()
    assert driver.run.over
    later = resumed(driver, "c")
    later.go()
    later.fail("c")
    assert later.run.is_rolling_back


# --- Files, and a continue-as-new -------------------------------------------------------------


def test_files_that_cannot_be_had_are_told_of() -> None:
    gone = CarriedWork(found=False, host="h", reason="they are on k")
    later = resumed(failed_chain(), "c", files=gone)
    assert kinds(later.run)[2] == "work.missing"
    assert later.run.note == "without the files of the earlier run: they are on k"
    assert not later.run.work_due


def test_only_what_the_kept_steps_created_is_taken_over() -> None:
    driver = drive(step("a", creates=["one"]), step("b", "a", creates=["two", "out/three"]))
    finish(driver)
    assert resumed(driver, "b").run.earlier_creates == ["two", "out/three"]


def test_a_run_that_continues_as_new_remembers_where_it_came_from() -> None:
    later = resumed(failed_chain(), "b")
    first = later.run
    assert first.resumed == Resumed(REF.run_id, "b", epoch=1, rev=first.resumed.rev)  # type: ignore[union-attr]
    state = {"run": first.state(), "host": ""}
    carried = TaskInput(first.task.to_dict(), "s", state=state, resumed=first.resumed)
    again = Driver(TaskRun.of(carried, LATER, 300.0))
    assert again.run.record() == first.record()
    assert not again.run.work_due
    assert finish(again) == ["b", "c"]


# --- Whatever the graph -----------------------------------------------------------------------


def written(token: str, step_id: str) -> StepOutcome:
    text = {"op": "edit", "path": ["prompt_responses"], "remove": [], "append": [token]}
    return StepOutcome("succeeded", [*done(step_id, token).diff, text])


def live(driver: Driver, chance: random.Random, failing: float) -> list[str]:
    """Let steps end in any order, some by a failure; the steps that were started."""
    ran: list[str] = []
    while True:
        ran += driver.go()
        while driver.run.is_rolling_back:
            driver.stop()
            driver.undo()
            driver.go()
        if not driver.flying:
            return ran
        step_id = chance.choice(sorted(driver.flying))
        if chance.random() < failing:
            driver.fail(step_id)
        else:
            token = f"{step_id}.{driver.flying[step_id].attempt}"
            driver.end(step_id, written(token, step_id))


@settings(max_examples=300)
@given(st.integers(1, 20), st.integers(0, 2**32), st.sampled_from([0.0, 0.15]))
def test_the_context_is_that_of_the_attempts_that_count_one_after_another(
    size: int, luck: int, failing: float
) -> None:
    chance = random.Random(luck)
    drawn = random_task(chance, size, Chances(fatal=0.5))
    steps = [
        {k: v for k, v in s.to_dict().items() if k not in ("retry_config", "uses", "retry")}
        for s in drawn.steps
    ]
    driver = drive(*steps)
    live(driver, chance, failing)
    driver.run.close(driver.now)
    from_step = chance.choice(drawn.steps).id
    plan = driver.run.resumption(from_step)
    before: dict[str, Any] = driver.run.context
    later = started(driver.run, plan)

    def texts(run: TaskRun) -> list[str]:
        found: list[str] = run.context["prompt_responses"]
        return found

    kept = [t for t in texts(driver.run) if t.partition(".")[0] in plan.kept]
    assert texts(later.run) == kept
    ran = live(later, chance, 0.0)
    assert not set(ran) & set(plan.kept)
    assert sorted([*ran, *plan.kept]) == sorted(s.id for s in drawn.steps)
    assert later.run.status == "succeeded"
    results = later.run.context["results"]
    assert {k: v for k, v in results.items() if k in plan.kept} == {
        k: v for k, v in before["results"].items() if k in plan.kept
    }
    assert texts(later.run) == [*kept, *(results[c["step_id"]] for c in _ended(later, plan))]


def _ended(later: Driver, plan: Resumption) -> list[dict[str, Any]]:
    return later.run.record()["completed_steps"][len(plan.kept) :]  # type: ignore[no-any-return]
