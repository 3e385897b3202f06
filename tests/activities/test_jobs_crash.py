"""Background jobs whose worker is killed: nothing of them lives on, and all is told (C27, BD1)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.activities.jobs_kit import JobsKit, environment
from tests.activities.jobs_kit import killed_worker as worker
from tests.activities.living import SLEEP, STUBBORN_SLEEPERS, living, new_tag, sleepers
from tests.activities.living import stubborn_tree as tree_of
from tests.waiting import until


@pytest.fixture
async def kit(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[JobsKit]:
    made = JobsKit(temporal.client, tmp_path, environment())
    async with made.workflows():
        yield made


@pytest.fixture
async def tag() -> AsyncIterator[str]:
    made = new_tag()
    yield made
    for pid in living(made):
        os.kill(pid, signal.SIGKILL)


async def test_bd1_a_job_whose_worker_is_killed_is_lost_and_nothing_of_it_lives(
    kit: JobsKit, tag: str
) -> None:
    with worker(kit) as program:
        argv = ["/bin/sh", "-c", f"echo begun; {tree_of(tag)}"]
        job = await kit.launch(argv=argv)
        await job.prints("begun\n")
        await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
        program.kill()
        at = time.monotonic()
        await until(lambda: not living(tag), "the end of the tree")
        assert time.monotonic() - at < 5
        end = await job.end()
    assert (end.status, end.error) == ("lost", "its worker was lost")
    page = await job.page()
    assert (page.stdout, page.done) == ("begun\n", True)


async def test_what_rode_in_the_last_beat_is_kept_of_a_lost_job(kit: JobsKit) -> None:
    code = """
import sys, time
print("first")
for n in range(10**9):
    sys.stderr.write(f"\\rstep {n}")
    time.sleep(0.02)
"""
    with worker(kit) as program:
        job = await kit.launch(code)

        async def bar() -> bool:
            beat = await job.beat()
            return beat is not None and beat.live_stderr.startswith("step ")

        await until(bar, "the bar")
        program.kill()
        assert (await job.end()).status == "lost"
    assert await job.all_of() == "first\n"
    assert (await job.all_of("stderr")).startswith("step ")


async def test_c27_a_restartable_job_starts_again_and_never_beside_itself(
    kit: JobsKit, tag: str, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    script = f"echo start >> {starts}; echo start $PERDURE_ATTEMPT; exec {SLEEP} {tag}"
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sleepers(tag))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    with worker(kit) as first:
        job = await kit.launch(argv=["/bin/sh", "-c", script], restartable=True)
        await job.prints("start 1\n")
        await until(lambda: sleepers(tag) == 1, "its process")
        with worker(kit):
            first.kill()
            await job.prints("start 2\n")
            await until(lambda: sleepers(tag) == 1, "its process")
            await job.interrupt()
            end = await job.end()
    watching.cancel()
    assert (end.status, end.attempts) == ("interrupted", 2)
    assert most == 1
    assert starts.read_text() == "start\nstart\n"
    text = "start 1\n[perdure: the worker was lost; started again]\nstart 2\n"
    assert (await job.page()).stdout == text
    assert (kit.kept(job) / "stdout.log").read_text() == text
