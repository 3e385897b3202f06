"""What environments lack on this machine is told before anything starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from perdure import environment_checks
from perdure.cli import status_of
from perdure.core.environments import Environment, Process
from perdure.core.pool_definitions import Definition
from perdure.environment_checks import missing, missing_in
from perdure.messages import SuiteTask

DOCKER = """\
#!/bin/sh
case "$1 $2" in
  "compose version") echo "{version}" ;;
  *) exit 0 ;;
esac
"""


@pytest.fixture(autouse=True)
def _forgetful() -> None:
    """What was found on one PATH says nothing of another."""
    environment_checks._docker.cache_clear()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    return folder


def docker(programs: Path, version: str) -> None:
    program = programs / "docker"
    program.write_text(DOCKER.replace("{version}", version))
    program.chmod(0o755)


def compose(name: str = "shop", **more: Any) -> Definition:
    return Definition(Environment(name, "compose.yml", **more), "1", "/nowhere")


def process(name: str = "mail", **more: Any) -> Definition:
    return Definition(Environment(name, process=Process("true"), **more), "1", "/nowhere")


def test_without_docker_the_environments_that_need_it_are_named(programs: Path) -> None:
    (line,) = missing([compose(), process(), compose("crm")], {})
    assert line.startswith("environments shop, crm: no docker on PATH; install Docker")


def test_an_old_compose_is_told_with_the_version_that_is_needed_in_no_time(programs: Path) -> None:
    """C06"""
    docker(programs, "1.29.2")
    began = time.monotonic()
    (line,) = missing([compose()], {})
    assert time.monotonic() - began < 5
    assert "environment shop: docker compose 2.0 or newer is needed" in line
    assert "is version 1.29" in line


def test_with_docker_there_is_nothing_to_say(programs: Path) -> None:
    docker(programs, "2.39.1")
    assert missing([compose()], {}) == []


def test_processes_need_no_docker(programs: Path) -> None:
    assert missing([process()], {}) == []


def test_secrets_that_lead_nowhere_are_named_with_their_environment(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_KEY", raising=False)
    found = process(env={"KEY": {"from_env": "SHOP_KEY"}, "MODE": "test"})
    assert missing([found], {"SHOP_KEY": "x"}) == []
    (line,) = missing([found], {})
    assert line.startswith("environment 'mail': env.KEY: {from_env: SHOP_KEY}: there is no variab")


def test_only_environments_of_tasks_that_run_again_count(programs: Path) -> None:
    environments = {d.name: d.to_json() for d in (compose(), process())}
    assert (
        missing_in([SuiteTask({"id": "a", "environments": ["mail"]}, "1")], environments, {}) == []
    )
    assert missing_in([SuiteTask({"id": "a", "environments": ["shop"]}, "1")], environments, {})
    assert missing_in([SuiteTask({"id": "a"}, "1")], environments, {}) == []


def test_a_run_without_docker_starts_nothing(
    programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "compose.yml").write_text("services: {web: {image: x}}\n")
    (tmp_path / "env.yaml").write_text("environments: {shop: {docker_compose: compose.yml}}\n")
    task = tmp_path / "task.yaml"
    task.write_text("environments: [shop]\nsteps: [{id: a, type: command, command: x}]\n")
    assert status_of(["run", str(task), "--env-config", str(tmp_path / "env.yaml")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("environment shop: no docker on PATH")
    assert told[-1] == "nothing was started"
    assert not (tmp_path / "state").exists()
