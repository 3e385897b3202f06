"""The files of a team's server: `docker compose config` accepts them, and they say what they must.

No engine is needed, and none is asked: this checks configuration only.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

ROOT = Path(__file__).parent.parent
COMPOSE_FILE = ROOT / "docker-compose.temporal.yml"
PASSWORD = "only-for-this-test"
PROJECT_ROOT = "/srv/evaluations"
REQUIRED = {"POSTGRES_PASSWORD": PASSWORD, "PERDURE_PROJECT_ROOT": PROJECT_ROOT}


def compose_config(**variables: str) -> subprocess.CompletedProcess[str]:
    program = require("compose")
    return subprocess.run(
        [program, "--file", str(COMPOSE_FILE), "config", "--format", "json"],
        cwd=ROOT,
        # An environment of its own: a developer's variables must not make the test pass.
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    shown = compose_config(**REQUIRED)
    assert shown.returncode == 0, shown.stderr
    parsed: dict[str, Any] = json.loads(shown.stdout)
    return parsed


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_a_missing_required_variable_is_named(missing: str) -> None:
    present = {name: value for name, value in REQUIRED.items() if name != missing}

    shown = compose_config(**present)

    assert shown.returncode != 0
    assert missing in shown.stderr


def test_no_secret_has_a_default_in_the_file() -> None:
    text = COMPOSE_FILE.read_text()

    uses = [line for line in text.splitlines() if "${POSTGRES_PASSWORD" in line]

    assert uses
    assert all("${POSTGRES_PASSWORD:?" in line for line in uses)


def test_every_image_has_a_version(config: dict[str, Any]) -> None:
    images = {name: service["image"] for name, service in config["services"].items()}
    bases = [
        line.split()[1]
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("FROM")
    ]

    for image in [*images.values(), *bases]:
        name, _, tag = image.partition(":")
        assert name
        assert tag[:1].isdigit(), f"{image} is not pinned"
        assert tag.count(".") >= 1, f"{image} is pinned to a major version only"


def test_the_server_is_the_one_that_perdure_embeds(config: dict[str, Any]) -> None:
    embedded = subprocess.run(
        [require("temporal"), "--version"], capture_output=True, text=True, check=True
    ).stdout
    tags = {
        name: config["services"][name]["image"].partition(":")[2]
        for name in ("temporal", "schema", "namespace", "ui")
    }

    assert f"Server {tags['temporal']}," in embedded
    assert f"UI {tags['ui']})" in embedded
    assert tags["schema"] == tags["namespace"] == tags["temporal"]


def test_postgresql_has_no_published_port(config: dict[str, Any]) -> None:
    assert not config["services"]["postgresql"].get("ports")
    assert "network_mode" not in config["services"]["postgresql"]


def test_every_published_port_is_bound_to_loopback(config: dict[str, Any]) -> None:
    published = {
        (name, port["target"]): port.get("host_ip")
        for name, service in config["services"].items()
        for port in service.get("ports", [])
    }

    assert set(published.values()) == {"127.0.0.1"}
    assert set(published) == {("temporal", 7233), ("ui", 8080)}


def test_the_worker_has_the_hosts_network_engine_and_project(config: dict[str, Any]) -> None:
    worker = config["services"]["worker"]
    mounts = {mount["target"]: mount for mount in worker["volumes"]}

    assert worker["network_mode"] == "host"
    assert worker["environment"]["TEMPORAL_ADDRESS"] == "127.0.0.1:7233"
    assert mounts["/var/run/docker.sock"]["source"] == "/var/run/docker.sock"
    assert mounts[PROJECT_ROOT]["source"] == PROJECT_ROOT
    assert worker["working_dir"] == PROJECT_ROOT


def test_the_blob_directory_is_a_volume_and_declared_shared(config: dict[str, Any]) -> None:
    worker = config["services"]["worker"]
    blob_dir = worker["environment"]["PERDURE_BLOB_DIR"]
    mounts = {mount["target"]: mount for mount in worker["volumes"]}

    assert mounts[blob_dir]["type"] == "volume"
    assert mounts[blob_dir]["source"] in config["volumes"]
    assert worker["environment"]["PERDURE_BLOBS_SHARED"] == "1"


def test_the_blob_directory_may_be_one_of_the_host() -> None:
    shown = compose_config(**REQUIRED, PERDURE_BLOB_DIR="/srv/blobs")
    worker = json.loads(shown.stdout)["services"]["worker"]

    mounts = {mount["target"]: mount for mount in worker["volumes"]}

    assert mounts[worker["environment"]["PERDURE_BLOB_DIR"]]["source"] == "/srv/blobs"


def test_each_service_waits_until_what_it_needs_is_healthy(config: dict[str, Any]) -> None:
    waits = {
        name: {needed: how["condition"] for needed, how in service.get("depends_on", {}).items()}
        for name, service in config["services"].items()
    }

    assert waits == {
        "postgresql": {},
        "schema": {"postgresql": "service_healthy"},
        "temporal": {"schema": "service_completed_successfully"},
        "namespace": {"temporal": "service_healthy"},
        "ui": {"temporal": "service_healthy"},
        "worker": {"namespace": "service_completed_successfully"},
    }
    for needed in ("postgresql", "temporal"):
        assert config["services"][needed]["healthcheck"]["test"]


def test_the_password_reaches_the_database_and_its_users_only(config: dict[str, Any]) -> None:
    holders = {
        name
        for name, service in config["services"].items()
        if PASSWORD in json.dumps(service.get("environment", {}))
    }

    assert holders == {"postgresql", "schema", "temporal"}
    assert PASSWORD not in json.dumps([s.get("command") for s in config["services"].values()])


def test_the_image_takes_what_it_copies_and_nothing_else() -> None:
    copied = {
        name
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    ignore = (ROOT / ".dockerignore").read_text().splitlines()

    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
