"""What a rollback costs beside the compensations that it makes.

    python benchmarks/rollback.py [--rounds 10] [--work 50]

In a graph of 50 steps the last of a span of 5 fails; each step of the span is undone by a function
that takes `--work` ms. Measured on the server's clock: from the event of the failure to that by
which the span is dispatched again. Beside it, in the same run: what the five functions took by
themselves, and five activities of a workflow written by hand, one after another on a queue of their
own, as a server's round trip each. Goal: a ratio of 1.3 at most.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from typing import Any

from ground import Ground, ground
from plain import PlainWorkflow, noop
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.worker import Worker

from perdure.names import task_workflow_id
from perdure.steps import StepFailed, step

GOAL = 1.3
STEPS, SPAN = 50, 5

_undone: list[float] = []
"""Seconds of each undoing."""


def undo(step: dict[str, Any], context: Any, host: Any) -> None:
    """Take as long as the benchmark says."""
    began = time.perf_counter()
    time.sleep(step["work_ms"] / 1000)
    _undone.append(time.perf_counter() - began)


@step("undoable", keys={"work_ms", "fails"}, on_loop=True, undo=undo)
async def undoable(step: dict[str, Any], context: Any, host: Any) -> None:
    """Does nothing, or fails the first time."""
    if step.get("fails") and host.attempt == 1:
        raise StepFailed("as it was told")


def document(work_ms: float) -> dict[str, Any]:
    """Steps beside each other, then the span, one after another."""
    steps: list[dict[str, Any]] = [
        {"id": f"s{number}", "type": "undoable", "work_ms": work_ms, "depends_on": []}
        for number in range(STEPS)
    ]
    for number in range(STEPS - SPAN, STEPS):
        steps[number]["depends_on"] = [{"task_step_id": f"s{number - 1}"}]
    first = steps[STEPS - SPAN]["id"]
    steps[-1] |= {"fails": True, "retry_config": {"retry_from_step_id": first}}
    return {"id": "t", "steps": steps}


async def rolled_back(here: Ground, work_ms: float) -> tuple[float, float]:
    """Seconds from the failure to the new dispatch, and those of the undoings by themselves."""
    _undone.clear()
    suite, result = await here.run_suite([document(work_ms)], max_parallel=1)
    assert result.succeeded == 1, result
    assert len(_undone) == SPAN, _undone
    handle = here.client.get_workflow_handle(task_workflow_id(suite, "t", 1))
    failed = again = 0.0
    async for event in handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if event.HasField("activity_task_failed_event_attributes"):
            failed = _seconds(event)
        elif scheduled.activity_id == f"s{STEPS - SPAN}#1.2":
            again = _seconds(event)
    assert 0 < failed < again
    return again - failed, sum(_undone)


def _seconds(event: HistoryEvent) -> float:
    return float(event.event_time.ToNanoseconds()) / 1e9


async def round_trips(client: Client) -> float:
    """Seconds of as many activities, one after another, without their start and end."""

    async def run(count: int) -> float:
        began = time.perf_counter()
        await client.execute_workflow(
            PlainWorkflow.run,
            args=["noop", count, "plain/beside"],
            id=f"plain/{uuid.uuid4().hex[:8]}",
            task_queue="plain",
        )
        return time.perf_counter() - began

    few, many = await run(1), await run(1 + 4 * SPAN)
    return (many - few) / 4


async def main() -> bool:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--work", type=float, default=50, help="milliseconds of a compensation")
    arguments = parser.parse_args()
    ours: list[float] = []
    least: list[float] = []
    async with ground() as here:
        client = await Client.connect(here.address)
        async with (
            Worker(client, task_queue="plain", workflows=[PlainWorkflow]),
            Worker(client, task_queue="plain/beside", activities=[noop]),
        ):
            for number in range(arguments.rounds + 1):
                trips = await round_trips(client)
                took, undone = await rolled_back(here, arguments.work)
                if number:  # the first round warms up
                    ours.append(took)
                    least.append(undone + trips)
                print(
                    f"  round {number}: {took * 1000:.0f} ms, of which {undone * 1000:.0f} in "
                    f"compensations; {SPAN} round trips {trips * 1000:.0f} ms",
                    file=sys.stderr,
                )
    ratio = statistics.median(m / h for m, h in zip(ours, least, strict=True))
    print(
        f"rollback of {SPAN} in {STEPS}: {statistics.median(ours) * 1000:.0f} ms / "
        f"{statistics.median(least) * 1000:.0f} ms = ratio {ratio:.3f} (goal {GOAL})"
    )
    return ratio <= GOAL


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
