"""Two hosts share a pool: what is lost with one of them goes on at the other."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.core.pool_options import RULES
from perdure.names import DEFAULT_QUEUE, POOL_WORKFLOW, pool_workflow_id, shared_queue
from perdure.pool_messages import PoolInput, PoolTimes
from tests.cli.support import CommandLine, wait_for
from tests.crash.pool_project import PoolProject
from tests.crash.pool_run import PoolRun, pool_run

TASKS = ("a", "b", "c", "d")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor's promises hold on Linux"),
]


@contextmanager
def host(
    folder: Path, name: str, variables: dict[str, str], *options: str, places: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """A worker of a host that has a state directory of its own, and so many instances at most."""
    folder.mkdir(exist_ok=True)
    command = CommandLine(folder / "state", folder)
    log = folder / f"{name}.log"
    words = ["worker", "--host", name, "--max-instances", str(places), *options]
    log.touch()
    before = log.read_text().count("serving queue")
    with log.open("a") as output:
        process = subprocess.Popen(
            [*command.python, "-m", "perdure", *words],
            cwd=folder,
            env=command.environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        wait_for(lambda: log.read_text().count("serving queue") > before, f"host {name} serves")
        yield process
    finally:
        print(f"--- host {name}\n{log.read_text()[-3000:]}")
        process.kill()
        process.wait()


@pytest.fixture
def variables(temporal: WorkflowEnvironment, tmp_path: Path) -> dict[str, str]:
    """Of all that takes part: one server, one queue, one store."""
    (tmp_path / "blobs").mkdir()
    return {
        "TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host,
        "PERDURE_QUEUE": f"q-{uuid.uuid4().hex[:8]}",
        "PERDURE_BLOB_DIR": str(tmp_path / "blobs"),
        "PERDURE_BLOBS_SHARED": "1",
    }


@pytest.fixture
async def pool(temporal: WorkflowEnvironment) -> str:
    """A pool that gives a silent host up sooner than others do; its hosts beat every 5 s."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    await temporal.client.start_workflow(
        POOL_WORKFLOW,
        PoolInput(
            name,
            uuid.uuid4().hex,
            options=PoolTimes(host_gone_seconds=12.0),
            early=True,
            rules=RULES,
        ),
        id=pool_workflow_id(name),
        task_queue=shared_queue(DEFAULT_QUEUE),
    )
    return name


@pytest.fixture
def processes() -> Iterator[set[int]]:
    """Of the test's instances, by pid; none of them is left behind."""
    pids: set[int] = set()
    yield pids
    for pid in pids:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()


def hosts_of_ports(run: PoolRun, pool: str, variables: dict[str, str]) -> dict[str, str]:
    """Where each instance is, by its port."""
    shown = replace(run.perdure, within=True)("pool", "--pool", pool, "--json", **variables)
    assert shown.returncode == 0, shown.stderr
    instances = json.loads(shown.stdout)["instances"]
    return {str(each["ports"]["SHOP_PORT"]): each["host"] for each in instances}


def test_tasks_of_a_killed_host_go_on_at_the_other_and_what_it_left_is_swept_when_it_is_back(
    variables: dict[str, str], pool: str, processes: set[int], tmp_path: Path
) -> None:
    """Steps run where the lease is, and no instance of a host that is gone is waited for."""
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2, in_docker=False)
    one_folder = tmp_path / "one"
    with (
        host(one_folder, "one", variables) as one,
        host(tmp_path / "two", "two", variables),
        pool_run(tmp_path / "run", project, variables, "--pool", pool) as run,
    ):
        run.wait(lambda: sum(map(project.starts_of_work, TASKS)) >= 2, "two tasks are at work")
        first = [task for task in TASKS if project.starts_of_work(task)]
        places = {task: project.said(f"begin {task}")[0] for task in first}
        processes |= {int(place.partition("-")[2]) for place in places.values()}
        hosts = hosts_of_ports(run, pool, variables)
        by_host = {hosts[place.partition("-")[0]]: task for task, place in places.items()}
        assert set(by_host) == {"one", "two"}, "a place on each host"
        hit, spared = by_host["one"], by_host["two"]
        orphan = int(places[hit].partition("-")[2])

        one.kill()
        project.open(*(task for task in TASKS if task != hit))
        run.wait(lambda: len(project.said(f"begin {hit}")) > 1, f"{hit} starts over")
        port = project.said(f"begin {hit}")[1].partition("-")[0]
        assert hosts_of_ports(run, pool, variables)[port] == "two"
        assert psutil.pid_exists(orphan), "nobody is there to end it"
        with host(one_folder, "one", variables):
            run.wait(lambda: not psutil.pid_exists(orphan), "what the host left is swept")
            project.open(hit)
            status, trials = run.finish()

    assert status == 0, trials
    assert {trial["status"] for trial in trials.values()} == {"succeeded"}
    assert [step["attempts"] for step in trials[spared]["steps"]] == [1, 1, 1]
    assert project.two_on_one() == []
    instances = {event.instance for event in project.events()}
    processes |= {int(instance.partition("-")[2]) for instance in instances}
    assert not [pid for pid in processes if psutil.pid_exists(pid)], "nothing is left"


PAIR = """\
environments:
  left:
    process:
      command: ["{python}", "-m", "http.server", "--bind", "127.0.0.1", "${{LEFT_PORT}}"]
      ready: {{tcp: LEFT_PORT, timeout: 60}}
    max_instances: 2
    ports: {{LEFT_PORT: {{default: 18301}}}}
  right:
    process:
      command: ["{python}", "-m", "http.server", "--bind", "127.0.0.1", "${{RIGHT_PORT}}"]
      ready: {{tcp: RIGHT_PORT, timeout: 60}}
    max_instances: 2
    ports: {{RIGHT_PORT: {{default: 18401}}}}
memory: {{required_gb: 0.05, reserve_gb: 0.1}}
"""

THIRD = """\
environments:
  third:
    process: {command: [sleep, "600"]}
    memory_gb: 0.2"""

PAIR_TASK = """\
id: {id}
environments: [left, right]
steps:
  - {{id: write, type: command, command: 'echo "$LEFT_PORT $RIGHT_PORT" > note'}}
  - id: meet
    type: command
    command: 'touch "$AT/{id}"; until [ "$(ls "$AT" | wc -l)" -ge 2 ]; do sleep 0.1; done'
    env: {{AT: {at}}}
  - {{id: read, type: command, command: 'test "$(cat note)" = "$LEFT_PORT $RIGHT_PORT"'}}
  - {{id: ask, type: http, environment: right, port: RIGHT_PORT, path: /}}
"""


def test_all_instances_of_a_lease_and_all_steps_of_its_task_are_on_one_host(
    variables: dict[str, str], pool: str, tmp_path: Path
) -> None:
    """Two hosts with two places each, and tasks that need two: each host serves whole tasks."""
    folder = tmp_path / "project"
    for made in (folder / "tasks", folder / "at"):
        made.mkdir(parents=True)
    (folder / "env.yaml").write_text(PAIR.format(python=sys.executable))
    for id in TASKS:
        text = PAIR_TASK.format(id=id, at=folder / "at")
        (folder / "tasks" / f"{id}.yaml").write_text(text)
    (tmp_path / "cwd").mkdir()
    perdure = CommandLine(tmp_path / "state", tmp_path / "cwd", within=True)

    with (
        host(tmp_path / "one", "one", variables, places=2),
        host(tmp_path / "two", "two", variables, places=2),
    ):
        ran = perdure(
            *("run", folder / "tasks", "--env-config", folder / "env.yaml"),
            *("--suite", pool, "--pool", pool),
            **variables,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        shown = [perdure("show", f"{pool}/{task}", "--json", **variables) for task in TASKS]

    records = [json.loads(each.stdout) for each in shown]
    for record in records:
        hosts = {attempt["host"] for step in record["steps"] for attempt in step["attempts"]}
        assert hosts == {record["lease"]["host"]}
    assert {record["lease"]["host"] for record in records} == {"one", "two"}
    assert len({record["lease"]["request_id"] for record in records}) == len(TASKS)


def test_memory_decides_which_of_two_hosts_gets_a_whole_lease(
    variables: dict[str, str], pool: str, tmp_path: Path
) -> None:
    """Both have room for each instance alone, and one for the two that each task needs."""
    folder = tmp_path / "project"
    for made in (folder / "tasks", folder / "at"):
        made.mkdir(parents=True)
    text = PAIR.format(python=sys.executable).replace("max_instances: 2", "memory_gb: 0.2")
    (folder / "env.yaml").write_text(text)
    for id in TASKS:
        text = PAIR_TASK.format(id=id, at=folder / "at").replace("-ge 2", "-ge 1")
        (folder / "tasks" / f"{id}.yaml").write_text(text)
    large = (folder / "tasks" / "a.yaml").read_text().replace("id: a", "id: large", 1)
    (tmp_path / "large.yaml").write_text(large.replace("[left, right]", "[left, right, third]"))
    (tmp_path / "third.yaml").write_text(
        (folder / "env.yaml").read_text().replace("environments:", THIRD)
    )
    (tmp_path / "cwd").mkdir()
    perdure = CommandLine(tmp_path / "state", tmp_path / "cwd", within=True)

    with (
        host(tmp_path / "one", "one", variables, "--max-memory", "0.3", places=8),
        host(tmp_path / "two", "two", {**variables, "PERDURE_MAX_MEMORY_GB": "0.4"}, places=8),
    ):
        ran = perdure(
            *("run", folder / "tasks", "--env-config", folder / "env.yaml"),
            *("--suite", pool, "--pool", pool),
            **variables,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        shown = [perdure("show", f"{pool}/{task}", "--json", **variables) for task in TASKS]
        hosts = {json.loads(each.stdout)["lease"]["host"] for each in shown}
        assert hosts == {"two"}

        ran = perdure(
            *("run", tmp_path / "large.yaml", "--env-config", tmp_path / "third.yaml"),
            *("--suite", f"{pool}-large", "--pool", pool),
            **variables,
        )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    said = " ".join(ran.stdout.split())
    assert "environments left, right, third need together 0.6 GB of memory" in said
    assert "one may give 0.3 GB in all, two may give 0.4 GB in all" in said
    assert "raise --max-memory of a worker" in said


def test_a_task_of_a_killed_host_that_is_to_fail_ends_with_the_reason(
    variables: dict[str, str], pool: str, processes: set[int], tmp_path: Path
) -> None:
    """`on_instance_lost: fail`; the other host, and the task on it, know nothing of that."""
    project = PoolProject(tmp_path / "project", TASKS[:2], max_instances=2, in_docker=False)
    for file in project.tasks.glob("*.yaml"):
        file.write_text(f"on_instance_lost: fail\n{file.read_text()}")
    once = ("--retry-infrastructure", "0")
    with (
        host(tmp_path / "one", "one", variables) as one,
        host(tmp_path / "two", "two", variables),
        pool_run(tmp_path / "run", project, variables, "--pool", pool, *once) as run,
    ):
        run.wait(lambda: all(map(project.starts_of_work, TASKS[:2])), "both tasks are at work")
        places = {task: project.said(f"begin {task}")[0] for task in TASKS[:2]}
        processes |= {int(place.partition("-")[2]) for place in places.values()}
        hosts = hosts_of_ports(run, pool, variables)
        by_host = {hosts[place.partition("-")[0]]: task for task, place in places.items()}
        hit, spared = by_host["one"], by_host["two"]

        one.kill()
        project.open(spared)
        status, trials = run.finish()

    assert status == 1
    assert trials[spared]["status"] == "succeeded"
    assert trials[hit]["status"] == "failed"
    assert trials[hit]["failure"] == {
        "kind": "infrastructure",
        "step": None,
        "reason": "its environments were lost under it: its host one is gone",
    }
    assert project.starts_of_work(hit) == 1, "it does not start over"
