"""Environments that tasks name become definitions, or problems that say what and where."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from perdure.core.pool_definitions import Definition
from perdure.documents import Documents, ListOptions, LoadedTask, load, load_document
from perdure.errors import PerdureError
from perdure.messages import TaskOptions
from perdure.suite_input import definitions_of, suite_input, suite_task
from tests.dtap_kit import DATA, GMAIL, Project, load_dtap

COMPOSE = "services: {web: {image: shop}}\n"
ENV = """\
default_max_instances: 4
environments:
  shop:
    docker_compose: envs/shop/compose.yml
    ports: {SHOP_PORT: {default: 18080, container_port: 8000}}
  mail:
    process: {command: [python3, server.py], ready: {tcp: MAIL_PORT}}
    ports: {MAIL_PORT: {default: 18025}}
    env: {KEY: {from_file: secrets/key}, MODE: test}
memory: {required_gb: 2}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an env.yaml, and what it speaks of."""
    root = tmp_path / "project"
    write(root / "envs/shop/compose.yml", COMPOSE)
    write(root / "env.yaml", ENV)
    write(root / "server.py", "print(1)\n")
    return root


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def task(project: Path, *environments: str, **step: Any) -> Path:
    lines = f"environments: [{', '.join(environments)}]\nsteps:\n"
    body = ", ".join(f"{key}: {value}" for key, value in {"type": "command", **step}.items())
    more = "" if step else ', command: "true"'
    return write(project / "task.yaml", f"{lines}- {{id: a, {body}{more}}}\n")


def loaded(project: Path, *environments: str, **options: Any) -> Documents:
    return load([task(project, *environments)], lists=lists(project, **options))


def lists(project: Path, **options: Any) -> ListOptions:
    return ListOptions(**{"env_config": project / "env.yaml", **options})


def ready(documents: Documents) -> LoadedTask:
    assert [str(problem) for problem in documents.problems + documents.unready] == []
    (only,) = documents.tasks
    return only


def definition(documents: Documents) -> Definition:
    (only,) = ready(documents).definitions
    return only


def complaint(documents: Documents) -> str:
    assert documents.problems == []
    (problem,) = documents.unready
    return str(problem)


# --- What a definition holds ------------------------------------------------------------------


def test_a_compose_file_starts_at_the_nearest_folder_that_has_it(project: Path) -> None:
    shop = definition(loaded(project, "shop"))
    assert (shop.root, shop.environment.docker_compose) == (str(project), "envs/shop/compose.yml")
    assert shop.environment.max_instances == 4
    assert shop.memory.required_gb == 2
    deep = project / "config/deep"
    shutil.copy(write(project / "env.yaml", ENV), write(deep / "env.yaml", ""))
    assert definition(loaded(project, "shop", env_config=deep / "env.yaml")).root == str(project)


def test_the_root_option_goes_before_the_place_of_env_yaml(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other / "envs/shop/compose.yml", COMPOSE)
    assert definition(loaded(project, "shop", root=other)).root == str(other)
    (other / "envs/shop/compose.yml").unlink()
    told = complaint(loaded(project, "shop", root=other))
    assert told.startswith(f"{project}/env.yaml:4: environments.shop.docker_compose: ")
    assert "there is no file 'envs/shop/compose.yml'" in told
    assert f"in {other}; correct the path" in told


def test_a_process_runs_beside_env_yaml_and_its_paths_are_absolute(project: Path) -> None:
    mail = definition(loaded(project, "mail"))
    assert mail.environment.process
    assert mail.environment.process.cwd == str(project)
    assert mail.root == str(project)
    assert mail.environment.env == {"KEY": {"from_file": f"{project}/secrets/key"}, "MODE": "test"}
    text = ENV.replace("command: [python3", "cwd: servers, command: [python3")
    write(project / "env.yaml", text)
    assert "process.cwd: there is no folder" in complaint(loaded(project, "mail"))
    (project / "servers").mkdir()
    moved = definition(loaded(project, "mail"))
    assert moved.environment.process
    assert moved.environment.process.cwd == f"{project}/servers"


def test_an_environment_without_a_compose_file_of_its_own_has_that_of_its_name(
    tmp_path: Path,
) -> None:
    """P8: the fallback, also for a name that env.yaml does not have."""
    root = tmp_path / "p"
    env = write(root / "dt_arena/config/env.yaml", "environments: {a: {max_instances: 2}}\n")
    file = write(root / "dt_arena/envs/a/docker-compose.yml", COMPOSE)
    write(root / "dt_arena/envs/b/docker-compose.yaml", COMPOSE)
    for name, ending in (("a", "yml"), ("b", "yaml")):
        found = definition(loaded(root, name, env_config=env))
        assert found.root == str(root)
        assert found.environment.docker_compose == f"dt_arena/envs/{name}/docker-compose.{ending}"
        assert found.environment.ports == {}
    assert definition(loaded(root, "b", env_config=None, root=root)).name == "b"
    file.unlink()
    told = complaint(loaded(root, "a", env_config=env))
    assert "environments.a: has neither docker_compose nor process" in told
    assert "dt_arena/envs/a/docker-compose.yml" in told


def test_definitions_travel_as_json(project: Path) -> None:
    for found in ready(loaded(project, "shop", "mail")).definitions:
        assert Definition.from_json(found.to_json()) == found


def test_a_document_of_the_client_has_its_environments_defined(project: Path) -> None:
    document = {
        "id": "t",
        "environments": ["shop"],
        "steps": [{"id": "a", "type": "command", "command": "true"}],
    }
    found = load_document(document, lists=lists(project))
    assert definition(found).name == "shop"


# --- Digests ----------------------------------------------------------------------------------


def digests(project: Path, name: str = "shop") -> tuple[str, str]:
    """Of the definition, and of what matters to a task that uses it."""
    found = ready(loaded(project, name))
    return found.definitions[0].digest, found.environments_digest


@pytest.mark.parametrize(
    "path",
    ["envs/shop/compose.yml", "envs/shop/.env", "envs/shop/app/Dockerfile", "envs/shop/app/a/b.py"],
)
def test_an_edit_of_a_file_makes_another_environment_of_it(project: Path, path: str) -> None:
    write(project / "envs/shop/compose.yml", "services: {web: {build: ./app}}\n")
    write(project / "envs/shop/app/Dockerfile", "FROM scratch\n")
    write(project / "envs/shop/app/a/b.py", "1\n")
    before = digests(project)
    file = project / path
    write(file, (file.read_text() if file.exists() else "") + "# edited\n")
    after = digests(project)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_an_edit_beside_the_build_context_changes_nothing(project: Path) -> None:
    before = digests(project)
    write(project / "envs/shop/notes.md", "unrelated\n")
    assert digests(project) == before


def test_a_process_is_another_one_when_its_program_was_edited(project: Path) -> None:
    before = digests(project, "mail")
    write(project / "server.py", "print(2)\n")
    assert digests(project, "mail")[0] != before[0]


def test_how_many_instances_there_may_be_does_not_matter_to_a_finished_task(project: Path) -> None:
    before = digests(project)
    write(project / "env.yaml", ENV.replace("shop:\n", "shop:\n    max_instances: 1\n"))
    after = digests(project)
    assert before[0] != after[0], "the pool is to know"
    assert before[1] == after[1], "nothing is to run again"
    write(project / "env.yaml", ENV.replace("8000", "9000"))
    assert digests(project)[1] != before[1]


def test_what_environments_are_is_part_of_a_tasks_digest(project: Path) -> None:
    found = ready(loaded(project, "shop"))
    before = suite_task(found, TaskOptions()).digest
    assert before != found.digest
    write(project / "envs/shop/compose.yml", COMPOSE + "# edited\n")
    assert suite_task(ready(loaded(project, "shop")), TaskOptions()).digest != before


def test_a_compose_file_that_only_compose_understands_is_no_problem(project: Path) -> None:
    for text in ("services: {web: {build: {context: !reset null}}}\n", "services: [\n", "[]\n"):
        write(project / "envs/shop/compose.yml", text)
        assert definition(loaded(project, "shop")).name == "shop"


def test_a_compose_file_that_cannot_be_read_is_a_problem(project: Path) -> None:
    (project / "envs/shop/compose.yml").write_bytes(b"x" * (17 * 1024 * 1024))
    assert "compose.yml: is larger than 16 MiB" in complaint(loaded(project, "shop"))


# --- What is wrong ----------------------------------------------------------------------------


def test_an_unknown_environment_is_named_with_file_line_and_the_nearest_name(project: Path) -> None:
    told = complaint(loaded(project, "shpo"))
    assert told == (
        f"{project}/task.yaml:1: environments[0]: there is no environment 'shpo' in "
        f"{project}/env.yaml; did you mean 'shop'?"
    )


def test_without_an_env_yaml_the_option_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)
    told = complaint(loaded(project, "shop", env_config=None))
    assert "no env.yaml describes the environment 'shop'" in told
    assert told.endswith("; name one by --env-config project/env.yaml"), "it lies beside the task"
    (project / "env.yaml").unlink()
    told = complaint(loaded(project, "shop", env_config=None))
    assert told.endswith("; name one by --env-config FILE")


def test_two_environments_that_set_one_variable_cannot_be_used_together(project: Path) -> None:
    """PD26"""
    write(project / "env.yaml", ENV.replace("MAIL_PORT", "SHOP_PORT"))
    told = complaint(loaded(project, "shop", "mail"))
    assert "task.yaml:1: environments: shop and mail would both set the variable SHOP_PORT" in told
    ready(loaded(project, "mail"))


def test_a_later_duplicate_of_an_environment_counts_and_is_a_warning(project: Path) -> None:
    """PD26"""
    write(project / "env.yaml", f"{ENV}".replace("memory", "  shop: {max_instances: 9}\nmemory"))
    found = loaded(project, "shop", root=project)
    (warning,) = found.warnings
    assert "shop" in str(warning)
    assert (warning.line or 0) > 8
    assert "has neither docker_compose nor process" in complaint(found)


def test_a_port_that_the_environment_does_not_have_is_named(project: Path) -> None:
    file = task(project, "shop", type="http", environment="shop", port="SHOP_PORTS", path="/")
    told = complaint(load([file], lists=lists(project)))
    assert told.startswith(f"{file}:3: step 'a': port: 'SHOP_PORTS' is no port of the environment")
    assert told.endswith("did you mean 'SHOP_PORT'?")


def test_an_env_yaml_with_problems_is_told_of_once(project: Path) -> None:
    write(project / "env.yaml", "environments: {shop: {health_timeout: soon}}\n")
    found = loaded(project, "shop")
    assert [problem.file for problem in found.problems] == [str(project / "env.yaml")]
    assert found.unready == []


def test_validate_tells_of_environments_where_their_file_is_named(project: Path) -> None:
    found = loaded(project, "shpo", validating=True)
    assert [problem.key for problem in found.problems] == ["environments[0]"]
    unnamed = loaded(project, "shpo", validating=True, env_config=None)
    assert (unnamed.problems, unnamed.warnings) == ([], [])


def test_one_name_that_stands_for_two_things_is_refused(project: Path, tmp_path: Path) -> None:
    first = ready(loaded(project, "shop"))
    other = tmp_path / "other"
    shutil.copytree(project, other)
    second = ready(loaded(other, "shop"))
    with pytest.raises(PerdureError, match=r"the environment 'shop' of .*other is another one"):
        definitions_of([first, second])
    assert list(definitions_of([first, first])) == ["shop"]


# --- A suite of them --------------------------------------------------------------------------


def test_a_suite_uses_a_pool_only_if_a_task_names_environments(project: Path) -> None:
    found = ready(loaded(project, "shop"))
    tasks = [suite_task(found, TaskOptions())]
    definitions = definitions_of([found])
    start = suite_input("s", tasks, max_parallel=3, options=TaskOptions(), environments=definitions)
    assert start.pool
    assert (start.pool.pool, start.pool.max_parallel) == ("default", 3)
    assert start.environments == {"shop": found.definitions[0].to_json()}
    plain = suite_input("s", tasks, max_parallel=3, options=TaskOptions())
    assert (plain.pool, plain.environments) == (None, {})


@pytest.mark.parametrize("version", ["0.1.0", "0.2.12"])
def test_the_fields_own_files_load_and_their_environments_are_defined(
    tmp_path: Path, version: str
) -> None:
    """P1, P2, P13: duplicates are warnings (PD26)."""
    project = Project(tmp_path / "p", version)
    shutil.copytree(DATA / version, project.config, dirs_exist_ok=True)
    project.task("crm/benign/1", GMAIL)
    write(project.root / "dt_arena/envs/gmail/docker-compose-hub.yml", COMPOSE)
    found = load_dtap(project.root / "dataset")
    (gmail,) = ready(found).definitions
    assert (gmail.name, gmail.root) == ("gmail", str(project.root))
    assert gmail.environment.ports
