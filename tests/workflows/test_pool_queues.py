"""What is done for pools has queues of its own: steps that take hours stand in nobody's way."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.core.environments import ResetEndpoint
from perdure.core.pool_definitions import Definition
from perdure.messages import Holder
from perdure.names import control_queue, pool_workflow_id
from perdure.pool_messages import LeaseRequest, PoolTimes
from perdure.sandbox import sandbox
from perdure.steps import step
from tests.kit import Bench, bench
from tests.waiting import until
from tests.workflows.instance_kit import counter
from tests.workflows.pool_holder import BusyHolderWorkflow

BLOCKED = 200
HOLDERS, LEASES = 3, 2
DELAY_SECONDS = 2.0
"""What a release or a reset may take longer for the steps; far less than these take."""

gate = asyncio.Event()
inside: set[str] = set()


@step("wait-at-the-gate", on_loop=True)
async def wait_at_the_gate(step: dict[str, Any], context: Any, host: Any) -> None:
    inside.add(step["id"])
    await gate.wait()


async def seconds_of_a_lease(here: Bench, definition: Definition) -> float:
    """From one to the next of an environment's only instance, its release and reset included."""
    pool = f"p{uuid.uuid4().hex[:8]}"
    request = LeaseRequest(pool, "", Holder("", ""), [definition.to_json()])
    began = time.monotonic()
    granted = await asyncio.gather(
        *(
            here.client.execute_workflow(
                BusyHolderWorkflow.run,
                args=[LEASES, request, control_queue(here.options.queue)],
                id=f"holder/{pool}/{number}",
                task_queue=f"holders-{here.options.queue}",
            )
            for number in range(HOLDERS)
        )
    )
    seconds = time.monotonic() - began
    assert granted == [["1", "2"]] * HOLDERS
    await here.client.get_workflow_handle(pool_workflow_id(pool)).result()
    return seconds / (HOLDERS * LEASES)


async def test_two_hundred_blocked_steps_hold_up_no_release_and_no_reset(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Every slot for steps is taken until the end, and environments go from task to task."""
    endpoints = (ResetEndpoint("api", "http://127.0.0.1:${APP_PORT}/reset"),)
    definition = counter(tmp_path, max_instances=1, reset_endpoints=endpoints)
    quick = PoolTimes(probe_seconds=1.0, idle_seconds=0.5)
    async with (
        bench(temporal.client, tmp_path, step_slots=BLOCKED, pools=quick) as here,
        Worker(
            temporal.client,
            task_queue=f"holders-{here.options.queue}",
            workflows=[BusyHolderWorkflow],
            workflow_runner=sandbox(),
        ),
    ):
        undisturbed = await seconds_of_a_lease(here, definition)
        blocked = await here.start(
            *({"id": f"s{n}", "type": "wait-at-the-gate", "depends_on": []} for n in range(BLOCKED))
        )
        await until(lambda: len(inside) == BLOCKED, "steps in all slots")
        assert await seconds_of_a_lease(here, definition) <= undisturbed + DELAY_SECONDS
        assert not gate.is_set()
        gate.set()
        assert (await blocked.result()).steps_done == BLOCKED
