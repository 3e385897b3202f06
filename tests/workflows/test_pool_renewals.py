"""Environments are reset under a lease by a real pool with real instance workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.waiting import until
from tests.workflows.pool_kit import QUICK, Place, env, place
from tests.workflows.pool_scenarios import fails_to_reset, hears_again


@pytest.fixture
async def here(temporal: WorkflowEnvironment) -> AsyncIterator[Place]:
    async with place(temporal.client, replace(QUICK, history_limit_events=40)) as made:
        yield made


async def test_an_instance_that_cannot_be_reset_is_replaced_under_its_lease(here: Place) -> None:
    """Over a continue-as-new; nobody who waits comes in between, and nothing is left."""
    task = await here.ask(env("a"), env("b"))
    was = {i["environment"]: i["instance"] for i in (await task.hears("granted"))["instances"]}
    other = await here.ask(env("a"))
    await task.reset(1, "a", "b")
    renewal = await task.hears("renewed")
    assert {i["environment"]: i["instance"] for i in renewal["instances"]} == was

    here.engine.hold.add("reset")
    await task.reset(2, "b")

    async def shows(doing: str) -> bool:
        return any(i["doing"] == doing for i in (await here.view())["instances"])

    await until(lambda: shows("renewing"), "the reset is seen")
    first = (await here.handle.describe()).run_id

    async def is_another_run() -> bool:
        return (await here.handle.describe()).run_id != first

    await until(is_another_run, "it continues as new")
    here.engine.hold.clear()
    await until(lambda: hears_again(task, 2), "the answer")

    await fails_to_reset(here, task, 3, "a")
    await until(lambda: hears_again(task, 3), "the answer")
    (instance,) = (await task.hears("renewed"))["instances"]
    assert instance["instance"] not in was.values()
    assert [kind for kind, _ in await other.heard()] == []
    (shown, *_) = [i for i in (await here.view())["leases"] if i["state"] == "granted"]
    assert shown["request_id"] == task.asked.request_id
    assert here.engine.most_up == {"a": 1, "b": 1}
    await task.release()
    await other.hears("granted")
    await other.release()
    await here.ends()
    assert here.engine.up == {}


async def test_a_pool_that_is_not_there_any_more_resets_nothing(here: Place) -> None:
    task = await here.ask(env("a"))
    await task.hears("granted")
    await here.handle.terminate()
    await task.reset(1, "a")
    loss = await task.hears("lost")
    assert loss["environments"] == ["a"]
    assert "not there" in loss["reason"]
