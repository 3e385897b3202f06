"""Background jobs inside of containers, whose worker is killed (C27, C33)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.secrets import WorkerEnvironment
from tests.activities.jobs_kit import JobsKit, killed_worker
from tests.docker.kit import Stand
from tests.docker.test_jobs_inside import COMPOSE, inside, instance_of, shell
from tests.waiting import until


@pytest.fixture
async def kit(
    temporal: WorkflowEnvironment, stand: Stand, tmp_path: Path
) -> AsyncIterator[JobsKit]:
    """A kit without a worker, whose jobs have an instance that is up."""
    call = stand.call(COMPOSE)
    started = await stand.start(call)
    assert started.ok, started.reason
    made = JobsKit(temporal.client, tmp_path, WorkerEnvironment(dict(os.environ)))
    made.instances = [instance_of(call)]
    async with made.workflows():
        yield made
    await stand.stop(call)
    stand.clear()


async def test_c27_what_a_killed_worker_left_inside_is_ended_by_the_next_one(
    kit: JobsKit, stand: Stand
) -> None:
    """C27, C33: of a job that starts again, and of one that is lost."""
    instances = stand.root / "instances"
    with killed_worker(kit, instances) as first:
        again = await kit.launch(**shell("echo on >> /tmp/n; echo on; sleep 71", restartable=True))
        lost = await kit.launch(**shell("echo on; sleep 72 & sleep 72"))
        for job in (again, lost):
            await job.prints("on\n")
        with killed_worker(kit, instances):
            first.kill()
            assert (await lost.end()).status == "lost"
            assert "sleep 72" not in inside(kit, "ps")
            await until(lambda: inside(kit, "cat", "/tmp/n") == "on\non\n", "it starts again")
            await until(lambda: "sleep 71" in inside(kit, "ps"))
            assert inside(kit, "ps").count(" sleep 71\n") == 1
            await again.interrupt()
            assert (await again.end()).status == "interrupted"
            assert "sleep 71" not in inside(kit, "ps")
