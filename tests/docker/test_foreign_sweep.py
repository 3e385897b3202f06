"""`perdure pool sweep --foreign`: what a pool that nobody keeps has left on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities import marker
from activities.process_server import PREFIX
from tests.activities.process_kit import Pool
from tests.cli.support import CommandLine, command_line
from tests.docker.kit import Stand

SHOP = "services: {app: {image: IMAGE, volumes: ['data:/data']}}\nvolumes: {data: }"

ENV = """
environments:
  page:
    process:
      command: ["python3", "-m", "http.server", "--bind", "127.0.0.1", "${PAGE_PORT}"]
      ready: {tcp: PAGE_PORT, timeout: 60}
    ports: {PAGE_PORT: {}}
memory: {required_gb: 0, reserve_gb: 0}
"""


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    folder = tmp_path / "living"
    folder.mkdir()
    with command_line(folder, within=True) as command, command.served():
        yield command
        command("pool", "shutdown")


@contextlib.contextmanager
def answering(words: bytes) -> Iterator[int]:
    """A terminal at which somebody types."""
    typist, terminal = pty.openpty()
    try:
        os.write(typist, words)
        yield terminal
    finally:
        os.close(typist)
        os.close(terminal)


def test_leftovers_of_a_pool_that_no_server_knows_are_listed_and_removed_when_agreed_to(
    stand: Stand, perdure: CommandLine, tmp_path: Path
) -> None:
    perdure.write("env.yaml", ENV)
    prepared = perdure("pool", "prepare", "--env-config", "env.yaml")
    assert prepared.returncode == 0, prepared.stderr
    (living,) = [folder.name for folder in perdure.state.glob("instances/*")]
    keepers = marker.carriers(f"{PREFIX}{living}/1")

    dead = Pool(tmp_path / "dead", uuid=stand.uuid)
    mail, shop = dead.app(), stand.call(SHOP, number=7)
    try:
        assert asyncio.run(stand.start(shop)).ok
        assert asyncio.run(mail.start()).ok

        listed = perdure("pool", "sweep", "--foreign", "--json")
        assert listed.returncode == 0, listed.stderr
        found = json.loads(listed.stdout)
        assert living not in {some["uuid"] for some in found}
        ours = [some for some in found if some["uuid"] == stand.uuid]
        assert [some["project"] for some in ours] == [shop.project, mail.call.project]
        kinds = ("containers", "networks", "volumes", "processes")
        counts = [[some[kind] for kind in kinds] for some in ours]
        assert counts == [[1, 1, 1, 0], [0, 0, 0, 2]], "a server, and its keeper"
        assert "nothing was removed" in listed.stderr
        assert stand.left()
        assert len(mail.processes()) == 2

        with answering(b"y\n") as terminal:
            # Of that pool alone: others at work on this machine may have theirs.
            swept = perdure.process(
                "pool", "sweep", "--foreign", "--of", stand.uuid, stdin=terminal
            )
        assert swept.returncode == 0, swept.stderr
        assert "Remove these 2? [y/N]" in swept.stderr
        assert "removed: 2 projects" in swept.stderr
        assert shop.project in swept.stdout
        assert (stand.left(), mail.processes()) == ([], [])
        assert marker.carriers(f"{PREFIX}{living}/1") == keepers, "a living pool keeps what it has"
    finally:
        dead.end()
