"""Steps that act on an environment's instance, here on real server processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities import marker
from activities.backend import Backends
from activities.secrets import WorkerEnvironment
from activities.step_instances import StepInstances
from perdure.core.environments import ResetEndpoint
from perdure.messages import StepInstance
from tests.activities.process_kit import App, Pool
from tests.activities.steps_kit import Kit
from tests.waiting import until


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.end()


async def running(pool: Pool, kit: Kit, **environment: object) -> App:
    """An instance that is up, and in the hands of the kit's steps."""
    app = pool.app(**environment)  # type: ignore[arg-type]
    started = await app.start()
    assert started.ok, started.reason
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
    kit.instances = StepInstances([instance], backends)
    return app


INSIDE = {"environment": "mail", "service": "mail"}


async def test_a_command_runs_beside_the_server_with_its_variables(kit: Kit, pool: Pool) -> None:
    app = await running(pool, kit, env={"MODE": "server"})
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    result = await kit.run("exec", **INSIDE, command=[sys.executable, "-c", code], env={"X": "é"})
    seen = json.loads(result["stdout"])
    assert (seen["MODE"], seen["X"]) == ("server", "é")
    assert seen["APP_PORT"] == str(app.port)
    assert seen["PERDURE_STEP_ID"] == "s"
    assert "OTHER" not in seen
    assert set(result) == {"exit_code", "stdout", "stderr", "json", "duration"}
    await app.stop()


async def test_what_an_instance_keeps_secret_is_masked_in_what_steps_print(
    kit: Kit, pool: Pool
) -> None:
    secret = "s3cr3t-CANARY-9f"
    kit.environment = pool_environment = WorkerEnvironment(
        {**kit.environment.variables, "REAL": secret}
    )
    pool.variables = dict(pool_environment.variables)
    app = await running(pool, kit, env={"PASS": {"from_env": "REAL"}})
    result = await kit.run("exec", **INSIDE, command='printf "[%s]" "$PASS"')
    assert result["stdout"] == "[***]"
    result = await kit.run("command", command=f"echo {secret[:3]}{secret[3:]}")
    assert secret not in result["stdout"]
    await app.stop()


async def test_a_failed_command_keeps_its_result(kit: Kit, pool: Pool) -> None:
    app = await running(pool, kit)
    failed = await kit.fail("exec", **INSIDE, command="echo out; echo why >&2; exit 3")
    assert (failed.type, failed.kind) == ("ExitCode", "task")
    assert failed.result["exit_code"] == 3
    assert failed.result["stdout"] == "out\n"
    assert "why" in str(failed)
    await app.stop()


async def test_nothing_of_a_command_that_was_ended_is_left(kit: Kit, pool: Pool) -> None:
    """C33: it is gone before its end is told."""
    app = await running(pool, kit)
    failed = await kit.fail(
        "exec", **INSIDE, command="(sleep 97 & sleep 97) & wait; sleep 97", timeout=1
    )
    assert failed.type == "Timeout"
    assert marker.find("run-1/s/", prefix=True) == []
    assert marker.find(f"run-1{kit.folder.name}/s.1", prefix=True) == []
    await app.stop()


async def test_a_cancelled_command_is_gone_when_the_step_is(kit: Kit, pool: Pool) -> None:
    app = await running(pool, kit)
    host = kit.host({"id": "s", "type": "exec"})
    step = asyncio.create_task(kit.run("exec", host, **INSIDE, command="sleep 98"))
    key = f"run-1{kit.folder.name}/s.1"
    await until(lambda: marker.find(key, prefix=True))
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert marker.find(key, prefix=True) == []
    await app.stop()


async def test_an_environment_that_the_task_has_not_is_named(kit: Kit, pool: Pool) -> None:
    app = await running(pool, kit)
    for type in ("exec", "reset"):
        failed = await kit.fail(type, environment="shop", service="x", command="true")
        assert (failed.type, failed.kind, failed.retryable) == ("NoEnvironment", "bad_input", False)
        assert "it has: mail" in str(failed)
    await app.stop()


async def test_an_instance_that_is_dead_fails_the_step_for_the_environments_sake(
    kit: Kit, pool: Pool
) -> None:
    app = await running(pool, kit)
    assert await kit.instances.dead() == {}
    await app.get("die/3")
    async with asyncio.timeout(20):
        await app.watch()
    failed = await kit.fail("exec", **INSIDE, command="true")
    assert failed.kind == "environment"
    dead = await kit.instances.dead()
    assert list(dead) == ["mail"]
    await app.stop()
    # The pool has taken it down meanwhile, with its folder.
    app.folder.rename(app.folder.with_name("gone"))
    assert "not on this host any more" in (await kit.instances.dead())["mail"]


async def test_a_server_that_is_only_busy_is_not_dead(
    kit: Kit, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.step_instances.DOUBT_SECONDS", 0.5)
    app = await running(pool, kit)
    await app.get("break")
    assert not (await app.check()).ok
    assert await kit.instances.dead() == {}
    await app.stop()


async def test_a_reset_calls_the_environments_endpoints(kit: Kit, pool: Pool) -> None:
    endpoint = ResetEndpoint("api", "http://127.0.0.1:${APP_PORT}/break", "POST")
    app = await running(pool, kit, reset_endpoints=(endpoint,), reset_retries=0)
    assert (await app.check()).ok
    assert await kit.run("reset", environment="mail") == {}
    assert not (await app.check()).ok, "the endpoint was called"
    await app.stop()


async def test_a_reset_that_fails_says_why(kit: Kit, pool: Pool) -> None:
    """PD18: a placeholder that cannot be filled is an error."""
    endpoint = ResetEndpoint("api", "http://127.0.0.1:${NOT_A_PORT}/reset", "POST")
    app = await running(pool, kit, reset_endpoints=(endpoint,), reset_retries=0)
    failed = await kit.fail("reset", environment="mail")
    assert (failed.type, failed.kind) == ("ResetFailed", "environment")
    assert "environment mail" in str(failed)
    assert "NOT_A_PORT" in str(failed)
    await app.stop()


async def test_a_reset_of_nothing_does_nothing(kit: Kit, pool: Pool) -> None:
    """P40: with neither endpoints nor scripts."""
    app = await running(pool, kit)
    assert await kit.run("reset", environment="mail") == {}
    await app.stop()
