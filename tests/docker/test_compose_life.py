"""Compose instances live, die, and are taken down without a trace, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from activities import marker
from activities.backend import InnerCommand
from activities.docker_cli import DockerCli
from activities.docker_containers import Container
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall
from tests.conftest import require
from tests.crash.own_engine import OwnEngine
from tests.docker.kit import Stand, build_image, docker
from tests.waiting import until

APP = """
    services:
      app: {image: IMAGE, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"],
            volumes: ["data:/data"], healthcheck: {test: "true", interval: 0.2s}}
      side: {image: IMAGE}
    volumes: {data: }
"""


async def dies(stand: Stand, call: InstanceCall, *words: str) -> str:
    """What a watch says after a call of docker."""
    folder = stand.folder(call)
    watch = asyncio.create_task(stand.backend.watch(call, folder))
    await asyncio.sleep(0.5)
    assert not watch.done()
    docker(*words, host=stand.host)
    async with asyncio.timeout(60):
        result = await watch
    assert not result.ok
    assert not (await stand.backend.check(call, folder)).ok
    return result.reason


async def container(stand: Stand, call: InstanceCall, service: str) -> str:
    labels = (f"perdure.instance={call.number}", f"com.docker.compose.service={service}")
    return (await stand.backend.cli.containers(f"perdure.pool={stand.uuid}", *labels))[0].id


async def test_a_watch_tells_of_a_container_that_is_killed_ends_or_is_removed(
    stand: Stand,
) -> None:
    ways = (
        (("kill",), "exited with 137"),
        (("stop", "--time", "5"), "ended with 0"),  # which nothing does that serves
        (("rm", "--force"), "its container is gone"),
    )
    calls = [stand.call(APP, number) for number, _ in enumerate(ways, 1)]
    assert all(result.ok for result in await asyncio.gather(*map(stand.start, calls)))
    ends = [
        dies(stand, call, *words, await container(stand, call, "app"))
        for call, (words, _) in zip(calls, ways, strict=True)
    ]
    reasons = await asyncio.gather(*ends)
    assert reasons == [f"environment shop, service app: {said}" for _, said in ways]
    stand.clear()


async def test_many_watches_ask_the_engine_once(stand: Stand) -> None:
    calls = [stand.call("services: {app: {image: IMAGE}}", number) for number in (1, 2, 3)]
    assert all(result.ok for result in await asyncio.gather(*map(stand.start, calls)))
    asked = []

    class Counting(DockerCli):
        async def containers(self, *labels: str, wait: bool = True) -> list[Container]:
            asked.append(labels)
            return await super().containers(*labels, wait=wait)

    backend = stand.another_worker(Counting())
    watches = [
        asyncio.create_task(backend.watch(call, stand.folder(call))) for call in calls for _ in "ab"
    ]
    await asyncio.sleep(3)
    assert 0 < len(asked) <= 6  # and not six at a time
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
    stand.clear()


# --- Inside -----------------------------------------------------------------------------------


async def test_a_script_that_overruns_its_limit_is_ended_inside_of_the_container(
    stand: Stand,
) -> None:
    """C33: even where the image holds nothing but a shell to find it with."""
    call = stand.call(APP)
    assert (await stand.start(call)).ok
    folder = stand.folder(call)
    script = "echo x >> /tmp/n; sleep 3333 & sleep 4444"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await stand.backend.exec(call, folder, "app", script, 2.0)
    code, shown = await stand.backend.exec(call, folder, "app", "ps; wc -l </tmp/n", 30)
    assert code == 0
    assert "3333" not in shown
    assert "4444" not in shown
    assert shown.split()[-1] == "2"
    with pytest.raises(PerdureError, match="no service nope that runs; these run: app, side"):
        await stand.backend.exec(call, folder, "nope", "true", 5)
    with pytest.raises(PerdureError, match="name one of app, side"):
        await stand.backend.exec(call, folder, None, "true", 5)
    stand.clear()


async def test_a_script_that_prints_without_end_is_drained(stand: Stand) -> None:
    """PD19."""
    call = stand.call(APP)
    assert (await stand.start(call)).ok
    code, shown = await stand.backend.exec(
        call, stand.folder(call), "app", "yes | head -c 3000000; echo done >&2; exit 4", 60
    )
    assert code == 4
    assert shown.endswith("done\n")
    assert len(shown) <= 65_536
    stand.clear()


async def test_values_for_a_command_inside_stand_on_no_command_line(stand: Stand) -> None:
    """C49."""
    call = stand.call(APP)
    assert (await stand.start(call)).ok
    folder = stand.folder(call)
    value = "s3cr3t 'x' \"y\"\n$HOME `id` é"
    words = ["sh", "-c", 'printf %s "$PASS|$PATH|"; pwd']
    inner = InnerCommand(words, "app", {"PASS": value, "PATH": "/bin"}, user="0", workdir="/tmp")
    argv = await stand.backend.exec_argv(call, folder, inner)
    assert not any("s3cr3t" in word for word in argv)
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    shown, _ = await process.communicate()
    assert shown.decode() == f"{value}|/bin|/tmp\n"
    assert not list(folder.glob("exec-*"))
    stand.clear()


# --- Deaths of the worker ---------------------------------------------------------------------


async def killed_while(stand: Stand, call: InstanceCall, what: str, note: str) -> None:
    """Another worker does `what`, and is killed when it has said `note` and compose is at work."""
    file = stand.root / "call.json"
    file.write_text(json.dumps({"call": asdict(call), "folder": str(stand.folder(call))}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("starting_worker.py")), what, str(file)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    while note.encode() not in (line := await process.stdout.readline()):
        assert line, f"never said {note!r}"
    if what in ("start", "stop"):
        await until(lambda: marker.find(f"compose/{call.project}"), "compose is called")
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def test_a_worker_killed_during_up_is_followed_by_one_that_brings_it_up(
    stand: Stand,
) -> None:
    call = stand.call(APP)
    assert (await stand.backend.prepare(call, stand.folder(call))).ok
    await killed_while(stand, call, "start", "up")
    result = await stand.start(call)
    assert result.ok, result
    assert len(stand.containers()) == 2
    assert (await stand.stop(call)).ok


async def test_a_worker_killed_during_up_leaves_nothing_when_it_is_stopped(stand: Stand) -> None:
    call = stand.call(APP)
    assert (await stand.backend.prepare(call, stand.folder(call))).ok
    await killed_while(stand, call, "start", "up")
    assert (await stand.stop(call)).ok
    await asyncio.sleep(1)  # no call of compose is left that would make more of it
    assert stand.left() == []


async def test_a_worker_killed_during_down_is_followed_by_one_that_ends_it(stand: Stand) -> None:
    call = stand.call(APP)
    assert (await stand.start(call)).ok
    await killed_while(stand, call, "stop", "stopping")
    assert (await stand.stop(call)).ok
    assert stand.left() == []


async def test_a_start_that_is_cancelled_leaves_nothing_that_a_stop_does_not_find(
    stand: Stand,
) -> None:
    """C38."""
    compose = """
        services:
          slow: {image: IMAGE, healthcheck: {test: [CMD, "false"], start_period: 600s}}
          app: {image: IMAGE, depends_on: {slow: {condition: service_healthy}}}
    """
    call = stand.call(compose)
    start = asyncio.create_task(stand.start(call))
    await until(stand.containers, "a container runs")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not marker.find(f"compose/{call.project}")
    assert (await stand.stop(call)).ok
    assert stand.left() == []


# --- What is left over ------------------------------------------------------------------------


async def test_a_stop_works_without_the_compose_file_and_without_the_folder(stand: Stand) -> None:
    call = stand.call(APP)
    assert (await stand.start(call)).ok
    (stand.root / "envs/shop/docker-compose.yml").unlink()
    for file in stand.folder(call).iterdir():
        file.unlink()
    assert (await stand.stop(call)).ok
    assert stand.left() == []


async def test_a_sweep_takes_its_own_pools_leftovers_only(stand: Stand, tmp_path: Path) -> None:
    """PD25; two pools on one engine leave each other alone."""
    other = Stand(tmp_path)
    calls = [stand.call(APP, number) for number in (1, 2)]
    theirs = other.call(APP)
    try:
        started = (*map(stand.start, calls), other.start(theirs))
        assert all(result.ok for result in await asyncio.gather(*started))
        removed = await stand.another_worker().sweep(stand.uuid, {2}, tmp_path)
        assert removed == [f"{calls[0].project}: 2 containers, 1 network, 1 volume"]
        assert (await stand.backend.check(calls[1], stand.folder(calls[1]))).ok
        assert (await other.backend.check(theirs, other.folder(theirs))).ok
        assert await stand.backend.sweep(stand.uuid, set(), tmp_path) != []
        assert await stand.backend.sweep(stand.uuid, set(), tmp_path) == []
        assert stand.left() == []
    finally:
        other.clear()


# --- The engine -------------------------------------------------------------------------------


@contextmanager
def own_engine(networks: str | None = None) -> Iterator[OwnEngine]:
    """An engine with the tests' image."""
    own = OwnEngine(networks)
    try:
        own.start()
        build_image(require("busybox"), own.variables["DOCKER_HOST"])
        yield own
    finally:
        own.end()


async def test_an_engine_without_networks_left_is_crowded_not_broken(
    engine: None, tmp_path: Path
) -> None:
    """The pool waits for room, and does not count this as a failure of the environment."""
    with own_engine("base=10.213.200.0/28,size=29") as own:  # two networks
        stand = Stand(tmp_path, host=own.variables["DOCKER_HOST"])
        calls = [stand.call(APP, number) for number in (1, 2, 3)]
        for call in calls[:2]:
            assert (await stand.start(call)).ok
        crowded = await stand.start(calls[2])
        assert crowded.is_crowded, crowded
        assert not crowded.is_final
        assert "default-address-pools" in crowded.reason
        assert (await stand.stop(calls[0])).ok
        assert (await stand.start(calls[2])).ok


async def test_instances_survive_a_restart_of_the_engine_as_far_as_it_lets_them(
    engine: None, tmp_path: Path
) -> None:
    with own_engine() as own:
        stand = Stand(tmp_path, host=own.variables["DOCKER_HOST"])
        call, other = (stand.call(APP, number) for number in (1, 2))
        assert (await stand.start(call)).ok
        watch = asyncio.create_task(stand.backend.watch(call, stand.folder(call)))
        await asyncio.sleep(1)
        own.stop()
        began = time.monotonic()
        assert not (await stand.backend.check(call, stand.folder(call))).ok
        assert time.monotonic() - began < 10
        # A call that comes now waits until the engine is there again.
        starting = asyncio.create_task(stand.start(other))
        await asyncio.sleep(2)
        assert not starting.done()
        assert not watch.done()  # that it does not answer says nothing of the instances
        await asyncio.to_thread(own.start)
        started = await starting
        assert started.ok, started
        async with asyncio.timeout(30):
            lost = await watch  # its containers ended with the engine
        assert not lost.ok
        assert "service" in lost.reason
        for each in (call, other):
            assert (await stand.stop(each)).ok
        assert stand.left() == []
