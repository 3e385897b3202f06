"""What a step costs: perdure against a Temporal workflow written by hand.

    python benchmarks/steps.py [--tasks 100] [--steps 10] [--rounds 5]

Both run `tasks` workflows of `steps` steps at once on one server, in turns; the ratio is that of
the medians. Goals: 1.15 in wall time and 1.2 in history events, the suite's included. The second
pair runs `true` in each step; the last line is what the supervisor adds to a bare spawn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from ground import Ground, ground, measured
from plain import PlainWorkflow, noop, run_true
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker


async def plain(
    here: Ground, client: Client, name: str, tasks: int, steps: int
) -> tuple[float, int]:
    """Seconds and events of `tasks` hand-written workflows at once."""
    began = time.perf_counter()
    mark = uuid.uuid4().hex[:8]

    async def one(number: int) -> WorkflowHandle[Any, Any]:
        return await client.start_workflow(
            PlainWorkflow.run, args=[name, steps], id=f"plain/{mark}/{number}", task_queue="plain"
        )

    handles = await asyncio.gather(*(one(n) for n in range(tasks)))
    await asyncio.gather(*(h.result() for h in handles))
    seconds = time.perf_counter() - began
    sizes = [await here.sizes(h.id) for h in handles]
    return seconds, sum(events for runs in sizes for events, _ in runs)


async def perdure(here: Ground, body: dict[str, Any], tasks: int, steps: int) -> tuple[float, int]:
    """Seconds and events of a suite of `tasks` tasks at once."""
    ids = [f"t{n}" for n in range(tasks)]
    documents = [{"id": i, "steps": [{"id": f"s{k}", **body} for k in range(steps)]} for i in ids]
    began = time.perf_counter()
    suite, result = await here.run_suite(documents, max_parallel=tasks)
    seconds = time.perf_counter() - began
    assert result.succeeded == tasks, result
    return seconds, sum(events for events, _ in await here.suite_sizes(suite, ids))


async def compare(
    here: Ground, client: Client, name: str, body: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """Alternate both, print both medians and their ratio."""
    ours: list[tuple[float, int]] = []
    theirs: list[tuple[float, int]] = []
    for number in range(arguments.rounds + 1):
        # Each goes first in turn: the server is still busy with what closed last.
        if number % 2:
            mine = await perdure(here, body, arguments.tasks, arguments.steps)
        hand = await plain(here, client, name, arguments.tasks, arguments.steps)
        if not number % 2:
            mine = await perdure(here, body, arguments.tasks, arguments.steps)
        if number:  # the first round warms up
            theirs.append(hand)
            ours.append(mine)
        print(
            f"  round {number}: by hand {hand[0]:.2f} s, perdure {mine[0]:.2f} s", file=sys.stderr
        )
    wall = statistics.median(m[0] / h[0] for m, h in zip(ours, theirs, strict=True))
    seconds = [statistics.median(s for s, _ in side) for side in (theirs, ours)]
    events = [statistics.median(e for _, e in side) for side in (theirs, ours)]
    print(
        f"{body['type']:8} wall {seconds[1]:.2f} s / {seconds[0]:.2f} s = ratio {wall:.3f}; "
        f"events {events[1]:.0f} / {events[0]:.0f} = ratio {events[1] / events[0]:.3f}",
        flush=True,
    )


def arguments_given() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["noop", "command", "spawn"])
    return parser.parse_args()


async def main(arguments: argparse.Namespace) -> None:
    """Run the comparisons."""
    async with ground() as here:
        client = await Client.connect(here.address)
        by_hand = Worker(
            client,
            task_queue="plain",
            workflows=[PlainWorkflow],
            activities=[noop, run_true],
            max_concurrent_activities=200,
        )
        async with by_hand:
            if arguments.only != "command":
                await compare(here, client, "noop", {"type": "noop"}, arguments)
            if arguments.only != "noop":
                true = {"type": "command", "command": "true"}
                await compare(here, client, "run_true", true, arguments)


if __name__ == "__main__":
    given = arguments_given()
    if given.only != "spawn":
        measured(lambda: main(given))
    if given.only in (None, "spawn"):
        subprocess.run([sys.executable, str(Path(__file__).with_name("spawn.py"))], check=True)
