"""Steps of type `exec` and `reset` in real containers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.backend import Backends
from activities.secrets import WorkerEnvironment
from activities.step_instances import StepInstances
from activities.supervise import Supervisor
from perdure.messages import StepInstance
from perdure.pool_messages import InstanceCall
from tests.activities.process_kit import free_port
from tests.activities.steps_kit import Kit
from tests.docker.kit import Stand, docker
from tests.waiting import until

COMPOSE = """
services:
  shop:
    image: IMAGE
    command: ["sleep", "600"]
    environment: {OWN: "of the container"}
    init: true
  db:
    image: IMAGE
    command: ["sleep", "600"]
    init: true
"""


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    made = await Supervisor.start()
    yield made
    await made.close()


@pytest.fixture
def kit(tmp_path: Path, supervisor: Supervisor) -> Kit:
    return Kit(tmp_path, supervisor, WorkerEnvironment(dict(os.environ)))


async def up(stand: Stand, kit: Kit, compose: str = COMPOSE, **facts: Any) -> InstanceCall:
    """An instance that is up, and in the hands of the kit's steps."""
    call = stand.call(compose, **facts)
    started = await stand.start(call)
    assert started.ok, started.reason
    instance = StepInstance(
        environment=call.environment,
        project=call.project,
        ports=call.ports,
        number=call.number,
        pool=call.pool,
        pool_uuid=call.pool_uuid,
        definition=call.definition,
    )
    backends = Backends(stand.backend, stand.backend, stand.root / "instances")
    kit.instances = StepInstances([instance], backends)
    return call


def inside(call: InstanceCall, service: str = "shop") -> str:
    """What runs in a service's container."""
    return docker("exec", f"{call.project}-{service}-1", "ps")


SHOP = {"environment": "shop", "service": "shop"}


async def test_a_command_sees_its_container_and_nothing_of_the_host(
    stand: Stand, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASS", "the host's")
    port = free_port()
    call = await up(
        stand, kit, COMPOSE.replace("init: true", 'init: true\n    ports: ["${SHOP_PORT}:80"]', 1),
        ports={"SHOP_PORT": port},
    )  # fmt: skip
    definition = json.loads(json.dumps(call.definition))
    definition["environment"]["ports"]["SHOP_PORT"]["container_port"] = 80
    (known,) = kit.instances._by_name.values()
    kit.instances = StepInstances(
        [StepInstance(**{**vars(known), "definition": definition})], kit.instances._backends
    )
    secret = "p$5w#rd 'x' \"q\" \n é"
    kit.environment = WorkerEnvironment({**kit.environment.variables, "REAL": secret})
    result = await kit.run(
        "exec", **SHOP, command="env; printf '[%s]' \"$PASS\"", workdir="/tmp",
        env={"PASS": {"from_env": "REAL"}, "DOCKER_HOST": "tcp://nowhere:1"},
    )  # fmt: skip
    seen = dict(line.split("=", 1) for line in result["stdout"].splitlines() if "=" in line)
    assert seen["OWN"] == "of the container"
    assert (seen["SHOP_HOST"], seen["DB_HOST"]) == ("shop", "db")
    assert seen["SHOP_PORT"] == "80"
    assert seen["PERDURE_STEP_ID"] == "s"
    assert seen["PWD"] == "/tmp"
    assert seen["DOCKER_HOST"] == "tcp://nowhere:1"
    assert not {"DB_PASS", "PERDURE_WORKDIR", "PERDURE_CONTEXT"} & set(seen)
    assert secret not in result["stdout"], "it is masked"
    stand.clear()


async def test_an_argv_and_a_user_are_taken_as_they_are(stand: Stand, kit: Kit) -> None:
    await up(stand, kit)
    result = await kit.run("exec", **SHOP, command=["echo", "$HOME", "a b"], user="1000")
    assert result["stdout"] == "$HOME a b\n"
    assert (await kit.run("exec", **SHOP, command="id -u", user="1000"))["stdout"] == "1000\n"
    failed = await kit.fail("exec", environment="shop", service="shup", command="true")
    assert (failed.type, failed.kind) == ("ExecFailed", "environment")
    assert "shup" in str(failed)
    assert "db, shop" in str(failed)
    stand.clear()


async def test_what_is_ended_at_its_limit_is_gone_inside(stand: Stand, kit: Kit) -> None:
    """C33: the process inside is gone before a retry begins; attempts = lines."""
    call = await up(stand, kit)
    command = "echo x >> /tmp/n; sleep 90"
    for attempt in (1, 2):
        document = {"id": "s", "type": "exec", "timeout": 1}
        failed = await kit.fail("exec", kit.host(document), **SHOP, command=command)
        assert failed.type == "Timeout"
        assert "sleep 90" not in inside(call)
        counted = docker("exec", f"{call.project}-shop-1", "cat", "/tmp/n")
        assert len(counted.splitlines()) == attempt
    stand.clear()


async def test_what_is_cancelled_is_gone_inside_whoever_it_ran_as(stand: Stand, kit: Kit) -> None:
    call = await up(stand, kit)
    step = asyncio.create_task(kit.run("exec", **SHOP, command="sleep 91", user="1000"))
    await until(lambda: "sleep 91" in inside(call))
    step.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await step
    assert "sleep 91" not in inside(call)
    stand.clear()


async def test_what_a_lost_worker_left_inside_is_gone_before_the_next_attempt(
    stand: Stand, kit: Kit
) -> None:
    """C33: the next attempt finds the one before it ended, and other steps untouched."""
    call = await up(stand, kit)
    for key in ("run-1/s/1/inside", "run-1/s.1/1/inside"):
        left = ("exec", "--detach", "--env", f"PERDURE_MARKER={key}", f"{call.project}-shop-1")
        docker(*left, "sleep", "92" if "/s/" in key else "93")
    kit.made = 1  # the next one is the second
    result = await kit.run("exec", **SHOP, command="ps")
    assert "sleep 92" not in result["stdout"]
    assert "sleep 93" in result["stdout"], "it is of the step `s.1`"
    stand.clear()


async def test_a_killed_container_is_found_dead(stand: Stand, kit: Kit) -> None:
    call = await up(stand, kit)
    assert await kit.instances.dead() == {}
    docker("kill", f"{call.project}-db-1")
    dead = await kit.instances.dead()
    assert list(dead) == ["shop"]
    assert "db" in dead["shop"]
    stand.clear()


async def test_a_reset_runs_the_scripts_inside(stand: Stand, kit: Kit) -> None:
    call = await up(stand, kit, reset_scripts={"db": "echo fresh > /tmp/state"})
    assert await kit.run("reset", environment="shop") == {}
    assert docker("exec", f"{call.project}-db-1", "cat", "/tmp/state") == "fresh\n"
    stand.clear()
