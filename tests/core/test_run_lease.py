"""Runs that take a lease of a pool, without a server."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease, Refuse
from perdure.core.run import BadStart, Dispatch, TaskRun
from perdure.core.summary import summarise
from perdure.messages import Holder, PoolUse, SlotGrant, StepOutcome
from perdure.names import SUITE_CANCELLED
from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseSeen
from tests.core.test_run import REF, done, failed, ids, task
from tests.workflows.fake_pool import MAIL, SHOP, definition

USE = PoolUse(pool="p", max_parallel=3)
HOLDER = Holder(REF.workflow_id, REF.run_id)


def start(*steps: dict[str, Any], environments: Any = (SHOP,), **options: Any) -> TaskRun:
    more = {key: options.pop(key) for key in ("on_instance_lost", "timeout") if key in options}
    made = task(*steps, **more)
    return TaskRun(made, REF, now=0.0, pool=USE, environments=environments, **options)


def request_of(run: TaskRun) -> LeaseRequest:
    (request,) = [word for word in run.take_lease_words() if isinstance(word, LeaseRequest)]
    return request


def grant_of(request: LeaseRequest, number: int = 1) -> Grant:
    instances = [
        GrantedInstance(
            number, "key", d["environment"]["name"], f"p{number}", dict.fromkeys(
                d["environment"]["ports"], 9000 + number
            ),
        )
        for d in request.environments
    ]  # fmt: skip
    return Grant(request.request_id, request.holder, "h", instances, "uuid", request.pool)


def loss_of(request: LeaseRequest, *names: str) -> LoseLease:
    return LoseLease(request.request_id, request.holder, "it died", [*names])


def begun(run: TaskRun, now: float = 0.0) -> tuple[LeaseRequest, list[Dispatch]]:
    """Granted, and its first steps dispatched."""
    request = request_of(run)
    assert run.lease_granted(grant_of(request), now)
    return request, run.take_ready(now)


def kinds(run: TaskRun) -> list[str]:
    return [event["type"] for event in run.events]


def test_a_run_asks_at_once_and_begins_with_its_lease() -> None:
    run = start({"id": "a"}, index=7)
    assert run.take_ready(0) == []
    request = request_of(run)
    assert request == LeaseRequest(
        "p", f"{REF.run_id}:1", HOLDER, [SHOP], "s", 3, "medium", index=7
    )
    assert run.take_lease_words() == []
    assert run.open_lease == request
    assert run.instances == []
    assert run.lease_granted(grant_of(request), 5)
    assert run.take_lease_words() == [LeaseSeen("p", request.request_id, HOLDER)]
    assert run.open_lease is None
    assert run.lease_host == "h"
    (instance,) = run.instances
    assert (instance.environment, instance.ports) == ("shop", {"SHOP_PORT": 9001})
    (a,) = run.take_ready(5)
    run.finish(a, done("a"), 6)
    run.close(6)
    assert run.take_lease_words() == [LeaseRelease("p", request.request_id, HOLDER)]
    assert run.record()["lease"]["waited_seconds"] == 5
    assert run.record()["instances"][0]["project"] == "p1"


def test_instances_are_in_the_order_of_the_tasks_environments() -> None:
    run = start({"id": "a"}, environments=[MAIL, SHOP])
    request = request_of(run)
    grant = grant_of(request)
    turned = Grant(grant.request_id, grant.holder, "h", grant.instances[::-1], "uuid", "p")
    run.lease_granted(turned, 0)
    assert [i.environment for i in run.instances] == ["mail", "shop"]


def test_a_loss_starts_the_run_over_when_all_that_ran_has_ended() -> None:
    """T51."""
    run = start(*({"id": name, "depends_on": []} for name in "ab"), {"id": "c"})
    first, (a, b) = begun(run)
    run.take_lease_words()
    run.finish(a, done("a", 1), 1)
    assert run.lease_lost(loss_of(first, "shop"), 2)
    assert run.is_parting
    assert run.take_ready(2) == []
    assert run.take_lease_words() == [LeaseSeen("p", first.request_id, HOLDER)]
    run.finish(b, StepOutcome("cancelled"), 3)
    assert not run.is_parting
    release, request = run.take_lease_words()
    assert release == LeaseRelease("p", first.request_id, HOLDER, {"shop": "it died"})
    assert isinstance(request, LeaseRequest)
    assert request.request_id == f"{REF.run_id}:2"
    assert run.context["results"] == {}
    assert run.context["metadata"]["leases_lost"][0]["reason"] == "it died"
    assert (run.epoch, run.restarts, run.completed) == (1, 1, 0)
    run.lease_granted(grant_of(request, 2), 9)
    again = run.take_ready(9)
    assert [(d.step.id, d.attempt, d.epoch) for d in again] == [("a", 2, 1), ("b", 2, 1)]
    assert run.record()["lease"]["waited_seconds"] == 6
    assert "task.restarted" in kinds(run)


def test_what_ends_after_the_loss_counts_for_nothing() -> None:
    retry = {"max_attempts": 5, "initial_interval": 0}
    run = start(*({"id": n, "depends_on": [], "retry": retry} for n in "abcd"))
    first, (a, b, c, d) = begun(run)
    run.lease_lost(loss_of(first, "shop"), 1)
    run.finish(a, done("a"), 2)
    run.finish(b, failed("no shop"), 2)
    run.lose(c, None, 2)
    run.interrupt(d, 2)
    run.lease_granted(grant_of(request_of(run)), 3)
    again = run.take_ready(3)
    assert ids(again) == ["a", "b", "c", "d"]
    assert all(dispatch.lost_attempts == () for dispatch in again), "another life's are no one's"
    for dispatch in again:
        run.finish(dispatch, done(dispatch.step.id), 4)
    assert run.status == "succeeded"


def test_a_failure_that_found_its_instance_dead_is_a_loss() -> None:
    run = start({"id": "a"}, environments=[SHOP, MAIL])
    first, (a,) = begun(run)
    gone = {"shop": "shop died", "mail": "mail died"}
    run.finish(a, StepOutcome("failed", failure=failed().failure, lost=gone), 1)
    words = run.take_lease_words()
    assert LeaseRelease("p", first.request_id, HOLDER, gone) in words
    assert run.failure is None
    assert run.record()["leases_lost"][0]["environments"] == ["shop", "mail"]
    # The pool finds out later: that is no second loss.
    assert not run.lease_lost(loss_of(first, "shop"), 2)
    assert run.restarts == 1
    assert run.take_lease_words() == [LeaseRelease("p", first.request_id, HOLDER)]


def test_one_loss_too_many_fails_the_run() -> None:
    run = start({"id": "a"})
    for number in (1, 2):
        request, (a,) = begun(run)
        run.lease_lost(loss_of(request, "shop"), number)
        run.finish(a, StepOutcome("cancelled"), number)
    assert run.over
    run.close(3)
    assert run.failure is not None
    assert (run.failure.type, run.failure.kind) == ("InstanceLost", "infrastructure")
    assert run.failure.message == "its environments were lost 2 times, the last time: it died"
    releases = [w for w in run.take_lease_words() if isinstance(w, LeaseRelease)]
    assert [r.broken for r in releases] == [{"shop": "it died"}]


def test_a_run_may_rather_fail_than_start_over() -> None:
    run = start({"id": "a"}, on_instance_lost="fail")
    request, (a,) = begun(run)
    run.lease_lost(loss_of(request, "shop"), 1)
    run.finish(a, done("a"), 1)
    assert run.status == "failed"


def test_a_run_that_is_cancelled_while_it_parts_does_not_start_over() -> None:
    run = start({"id": "a"})
    request, (a,) = begun(run)
    run.lease_lost(loss_of(request, "shop"), 1)
    run.cancel("enough", 2)
    run.finish(a, StepOutcome("cancelled"), 3)
    assert run.status == "cancelled"
    run.close(3)
    assert len([w for w in run.take_lease_words() if isinstance(w, LeaseRelease)]) == 1


def test_a_refusal_is_the_runs_failure() -> None:
    run = start({"id": "a"})
    request = request_of(run)
    refusal = Refuse(request.request_id, request.holder, "bad_input", "no such file", ["line"])
    assert run.lease_refused(refusal, 1)
    assert run.over
    run.close(1)
    assert run.take_lease_words() == [], "there is nothing to give back"
    summary = summarise(run)
    assert summary.failure_kind == "bad_input"
    assert summary.failure_reason == "no such file\nits log ends with:\nline"
    assert kinds(run)[-2:] == ["lease.refused", "task.failed"]


def test_only_a_run_that_has_not_begun_is_withdrawn() -> None:
    waiting = start({"id": "a"})
    assert waiting.withdraw(1)
    waiting.close(1)
    assert summarise(waiting).withdrawn
    assert [type(w) for w in waiting.take_lease_words()] == [LeaseRelease, LeaseRequest]
    with_its_suite, by_hand = start({"id": "a"}), start({"id": "a"})
    said = "Cancel requested by workflow with run id r with reason: "
    with_its_suite.cancel(said + SUITE_CANCELLED, 1)
    by_hand.cancel("somebody said so", 1)
    assert (with_its_suite.withdrawn, by_hand.withdrawn) == (True, False)
    running = start({"id": "a"})
    request, (a,) = begun(running)
    assert not running.withdraw(1)
    running.lease_lost(loss_of(request, "shop"), 1)
    running.finish(a, StepOutcome("cancelled"), 1)
    assert not running.withdraw(2), "it had begun before"
    assert not TaskRun(task({"id": "a"}), REF, now=0.0).withdraw(1)


def test_words_of_another_lease_change_nothing() -> None:
    run = start({"id": "a"})
    request = request_of(run)
    other = Holder(REF.workflow_id, "an earlier run")
    assert not run.lease_granted(Grant("other:1", other, "h", [], "uuid", "q"), 1)
    assert not run.lease_refused(Refuse("other:1", other, "environment", "no"), 1)
    assert not run.lease_lost(LoseLease("other:2", other, "gone", []), 1)
    assert run.take_lease_words() == [
        LeaseRelease("q", "other:1", other),
        LeaseRelease("p", "other:2", other),
    ]
    assert run.open_lease == request
    plain = TaskRun(task({"id": "a"}), REF, now=0.0)
    assert not plain.lease_granted(Grant("other:1", other, "h", [], "uuid", "q"), 1)
    assert plain.take_lease_words() == [LeaseRelease("q", "other:1", other)]


def test_the_clock_stands_still_while_the_run_waits_and_begins_anew_with_it() -> None:
    run = start({"id": "a"}, timeout=10)
    assert run.deadline is None
    first, (a,) = begun(run, 100)
    assert run.deadline == 110
    run.lease_lost(loss_of(first, "shop"), 109)
    assert run.deadline == 110
    run.finish(a, StepOutcome("cancelled"), 109)
    assert run.deadline is None
    run.lease_granted(grant_of(request_of(run)), 300)
    assert run.deadline == 310


def test_a_loss_gives_slots_back() -> None:
    steps = [{"id": n, "depends_on": [], "limit": "openai"} for n in "ab"]
    run = start(*steps, limits={"openai": 1})
    first, ready = begun(run)
    assert ready == []
    asks = run.take_asks()
    run.grant(SlotGrant("openai", asks[0].request_id))
    (a,) = run.take_ready(0)
    run.lease_lost(loss_of(first, "shop"), 1)
    run.finish(a, StepOutcome("cancelled"), 1)
    assert {r.request_id for r in run.take_releases()} == {ask.request_id for ask in asks}
    assert run.open_requests == []


def test_two_environments_of_one_variable_are_refused() -> None:
    """PD26: the last one would win unseen."""
    with pytest.raises(BadStart, match="SHOP_PORT is set by the environments shop and twin"):
        start({"id": "a"}, environments=[SHOP, definition("twin", "SHOP_PORT")])


@given(st.integers(0, 2**32))
def test_whatever_happens_every_lease_is_given_back_once_and_never_under_a_step(seed: int) -> None:
    chance = random.Random(seed)
    retry = {"max_attempts": 2, "initial_interval": 1}
    steps = [
        {"id": f"s{n}", "retry": retry, **({"depends_on": []} if chance.random() < 0.5 else {})}
        for n in range(4)
    ]
    run = start(*steps, on_instance_lost=chance.choice(["restart", "fail"]))
    asked: list[LeaseRequest] = []
    released: list[str] = []
    running: list[Dispatch] = []
    now = 0.0

    def listen() -> None:
        for word in run.take_lease_words():
            if isinstance(word, LeaseRequest):
                asked.append(word)
            elif isinstance(word, LeaseRelease) and word.holder == HOLDER:
                assert not running, "steps still use the instances"
                released.append(word.request_id)

    listen()
    while not run.over:
        now += 1
        if chance.random() < 0.2 and not running:  # over a continue-as-new
            state = run.state()
            run = start(*steps, on_instance_lost=run.task.on_instance_lost)
            run.restore(state)
        event = chance.random()
        if run.open_lease and event < 0.5:
            run.lease_granted(grant_of(run.open_lease, len(asked)), now)
        elif event < 0.6 and run.instances:
            run.lease_lost(loss_of(asked[-1], "shop"), now)
        elif event < 0.63:
            run.cancel("enough", now)
        elif event < 0.65:
            run.withdraw(now)
        running += run.take_ready(now)
        if running and chance.random() < 0.7:
            dispatch = running.pop(chance.randrange(len(running)))
            match chance.randrange(6):
                case 0:
                    run.finish(dispatch, failed(), now)
                case 1:
                    run.lose(dispatch, None, now)
                case 2:
                    dead = StepOutcome("failed", failure=failed().failure, lost={"shop": "dead"})
                    run.finish(dispatch, dead, now)
                case _:
                    run.finish(dispatch, done(dispatch.step.id), now)
        assert sorted(d.step.id for d in running) == run.running
        listen()
    run.close(now)
    running.clear()
    listen()
    assert released == [request.request_id for request in asked]
    assert len(asked) <= 2
    assert run.status == "succeeded" or run.failure or run.cancelled
