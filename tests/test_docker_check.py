"""Docker and compose are found, or what is missing is said before anything starts."""

from __future__ import annotations

import grp
import os
import stat
import time
from pathlib import Path

import pytest

from perdure import docker_check
from perdure.docker_check import DockerMissing, EngineAway, engine_environment, find_docker


def program(folder: Path, name: str, script: str) -> Path:
    """A small script in the place of a program."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def docker(folder: Path, *, compose: str = "exit 1", ps: str = "exit 0") -> Path:
    """A docker whose `compose` and `ps` behave as these scripts do."""
    script = f'case "$1" in\ncompose) shift; {compose};;\nps) {ps};;\nesac'
    return program(folder, "docker", script)


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; nothing lies beside this Python."""
    monkeypatch.setattr(docker_check.sys, "executable", str(tmp_path / "nowhere" / "python"))
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def found_in(folder: Path) -> docker_check.Docker:
    return find_docker({"PATH": str(folder)})


def test_no_docker_at_all_is_said_with_two_ways_out(bin: Path) -> None:
    with pytest.raises(DockerMissing, match=r"no docker on PATH; install Docker .* `process`"):
        found_in(bin)


@pytest.mark.parametrize("printed", ["2.21.0", "v2.0.1", "5.6.1", "2.29.7-desktop.1"])
def test_the_plugin_is_taken_where_it_is_new_enough(bin: Path, printed: str) -> None:
    path = docker(bin, compose=f"echo {printed}")
    assert found_in(bin).compose == (str(path), "compose")


@pytest.mark.parametrize(
    "plugin",
    [
        "echo 1.29.2",
        "echo \"docker: 'compose' is not a docker command.\" >&2; exit 1",
        "echo Usage: docker COMMAND; exit 0",  # an old docker, which knows no plugins
        "exit 0",
    ],
)
def test_a_program_of_its_own_is_taken_where_the_plugin_is_missing_or_old(
    bin: Path, plugin: str
) -> None:
    """C06."""
    docker(bin, compose=plugin)
    path = program(bin, "docker-compose", "echo v2.5.0")
    assert found_in(bin).compose == (str(path),)
    assert found_in(bin).compose_version == "2.5.0"


def test_an_old_compose_is_told_with_its_version_and_the_needed_one(bin: Path) -> None:
    """C06: in one message, before anything is started."""
    docker(bin)
    program(bin, "docker-compose", "echo 1.29.2")
    began = time.monotonic()
    with pytest.raises(DockerMissing, match=r"compose 2\.0 or newer .* is version 1\.29"):
        found_in(bin)
    assert time.monotonic() - began < 5
    (bin / "docker-compose").unlink()
    with pytest.raises(DockerMissing, match=r"2\.0 or newer .* no compose plugin"):
        found_in(bin)


def test_an_engine_that_does_not_answer_is_told_from_a_docker_that_is_not_there(
    bin: Path,
) -> None:
    docker(bin, compose="echo 2.5.0", ps="echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(EngineAway, match=r"Cannot connect .* start it"):
        found_in(bin)


def test_a_docker_that_hangs_is_given_up(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_check, "ANSWER_SECONDS", 0.5)
    docker(bin, compose="echo 2.5.0", ps="exec /bin/sleep 60")
    with pytest.raises(EngineAway, match=r"no answer from .* within 0\.5 s"):
        found_in(bin)


def test_sudo_is_used_where_only_root_is_let_in(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P32, PD27: for every call, since all of them are built from what is found here."""
    path = docker(bin, compose="echo 2.5.0", ps='test "$AS_ROOT" = yes || exit 1')
    sudo = program(bin, "sudo", 'test "$1" = -n || exit 9\nshift\nAS_ROOT=yes exec "$@"')
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(docker_check, "_is_in_docker_group", lambda: False)
    found = found_in(bin)
    assert found.uses_sudo
    assert found.docker == (str(sudo), "-n", str(path))
    assert found.compose == (str(sudo), "-n", str(path), "compose")
    monkeypatch.setattr(docker_check, "_is_in_docker_group", lambda: True)
    with pytest.raises(EngineAway):
        found_in(bin)


def test_who_is_in_the_group_is_asked_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    own = grp.getgrgid(os.getgid())
    monkeypatch.setattr(grp, "getgrnam", lambda name: own)
    assert docker_check._is_in_docker_group()

    def none(name: str) -> grp.struct_group:
        raise KeyError(name)

    monkeypatch.setattr(grp, "getgrnam", none)
    assert not docker_check._is_in_docker_group()


def test_docker_sees_nothing_else_of_an_environment() -> None:
    """C11."""
    given = {"PATH": "/bin", "DOCKER_HOST": "unix:///x", "NOT_SET": "leak", "COMPOSE_FILE": "y"}
    assert engine_environment(given) == {"PATH": "/bin", "DOCKER_HOST": "unix:///x"}
