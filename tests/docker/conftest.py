"""What tests with a real engine share. Without one they are skipped, visibly."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import absent, find_program
from tests.docker import kit
from tests.docker.kit import Stand


@pytest.fixture(scope="session")
def engine() -> None:
    """A docker engine that answers, compose, and the image `kit.IMAGE`."""
    docker = find_program("docker")
    if not docker:
        absent("docker", "docker is absent")
    answer = subprocess.run([docker, "ps"], capture_output=True, text=True, timeout=30)
    if answer.returncode:
        absent("docker", f"docker's engine does not answer: {answer.stderr.strip()}")
    busybox = find_program("busybox")
    if not busybox:
        absent("docker", "busybox is absent, of which the tests' images are made")
    kit.build_image(busybox)


@pytest.fixture
def stand(engine: None, tmp_path: Path) -> Iterator[Stand]:
    """A project's root and a backend; what its pool leaves is removed, and fails the test."""
    made = Stand(tmp_path)
    yield made
    left = made.left()
    made.clear()
    assert left == []
