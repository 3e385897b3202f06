"""A suite and its pool: what it tells it, how many wait there, and how they are called off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure.messages import Holder, PoolUse, TaskOptions
from perdure.pool_messages import SetDemand
from tests.waiting import until
from tests.workflows.fake_pool import MAIL, SHOP, FakePool
from tests.workflows.fakes import World, task_document, world
from tests.workflows.pool_kit import Place, env, place
from tests.workflows.test_suite_control import agreed, ask, ended, result_of, starts

USE = PoolUse("recorded", max_parallel=2, keep_envs=True, local_words=True)


@pytest.fixture
async def pool(temporal: WorkflowEnvironment) -> FakePool:
    return FakePool(temporal.client)


@pytest.fixture
async def here(temporal: WorkflowEnvironment, pool: FakePool) -> AsyncIterator[World]:
    async with world(temporal.client, pool=pool.activities) as made:
        yield made


def tasks(count: int, play: str = "ok", first: int = 0, **more: Any) -> list[dict[str, Any]]:
    more = {"environments": ["shop"], **more}
    ids = [f"t{number}" for number in range(first, first + count)]
    return [task_document(id, {"id": "a", "play": [play]}, **more) for id in ids]


async def start(here: World, documents: list[dict[str, Any]], **more: Any) -> Any:
    environments = {"shop": SHOP, "mail": MAIL}
    more = {"max_parallel": 2, "pool": USE, "environments": environments, **more}
    return await here.start_suite(documents, **more)


async def hears(pool: FakePool, **facts: Any) -> SetDemand:
    """The pool's newest word of the suite, once it says so."""

    def is_so() -> bool:
        last = pool.demands[-1] if pool.demands else None
        return last is not None and all(getattr(last, key) == facts[key] for key in facts)

    await until(is_so, f"the pool hears {facts}; it heard {pool.demands[-1:]}")
    return pool.demands[-1]


async def test_all_tasks_ask_the_pool_and_it_is_told_what_the_suite_needs(
    here: World, pool: FakePool
) -> None:
    documents = [*tasks(3), *tasks(1, first=3, environments=["shop", "mail"])]
    handle = await start(here, [*documents, task_document("plain", {"id": "a"})])
    await pool.asked(5)
    by_task = {request.holder.workflow_id.split("/")[2]: request for request in pool.requests}
    assert [request.max_parallel for request in pool.requests] == [2] * 5
    assert by_task["t0"].environments == [SHOP]
    assert by_task["t3"].environments == [SHOP, MAIL]
    assert by_task["plain"].environments == []
    first = pool.demands[0]
    assert sum(some.count for some in first.coming) == 5, "none has asked yet"
    holder = Holder(handle.id, handle.first_execution_run_id)
    assert (first.pool, first.suite, first.holder) == ("recorded", handle.id[6:], holder)
    assert (first.max_parallel, first.keep_envs) == (2, True)
    assert first.environments == {"shop": SHOP, "mail": MAIL}
    await hears(pool, coming=[])
    for request in pool.requests:
        await pool.grant(request)
    assert (await result_of(here, handle)).succeeded == 5
    assert [demand.over for demand in pool.demands[-2:]] == [False, True]
    assert pool.demands[-1].holder == holder


async def test_what_people_ask_of_the_suite_reaches_its_pool(here: World, pool: FakePool) -> None:
    handle = await start(here, tasks(3))
    await pool.asked(3)
    await ask(here, handle, "pause")
    await hears(pool, max_parallel=0)
    await ask(here, handle, "set_max_parallel", 3)
    await ask(here, handle, "resume")
    await hears(pool, max_parallel=3)
    told = await ask(here, handle, "prioritise", "t1")
    assert told == "task 't1' is next, unless it has its environments already"
    name = handle.id.replace("suite/", "task/")
    await hears(pool, prioritised=[f"{name}/t1/1"])
    await ask(here, handle, "prioritise", "t2")
    await hears(pool, prioritised=[f"{name}/t1/1", f"{name}/t2/1"])
    await agreed(here, handle)
    for request in pool.requests:
        await pool.grant(request)
    assert (await result_of(here, handle)).succeeded == 3


async def test_a_suite_at_its_limit_calls_off_the_tasks_that_wait(
    here: World, pool: FakePool
) -> None:
    documents = [*tasks(1, "fail"), *tasks(1, "hold", first=1), *tasks(3, first=2)]
    handle = await start(here, documents, max_failures=1)
    await pool.asked(5)
    by_task = {request.holder.workflow_id.split("/")[2]: request for request in pool.requests}
    await pool.grant(by_task["t1"])
    await until(lambda: here.running == 1)
    await pool.grant(by_task["t0"])
    await until(lambda: len(pool.releases) == 4)
    await hears(pool, max_parallel=0, coming=[])
    here.open = True
    result = await result_of(here, handle)
    assert (result.succeeded, result.failed, result.cancelled, result.not_run) == (1, 1, 0, 3)
    assert sorted(starts(here)) == ["t0", "t1"]
    assert here.suites[-1].stopped == "1 failure (max_failures: 1)"
    assert sorted(trial.task_id for trial in here.suites[-1].trials) == ["t0", "t1"]
    for number in (2, 3, 4):
        task = here.client.get_workflow_handle(by_task[f"t{number}"].holder.workflow_id)
        assert (await task.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_tasks_are_called_off_over_a_continue_as_new_too(here: World, pool: FakePool) -> None:
    options = TaskOptions(history_limit_events=30)
    documents = [*tasks(1, "fail"), *tasks(6, first=1)]
    handle = await start(here, documents, max_failures=1, options=options)
    await pool.asked(7)

    async def continued() -> bool:
        return bool((await handle.describe()).run_id != handle.first_execution_run_id)

    for request in pool.requests:
        if "/t1/" in request.holder.workflow_id:
            await pool.grant(request)
    await until(continued)
    for request in pool.requests:
        if "/t0/" in request.holder.workflow_id:
            await pool.grant(request)
    result = await result_of(here, handle)
    assert (result.succeeded, result.failed, result.not_run) == (1, 1, 5)
    assert pool.demands[-1].over
    assert len({demand.holder for demand in pool.demands}) == 1, "of the chain, not of a run"


async def test_a_cancelled_suite_gives_everything_back_and_says_that_it_is_over(
    here: World, pool: FakePool
) -> None:
    handle = await start(here, tasks(4, "hang"))
    await pool.grant(await pool.asked(4))
    await until(lambda: here.running == 1)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    progress = await agreed(here, handle)
    assert (progress.cancelled, progress.not_run) == (1, 3), "three only waited"
    assert {r.request_id for r in pool.releases} == {r.request_id for r in pool.requests}
    assert pool.demands[-1].over
    assert [demand.max_parallel for demand in pool.demands if not demand.over][-1] == 0


async def test_a_trial_that_the_infrastructure_failed_asks_again_and_is_counted_meanwhile(
    here: World, pool: FakePool
) -> None:
    pool.at_once = True
    document = task_document("t", {"id": "a", "runs": ["infra", "ok"]}, environments=["shop"])
    handle = await start(here, [document], retry_infrastructure=1)
    assert (await result_of(here, handle)).succeeded == 1
    assert len({request.request_id for request in pool.requests}) == 2


async def test_a_pool_that_has_forgotten_the_suite_is_told_again(
    here: World, pool: FakePool
) -> None:
    options = TaskOptions(slot_reminder_seconds=0.2)
    handle = await start(here, tasks(2), options=options)
    await pool.asked(2)
    await ask(here, handle, "pause")
    await hears(pool, max_parallel=0, coming=[])
    known = len(pool.demands)
    await until(lambda: len(pool.demands) >= known + 2)
    assert [demand.max_parallel for demand in pool.demands[known:]] == [0] * len(
        pool.demands[known:]
    )
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()


async def test_a_suite_without_environments_knows_no_pool(here: World, pool: FakePool) -> None:
    handle = await here.start_suite([task_document("t", {"id": "a"})])
    assert (await result_of(here, handle)).succeeded == 1
    assert (pool.demands, pool.requests) == ([], [])


# --- With a pool that decides -----------------------------------------------------------------


@pytest.fixture
async def real(temporal: WorkflowEnvironment) -> AsyncIterator[Place]:
    async with place(temporal.client) as made:
        yield made


def words(real: Place) -> list[Any]:
    """What tasks and suites tell a real pool by."""
    leases = real.leases
    return [
        *(leases.acquire_lease, leases.release_lease),
        *(leases.remind_pool, leases.set_demand),
    ]


async def test_a_suite_keeps_its_limits_and_leaves_nothing_behind(
    temporal: WorkflowEnvironment, real: Place
) -> None:
    shop, mail = env("shop", 2), env("mail", 1)
    documents = [*tasks(8), *tasks(3, first=8, environments=["shop", "mail"])]
    async with world(temporal.client, pool=words(real)) as here:
        handle = await start(
            here,
            documents,
            max_parallel=3,
            pool=PoolUse(real.pool, max_parallel=3, local_words=True),
            environments={"shop": shop.to_json(), "mail": mail.to_json()},
        )
        assert (await result_of(here, handle)).succeeded == 11
    assert here.most_running <= 2, "each needs a shop, and there are two"
    assert real.engine.most_up["shop"] <= 2
    assert real.engine.most_up["mail"] == 1
    await until(lambda: real.engine.up == {})
    await real.ends()


async def test_a_paused_suite_gets_nothing_more_from_its_pool(
    temporal: WorkflowEnvironment, real: Place
) -> None:
    shop = env("shop", 1)
    async with world(temporal.client, pool=words(real)) as here:
        handle = await start(
            here,
            tasks(3, "hold"),
            pool=PoolUse(real.pool, local_words=True),
            environments={"shop": shop.to_json()},
        )
        await until(lambda: here.running == 1)
        await ask(here, handle, "pause")

        async def is_paused() -> bool:
            view = await real.view()
            return len(view["waiting"]) == 2 and len(view["leases"]) == 1

        await until(is_paused)
        here.open = True
        await ended(handle, 1)
        assert len(starts(here)) == 1
        await ask(here, handle, "resume")
        assert (await result_of(here, handle)).succeeded == 3
    await real.ends()
