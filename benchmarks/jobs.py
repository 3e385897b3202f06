"""What background jobs reach: how soon their output is seen, and what it costs.

    python benchmarks/jobs.py [--only seen pages burst day load] [--seconds 30]

Printed, each with its goal: from `print` to visible; a page of a query; 1,000,000 characters that
are printed at once, and their events; the events of a job that prints ten times a second for a
day, by the rule that hands them on, with what one costs taken from a real job; and the latency of
other tasks' steps while 16 jobs print as fast as they can, against that of the same steps beside
16 jobs that compute as much and print nothing, and with no job at all. The worker's memory is that
of this process, in which the readers live as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from ground import Ground, ground, measured

from perdure.core.job_output import CAP_CHARACTERS, CommitRule
from perdure.documents import load_document
from perdure.job_handle import draw_exec_id
from perdure.job_messages import JobLaunch, JobSpec, PeekPage, PeekRequest
from perdure.jobs import JobsApi
from perdure.messages import TaskInput
from perdure.names import PEEK, job_workflow_id, task_workflow_id
from perdure.steps import custom_types, step

SEEN_SECONDS, PAGE_SECONDS, BURST_SECONDS = 0.5, 0.05, 3.0
EVENTS_PER_MB, EVENTS_PER_DAY, EVENTS_PER_COMMIT = 60, 8_000, 4
RATIO, MEMORY_MB = 1.5, 300.0
JOBS = 16

STAMPS = """\
import random, time
for _ in range(60):
    time.sleep(random.uniform(0.05, 0.6))
    print(time.time(), flush=True)
"""
BURST = """\
import sys, time
time.sleep(1)
sys.stderr.write(f"{time.time()}\\n")
sys.stderr.flush()
sys.stdout.write(("x" * 79 + "\\n") * 12_500)
sys.stdout.flush()
time.sleep(600)
"""
TICKS = """\
import time
while True:
    print("another line, as training loops print them", flush=True)
    time.sleep(0.1)
"""
PRINTING = 'while True: print("another line, as training loops print them")'
COMPUTING = "while True: pass"

_release = asyncio.Event()


@step("held", on_loop=True)
async def held(step: dict[str, Any], context: Any, host: Any) -> None:
    """Lasts as long as the benchmark needs its task."""
    await _release.wait()


@dataclass
class Bench:
    """A task that lasts, and its jobs."""

    here: Ground
    task: str
    api: JobsApi

    async def launch(self, code: str) -> str:
        """Start a cell beside the task."""
        exec_id = draw_exec_id()
        await self.api.launch(self.task, JobLaunch(exec_id, JobSpec(code)))
        return exec_id

    async def kill(self, *exec_ids: str) -> None:
        """End jobs, and see them ended."""
        for exec_id in exec_ids:
            await self.api.interrupt(exec_id, 0.0)
        await asyncio.gather(*map(self.api.wait, exec_ids))

    async def events(self, exec_id: str) -> tuple[int, int]:
        """How many events a job's history has, and how many of them hand on output."""
        handle = self.here.client.get_workflow_handle(job_workflow_id(exec_id))
        count = commits = 0
        async for event in handle.fetch_history_events():
            count += 1
            commits += event.HasField("workflow_execution_signaled_event_attributes")
        return count, commits


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """A server, a worker, and a task with nothing to do."""
    async with ground() as here:
        document = {"id": "t", "steps": [{"id": "hold", "type": "held"}]}
        (loaded,) = load_document(document, custom_types=custom_types()).checked()
        task = task_workflow_id(f"bench-{uuid.uuid4().hex[:8]}", "t", 1)
        _release.clear()
        handle = await here.client.start_workflow(
            "TaskWorkflow",
            TaskInput(task=loaded.task.to_dict(), suite=task.split("/")[1]),
            id=task,
            task_queue=here.queue,
        )
        try:
            yield Bench(here, task, JobsApi(here.client))
        finally:
            _release.set()
            await handle.result()


def p95(values: Sequence[float]) -> float:
    """The value that one in twenty is above."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def told(what: str, value: float, goal: float, unit: str, more: str = "") -> bool:
    """Print a figure beside its goal; True if it is reached."""
    digits = 3 if goal < 10 else 0
    print(f"{what}: {value:,.{digits}f}{unit} (goal {goal:,g}{unit}){more}", flush=True)
    return value <= goal


async def seen(arguments: argparse.Namespace) -> bool:
    """From `print` to visible, by a follower."""
    async with bench() as here:
        waits = []
        exec_id = await here.launch(STAMPS)
        async with aclosing(here.api.follow(exec_id)) as peeks:
            async for peek in peeks:
                now = time.time()
                waits += [now - float(stamp) for stamp in peek.stdout.split()]
    middle = f"; median {statistics.median(waits):.3f} s of {len(waits)}"
    return told("from print to visible, p95", p95(waits), SEEN_SECONDS, " s", middle)


async def pages(arguments: argparse.Namespace) -> bool:
    """A page of 64 KiB of a job with a million characters."""
    async with bench() as here:
        exec_id = await here.launch(BURST)
        await _complete(here, exec_id)
        handle = here.here.client.get_workflow_handle(job_workflow_id(exec_id))
        waits = []
        for number in range(200):
            began = time.perf_counter()
            page: PeekPage = await handle.query(
                PEEK, PeekRequest(offset=number % 14 * 65_536), result_type=PeekPage
            )
            waits.append(time.perf_counter() - began)
            assert len(page.stdout) == 65_536, len(page.stdout)
        await here.kill(exec_id)
    middle = f"; median {statistics.median(waits):.3f} s"
    return told("a page of a query, p95", p95(waits), PAGE_SECONDS, " s", middle)


async def burst(arguments: argparse.Namespace) -> bool:
    """A million characters at once: when they are complete, and the events of a megabyte."""
    async with bench() as here:
        exec_id = await here.launch(BURST)
        printed_at, complete_at = await _complete(here, exec_id)
        count, commits = await here.events(exec_id)
        await here.kill(exec_id)
    reached = told(
        "1,000,000 characters at once, complete", complete_at - printed_at, BURST_SECONDS, " s"
    )
    return reached & told(
        "events of that megabyte",
        count,
        EVENTS_PER_MB,
        "",
        f", its start included; {commits} commits",
    )


async def _complete(here: Bench, exec_id: str) -> tuple[float, float]:
    """Wait for all of a burst; when it was printed, and when it was there."""
    async with aclosing(here.api.follow(exec_id)) as peeks:
        stamp, size = "", 0
        async for peek in peeks:
            stamp, size = stamp + peek.stderr, size + len(peek.stdout)
            if size >= 1_000_000:
                return float(stamp), time.time()
    raise AssertionError("the job ended early")


async def day(arguments: argparse.Namespace) -> bool:
    """Ten prints a second for a day by the rule; what a commit costs from a real job."""
    commits, length = max((_commits_of_a_day(length), length) for length in (1, 2, 5, 12, 43, 200))
    async with bench() as here:
        exec_id = await here.launch(TICKS)
        await asyncio.sleep(arguments.seconds)
        count, real = await here.events(exec_id)
        await here.kill(exec_id)
    reached = told(
        "events of a commit, of a real job", count / real, EVENTS_PER_COMMIT + 0.5, "",
        f"; {count} events, {real} commits in {arguments.seconds:g} s",
    )  # fmt: skip
    events = commits * EVENTS_PER_COMMIT
    return reached & told(
        "ten prints a second for a day, events", events, EVENTS_PER_DAY, "",
        f"; {commits} commits, of lines of {length} characters: longer ones reach the cap sooner",
    )  # fmt: skip


def _commits_of_a_day(length: int) -> int:
    """How often such lines are handed on, ten a second, until the day or what is kept is over."""
    rule, commits, last, pending = CommitRule(), 0, 0.0, 0
    for tick in range(min(10 * 24 * 60 * 60, CAP_CHARACTERS // length)):
        now = tick / 10
        pending += length
        since = now - last
        if rule.due(
            age_seconds=now, since_last_seconds=since, pending_bytes=pending, commits=commits
        ):
            commits, last, pending = commits + 1, now, 0
    return commits + 1


async def load(arguments: argparse.Namespace) -> bool:
    """Steps of other tasks beside 16 jobs that print as fast as they can."""
    async with bench() as here:
        await _step_seconds(here, 5)  # warms up
        idle = await _step_seconds(here, arguments.seconds / 2)
        computing = [await here.launch(COMPUTING) for _ in range(JOBS)]
        busy = await _step_seconds(here, arguments.seconds / 2)
        await here.kill(*computing)
        printing = [await here.launch(PRINTING) for _ in range(JOBS)]
        memory: list[float] = []
        sampling = asyncio.create_task(_sample(memory))
        loaded = await _step_seconds(here, arguments.seconds)
        sampling.cancel()
        await here.kill(*printing)
    print(
        f"a step: {idle * 1000:.1f} ms with no job, {busy * 1000:.1f} ms beside {JOBS} that "
        f"compute, {loaded * 1000:.1f} ms beside {JOBS} that print"
    )
    reached = told("steps beside jobs that print, to idle", loaded / idle, RATIO, "")
    told("to jobs that compute", loaded / busy, RATIO, "")
    return reached & told("memory of the worker", max(memory), MEMORY_MB, " MB")


async def _step_seconds(here: Bench, seconds: float) -> float:
    """Seconds of a step, the median of tasks of ten that run one after another for so long."""
    steps = [{"id": f"s{number}", "type": "noop"} for number in range(10)]
    found: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(found) < 3:
        suite, result = await here.here.run_suite([{"id": "n", "steps": steps}], max_parallel=1)
        assert result.succeeded == 1, result
        found.append(await _took(here, task_workflow_id(suite, "n", 1)) / len(steps))
    return statistics.median(found)


async def _took(here: Bench, workflow_id: str) -> float:
    """Seconds from a task's first step to the end of its last, by the server's clock."""
    times = [
        event.event_time.ToNanoseconds() / 1e9
        async for event in here.here.client.get_workflow_handle(workflow_id).fetch_history_events()
        if event.HasField("activity_task_scheduled_event_attributes")
        or event.HasField("activity_task_completed_event_attributes")
    ]
    return times[-1] - times[0]


async def _sample(found: list[float]) -> None:
    """Note this process's memory, in MB, until it is enough."""
    me = psutil.Process()
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            found.append(me.memory_info().rss / 2**20)
            await asyncio.sleep(0.5)


PARTS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, bool]]] = {
    "load": load,  # first: what others leave in this process would count as memory of the worker
    "seen": seen,
    "pages": pages,
    "burst": burst,
    "day": day,
}


async def main() -> bool:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=30, help="of what lasts")
    arguments = parser.parse_args()
    reached = [await PARTS[name](arguments) for name in PARTS if name in arguments.only]
    print("goals reached" if all(reached) else "GOALS NOT REACHED")
    return all(reached)


if __name__ == "__main__":
    sys.exit(0 if measured(main) else 1)
