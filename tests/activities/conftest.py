"""Fixtures for steps and their hosts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.secrets import WorkerEnvironment
from activities.supervise import Supervisor
from tests.activities.steps_kit import Kit


@pytest.fixture(scope="session")
async def steps_supervisor() -> AsyncIterator[Supervisor]:
    running = await Supervisor.start()
    yield running
    await running.close()


@pytest.fixture
def kit(tmp_path: Path, steps_supervisor: Supervisor) -> Kit:
    variables = {"PATH": os.environ["PATH"], "HOME": "/nowhere/someone", "OTHER": "hidden"}
    return Kit(tmp_path, steps_supervisor, WorkerEnvironment(variables))
