"""Suites and tasks of the Python client whose tasks need environments: processes, for real."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from perdure.client import Perdure
from perdure.documents import InvalidDocuments
from perdure.names import task_workflow_id
from perdure.suite_input import BadId
from tests.dtap_kit import Project

ENV = """\
environments:
  web:
    process:
      command: [python3, -m, http.server, "${WEB_PORT}", --bind, 127.0.0.1]
      ready: {http: "http://127.0.0.1:${WEB_PORT}/", timeout: 60}
    max_instances: 2
    ports: {WEB_PORT: {default: 18931}}
"""
LOOK = """\
test -n "$WEB_PROJECT_NAME" && exec python3 -c '
import os
from urllib.request import urlopen
urlopen("http://127.0.0.1:" + os.environ["WEB_PORT"])'"""


@pytest.fixture
def env_config(tmp_path: Path) -> Path:
    file = tmp_path / "env.yaml"
    file.write_text(ENV)
    return file


def task(id: str, command: str = LOOK, environments: tuple[str, ...] = ("web",)) -> dict[str, Any]:
    step = {"id": "look", "type": "command", "command": command}
    return {"id": id, "environments": [*environments], "steps": [step]}


def name() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


async def test_tasks_of_a_suite_use_the_environments_of_their_pool(
    perdure: Perdure, env_config: Path, pool: str
) -> None:
    tasks = [task("a"), task("b"), task("c"), task("plain", "true", ())]
    document = await perdure.run_suite(tasks, env_config=env_config, pool=pool, max_parallel=3)
    assert document["totals"]["succeeded"] == 4, document["tasks"]


async def test_what_succeeded_runs_again_only_if_its_environment_is_another_one(
    perdure: Perdure, env_config: Path, pool: str
) -> None:
    how = {"suite": name(), "env_config": env_config, "pool": pool}
    await perdure.run_suite([task("a")], **how)
    assert (await perdure.start_suite([task("a")], **how)).how == "finished"
    env_config.write_text(ENV.replace("max_instances: 2", "max_instances: 1"))
    again = await perdure.start_suite([task("a")], **how)
    assert (again.how, again.taken_over) == ("finished", 1)
    env_config.write_text(ENV.replace("http.server,", "http.server, --directory, .,"))
    other = await perdure.start_suite([task("a")], **how)
    assert (other.how, other.taken_over) == ("started", 0)
    assert (await other.wait()).succeeded == 1


async def test_a_suite_that_is_retried_keeps_its_pool_and_its_definitions(
    perdure: Perdure, env_config: Path, pool: str, tmp_path: Path
) -> None:
    suite = name()
    fails_once = f"test -e {tmp_path}/there && {LOOK}"
    document = await perdure.run_suite(
        [task("a", fails_once)], suite=suite, env_config=env_config, pool=pool
    )
    assert document["totals"]["failed"] == 1
    (tmp_path / "there").touch()
    env_config.unlink()
    run = await perdure.retry_suite(suite, keep_envs=True)
    assert run.definition.pool
    assert (run.definition.pool.pool, run.definition.pool.keep_envs) == (pool, True)
    assert (await run.wait()).succeeded == 1
    view = await perdure.pool(pool).view()
    assert view
    assert [i["doing"] for i in view["instances"]] == ["clean"], "it is kept"
    stats = await perdure.pool(pool).stats()
    assert stats, "P51, in the client"
    assert (stats.available_instances, stats.instances_by_env) == (1, {"web": 1})
    await perdure.pool(pool).stop()


async def test_a_task_by_itself_has_its_environments_too(
    perdure: Perdure, env_config: Path, pool: str
) -> None:
    suite = name()
    run = await perdure.start_task(task("a"), suite=suite, env_config=env_config, pool=pool)
    record = (await run.result()).record
    assert record["status"] == "succeeded"
    assert record["lease"]["pool"] == pool
    assert [i["environment"] for i in record["lease"]["instances"]] == ["web"]
    assert run.id == task_workflow_id(suite, "a", 1)


async def test_a_project_in_the_fields_own_layout_runs_as_it_is(
    perdure: Perdure, pool: str, tmp_path: Path
) -> None:
    """P21, P1, P13, P52"""
    project = Project(tmp_path / "project", version=None)
    (project.config / "env.yaml").write_text(ENV.replace("  web:", "  web-shop:"))
    mcp = "servers: [{name: Shop, environment: web-shop}]\n"
    (project.config / "mcp.yaml").write_text(mcp)
    project.task("crm/benign/1", "Agent: {mcp_servers: [{name: shop}, {name: none}]}\n")
    (project.root / "run.py").write_text(
        "import os\n"
        "from urllib.request import urlopen\n"
        "assert os.environ['WEB_SHOP_PROJECT_NAME']\n"
        "urlopen('http://127.0.0.1:' + os.environ['WEB_PORT'])\n"
    )
    document = await perdure.run_suite(
        project.root / "dataset", pool=pool, task_command="python3 run.py {task_dir}"
    )
    assert document["totals"]["succeeded"] == 1, document["tasks"]


async def test_an_environment_that_is_not_described_starts_nothing(
    perdure: Perdure, env_config: Path
) -> None:
    suite = name()
    with pytest.raises(InvalidDocuments) as caught:
        await perdure.start_suite([task("a", environments=("wbe",))], suite=suite,
                                  env_config=env_config)  # fmt: skip
    assert "there is no environment 'wbe' in" in str(caught.value)
    assert "did you mean 'web'?" in str(caught.value)
    assert suite not in [entry.suite for entry in await perdure.suites()]


async def test_a_pool_with_an_impossible_name_is_refused(
    perdure: Perdure, env_config: Path
) -> None:
    with pytest.raises(BadId, match="pool 'a/b'"):
        await perdure.start_suite([task("a")], env_config=env_config, pool="a/b")
