"""Background jobs in an environment that is a process, here of a tiny server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.backend import Backends
from perdure.messages import StepInstance
from tests.activities.jobs_kit import JobsKit, environment
from tests.activities.living import SLEEP, new_tag, sleepers
from tests.activities.process_kit import App, Pool
from tests.waiting import until


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.end()


def kit_of(app: App, pool: Pool, temporal: WorkflowEnvironment) -> JobsKit:
    """A kit whose jobs have the instance."""
    call = app.call
    instance = StepInstance(
        environment=call.environment,
        project=call.project,
        ports=call.ports,
        number=call.number,
        pool=call.pool,
        pool_uuid=call.pool_uuid,
        definition=json.loads(json.dumps(call.definition)),
    )
    backends = Backends(app.backend, app.backend, pool.path / "instances")
    return JobsKit(temporal.client, pool.path, environment(), backends, [instance])


async def test_a_cell_runs_beside_the_server_with_its_variables(
    temporal: WorkflowEnvironment, pool: Pool
) -> None:
    app = pool.app(env={"MODE": "server"})
    assert (await app.start()).ok
    kit = kit_of(app, pool, temporal)
    code = "import os, json\nprint(json.dumps(dict(os.environ)))\nraise ValueError('no')"
    async with kit.workflows(), kit.worker():
        job = await kit.launch(code, environment="mail", env={"X": "é"})
        end = await job.end()
        seen = json.loads((await job.page()).stdout)
    assert end.error == "ValueError: no"
    assert (seen["MODE"], seen["X"]) == ("server", "é")
    assert seen["APP_PORT"] == str(app.port)
    assert seen["PERDURE_JOB_ID"] == job.exec_id
    await app.stop()


async def test_what_stops_it_stops_all_of_it_and_leaves_the_server(
    temporal: WorkflowEnvironment, pool: Pool
) -> None:
    app, tag = pool.app(), new_tag()
    assert (await app.start()).ok
    kit = kit_of(app, pool, temporal)
    where: dict[str, Any] = {"environment": "mail"}
    async with kit.workflows(), kit.worker():
        job = await kit.launch("import time\nprint('on', flush=True)\ntime.sleep(600)", **where)
        await job.prints("on\n")
        await job.interrupt()
        end = await job.end()
        assert (end.status, end.error) == ("interrupted", "Interrupted")

        script = f"trap '' INT; setsid {SLEEP} {tag} & {SLEEP} {tag}; {SLEEP} {tag}"
        job = await kit.launch(argv=["/bin/sh", "-c", script], **where)
        await until(lambda: sleepers(tag) == 2, "its processes")
        await job.interrupt(kill_after=0.2)
        assert (await job.end()).status == "killed"
        assert sleepers(tag) == 0
    assert (await app.check()).ok
    await app.stop()
