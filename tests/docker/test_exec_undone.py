"""What steps did in real containers is undone there, as far as these still run."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure.messages import PoolUse
from perdure.names import WISH, pool_workflow_id
from perdure.pool_messages import PoolTimes, PoolWish
from tests.docker.kit import Stand, docker, left_of
from tests.kit import bench
from tests.waiting import until

COMPOSE = """
services:
  shop: {image: IMAGE}
  db: {image: IMAGE}
"""


def inside(service: str, command: str, **more: Any) -> dict[str, Any]:
    step = {"type": "exec", "environment": "shop", "service": service, "command": command}
    return {**step, **more}


async def cleared(client: Client, pool: str) -> None:
    """Stop everything that a pool has, and find it gone."""
    handle = client.get_workflow_handle(pool_workflow_id(pool))
    view: dict[str, Any] = await handle.query("view")
    with contextlib.suppress(Exception):  # it has ended already
        await handle.execute_update(WISH, PoolWish("shutdown"), result_type=str)
    await until(lambda: left_of(f"perdure.pool={view['uuid']}") == [], "nothing is left")


async def test_a_container_that_dies_midway_is_told_and_the_rest_is_undone(
    temporal: WorkflowEnvironment, stand: Stand, tmp_path: Path
) -> None:
    pool = f"p{uuid.uuid4().hex[:8]}"
    quick = PoolTimes(probe_seconds=0.5, idle_seconds=0.5)
    async with bench(temporal.client, tmp_path, shared_queue=f"s-{pool}", pools=quick) as here:
        undo = inside("db", "touch /tmp/begun; sleep 60", retry={"max_attempts": 1})
        handle = await here.start(
            {"id": "a", **inside("shop", "true"), "compensate": inside("shop", "env")},
            {"id": "b", **inside("db", "true"), "compensate": undo},
            {
                "id": "c",
                "type": "command",
                "command": "exit 1",
                "retry_config": {"retry_from_step_id": "a"},
            },
            environments=["shop"],
            on_instance_lost="fail",
            use=PoolUse(pool=pool, local_words=True),
            definitions=[stand.call(COMPOSE).definition],
        )

        async def is_undoing_b() -> bool:
            events = await handle.query("events", 0)
            return any(e["type"] == "compensation.started" and e["step"] == "b" for e in events)

        await until(is_undoing_b, "the compensation in the database")
        (instance,) = (await handle.query("record"))["lease"]["instances"]
        db = f"{instance['project']}-db-1"
        await until(lambda: "begun" in docker("exec", db, "ls", "/tmp"), "it is midway")
        docker("kill", db)
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        await cleared(temporal.client, pool)
    record = here.record(handle)
    (failed,) = record["compensation_failures"]
    assert (failed["step_id"], failed["kind"]) == ("b", "declared")
    ended = {undo["step_id"]: undo["failure"] for undo in record["rollbacks"][0]["compensations"]}
    assert ended["a"] is None
    told = (here.results_of(handle) / "undo" / "a.1.declared" / "stdout.log").read_text()
    seen = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    assert seen["PERDURE_COMPENSATES"] == seen["PERDURE_STEP_ID"] == "a"
    assert (seen["PERDURE_ATTEMPT"], seen["DB_HOST"]) == ("1", "db")
