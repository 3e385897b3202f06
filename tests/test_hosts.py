"""Several hosts share a queue: a run stays on one of them."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.messages import TaskOptions
from perdure.steps import step
from tests.kit import Bench
from worker import WorkerOptions, serving


@step("kit-where", keys=set())
async def where(step: dict[str, Any], context: Any, host: Any) -> str:
    return str(host.workdir)


async def test_all_steps_of_a_run_find_one_directory_even_those_that_start_side_by_side(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    queue = f"q-{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack:
        for name in ("one", "two"):
            options = WorkerOptions(
                queue=queue,
                host=name,
                runs=tmp_path / name / "runs",
                results=tmp_path / "results",
                single_host=False,
            )
            # A client each: the SDK takes one worker of a queue for each client.
            client = await Client.connect(
                temporal.client.service_client.config.target_host,
                data_converter=temporal.client.data_converter,
            )
            await stack.enter_async_context(serving(client, options))
        bench = Bench(temporal.client, options)
        seen: set[str] = set()
        for _ in range(6):
            roots = ({"id": f"s{i}", "type": "kit-where", "depends_on": []} for i in range(4))
            record = await bench.run(
                *roots, {"id": "last", "type": "kit-where"}, options=TaskOptions(multi_host=True)
            )
            assert record["status"] == "succeeded"
            assert len(set(record["context"]["results"].values())) == 1
            hosts = {a["host"] for s in record["steps"] for a in s["attempts"]}
            assert len(hosts) == 1
            seen |= hosts
        assert seen <= {"one", "two"}
