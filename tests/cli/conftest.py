"""A command line for each test, and an end to what it leaves running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, command_line


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    """`perdure` within the test's process, with a state directory of the test's own."""
    with command_line(tmp_path, within=True) as command:
        yield command


@pytest.fixture
def one_server(perdure: CommandLine) -> Iterator[None]:
    """One server for all commands of a test that does not look at when it comes and goes."""
    with perdure.served():
        yield
