"""A command line for each test, and an end to what it leaves running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, command_line


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    """`perdure` with a state directory of the test's own."""
    with command_line(tmp_path) as command:
        yield command
