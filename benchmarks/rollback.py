"""What a rollback costs beside the compensations that it makes.

    python benchmarks/rollback.py [--rounds 15] [--work 50 0]

In a graph of 50 steps the last of a span of 5 fails; each step of the span is undone by a function
that takes `--work` ms. Measured on the server's clock: from the event of the failure to that by
which the span is dispatched again. Beside it, in the same run and by the same clock: what the five
functions took by themselves, and five activities of a workflow written by hand, one after another
on a queue of their own, as a server's round trip each; before and after, since machines change
their pace. Goal: a ratio of 1.3 at most, for compensations of 50 ms and for such as take no time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from dataclasses import dataclass, field
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


async def events_of(client: Client, workflow_id: str) -> list[HistoryEvent]:
    """The history of a workflow's first run."""
    return [event async for event in client.get_workflow_handle(workflow_id).fetch_history_events()]


def scheduled(events: list[HistoryEvent]) -> dict[str, float]:
    """By the activities' ids, when they were scheduled, in seconds."""
    return {
        event.activity_task_scheduled_event_attributes.activity_id: _seconds(event)
        for event in events
        if event.HasField("activity_task_scheduled_event_attributes")
    }


def _seconds(event: HistoryEvent) -> float:
    return float(event.event_time.ToNanoseconds()) / 1e9


async def rolled_back(here: Ground, work_ms: float) -> tuple[float, float]:
    """Seconds from the failure to the new dispatch, and those of the undoings by themselves."""
    _undone.clear()
    suite, result = await here.run_suite([document(work_ms)], max_parallel=1)
    assert result.succeeded == 1, result
    assert len(_undone) == SPAN, _undone
    events = await events_of(here.client, task_workflow_id(suite, "t", 1))
    (failed,) = (e for e in events if e.HasField("activity_task_failed_event_attributes"))
    again = scheduled(events)[f"s{STEPS - SPAN}#1.2"]
    return again - _seconds(failed), sum(_undone)


async def round_trips(client: Client) -> float:
    """Seconds of as many activities, one after another."""
    workflow_id, times = f"plain/{uuid.uuid4().hex[:8]}", 4
    await client.execute_workflow(
        PlainWorkflow.run,
        args=["noop", 1 + times * SPAN, "plain/beside"],
        id=workflow_id,
        task_queue="plain",
    )
    first, *_, last = scheduled(await events_of(client, workflow_id)).values()
    return (last - first) / times


@dataclass
class Measured:
    """Of compensations that take as long as each other."""

    work_ms: float
    ours: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of what it took to what it takes at least: the median of the rounds."""
        return statistics.median(o / h for o, h in zip(self.ours, self.least, strict=True))

    def line(self) -> str:
        """For people."""
        ours, least = (statistics.median(of) * 1000 for of in (self.ours, self.least))
        return (
            f"rollback of {SPAN} in {STEPS}, {self.work_ms:g} ms each: "
            f"{ours:.0f} ms / {least:.0f} ms = ratio {self.ratio:.3f} (goal {GOAL})"
        )


async def measure(here: Ground, client: Client, rounds: int, works: list[float]) -> list[Measured]:
    """All of them in turns."""
    found = [Measured(work_ms) for work_ms in works]
    before = await round_trips(client)
    for number in range(rounds + 1):
        for measured in found:
            took, undone = await rolled_back(here, measured.work_ms)
            after = await round_trips(client)
            trips, before = (before + after) / 2, after
            print(
                f"  round {number}: {took * 1000:.0f} ms, of which {undone * 1000:.0f} in "
                f"compensations; {SPAN} round trips {trips * 1000:.0f} ms",
                file=sys.stderr,
            )
            if number:  # the first round warms up
                measured.ours.append(took)
                measured.least.append(undone + trips)
    return found


async def main() -> bool:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--work", type=float, nargs="+", default=[50, 0], help="milliseconds of a compensation"
    )
    arguments = parser.parse_args()
    async with ground() as here:
        client = await Client.connect(here.address)
        async with (
            Worker(client, task_queue="plain", workflows=[PlainWorkflow]),
            Worker(client, task_queue="plain/beside", activities=[noop]),
        ):
            found = await measure(here, client, arguments.rounds, arguments.work)
    for measured in found:
        print(measured.line())
    return all(measured.ratio <= GOAL for measured in found)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
