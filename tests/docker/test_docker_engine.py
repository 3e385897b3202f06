"""What the engine itself tells by the SDK is what the command line tells, and neither is needed."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from activities import docker_engine
from activities.commands import run_command
from activities.docker_cli import DockerCli
from activities.docker_engine import Engine, EngineSilent
from perdure.docker_check import engine_environment, find_docker
from tests.docker.kit import IMAGE, Stand, docker
from tests.test_docker_check import program

TWO = """
    services:
      app: {image: IMAGE, healthcheck: {test: "true", interval: 0.2s}, volumes: [data:/data]}
      once: {image: IMAGE, command: ["true"]}
    volumes: {data: {}}
"""


async def test_both_ways_tell_the_same(stand: Stand) -> None:
    """Containers, networks, volumes, restarts and ports, each by the SDK and by `docker`."""
    call = stand.call(TWO)
    assert (await stand.start(call)).ok
    label = f"perdure.pool={stand.uuid}"
    by_engine, by_line = DockerCli(), DockerCli(asks_engine=False)
    named = docker("run", "--detach", "--label", label, "--publish", "127.0.0.1::80", IMAGE)

    def key(found: object) -> str:
        return str(found)

    own = await by_engine.containers(label)
    assert sorted(own, key=key) == sorted(await by_line.containers(label), key=key)
    assert {c.service: c.state for c in own} == {"app": "running", "once": "exited", "": "running"}
    assert next(c for c in own if c.service == "app").health == "healthy"
    for kind, count in (("container", 3), ("network", 1), ("volume", 1)):
        things = await by_engine.things(kind, label)
        assert sorted(things, key=key) == sorted(await by_line.things(kind, label), key=key)
        assert len(things) == count
    ids = [container.id for container in own]
    assert await by_engine.restarts(ids) == await by_line.restarts(ids) == dict.fromkeys(ids, 0)
    port = docker("port", named.strip(), "80").strip().rpartition(":")[2]
    assert f":{port}->" in await by_engine.published_ports()
    assert f":{port}->" in await by_line.published_ports()
    docker("rm", "--force", named.strip())
    assert (await stand.stop(call)).ok


async def test_an_instance_lives_and_ends_by_the_command_line_alone(stand: Stand) -> None:
    backend = stand.backend = stand.another_worker(DockerCli(asks_engine=False))
    call = stand.call(TWO)
    folder = stand.folder(call)
    assert (await stand.start(call)).ok
    assert (await backend.check(call, folder)).ok
    watch = asyncio.create_task(backend.watch(call, folder))
    await asyncio.sleep(0.5)
    app = stand.containers()
    docker("kill", *app)
    async with asyncio.timeout(30):
        died = await watch
    assert "service app: exited with 137" in died.reason
    assert (await stand.stop(call)).ok
    assert stand.left() == []


@pytest.fixture
def line(engine: None, tmp_path: Path) -> Callable[[str], DockerCli]:
    """Makes a docker whose SDK is told of another address than its command line uses."""
    real = shutil.which("docker")
    program(tmp_path, "docker", f'unset DOCKER_HOST\nexec {real} "$@"')

    def make(host: str) -> DockerCli:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        return DockerCli({"PATH": path, "DOCKER_HOST": host})

    return make


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
async def test_where_no_socket_answers_the_command_line_tells(
    line: Callable[[str], DockerCli], host: str
) -> None:
    cli = line(host)
    assert await cli.containers("perdure.pool=none") == []
    assert await cli.things("volume", "perdure.pool=none") == []


async def test_an_engine_that_hangs_is_left_alone_for_a_while(
    line: Callable[[str], DockerCli], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "ANSWER_SECONDS", 1)
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{folder}/socket")
        deaf.listen()
        asked: list[str] = []
        connect = docker_engine._connect
        monkeypatch.setattr(
            docker_engine, "_connect", lambda host: asked.append(host) or connect(host)
        )
        cli = line(f"unix://{folder}/socket")
        for _ in range(3):
            assert await cli.containers("perdure.pool=none") == []
        assert len(asked) == 1


async def test_an_engine_that_hung_is_asked_again_when_its_rest_is_over(
    engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "ANSWER_SECONDS", 1)
    now = 1_000.0
    with TemporaryDirectory() as folder:
        variables = engine_environment() | {"DOCKER_HOST": f"unix://{folder}/socket"}
        asked = Engine(find_docker(), variables, clock=lambda: now)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(f"{folder}/socket")
            deaf.listen()
            with pytest.raises(EngineSilent, match="no answer in time"):
                await asked.containers(["perdure.pool=none"])
        Path(folder, "socket").unlink()
        Path(folder, "socket").symlink_to("/var/run/docker.sock")
        now += docker_engine.REST_SECONDS - 0.1
        with pytest.raises(EngineSilent):
            await asked.containers(["perdure.pool=none"])
        monkeypatch.undo()
        now += 0.2
        assert await asked.containers(["perdure.pool=none"]) == []


async def test_without_the_sdk_the_command_line_tells(
    engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert await DockerCli().containers("perdure.pool=none") == []


async def test_a_context_of_docker_says_where_its_engine_is(engine: None, tmp_path: Path) -> None:
    """The SDK by itself would ask another engine than docker does."""
    with TemporaryDirectory() as folder:
        variables = engine_environment() | {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "own"}
        variables.pop("DOCKER_HOST", None)
        words = ("context", "create", "own", "--docker", f"host=unix://{folder}/link")
        done = await run_command(["docker", *words], variables, 10)
        assert done.code == 0, done
        asked = Engine(find_docker(), variables)
        with pytest.raises(EngineSilent):
            await asked.containers(["perdure.pool=none"])
        Path(folder, "link").symlink_to("/var/run/docker.sock")
        assert await asked.containers(["perdure.pool=none"]) == []


async def test_a_look_by_the_sdk_goes_on_after_it_failed_once(engine: None) -> None:
    """A question that the engine refuses costs the next one nothing."""
    asked = Engine(find_docker(), engine_environment())
    with pytest.raises(EngineSilent, match="No such container"):
        await asked.restarts(["0" * 64])
    assert await asked.containers(["perdure.pool=none"]) == []
