"""PoolWorkflow and InstanceWorkflow on a real server: leases, deaths, and what is left of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure.messages import Holder
from perdure.names import HOST_BEAT, instance_workflow_id
from perdure.pool_messages import (
    CountedSet,
    InstanceResult,
    LeaseRelease,
)
from tests.waiting import until
from tests.workflows.pool_kit import QUICK, Place, Task, env, place, with_port

BROKEN = InstanceResult(ok=False, reason="service web exited with 3", log=["boom"])


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[Place]:
    async with place(temporal.client) as made:
        yield made


# --- A lease ----------------------------------------------------------------------------------


async def test_a_task_gets_its_environments_as_if_they_were_new(here: Place) -> None:
    """P40: reset after the start, too."""
    task = await here.ask(env("a"), env("b"))
    grant = await task.hears("granted")
    assert grant["host"] == "h"
    assert [i["environment"] for i in grant["instances"]] == ["a", "b"]
    for number in (1, 2):
        done = [what for what, who in here.engine.calls if who == number]
        assert done == ["start", "reset"]
        assert here.engine.started_for[number] == task.holder.workflow_id
    await here.reaches(1, 0, 2)
    await task.release()
    await here.reaches(0, 0, 0)
    assert not here.engine.up
    await here.ends()


async def test_an_instance_goes_to_the_next_task_reset_and_not_started_again(here: Place) -> None:
    tasks = [await here.ask(env("a")) for _ in range(3)]
    for task in tasks:
        (instance,) = (await task.hears("granted"))["instances"]
        assert instance["instance"] == 1
        await task.release()
    await here.reaches(0, 0, 0)
    done = [what for what, _ in here.engine.calls]
    assert (done.count("start"), done.count("reset"), done.count("stop")) == (1, 3, 1)


async def test_what_was_idle_for_a_while_is_looked_at_and_replaced_if_it_is_not_well(
    here: Place,
) -> None:
    lasting = env("a", reset_endpoints=())
    await here.declare("s", keep_envs=True, environments={"a": lasting.to_json()})

    async def is_looked_at() -> bool:
        task = await here.ask(lasting)
        await task.hears("granted")
        await task.release()
        return ("check", 1) in here.engine.calls

    await until(is_looked_at, "a look before a grant")
    here.engine.fail["check"] = BROKEN
    task = await here.ask(lasting)
    assert [i["instance"] for i in (await task.hears("granted"))["instances"]] == [2]


async def test_a_slot_alone_needs_no_host(temporal: WorkflowEnvironment) -> None:
    async with place(temporal.client, host=False) as here:
        first, second = [await here.ask(max_parallel=1) for _ in range(2)]
        assert (await first.hears("granted"))["host"] is None
        assert "as many leases as it may" in await second.waits()
        await first.release()
        await second.hears("granted")


async def test_a_request_that_makes_no_sense_is_refused_and_the_pool_lives(here: Place) -> None:
    task = await here.ask(env("a", max_instances=0))
    refusal = await task.hears("refused")
    assert refusal["kind"] == "bad_input"
    assert "max_instances: 0" in refusal["reason"]
    odd = replace(task.asked, request_id=f"{task.holder.run_id}:2", environments=[{"no": "sense"}])
    await here.leases.acquire_lease(odd)

    async def hears_again() -> bool:
        return len(await task.heard()) == 2

    await until(hears_again)
    assert (await task.hears("refused"))["kind"] == "bad_input"
    await (await here.ask(env("a"))).hears("granted")


async def test_a_failed_environment_is_told_with_reason_and_log(here: Place) -> None:
    """PD6: what failed to start is stopped, and counts no longer."""
    here.engine.fail["start"] = BROKEN
    task = await here.ask(env("a"))
    refusal = await task.hears("refused")
    assert (refusal["kind"], refusal["log"]) == ("environment", ["boom"])
    assert refusal["reason"] == "environment a: service web exited with 3"
    await here.reaches(0, 0, 0)
    assert not here.engine.up
    del here.engine.fail["start"]
    await (await here.ask(env("a"))).hears("granted")


async def test_an_instance_that_cannot_be_reset_is_not_handed_out_again(here: Place) -> None:
    """PD16."""
    first = await here.ask(env("a"))
    await first.hears("granted")
    here.engine.fail["reset"] = BROKEN
    second = await here.ask(env("a"))
    await first.release()
    assert "exited with 3" in (await second.hears("refused"))["reason"]
    await here.reaches(0, 0, 0)
    assert not here.engine.up


async def test_what_a_task_calls_broken_is_stopped(here: Place) -> None:
    first, second = [await here.ask(env("a"), env("b", max_instances=None)) for _ in range(2)]
    await first.hears("granted")
    await first.release(a="its database is gone")
    numbers = [i["instance"] for i in (await second.hears("granted"))["instances"]]
    assert 1 not in numbers
    assert ("stop", 1) in here.engine.calls


async def test_a_dead_instance_takes_its_lease_with_it(here: Place) -> None:
    task = await here.ask(env("a"), env("b"))
    await task.hears("granted")
    here.engine.dead.add(1)
    loss = await task.hears("lost")
    assert loss["environments"] == ["a"]
    assert "exited with 137" in loss["reason"]
    again = await here.again(task)
    await task.release()
    await again.hears("granted")
    await again.release()
    await here.reaches(0, 0, 0)


# --- C13: holders that die, waiters that go -----------------------------------------------------


async def holder_and_waiters(here: Place) -> tuple[Task, Task, Task]:
    tasks = [await here.ask(env("a")) for _ in range(3)]
    await tasks[0].hears("granted")
    await here.reaches(1, 2, 1)
    return tasks[0], tasks[1], tasks[2]


async def test_the_lease_of_a_terminated_holder_goes_to_the_next(here: Place) -> None:
    """C13: the waiter between them left the queue at once."""
    a, b, c = await holder_and_waiters(here)
    await a.handle.terminate()
    await b.release()
    grant = await c.hears("granted")
    assert [i["instance"] for i in grant["instances"]] == [1]
    await here.reaches(1, 0, 1)
    assert not await b.heard()


async def test_a_terminated_waiter_leaves_the_queue(here: Place) -> None:
    """C13."""
    _, b, _ = await holder_and_waiters(here)
    await b.handle.terminate()
    await here.reaches(1, 1, 1)


async def test_a_second_or_foreign_release_changes_nothing(here: Place) -> None:
    """C13, PD2."""
    a, b, c = await holder_and_waiters(here)
    foreign = LeaseRelease(here.pool, a.asked.request_id, c.holder)
    await here.leases.release_lease(foreign)
    await here.leases.release_lease(replace(foreign, holder=Holder(a.holder.workflow_id, "late")))
    await here.leases.release_lease(replace(foreign, request_id="never heard of"))
    await here.reaches(1, 2, 1)
    await a.release()
    await b.hears("granted")
    await a.release()
    await here.reaches(1, 1, 1)
    assert [kind for kind, _ in await c.heard()] == []


async def test_a_slow_holder_is_not_robbed(here: Place) -> None:
    """C13: it is looked at again and again, and lives."""
    await holder_and_waiters(here)

    async def probes() -> int:
        history = await here.handle.fetch_history()
        return sum(
            event.activity_task_scheduled_event_attributes.activity_type.name == "probe_holders"
            for event in history.events
        )

    async def is_looked_at() -> bool:
        return await probes() >= 4

    await until(is_looked_at, "looks at the holders")
    assert await here.counts() == (1, 2, 1)


async def test_a_holder_that_dies_between_request_and_grant_gets_nothing(here: Place) -> None:
    """C13: its grant finds nobody, and comes back at once."""
    here.engine.hold.add("start")
    a, b = [await here.ask(env("a")) for _ in range(2)]
    await here.reaches(0, 2, 1)
    await a.handle.terminate()
    here.engine.hold.clear()
    await b.hears("granted")
    await here.reaches(1, 0, 1)


async def test_a_holder_that_was_born_again_is_another(here: Place) -> None:
    """C13: the lease of the dead one comes back, though its workflow id is open."""
    a, b, _ = await holder_and_waiters(here)
    await a.handle.terminate()
    reborn = await here.client.start_workflow(
        "HolderWorkflow", id=a.handle.id, task_queue=f"{here.queue}/t"
    )
    await b.hears("granted")
    assert await reborn.query("heard") == []


async def test_a_waiter_that_asks_twice_waits_once(here: Place) -> None:
    _, b, _ = await holder_and_waiters(here)
    for _ in range(3):
        await here.leases.acquire_lease(b.asked)
    await here.reaches(1, 2, 1)


# --- Deaths of instances, of the pool, of hosts -------------------------------------------------


async def terminate(here: Place, number: int, name: str = "a") -> None:
    workflow_id = instance_workflow_id(here.pool, name, number)
    await here.client.get_workflow_handle(workflow_id).terminate()


async def test_an_instance_whose_workflow_is_terminated_is_stopped_by_another(here: Place) -> None:
    task = await here.ask(env("a"))
    await task.hears("granted")
    await terminate(here, 1)
    loss = await task.hears("lost")
    assert "ended by hand" in loss["reason"]
    await until(lambda: ("stop", 1) in here.engine.calls, "the stop")
    await task.release()
    await here.reaches(0, 0, 0)
    assert not here.engine.up


async def test_an_instance_that_is_terminated_while_it_starts_is_replaced(here: Place) -> None:
    here.engine.hold.add("start")
    task = await here.ask(env("a"))
    await until(lambda: here.engine.up, "a start")
    await terminate(here, 1)
    here.engine.hold.clear()
    (instance,) = (await task.hears("granted"))["instances"]
    assert instance["instance"] == 2
    assert here.engine.most_up["a"] == 1


async def test_a_pool_that_was_terminated_is_asked_again_and_starts_anew(here: Place) -> None:
    """Names of its instances are given again only when the old ones are gone."""
    a, b, _ = await holder_and_waiters(here)
    await here.handle.terminate()
    assert await here.leases.remind_pool(b.asked) == "unknown"
    grant = await b.hears("granted")
    assert [i["instance"] for i in grant["instances"]] == [2]
    assert await here.leases.remind_pool(b.asked) == "granted"
    await a.release()  # the new pool does not know of it
    await here.reaches(1, 0, 1)


async def test_a_host_that_is_gone_loses_its_leases_to_another(
    temporal: WorkflowEnvironment,
) -> None:
    times = replace(QUICK, host_away_seconds=6.0, host_gone_seconds=8.0)
    async with place(temporal.client, times, host=False) as here:
        task = await here.ask(env("a"))
        assert await task.waits() == "no host is there"
        first = await here.host("h1")
        assert (await task.hears("granted"))["host"] == "h1"
        await here.host("h2")
        first.is_silent = True
        assert "its host h1 is gone" in (await task.hears("lost"))["reason"]
        again = await here.again(task)
        await task.release()

        async def is_granted() -> bool:
            return len(await again.heard()) == 3

        await until(is_granted, "another lease")
        assert (await again.hears("granted"))["host"] == "h2"
        old = here.client.get_workflow_handle(instance_workflow_id(here.pool, "a", 1))

        async def is_ended() -> bool:
            return (await old.describe()).status is WorkflowExecutionStatus.TERMINATED

        await until(is_ended, "the end of the lost instance's workflow")
        # When it returns, all is swept that is left there; but the other may share its engine.
        first.is_silent = False
        await until(lambda: first.swept, "the sweep")
        assert [(sweep.keep, sweep.before) for sweep in first.swept] == [([2], 3)]


async def test_a_request_that_is_bound_to_a_host_waits_for_it(here: Place) -> None:
    task = await here.ask(env("a"), host="other")
    assert await task.waits() == "host other is not there"
    await here.host("other")
    assert (await task.hears("granted"))["host"] == "other"


async def test_who_asks_through_a_worker_that_binds_gets_its_host(here: Place) -> None:
    await here.host("other", free_gb=100.0)
    for number in range(3):
        task = await here.ask(env(f"e{number}"), bind=True)
        assert (await task.hears("granted"))["host"] == "h"


async def test_a_worker_that_joins_sweeps_all_but_what_is_there(here: Place) -> None:
    task = await here.ask(env("a"))
    await task.hears("granted")
    before = len(here.engine.swept)
    here.engine.beat = replace(here.engine.beat, worker="another")
    await here.beat(here.engine)
    await here.beat(here.engine)
    await until(lambda: len(here.engine.swept) > before, "the sweep")
    assert (here.engine.swept[-1].keep, here.engine.swept[-1].before) == ([1], 2)
    assert len(here.engine.swept) == before + 1


async def test_ports_that_somebody_else_has_are_exchanged(here: Place) -> None:
    """C03: no run fails for it."""
    here.engine.fail["start"] = InstanceResult(ok=False, reason="in use", taken_ports=[18080])
    task = await here.ask(with_port("a", 18080))
    await until(lambda: here.engine.calls.count(("start", 1)) >= 2, "another try")
    here.engine.fail.clear()
    (instance,) = (await task.hears("granted"))["instances"]
    assert instance["ports"]["A_PORT"] != 18080


# --- Suites -------------------------------------------------------------------------------------


async def test_a_paused_suite_gets_nothing_and_goes_on_when_resumed(here: Place) -> None:
    await here.declare("s", max_parallel=0)
    task = await here.ask(env("a"))
    assert await task.waits() == "suite s is paused"
    other = await here.ask(env("a"), suite="another")
    await other.hears("granted")
    await other.release()
    assert not await task.heard()
    await here.declare("s", max_parallel=1)
    await task.hears("granted")


async def test_who_is_prioritised_comes_first(here: Place) -> None:
    a, b, c = await holder_and_waiters(here)
    await here.declare("s", prioritised=[c.holder.workflow_id])
    await a.release()
    await c.hears("granted")
    assert not await b.heard()


async def test_demand_of_a_closed_suite_is_forgotten(here: Place) -> None:
    definition = env("a", max_instances=None).to_json()
    coming = [CountedSet(["a"], 5)]
    await here.declare("s", max_parallel=0, coming=coming, environments={"a": definition})
    stats = await here.handle.query("stats")
    assert stats["pending_tasks"] == 5
    task = await here.ask(env("a", max_instances=None))
    assert await task.waits() == "suite s is paused"
    await here.suites["s"].terminate()
    await task.hears("granted")  # nobody else could resume it
    await task.release()
    await here.ends()


async def test_kept_environments_stay_until_they_are_stopped(here: Place) -> None:
    await here.declare("s", keep_envs=True, environments={"a": env("a").to_json()})
    task = await here.ask(env("a"))
    await task.hears("granted")
    await task.release()
    await here.declare("s", over=True)
    await here.reaches(0, 0, 1)
    assert await here.wish("stop", "a") == "1 instance of a being stopped"
    await here.reaches(0, 0, 0)
    await here.ends()


# --- People -------------------------------------------------------------------------------------


async def test_people_can_reset_prepare_sweep_and_shut_down(here: Place) -> None:
    await (await here.ask(suite="other")).hears("granted")
    answer = await here.wish("prewarm", "a", count=1, definition=env("a").to_json())
    assert answer == "1 instance of a kept ready from now on"
    await until(lambda: ("start", 1) in here.engine.calls, "the start")

    async def is_clean() -> bool:
        return [i["doing"] for i in (await here.view())["instances"]] == ["clean"]

    await until(is_clean, "an instance that is ready")
    before = here.engine.calls.count(("reset", 1))
    assert await here.wish("reset", "a") == "1 idle instance of a being reset"
    await until(lambda: here.engine.calls.count(("reset", 1)) > before, "the reset")
    assert "removed from h" in await here.wish("sweep")
    task = await here.ask(env("a"))
    await task.hears("granted")
    answer = await here.wish("shutdown")
    assert answer.startswith("the pool shuts down: 1 instance being stopped, 2 leases taken back")
    assert "shut down" in (await task.hears("lost"))["reason"]
    await here.ends()
    assert not here.engine.up


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("reset", {}, "the pool has no instance"),
        ("stop", {"environment": "x"}, "the pool knows no environment 'x'; it has: none"),
        ("prewarm", {"environment": "x", "count": 1}, "send its definition"),
        ("prewarm", {"definition": env("x").to_json(), "count": 2}, "at most 1"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused_with_the_reason(
    here: Place, kind: str, more: dict[str, object], why: str
) -> None:
    await (await here.ask(suite="other")).hears("granted")
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await here.wish(kind, **more)
    assert why in str(caught.value.cause)


async def test_figures_add_up(here: Place) -> None:
    """PD14, P51."""
    a, b, _ = await holder_and_waiters(here)
    await a.release()
    await b.hears("granted")
    stats = await here.handle.query("stats")
    assert stats == {
        "total_tasks": 3,
        "pending_tasks": 1,
        "running_tasks": 1,
        "completed_tasks": 1,
        "total_instances": 1,
        "available_instances": 0,
        "in_use_instances": 1,
        "instances_by_env": {"a": 1},
    }
    ticket = await here.handle.query("ticket", "unheard of")
    assert ticket == {"state": "unknown", "reason": ""}


# --- Load -----------------------------------------------------------------------------------------


async def test_nothing_is_lost_over_continue_as_new(temporal: WorkflowEnvironment) -> None:
    """With runs of forty events: pool and instances, many times."""
    async with place(temporal.client, replace(QUICK, history_limit_events=40)) as here:
        environments = [env("a", 2), env("b", 1), env("c", 2)]
        pick = random.Random(1)
        wishes = [pick.sample(environments, pick.randint(1, 2)) for _ in range(10)]
        granted = await asyncio.gather(*(here.work_through(2, *wish) for wish in wishes))
        assert granted == [["1", "2"]] * 10
        await here.reaches(0, 0, 0)
        assert all(most <= 2 for most in here.engine.most_up.values())
        assert here.engine.most_up["b"] == 1
        assert not here.engine.up
        assert (await here.handle.query("stats"))["completed_tasks"] == 20
        described = await here.handle.describe()
        assert described.raw_description.workflow_execution_info.first_run_id != described.run_id
        await here.ends()


async def test_many_may_wait(temporal: WorkflowEnvironment) -> None:
    environments = [env(f"e{number}", 4, reset_endpoints=()) for number in range(3)]
    async with place(temporal.client, host=False) as here:
        asking = [
            asyncio.create_task(here.work_through(1, environments[number % 3]))
            for number in range(60)
        ]

        async def all_wait() -> bool:
            try:
                return len((await here.view())["waiting"]) == len(asking)
            except RPCError:  # nobody has asked yet, so there is no pool
                return False

        await until(all_wait, "all have asked")
        engine = await here.host("h")
        assert await asyncio.gather(*asking) == [["1"]] * 60
        await here.reaches(0, 0, 0)
        assert max(engine.most_up.values()) <= 4
        starts = sum(what == "start" for what, _ in engine.calls)
        assert starts <= 12, "instances are used again and again"


async def test_a_pool_without_work_is_gone_and_comes_back(here: Place) -> None:
    task = await here.ask(env("a"))
    await task.hears("granted")
    await task.release()
    await here.ends()
    with pytest.raises(RPCError):
        await here.handle.signal(HOST_BEAT, here.engine.beat)
    await here.leases.release_lease(LeaseRelease(here.pool, "x", task.holder))
    await (await here.ask(env("a"))).hears("granted")
