"""A command line for each test, and an end to what it leaves running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import CommandLine


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    """`perdure` with a state directory of the test's own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    command = CommandLine(tmp_path / "state", folder)
    yield command
    if (command.state / "server.json").exists():
        command("server", "stop")
