"""The trials of a task: what each of them is told, and how its log lines are told apart."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.support import CommandLine

TALKER = """\
from perdure.steps import step


@step("talk")
def talk(step, context, host):
    host.log.info("trial %s is 100%% here", host.trial)
    return context.metadata.get("pass_at_k_execution_id")
"""
TASK = """\
id: {id}
repeats: {repeats}
steps:
  - {{id: talk, type: talk}}
  - {{id: env, type: command, command: 'printf %s "$PERDURE_TRIAL"'}}
"""


@pytest.mark.usefixtures("one_server")
def test_each_trial_sees_its_own_number_and_its_log_lines_bear_its_mark(
    perdure: CommandLine,
) -> None:
    perdure.write("talker.py", TALKER)
    perdure.write("one.yaml", TASK.format(id="one", repeats=1))
    perdure.write("three.yaml", TASK.format(id="three", repeats=3))

    ran = perdure.process("run", "one.yaml", "three.yaml", "--suite", "s", "--steps", "talker")

    assert ran.returncode == 0, ran.stderr
    results = perdure.state / "results" / "s"
    seen = {
        (record["task_id"], record["trial"]): record["context"]["results"]
        for record in (json.loads(file.read_text()) for file in results.glob("*/*/record.json"))
    }
    assert {key: value["env"]["stdout"] for key, value in seen.items()} == {
        ("one", 1): "1", ("three", 1): "1", ("three", 2): "2", ("three", 3): "3",
    }  # fmt: skip
    assert {key: value["talk"] for key, value in seen.items()} == {
        ("one", 1): None,
        ("three", 1): "three/1",
        ("three", 2): "three/2",
        ("three", 3): "three/3",
    }
    ends = re.findall(r"^\[./4\] succeeded (\S+) ", ran.stderr, re.M)
    assert sorted(ends) == ["one", "three/1", "three/2", "three/3"]
    listed = [line.split()[0] for line in perdure("list", "s").stdout.splitlines()[1:]]
    assert sorted(listed) == ["s/one", "s/three/1", "s/three/2", "s/three/3"]
    logs = "".join(file.read_text() for file in (perdure.state / "workers").glob("*.log"))
    assert sorted(re.findall(r"perdure\.steps (.* is 100% here)$", logs, re.M)) == [
        "s/one/1 talk.1: trial 1 is 100% here",
        "s/three/1 talk.1: [three/1] trial 1 is 100% here",
        "s/three/2 talk.1: [three/2] trial 2 is 100% here",
        "s/three/3 talk.1: [three/3] trial 3 is 100% here",
    ]
