"""Steps of type `background` and `await` in a real container, from the document to the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import command_line
from tests.docker.kit import IMAGE, docker

COMPOSE = f"""\
services:
  box:
    image: {IMAGE}
    command: ["sleep", "600"]
    init: true
"""
ENV = """\
environments:
  box: {docker_compose: docker-compose.yml}
"""
TASK = """\
environments: [box]
steps:
  - {id: outside, type: command, command: 'test -n "$PERDURE_JOBS"'}
  - {id: inside, type: exec, environment: box, service: box, command: env}
  - id: launch
    type: background
    name: job
    environment: box
    service: box
    command: "env; trap 'echo saved > /tmp/saved; exit 3' INT; while :; do sleep 1; done"
  - {id: stop, type: await, job: job, interrupt_after: 1, accept: [interrupted]}
  - {id: after, type: exec, environment: box, service: box, command: 'cat /tmp/saved; ps'}
"""


@pytest.mark.timeout(300)
def test_a_step_launches_a_job_inside_which_another_one_stops(engine: None, tmp_path: Path) -> None:
    """C33: it is interrupted inside, and nothing there leads back to the host's jobs."""
    with command_line(tmp_path, within=True) as perdure:
        perdure.write("docker-compose.yml", COMPOSE)
        perdure.write("env.yaml", ENV)
        perdure.write("t.yaml", TASK)
        ran = perdure("run", "t.yaml", "--env-config", "env.yaml", "--suite", "s")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        record = json.loads(perdure("show", "s/t", "--json").stdout)
        results = record["context"]["results"]
        seen = results["inside"]["stdout"], results["stop"]["stdout"]
        for variables in seen:
            assert "PERDURE_STEP_ID=" in variables
            assert "PERDURE_JOBS=" not in variables
        (job,) = record["jobs"]
        assert f"PERDURE_JOB_ID={job['exec_id']}\n" in seen[1]
        assert (job["name"], job["step"], job["status"]) == ("job", "launch", "interrupted")
        assert results["after"]["stdout"].startswith("saved\n")
        assert "sleep 1\n" not in results["after"]["stdout"]
        (instance,) = record["instances"]
        names = docker("ps", "--all", "--format", "{{.Names}}")
        assert instance["project"] not in names, "its environment is gone with the suite"
