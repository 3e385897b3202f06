"""A burst of starts on a small range of ports (C03), with compose projects of a real engine."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities.secrets import WorkerEnvironment
from perdure.client import Perdure
from perdure.config import Settings
from tests.docker.kit import IMAGE, left_of
from tests.waiting import until
from tests.workflows.test_pool_instances import free_range
from worker import WorkerOptions, serving

TASKS = 10
COMPOSE = f"""
services:
  app: {{image: "{IMAGE}", ports: ["${{ONE_PORT}}:8000", "${{TWO_PORT}}:8001"], init: true}}
"""
ENV = """
environments:
  app:
    docker_compose: docker-compose.yml
    ports: {{ONE_PORT: {{default: {low}}}, TWO_PORT: {{default: {outsiders}}}}}
memory: {{required_gb: 0, reserve_gb: 0}}
"""
MEET = """\
echo $ONE_PORT $TWO_PORT > {here}/$PERDURE_TASK_ID
while [ $(ls {here} | wc -l) -lt {tasks} ]; do sleep 0.1; done"""
"""Every task waits until all of them have their instances."""


async def test_c03_ten_tasks_at_once_share_no_port_and_none_fails(
    engine: None, temporal: WorkflowEnvironment, temporal_settings: Settings, tmp_path: Path
) -> None:
    """C03, P37, P38: two workers, twenty of forty ports, of which an outsider has one."""
    low, high = free_range(40)
    (tmp_path / "env.yaml").write_text(ENV.format(low=low, outsiders=low + 3))
    (tmp_path / "docker-compose.yml").write_text(COMPOSE)
    here = tmp_path / "here"
    here.mkdir()
    command = MEET.format(here=here, tasks=TASKS)
    tasks: list[dict[str, Any]] = [
        {
            "id": f"t{number}",
            "environments": ["app"],
            "steps": [{"id": "meet", "type": "command", "command": command}],
        }
        for number in range(TASKS)
    ]
    async with AsyncExitStack() as stack:
        stack.enter_context(socket.create_server(("127.0.0.1", low + 3)))
        perdure = await _served(stack, temporal, temporal_settings, f"{low}-{high}")
        pool = f"p{uuid.uuid4().hex[:8]}"
        run = await perdure.start_suite(
            tasks, env_config=tmp_path / "env.yaml", pool=pool, max_parallel=TASKS
        )
        summary = await run.wait()
        assert (summary.succeeded, summary.failed) == (TASKS, 0)
        ports = [int(port) for file in here.iterdir() for port in file.read_text().split()]
        assert len(set(ports)) == 2 * TASKS
        assert set(ports) <= set(range(low, high + 1)) - {low + 3}

        async def is_empty() -> bool:
            view = await perdure.pool(pool).view()
            return view is None or not view["instances"]

        await until(is_empty, "nothing is left of the pool")
    assert left_of(f"perdure.pool-name={pool}") == []


async def _served(
    stack: AsyncExitStack, temporal: WorkflowEnvironment, settings: Settings, ports: str
) -> Perdure:
    """A client, and two workers of one host."""
    queue = f"q-{uuid.uuid4().hex[:8]}"
    target = temporal.client.service_client.config.target_host
    settings = replace(
        settings, queue=queue, blobs_shared=True, temporal_env={"TEMPORAL_ADDRESS": target}
    )
    settings.state.prepare()
    options = WorkerOptions(
        queue,
        "here",
        settings.state.runs,
        settings.state.results,
        single_host=False,
        environment=WorkerEnvironment({**os.environ, "DT_PORT_RANGE": ports}),
    )
    converter = temporal.client.config()["data_converter"]
    for _ in range(2):  # with a connection of its own, as each process has
        own = await Client.connect(target, data_converter=converter)
        await stack.enter_async_context(serving(own, options))
    return await stack.enter_async_context(await Perdure.connect(settings))
