"""The example of background jobs runs as its README says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, command_line

TASKS = Path(__file__).resolve().parent.parent / "examples" / "background" / "tasks"


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as command:
        yield command


def test_a_training_is_watched_until_it_has_converged_and_interrupted_and_the_task_goes_on(
    perdure: CommandLine,
) -> None:
    ran = perdure("run", TASKS, "--suite", "models", "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(perdure("show", "models/training", "--json").stdout)
    results = record["context"]["results"]
    assert "converged" in results["watch"]["seen"]
    assert results["model"]["loss"] < 0.05
    (job,) = record["jobs"]
    assert (job["name"], job["step"], job["status"]) == ("train", "train", "interrupted")

    peek = json.loads(perdure("peek", job["exec_id"], "--json").stdout)
    assert peek["stdout"].startswith("epoch 1: loss 0.500\n")
    assert peek["stdout"].endswith("converged\nsaved model.json\n")
    bars = [line for line in peek["stderr"].splitlines() if "100%" in line]
    assert len(bars) >= 5, "each epoch's bar is there in its last state"
    assert len(peek["stderr"]) < 2_000, "and no other state of it"
