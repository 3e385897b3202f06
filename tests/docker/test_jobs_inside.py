"""Background jobs in real containers: what stops them stops what runs inside (C33)."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.backend import Backends
from activities.secrets import WorkerEnvironment
from perdure.job_messages import FailingLine
from perdure.messages import StepInstance
from perdure.pool_messages import InstanceCall
from tests.activities.jobs_kit import JobsKit
from tests.docker.kit import Stand, docker
from tests.waiting import until

COMPOSE = """
services:
  shop:
    image: IMAGE
    command: ["sleep", "600"]
    environment: {OWN: "of the container"}
    init: true
"""


def with_python() -> str:
    """The same, with this machine's Python: images with one are nowhere to be had."""
    lent = sorted({place for place in ("/lib", "/lib64", "/usr") if Path(place).exists()})
    if not sys.base_prefix.startswith("/usr"):
        lent.append(sys.base_prefix)
    volumes = "".join(f'\n      - "{place}:{place}:ro"' for place in lent)
    path = f"{sys.base_prefix}/bin:/bin"
    environment = f'environment: {{OWN: "of the container", PATH: "{path}"}}'
    return COMPOSE.replace('environment: {OWN: "of the container"}', environment).rstrip() + (
        f"\n    volumes:{volumes}\n"
    )


@pytest.fixture
async def kit(
    request: pytest.FixtureRequest, temporal: WorkflowEnvironment, stand: Stand, tmp_path: Path
) -> AsyncIterator[JobsKit]:
    """A kit with a worker, whose jobs have an instance that is up."""
    call = stand.call(getattr(request, "param", COMPOSE))
    started = await stand.start(call)
    assert started.ok, started.reason
    made = JobsKit(temporal.client, tmp_path, WorkerEnvironment(dict(os.environ)))
    made.instances = [instance_of(call)]
    made.backends = Backends(stand.backend, stand.backend, stand.root / "instances")
    async with made.workflows(), made.worker():
        yield made
    await stand.stop(call)
    stand.clear()


def instance_of(call: InstanceCall) -> StepInstance:
    return StepInstance(
        environment=call.environment,
        project=call.project,
        ports=call.ports,
        number=call.number,
        pool=call.pool,
        pool_uuid=call.pool_uuid,
        definition=call.definition,
    )


def inside(kit: JobsKit, *command: str) -> str:
    """What a command prints in the container."""
    (instance,) = kit.instances
    return docker("exec", f"{instance.project}-shop-1", *command)


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"argv": ["sh", "-c", script], "environment": "shop", "service": "shop", **more}


async def test_a_job_inside_sees_its_container_and_is_told_of_as_any_other(kit: JobsKit) -> None:
    script = "echo $OWN $PERDURE_JOB_ID $MODE; echo err >&2; read x || exit 3"
    job = await kit.launch(**shell(script, env={"MODE": "m"}, ok_exit_codes=[3]))
    end = await job.end()
    assert (end.status, end.exit_code) == ("done", 3)
    page = await job.page()
    assert page.stdout == f"of the container {job.exec_id} m\n"
    assert page.stderr == "err\n"


async def test_c33_an_interrupt_reaches_what_runs_inside(kit: JobsKit) -> None:
    script = "trap 'echo saved; exit 5' INT; echo x >> /tmp/n; echo on; while :; do sleep 1; done"
    job = await kit.launch(**shell(script))
    await job.prints("on\n")
    await job.interrupt()
    end = await job.end()
    assert (end.status, end.interrupted) == ("interrupted", True)
    assert (await job.page()).stdout == "on\nsaved\n"
    assert "sleep 1" not in inside(kit, "ps")
    assert inside(kit, "cat", "/tmp/n") == "x\n"


async def test_c33_a_deaf_job_inside_is_killed_there(kit: JobsKit) -> None:
    job = await kit.launch(**shell("trap '' INT TERM; echo on; sleep 93; sleep 93", user="1000"))
    await job.prints("on\n")
    await job.interrupt(kill_after=0.3)
    assert (await job.end()).status == "killed"
    assert "sleep 93" not in inside(kit, "ps")


async def test_c33_at_its_limit_or_terminated_nothing_of_a_job_stays_inside(kit: JobsKit) -> None:
    job = await kit.launch(**shell("echo on; sleep 94", time_limit_seconds=1.0))
    assert (await job.end()).error == "the job ran longer than its limit of 1 s"
    assert "sleep 94" not in inside(kit, "ps")
    job = await kit.launch(**shell("echo on; sleep 95"))
    await job.prints("on\n")
    await job.handle.terminate()
    await until(lambda: "sleep 95" not in inside(kit, "ps"), "the end of what runs inside")


async def test_what_a_job_leaves_in_the_background_inside_ends_with_it(kit: JobsKit) -> None:
    job = await kit.launch(**shell("sleep 96 & echo over"))
    assert (await job.end()).status == "done"
    assert "sleep 96" not in inside(kit, "ps")


async def test_a_cell_needs_a_python_in_the_image_and_says_so(kit: JobsKit) -> None:
    end = await (await kit.launch("1 + 1", environment="shop", service="shop")).end()
    assert end.status == "failed"
    assert end.error is not None
    assert "the image of service shop has no python3" in end.error


async def test_a_service_that_is_not_there_is_named(kit: JobsKit) -> None:
    end = await (await kit.launch(argv=["true"], environment="shop", service="shup")).end()
    assert end.error is not None
    assert "shup" in end.error


@pytest.mark.parametrize("kit", [with_python()], indirect=True, ids=["python"])
async def test_a_cell_runs_by_the_python_of_the_image(kit: JobsKit) -> None:
    where: dict[str, Any] = {"environment": "shop", "service": "shop"}
    code = "import os\nprint(os.environ['OWN'], input())\ndef main(call): return call['args']"
    job = await kit.launch(code, stdin="given", entrypoint="main", args=[7], **where)
    end = await job.end()
    assert (end.status, end.error) == ("done", None)
    assert (await job.page()).stdout == "of the container given\n[7]\n"

    end = await (await kit.launch("x = 1\nraise ValueError('no')", **where)).end()
    assert (end.status, end.error) == ("failed", "ValueError: no")
    assert end.failing_line == FailingLine(2, "raise ValueError('no')")

    code = "import time\ntry:\n    print('on')\n    time.sleep(97)\nfinally:\n    print('saved')"
    job = await kit.launch(code, **where)
    await job.prints("on\n")
    await job.interrupt()
    end = await job.end()
    assert (end.status, end.error) == ("interrupted", "Interrupted")
    assert (await job.page()).stdout == "on\nsaved\n"
    assert "perdure-" not in inside(kit, "ls", "/tmp")
