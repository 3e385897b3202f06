"""What the benchmarks share: an embedded server in a directory of its own, and a worker on it."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
from temporalio.client import Client

from perdure.config import Settings
from perdure.connection import connect
from perdure.messages import SuiteInput, SuiteResult, SuiteTask, TaskOptions
from perdure.names import suite_workflow_id, task_workflow_id
from perdure.server import embedded_server, status
from perdure.steps import step
from worker import WorkerOptions, serving

T = TypeVar("T")

logging.getLogger("temporalio.activity").setLevel(logging.CRITICAL)  # of steps failing on purpose


@step("noop", on_loop=True)  # as the activity of the workflow written by hand
async def noop(step: dict[str, Any], context: Any, host: Any) -> None:
    """Does nothing; the custom in-process step of the benchmarks."""


@dataclass(frozen=True)
class Ground:
    """Where a benchmark runs."""

    client: Client
    address: str
    queue: str
    settings: Settings

    async def run_suite(
        self, tasks: Sequence[dict[str, Any]], max_parallel: int
    ) -> tuple[str, SuiteResult]:
        """Run these task documents as a suite; its name and its result."""
        suite = f"bench-{uuid.uuid4().hex[:8]}"
        result = await self.client.execute_workflow(
            "SuiteWorkflow",
            SuiteInput(
                suite,
                [SuiteTask(t, "") for t in tasks],
                max_parallel=max_parallel,
                options=TaskOptions(),
            ),
            id=suite_workflow_id(suite),
            task_queue=self.queue,
            result_type=SuiteResult,
        )
        return suite, result

    async def sizes(self, workflow_id: str) -> list[tuple[int, int]]:
        """Events and bytes of every run of a workflow id's newest chain, newest run first."""
        found: list[tuple[int, int]] = []
        run_id: str | None = None
        while True:
            handle = self.client.get_workflow_handle(workflow_id, run_id=run_id)
            events = size = 0
            before = ""
            async for event in handle.fetch_history_events():
                events += 1
                size += event.ByteSize()
                if events == 1:
                    started = event.workflow_execution_started_event_attributes
                    before = started.continued_execution_run_id
            found.append((events, size))
            if not before:
                return found
            run_id = before

    async def suite_sizes(self, suite: str, ids: Sequence[str]) -> list[tuple[int, int]]:
        """Events and bytes of every run of a suite and of its tasks."""
        names = [suite_workflow_id(suite), *(task_workflow_id(suite, i, 1) for i in ids)]
        return [size for name in names for size in await self.sizes(name)]

    def peak_memory_mb(self) -> tuple[float, float]:
        """Peak resident memory of this process (client and worker), and the server's memory now."""
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        server = status(self.settings.state).pid
        rss = psutil.Process(server).memory_info().rss / 2**20 if server else 0.0
        return mine, rss


def measured(benchmark: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a benchmark; asked to end by Ctrl-C or SIGTERM, it leaves no server behind."""

    async def watched() -> T:
        loop, mine = asyncio.get_running_loop(), asyncio.current_task()
        assert mine
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, mine.cancel)
        return await benchmark()

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        sys.exit("ended; nothing more is measured")


@asynccontextmanager
async def ground(slots: int = 200) -> AsyncIterator[Ground]:
    """An embedded server and a worker, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        settings = Settings.from_env({"PERDURE_STATE_DIR": folder})
        async with embedded_server(settings) as server:
            client = await connect(settings, address=server.address)
            options = WorkerOptions(
                queue="bench",
                host="bench",
                runs=Path(folder) / "runs",
                results=Path(folder) / "results",
                step_slots=slots,
            )
            async with serving(client, options):
                yield Ground(client, server.address, "bench", settings)
