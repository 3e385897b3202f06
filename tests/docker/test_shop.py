"""The example `examples/shop`, run as its page says, on a real engine."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.support import ROOT, CommandLine, end, finish
from tests.conftest import require
from tests.docker.kit import docker

SHOP = ROOT / "examples" / "shop"
RUN = ("run", SHOP / "tasks", "--env-config", SHOP / "env.yaml", "--suite", "shop")
MOST = {
    name: environment["max_instances"]
    for name, environment in yaml.safe_load((SHOP / "env.yaml").read_text())["environments"].items()
}
POOL, ENVIRONMENT, INSTANCE = "perdure.pool", "perdure.environment", "perdure.instance"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def images(engine: None) -> None:
    """The example's images, built as its page says."""
    built = subprocess.run(
        ["sh", str(SHOP / "build.sh")], capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr


class Containers:
    """What the engine said of the containers that came and went."""

    def __init__(self, lines: list[str], pool: str) -> None:
        events = [json.loads(line) for line in lines]
        self._events = [
            (event["Action"], event["Actor"]["Attributes"])
            for event in events
            if event["Actor"]["Attributes"].get(POOL, "").startswith(pool)
        ]

    @property
    def most_alive(self) -> dict[str, int]:
        """The greatest number of instances at a time, by environment."""
        alive: dict[str, set[str]] = defaultdict(set)
        most: dict[str, int] = defaultdict(int)
        containers: dict[str, int] = defaultdict(int)
        for action, labels in self._events:
            environment, instance = labels[ENVIRONMENT], labels[INSTANCE]
            containers[instance] += 1 if action == "create" else -1
            if containers[instance]:
                alive[environment].add(instance)
            else:
                alive[environment].discard(instance)
            most[environment] = max(most[environment], len(alive[environment]))
        return dict(most)


@contextmanager
def watched_engine() -> Iterator[list[str]]:
    """Lines of the engine's events; they are there once the block has ended."""
    lines: list[str] = []
    words = ["--filter", "type=container", "--filter", "event=create", "--filter", "event=destroy"]
    watcher = subprocess.Popen(
        [require("docker"), "events", "--format", "{{json .}}", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield lines
    finally:
        watcher.terminate()
        lines += watcher.communicate(timeout=30)[0].splitlines()


def left_of(pool: str) -> list[str]:
    """Containers in any state, networks and volumes of a pool."""
    form = '{{.Label "' + POOL + '"}}'
    found = docker("ps", "--all", "--format", form + " {{.Names}} {{.Status}}")
    found += docker("network", "ls", "--format", form + " {{.Name}}")
    found += docker("volume", "ls", "--format", form + " {{.Name}}")
    return [line for line in found.splitlines() if line.startswith(pool)]


def pool_of(trials: dict[str, dict[str, Any]]) -> str:
    """The first letters of the pool's uuid: the names of its projects end with them."""
    projects = [each["project"] for trial in trials.values() for each in trial["instances"]]
    (pool,) = {project.rpartition("_")[2] for project in projects}
    return str(pool)


def test_the_shop_runs_green_within_its_limits_and_leaves_nothing(
    images: None, tmp_path: Path
) -> None:
    """PD1, PD3, PD11: no shared instance, limits kept, a task without environments runs."""
    perdure = CommandLine(tmp_path / "state", tmp_path)
    started: list[subprocess.Popen[str]] = []
    try:
        with watched_engine() as lines:
            started.append(perdure.start(*RUN, "--max-parallel", "8", "--json"))
            stdout, stderr = started[0].communicate(timeout=400)
        assert started[0].returncode == 0, stderr
    finally:
        end(started)
    told = json.loads(stdout)
    trials = {task["id"]: task["trials"][0] for task in told["tasks"]}
    assert set(trials) == {path.stem for path in (SHOP / "tasks").glob("*.yaml")}
    assert len(trials) >= 12
    for id, trial in trials.items():
        document = yaml.safe_load((SHOP / "tasks" / f"{id}.yaml").read_text())
        assert len(trial["instances"]) == len(document.get("environments", [])), id
    pool = pool_of(trials)
    assert Containers(lines, pool).most_alive == MOST, "as many as are allowed, and no more"
    assert left_of(pool) == []


def test_a_shop_without_its_images_says_what_is_missing_and_where(
    engine: None, tmp_path: Path
) -> None:
    """C02: the environment, the service and the image are named; it is not tried for minutes."""
    project = tmp_path / "project"
    (project / "shop").mkdir(parents=True)
    (project / "env.yaml").write_text((SHOP / "env.yaml").read_text())
    compose = (SHOP / "shop" / "docker-compose.yml").read_text()
    (project / "shop" / "docker-compose.yml").write_text(
        compose.replace("perdure-example/shop:1", "perdure-example/no-such-shop:1")
    )
    task = SHOP / "tasks" / "unknown-order.yaml"
    perdure = CommandLine(tmp_path / "state", tmp_path)

    run = perdure.start("run", task, "--env-config", project / "env.yaml", "--suite", "shop")
    status, stdout, stderr = finish(run)

    assert status == 1, stderr
    assert "environment" in stdout
    for named in ("shop", "perdure-example/no-such-shop:1"):
        assert named in stdout
    assert "Traceback" not in stdout + stderr
