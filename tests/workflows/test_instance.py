"""InstanceWorkflow on a real server, with real processes as environments."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.backend import Backends
from activities.hosts import HostBeats
from activities.instances import Instances
from activities.ports import PortProbe
from activities.process import ProcessBackend
from activities.secrets import WorkerEnvironment
from perdure.core.environments import ResetEndpoint
from perdure.core.ports import PortRange
from perdure.names import ORDER
from perdure.pool_messages import InstanceOrder, SweepCall
from tests.kit import Bench
from tests.waiting import until
from tests.workflows.instance_kit import Host, host

RESET = (ResetEndpoint("api", "http://127.0.0.1:${APP_PORT}/reset"),)


@pytest.fixture
async def here(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Host]:
    async with host(temporal.client, tmp_path) as made:
        yield made


async def test_an_instance_starts_resets_is_looked_at_and_stops_without_a_trace(
    here: Host,
) -> None:
    app = await here.instance(here.definition(reset_endpoints=RESET))
    assert (await app.does("start")).kind == "started"
    assert await app.post("/add") == "1"
    assert (await app.does("reset")).kind == "reset_done"
    assert await app.post("/add") == "1"
    assert (await app.does("check")).kind == "healthy"
    assert here.folder_of(app.number).is_dir()
    stopped = await app.does("stop")
    assert (stopped.kind, stopped.pool_uuid) == ("stopped", here.uuid)
    await app.handle.result()
    assert not await app.is_up()
    assert not here.folder_of(app.number).exists()


async def test_a_port_of_somebody_else_is_told_before_anything_starts(here: Host) -> None:
    app = await here.instance(here.definition())
    with socket.create_server(("127.0.0.1", app.ports["APP_PORT"])):
        answer = await app.does("start")
    assert answer.kind == "ports_taken"
    assert answer.ports == [app.ports["APP_PORT"]]
    assert not answer.at_start
    assert "environment app" in answer.reason
    assert (await app.does("start")).kind == "started"


async def test_a_failed_start_says_why_and_the_stop_after_it_ends_all(here: Host) -> None:
    """PD6: what fails to start is answered, stopped and gone; it counts for nobody any more."""
    definition = here.definition()
    process = definition.environment.process
    assert process
    broken = replace(process, command=("python3", "-c", "print('no license'); raise SystemExit(4)"))
    app = await here.instance(here.definition(process=broken))
    answer = await app.does("start")
    assert answer.kind == "start_failed"
    assert "app" in answer.reason
    assert "4" in answer.reason
    assert answer.log == ["no license"]
    stopped = await app.does("stop")
    assert stopped.kind == "stopped", stopped
    await app.handle.result()


async def test_a_stop_ends_a_start_that_is_under_way(here: Host) -> None:
    definition = here.definition()
    process = definition.environment.process
    assert process
    slow = here.definition(process=replace(process, command=("sleep", "600")))
    app = await here.instance(slow)
    start = await app.order("start")
    folder = here.folder_of(app.number)
    await until(lambda: folder.is_dir() and len(list(folder.iterdir())) > 1, "a process")
    stopped = await app.does("stop")
    assert stopped.kind == "stopped", stopped
    assert not [answer for answer in await here.answers() if answer.order == start]
    assert not folder.exists()


async def test_an_order_that_is_told_twice_is_followed_once_and_answered_twice(here: Host) -> None:
    app = await here.instance(here.definition(reset_endpoints=RESET))
    first = await app.order("start")
    await app.answer(first)
    await app.handle.signal(ORDER, InstanceOrder("start", first, ports=app.ports))
    assert (await app.answer(first, count=2)).kind == "started"
    starts = [
        event
        async for event in app.handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == "start_instance"
    ]
    assert len(starts) == 1


async def test_a_dead_instance_is_told_with_its_last_words(here: Host) -> None:
    app = await here.instance(here.definition())
    order = await app.order("start")
    await app.answer(order)
    await app.post("/die")
    lost = await app.answer(order, count=2)
    assert lost.kind == "lost"
    assert "told to die" in lost.log
    stopped = await app.does("stop")
    assert stopped.kind == "stopped", stopped


async def test_a_dead_instance_is_unhealthy_for_who_looks(here: Host) -> None:
    """PD8, PD9: a verdict of the look at its health is an answer, which no grant passes over."""
    app = await here.instance(here.definition())
    await app.does("start")
    await app.post("/die")
    assert (await app.does("check")).kind == "unhealthy"


async def test_a_reset_that_keeps_failing_is_an_answer_with_the_endpoint(here: Host) -> None:
    """PD16: the pool hears of it, and stops the instance."""
    definition = here.definition(
        reset_endpoints=(ResetEndpoint("api", "http://127.0.0.1:${NO_PORT}/reset"),),
        reset_retry_delay_seconds=0.05,
        reset_retries=2,
    )
    app = await here.instance(definition)
    await app.does("start")
    answer = await app.does("reset")
    assert answer.kind == "reset_failed"
    assert "3 times" in answer.reason
    assert "NO_PORT" in answer.reason


async def test_an_instance_lives_through_new_runs_of_its_workflow(here: Host) -> None:
    app = await here.instance(here.definition(reset_endpoints=RESET), history_limit_events=20)
    await app.does("start")
    for _ in range(6):
        assert await app.post("/add") == "1"
        assert (await app.does("reset")).kind == "reset_done"
    newest = await here.client.get_workflow_handle(app.handle.id).describe()
    assert newest.run_id != app.handle.first_execution_run_id
    order = here.orders
    await app.post("/die")
    assert (await app.answer(order, count=2)).kind == "lost"
    stopped = await app.does("stop")
    assert stopped.kind == "stopped", stopped


async def test_an_instance_whose_pool_is_gone_stops_by_itself(here: Host) -> None:
    """C38: what terminates a pool leaves nothing running."""
    app = await here.instance(here.definition())
    await app.does("start")
    await here.pool.terminate()
    await app.order("check")  # its answer meets nobody
    await app.has_ended()
    assert not await app.is_up()
    assert not here.folder_of(app.number).exists()


async def test_a_cancelled_instance_stops_and_tells_its_pool(here: Host) -> None:
    app = await here.instance(here.definition())
    order = await app.order("start")
    await app.answer(order)
    await app.handle.cancel()
    lost = await app.answer(order, count=2)
    assert lost.kind == "lost"
    await app.has_ended()
    assert not await app.is_up()


async def test_an_instance_outlives_its_worker_and_answers_to_the_next(here: Host) -> None:
    """PD25: the end of the worker that started it loses nothing."""
    app = await here.instance(here.definition(reset_endpoints=RESET))
    await app.does("start")
    assert await app.post("/add") == "1"
    await here.worker_ends()
    check = await app.order("check")
    assert await app.post("/add") == "2"
    await here.worker_comes()
    assert (await app.answer(check)).kind == "healthy"
    assert await app.post("/add") == "3"
    order = here.orders
    await app.post("/die")
    assert (await app.answer(order, count=2)).kind == "lost"
    stopped = await app.does("stop")
    assert stopped.kind == "stopped", stopped


async def test_a_pool_hears_the_beats_of_its_host_with_memory_and_ports(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with host(temporal.client, tmp_path, max_instances=3) as here:
        beats = HostBeats(temporal.client, "other", "q", capacity=2, ports=PortRange(7000, 7100))
        await beats.tell(here.name)
        await beats.tell("no-such-pool")
        (beat,) = await here.pool.query("beats")
        assert (beat["host"], beat["capacity"]) == ("other", 2)
        assert (beat["port_low"], beat["port_high"]) == (7000, 7100)
        assert 0 < beat["free_gb"] <= beat["total_gb"]
        assert beat["machine"]


async def test_a_host_finds_the_open_pools_of_its_server(here: Host) -> None:
    beats = HostBeats(here.client, "other", f"pool-{here.name}")
    strangers = HostBeats(here.client, "stranger", "another-queue")

    async def is_told() -> bool:
        return bool(await here.pool.query("beats"))

    async with strangers.beating(), beats.beating():
        await until(is_told, "a beat")
    assert {beat["host"] for beat in await here.pool.query("beats")} == {"other"}


async def test_steps_that_take_all_places_keep_no_instance_waiting(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Each host has queues of its own for its instances and for its steps."""
    async with host(temporal.client, tmp_path, step_slots=2) as here:
        bench = Bench(here.client, here.options)
        marks = [tmp_path / f"step-{n}" for n in range(4)]
        tasks = [
            await bench.start({"id": "s", "type": "command", "command": f"touch {mark}; sleep 600"})
            for mark in marks
        ]
        await until(lambda: sum(mark.exists() for mark in marks) == 2, "two steps")
        app = await here.instance(here.definition(reset_endpoints=RESET))
        for kind in ("start", "reset", "check", "stop"):
            await app.does(kind)
        assert sum(mark.exists() for mark in marks) == 2
        for task in tasks:
            await task.cancel()
        for task in tasks:
            with contextlib.suppress(WorkflowFailureError):
                await task.result()


async def test_a_sweep_removes_what_was_left_and_spares_what_came_later(here: Host) -> None:
    definition = here.definition()
    old, kept, new = [await here.instance(definition) for _ in range(3)]
    for app in (old, kept, new):
        assert (await app.does("start")).kind == "started"
    await old.handle.terminate("as if nobody knew of it")

    backend = ProcessBackend(WorkerEnvironment())
    root = here.options.runs.with_name("instances")
    instances = Instances(here.client, Backends(backend, backend, root), PortProbe())
    sweep = SweepCall(here.name, here.uuid, keep=[kept.number], before=new.number)
    removed = await ActivityEnvironment().run(instances.sweep_host, sweep)
    assert len(removed) >= 1
    assert [await app.is_up() for app in (old, kept, new)] == [False, True, True]
    assert not here.folder_of(old.number).exists()
    assert here.folder_of(new.number).exists()
