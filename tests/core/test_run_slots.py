"""Steps that take slots of named limits, without a server."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits import Limit
from perdure.core.run import TaskRun, UnknownLimit
from perdure.messages import SlotGrant, SlotRequest
from tests.core.test_run import REF, done, failed, ids, task

LIMITS = {"openai": 1}


def start(*steps: dict[str, Any], limits: dict[str, int] = LIMITS, **options: Any) -> TaskRun:
    return TaskRun(task(*steps), REF, now=0.0, limits=limits, **options)


def grant_of(request: SlotRequest) -> SlotGrant:
    return SlotGrant(request.limit, request.request_id)


def side_by_side(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": name, "depends_on": [], "limit": "openai", **more} for name in names]


def test_a_step_with_a_limit_asks_for_a_slot_and_starts_when_it_comes() -> None:
    run = start({"id": "a", "limit": "openai"}, {"id": "b"})
    assert run.take_ready(0) == []
    (request,) = run.take_asks()
    assert request == SlotRequest(
        limit="openai",
        request_id=f"{REF.run_id}:a#0.1",
        slots=1,
        holder=REF.workflow_id,
        holder_run_id=REF.run_id,
    )
    assert run.take_asks() == []
    assert run.progress()["waiting_for"] == {"a": "openai"}
    assert run.progress()["waiting"] == ["a"]
    assert run.grant(grant_of(request))
    (a,) = run.take_ready(5)
    run.finish(a, done("a"), 9)
    (release,) = run.take_releases()
    assert release.request_id == request.request_id
    (b,) = run.take_ready(9)
    run.finish(b, done("b"), 9)
    assert run.take_releases() == []
    assert run.status == "succeeded"
    step = run.record()["steps"][0]
    assert (step["waited"], step["duration"]) == (5, 4)
    assert [(e["type"], e["at"]) for e in run.events if e.get("step") == "a"] == [
        ("step.waiting", 0),
        ("step.started", 5),
        ("step.completed", 9),
    ]


def test_a_retry_gives_its_slot_back_and_asks_anew() -> None:
    run = start({"id": "a", "limit": "openai", "retry": {"max_attempts": 2}})
    run.take_ready(0)
    (first,) = run.take_asks()
    run.grant(grant_of(first))
    (a,) = run.take_ready(0)
    run.finish(a, failed(), 1)
    assert [r.request_id for r in run.take_releases()] == [first.request_id]
    assert run.take_ready(1) == []
    assert run.take_asks() == [], "not before its delay"
    assert run.take_ready(2) == []
    (second,) = run.take_asks()
    assert second.request_id.endswith(":a#0.2")


def test_a_lost_worker_gives_the_slot_back() -> None:
    run = start({"id": "a", "limit": "openai"})
    run.take_ready(0)
    (first,) = run.take_asks()
    run.grant(grant_of(first))
    (a,) = run.take_ready(0)
    run.lose(a, None, 1)
    assert len(run.take_releases()) == 1
    run.take_ready(1)
    assert len(run.take_asks()) == 1


def test_a_grant_that_nobody_waits_for_is_given_back() -> None:
    run = start(*side_by_side("a"))
    assert not run.grant(SlotGrant("openai", "another-run:a#0.1"))
    plain = TaskRun(task({"id": "a"}), REF, now=0.0)
    assert not plain.grant(SlotGrant("openai", "another-run:a#0.1"))
    for one in (run, plain):
        assert [r.request_id for r in one.take_releases()] == ["another-run:a#0.1"]


def test_a_grant_told_twice_leaves_the_slot_with_its_step() -> None:
    run = start(*side_by_side("a"))
    run.take_ready(0)
    (request,) = run.take_asks()
    assert run.grant(grant_of(request))
    assert not run.grant(grant_of(request))
    (a,) = run.take_ready(0)
    assert not run.grant(grant_of(request))
    assert run.take_releases() == []
    run.finish(a, done("a"), 2)
    assert not run.grant(grant_of(request))
    assert {r.request_id for r in run.take_releases()} == {request.request_id}


def test_a_halted_run_leaves_the_queues_and_gives_back_what_it_has_not_used() -> None:
    run = start(*side_by_side("a", "b", "c"), limits={"openai": 3})
    run.take_ready(0)
    asks = run.take_asks()
    run.grant(grant_of(asks[0]))
    (a,) = run.take_ready(0)
    run.grant(grant_of(asks[1]))
    run.cancel("enough", 4)
    assert [r.request_id[-5:] for r in run.take_releases()] == ["c#0.1", "b#0.1"]
    run.finish(a, done("a"), 5)
    assert [r.request_id[-5:] for r in run.take_releases()] == ["a#0.1"]
    run.close(5)
    steps = run.record()["steps"]
    assert [(s["status"], s["waited"]) for s in steps] == [
        ("succeeded", 0),
        ("not_run", 4),
        ("not_run", 4),
    ]
    assert not run.grant(grant_of(asks[2]))
    assert len(run.take_releases()) == 1


def test_a_fatal_failure_leaves_the_queues() -> None:
    run = start({"id": "x", "depends_on": []}, *side_by_side("a"))
    (x,) = run.take_ready(0)
    run.finish(x, failed(), 1)
    assert len(run.take_releases()) == 1
    assert run.over


def test_the_tasks_time_stands_still_while_it_only_waits_for_slots() -> None:
    run = start(*side_by_side("a", "b"), timeout_seconds=10)
    assert run.deadline == 10
    run.take_ready(2)
    assert run.deadline is None
    a, b = run.take_asks()
    run.grant(grant_of(a))
    (first,) = run.take_ready(102)
    assert run.deadline == 110
    run.finish(first, done("a"), 104)
    assert run.deadline is None, "one waits again, and nothing runs"
    run.grant(grant_of(b))
    run.take_ready(204)
    assert run.deadline == 210


def test_of_two_time_limits_the_shorter_counts() -> None:
    short = TaskRun(task({"id": "a"}, timeout=5), REF, now=0.0, timeout_seconds=9)
    assert (short.timeout_seconds, short.deadline) == (5, 5)
    long = TaskRun(task({"id": "a"}, timeout=50), REF, now=0.0, timeout_seconds=9)
    assert long.timeout_seconds == 9
    assert TaskRun(task({"id": "a"}), REF, now=0.0).deadline is None


def test_a_restored_run_keeps_its_place_in_the_queue_and_its_unused_slot() -> None:
    run = start(*side_by_side("a", "b"), timeout_seconds=10)
    run.take_ready(0)
    a, b = run.take_asks()
    run.grant(grant_of(a))
    restored = start(*side_by_side("a", "b"), timeout_seconds=10)
    restored.restore(run.state())
    assert ids(restored.take_ready(4)) == ["a"]
    assert restored.take_asks() == []
    assert restored.progress()["waiting_for"] == {"b": "openai"}
    assert restored.grant(grant_of(b))
    assert ids(restored.take_ready(5)) == ["b"]
    assert restored.deadline == 14
    assert [s["waited"] for s in restored.record()["steps"]] == [4, 5]


def test_a_limit_without_a_number_is_refused_and_named() -> None:
    with pytest.raises(UnknownLimit, match=r"step 'a' .* 'openai'.*--limit openai=N"):
        start(*side_by_side("a"), limits={"other": 1})
    with pytest.raises(UnknownLimit, match="at least 1"):
        start(*side_by_side("a"), limits={"openai": 0})
    start({"id": "a"}, *side_by_side("b"), limits={}, end_step=1)


@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_any_order_of_events_ends_the_run_and_returns_every_slot(
    luck: int, slots: int, cancels: bool
) -> None:
    chance = random.Random(luck)
    steps = [
        {
            "id": f"s{number}",
            **({"depends_on": []} if chance.random() < 0.7 else {}),
            **({"limit": "openai"} if chance.random() < 0.7 else {}),
            "retry": {"max_attempts": 2, "initial_interval": 1},
            "fail_task_on_error": chance.random() < 0.3,
        }
        for number in range(chance.randrange(1, 8))
    ]
    limits = {"openai": slots}
    run, limit, now = start(*steps, limits=limits), Limit(), 0.0
    flying, told = [], []
    while not run.over:
        now += 0.5
        for release in run.take_releases():
            limit.release(release.request_id)
        if not flying and chance.random() < 0.3:
            fresh = start(*steps, limits=limits)
            fresh.restore(run.state())
            run = fresh
        flying += run.take_ready(now)
        assert sum(1 for d in flying if d.step.limit) <= slots
        for request in run.take_asks():
            limit.request(request, now)
        told += limit.take_grants(now)
        if told and chance.random() < 0.7:
            grant = told[0] if chance.random() < 0.2 else told.pop(0)  # some come twice
            run.grant(grant)
        if cancels and chance.random() < 0.05:
            run.cancel("enough", now)
        if flying and chance.random() < 0.6:
            dispatch = flying.pop(chance.randrange(len(flying)))
            kind = chance.random()
            if kind < 0.6:
                run.finish(dispatch, done(dispatch.step.id), now)
            elif kind < 0.8:
                run.finish(dispatch, failed(), now)
            else:
                run.interrupt(dispatch, now)
    run.close(now)
    for grant in told:
        run.grant(grant)
    for request in run.take_asks():
        limit.request(request, now)
    for release in run.take_releases():
        limit.release(release.request_id)
    assert limit.idle
