"""Calls of docker wait for an engine that restarts, go through sudo, and show no secret."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from activities.docker_cli import DockerCli, DockerFailed
from perdure import docker_check
from perdure.docker_check import EngineAway
from tests.test_docker_check import program

AWAY = "echo 'Cannot connect to the Docker daemon at unix:///x. Is it running?' >&2; exit 1"


@pytest.fixture
def bin(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def cli(folder: Path, away_seconds: float = 30.0) -> DockerCli:
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return DockerCli({"PATH": path}, away_seconds=away_seconds)


def docker(folder: Path, script: str) -> None:
    """A docker that has compose, and else does as `script` says."""
    program(folder, "docker", f'test "$1 $2" = "compose version" && echo 2.9.0 && exit\n{script}')


async def test_a_call_waits_for_an_engine_that_is_away_for_a_moment(bin: Path) -> None:
    gone = bin.parent / "gone"
    docker(bin, f"test -e {gone} && rm {gone} && {{ {AWAY}; }}\necho there: $@")
    engine = cli(bin)
    await engine.find()
    gone.touch()
    assert (await engine.docker("info")).out == "there: info\n"
    gone.touch()
    with pytest.raises(EngineAway, match="Cannot connect"):
        await engine.docker("info", wait=False)


async def test_an_engine_that_stays_away_is_told(bin: Path) -> None:
    docker(bin, AWAY)
    began = time.monotonic()
    with pytest.raises(EngineAway, match="start it"):
        await cli(bin, away_seconds=1.5).docker("info")
    assert time.monotonic() - began < 20
    assert await cli(bin).published_ports() == ""


async def test_what_docker_refuses_is_told_and_not_waited_for(bin: Path) -> None:
    docker(bin, 'test "$2" = --all || exit 0\necho trouble >&2; exit 1')
    with pytest.raises(DockerFailed, match="trouble"):
        await cli(bin).containers("a=b")


async def test_variables_reach_compose_through_sudo_by_no_command_line(
    bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P32, C49."""
    arguments = bin.parent / "arguments"
    script = 'test "$AS_ROOT" = yes || exit 1\ntest "$1" = ps && exit\nprintf "%s" "$PASS"'
    docker(bin, script)
    sudo = f'printf "%s " "$@" >>{arguments}\nshift\nexec env -i AS_ROOT=yes PATH="$PATH" "$@"'
    program(bin, "sudo", sudo)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(docker_check, "_is_in_docker_group", lambda: False)
    value = "s3cr3t 'x' \"y\"\n$HOME `id` é"
    done = await cli(bin).compose("p", [], "up", variables={"PASS": value})
    assert done.out == value
    assert "compose --project-name p up" in arguments.read_text()
    assert "s3cr3t" not in arguments.read_text()


async def test_a_call_at_its_limit_is_told_with_what_was_called(bin: Path) -> None:
    docker(bin, 'test "$1" = ps || exec sleep 60')
    with pytest.raises(TimeoutError, match="`docker volume ls` took longer than 0"):
        await cli(bin).docker("volume", "ls", timeout_seconds=0.3)
