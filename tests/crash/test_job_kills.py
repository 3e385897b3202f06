"""SIGKILL of worker and server under a background job: nothing lives on, and peeks still answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.activities.living import STUBBORN_SLEEPERS, living, new_tag, sleepers, stubborn_tree
from tests.cli.support import CommandLine, command_line, finish, wait_for

HOLD = """\
steps:
  - {id: hold, type: command, heartbeat_timeout: 1, command: 'until [ -e %s ]; do sleep 0.05; done'}
"""


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path, within=True) as command:
        yield command


def test_a_job_whose_worker_and_server_are_killed_is_accounted_for_when_they_are_back(
    perdure: CommandLine,
) -> None:
    """BD1, C27."""
    tag, go = new_tag(), perdure.folder / "go"
    perdure.write("t.yaml", HOLD % go)
    suite = perdure.start("run", "t.yaml", "--suite", "s")
    wait_for(lambda: '"running"' in perdure("show", "s/t", "--json").stdout, "the step runs")
    tree = f"echo begun; {stubborn_tree(tag)}"
    launch = perdure("launch", "s/t", "--name", "tree", "--", "/bin/sh", "-c", tree)
    assert launch.returncode == 0, launch.stderr
    exec_id = launch.stdout.strip()

    def peek() -> dict[str, Any]:
        done = perdure("peek", exec_id, "--json")
        assert "Traceback" not in done.stderr
        told: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return told

    wait_for(lambda: peek().get("stdout") == "begun\n", "it prints")
    wait_for(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "it has grandchildren")

    perdure.kill()
    killed = time.monotonic()
    wait_for(lambda: not living(tag), "none of its processes is left")
    assert time.monotonic() - killed < 5

    wait_for(lambda: peek().get("done") is True, "its end is told")
    lost = peek()
    assert (lost["status"], lost["error"]) == ("lost", "its worker was lost")
    assert (lost["stdout"], lost["name"], lost["attempts"]) == ("begun\n", "tree", 1)
    go.touch()
    status, _, told = finish(suite)
    assert status == 0, told
    assert peek() == lost, "a server of its own, and no worker"
    (listed,) = json.loads(perdure("jobs", "s/t", "--json").stdout)
    assert listed == lost
