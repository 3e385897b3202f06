"""Tasks in the DTap layout, found by their path: command, root, environments, metadata, ids."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from perdure.documents import Documents, ListOptions, LoadedTask, load, unsupported
from tests.dtap_kit import GMAIL, Project, ids, load_dtap


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def the_task(documents: Documents) -> LoadedTask:
    assert [str(problem) for problem in documents.problems] == []
    (loaded,) = documents.tasks
    return loaded


def step(loaded: LoadedTask) -> dict[str, Any]:
    (only,) = loaded.task.steps
    return only.to_dict()


def environments(project: Project, config: str, **options: Any) -> tuple[str, ...]:
    directory = project.task(f"crm/benign/{len(list(project.root.rglob('config.yaml')))}", config)
    return the_task(load_dtap(directory, **options)).task.environments


# --- The step ---------------------------------------------------------------------------------


def test_a_directory_becomes_one_command_in_the_projects_folder(project: Project) -> None:
    """P52"""
    directory = project.task("crm/benign/1")
    loaded = the_task(load_dtap(project.root / "dataset"))
    assert loaded.source == str(directory / "config.yaml")
    assert loaded.task.metadata == {
        "domain": "crm",
        "type": "benign",
        "task_id": "1",
        "task_dir": str(directory),
    }
    assert step(loaded) == {
        "id": "run",
        "type": "command",
        "version": None,
        "fail_task_on_error": True,
        "command": f"python3 run.py --task-dir {directory}",
        "cwd": str(project.root),
        "env": {"PYTHONPATH": str(project.root), "PERDURE_TASK_DIR": str(directory)},
        "mcp": {"config": str(project.config / "mcp.yaml"), "servers": ["gmail"]},
    }


@pytest.mark.parametrize("template", ["x {task_dir}", 'x "{task_dir}"', "x '{task_dir}'"])
def test_the_directory_is_quoted_for_the_shell_where_it_has_to_be(
    project: Project, template: str
) -> None:
    directory = project.task("crm/benign/it's $HOME; `x`")
    command = step(the_task(load_dtap(directory, task_command=template)))["command"]
    assert command == "x '" + str(directory).replace("'", "'\"'\"'") + "'"


HOSTILE = "a  b'c\"d$(touch made)`touch made`;touch made&#*\\"


@pytest.mark.parametrize(
    "template",
    [
        "printf %s {task_dir}/x",
        'printf %s "{task_dir}/x"',
        "printf %s '{task_dir}/x'",
        "printf %s '{task_dir}'/x",
        'printf %s "$NOTHING{task_dir}/x"',
        "printf \\%s {task_dir}/x # it's {task_dir}",
        'printf %s "$PERDURE_TASK_DIR"/x',
    ],
)
def test_a_shell_sees_the_directory_as_it_is_called(
    project: Project, tmp_path: Path, template: str
) -> None:
    directory = project.task(f"crm/benign/{HOSTILE}")
    found = step(the_task(load_dtap(directory, task_command=template)))
    shell = subprocess.run(
        ["/bin/sh", "-c", found["command"]],
        cwd=tmp_path, env=found["env"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shell.stdout == f"{directory}/x"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "template",
    [
        "sh -c 'cd {task_dir} && ls'",
        'sh -c "cd {task_dir}; ls"',
        'x "$(cd "{task_dir}" && pwd)"',
        "x `ls {task_dir}`",
        "cat <<END\n{task_dir}\nEND",
    ],
)
def test_a_directory_that_two_shells_would_read_is_refused_if_its_name_is_not_plain(
    project: Project, template: str
) -> None:
    plain = project.task("crm/benign/plain")
    command = step(the_task(load_dtap(plain, task_command=template)))["command"]
    assert command == template.replace("{task_dir}", str(plain))

    (problem,) = load_dtap(project.task(f"crm/benign/{HOSTILE}"), task_command=template).problems
    assert "another shell reads it again" in problem.message
    assert '"$PERDURE_TASK_DIR"' in problem.remedy


def test_only_the_placeholder_of_a_command_is_replaced(project: Project) -> None:
    directory = project.task("crm/benign/1")
    template = "ls {task_dir} {task_dir}/{} ${HOME} {other} | awk '{print $1}'"
    command = step(the_task(load_dtap(directory, task_command=template)))["command"]
    assert command == f"ls {directory} {directory}/{{}} ${{HOME}} {{other}} | awk '{{print $1}}'"


def test_a_command_without_the_placeholder_runs_as_it_is_with_a_warning(project: Project) -> None:
    project.task("crm/benign/1", "{}")
    project.task("crm/benign/2", "{}")
    documents = load_dtap(project.root / "dataset", task_command="make check")
    assert [step(task)["command"] for task in documents.tasks] == ["make check"] * 2
    (warning,) = [w for w in documents.warnings if w.file == "--task-command"]
    assert "PERDURE_TASK_DIR" in warning.remedy
    reading = load_dtap(project.root / "dataset", task_command='make "$PERDURE_TASK_DIR"')
    assert not [w for w in reading.warnings if w.file == "--task-command"]


def test_the_command_comes_from_the_option_or_from_env_yaml(
    project: Project, tmp_path: Path
) -> None:
    directory = project.task("crm/benign/1")
    (project.config / "env.yaml").write_text("task_command: 'own {task_dir}'\n")
    other = tmp_path / "other.yaml"
    other.write_text("task_command: 'other {task_dir}'\n")

    def command(**options: Any) -> str:
        loaded = the_task(load([directory], lists=ListOptions(**options)))
        return str(step(loaded)["command"]).split()[0]

    assert command() == "own"
    assert command(env_config=other) == "other"
    assert command(env_config=other, task_command="mine {task_dir}") == "mine"


def test_without_a_command_one_error_says_where_to_give_one(project: Project) -> None:
    project.task("crm/benign/1")
    project.task("crm/benign/2")
    (problem,) = load([project.root / "dataset"]).problems
    assert "--task-command" in problem.remedy
    assert "env.yaml" in problem.remedy


def test_validating_needs_no_command(project: Project) -> None:
    project.task("crm/benign/1")
    documents = load([project.root / "dataset"], lists=ListOptions(validating=True))
    assert ids(documents) == ["crm.benign.1"]


def test_the_results_root_is_handed_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P55"""
    monkeypatch.setenv("EVAL_RESULTS_ROOT", str(tmp_path / "judged"))
    loaded = the_task(load_dtap(project.task("crm/benign/1")))
    assert step(loaded)["env"]["EVAL_RESULTS_ROOT"] == str(tmp_path / "judged")


def test_the_port_range_of_a_tasks_own_servers_is_handed_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P52"""
    monkeypatch.setenv("DT_PORT_RANGE", "21000-21999")
    monkeypatch.setenv("DT_PORT_RANGE_START", "")
    env = step(the_task(load_dtap(project.task("crm/benign/1"))))["env"]
    assert env["DT_PORT_RANGE"] == "21000-21999"
    assert "DT_PORT_RANGE_START" not in env


def test_the_step_names_the_servers_that_mcp_yaml_describes_and_no_others(
    project: Project,
) -> None:
    """P57"""

    def mcp(config: str) -> Any:
        directory = project.task(f"crm/benign/{uuid.uuid4().hex}", config)
        return step(the_task(load_dtap(directory))).get("mcp")

    sub_agents = "sub_agents: [{mcp_servers: [{name: X}]}]"
    three = f"Agent: {{mcp_servers: [{{name: Gmail}}, {{name: nobodys}}], {sub_agents}}}"
    assert mcp(three)["servers"] == ["gmail", "x"]
    assert mcp("Agent: {mcp_servers: [{name: nobodys}]}") is None
    assert mcp("{}") is None


# --- The root ---------------------------------------------------------------------------------


def test_the_root_is_the_option_or_the_project_above(project: Project, tmp_path: Path) -> None:
    directory = project.task("crm/benign/1")
    assert step(the_task(load_dtap(directory)))["cwd"] == str(project.root)
    assert step(the_task(load_dtap(directory, root=tmp_path)))["cwd"] == str(tmp_path)
    outside = project.root / "elsewhere" / "one"
    outside.mkdir(parents=True)
    (outside / "config.yaml").write_text("{}")
    assert step(the_task(load_dtap(outside)))["cwd"] == str(project.root)


def test_outside_of_a_project_the_root_is_that_of_env_yaml_or_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tmp_path / "tasks" / "one"
    one.mkdir(parents=True)
    (one / "config.yaml").write_text("{}")
    own = tmp_path / "settings" / "env.yaml"
    own.parent.mkdir()
    own.write_text("environments: {}\n")
    project = Project(tmp_path / "project")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert step(the_task(load_dtap(one)))["cwd"] == str(here)
    assert step(the_task(load_dtap(one, env_config=own)))["cwd"] == str(own.parent)
    found = the_task(load_dtap(one, env_config=project.config / "env.yaml"))
    assert step(found)["cwd"] == str(project.root)
    assert found.task.id == "one"


def test_a_root_that_is_no_folder_is_refused(project: Project) -> None:
    directory = project.task("crm/benign/1")
    problems = load_dtap(directory, root=project.root / "nowhere").problems
    assert problems[0].file == "--root"


# --- Ids and metadata -------------------------------------------------------------------------


def test_a_task_of_a_tree_is_named_by_its_path_below_it(project: Project) -> None:
    project.task("crm/benign/2")
    project.task("crm/benign/10")
    project.task("a/malicious/direct/risk/1")
    assert ids(load_dtap(project.root / "dataset")) == [
        "a.malicious.direct.risk.1",
        "crm.benign.10",
        "crm.benign.2",
    ]


def test_a_directory_named_by_itself_has_its_path_below_the_root(
    project: Project, tmp_path: Path
) -> None:
    directory = project.task("crm/benign/1")
    assert ids(load_dtap(directory)) == ["dataset.crm.benign.1"]
    assert ids(load_dtap(directory, root=tmp_path)) == ["project.dataset.crm.benign.1"]


def test_a_path_that_is_no_id_gets_a_near_one_and_stays_different(project: Project) -> None:
    for name in ("a b", "a-b", "a+b", "x" * 200):
        project.task(f"crm/benign/{name}")
    found = ids(load_dtap(project.root / "dataset"))
    assert len(set(found)) == 4
    assert "crm.benign.a-b" in found
    assert all(len(id) <= 128 for id in found)
    assert found == ids(load_dtap(project.root / "dataset"))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("crm/benign/1", {"domain": "crm", "type": "benign", "task_id": "1"}),
        (
            "code/benign/risk/1",
            {"domain": "code", "type": "benign", "risk_category": "risk", "task_id": "1"},
        ),
        (
            "crm/malicious/direct/risk/7",
            {
                "domain": "crm",
                "type": "malicious",
                "threat_model": "direct",
                "risk_category": "risk",
                "task_id": "7",
            },
        ),
        ("loose", {}),
    ],
)
def test_the_fields_of_a_task_come_from_its_path(
    project: Project, path: str, fields: dict[str, str]
) -> None:
    """P18, P54"""
    directory = project.task(path)
    assert the_task(load_dtap(directory)).task.metadata == {**fields, "task_dir": str(directory)}


def test_a_task_file_wins_over_the_layout(project: Project) -> None:
    directory = project.task("crm/benign/1")
    (directory / "task.yaml").write_text("id: own\nsteps: [{id: a, type: command, command: x}]\n")
    assert the_task(load_dtap(directory)).task.id == "own"


def test_an_edit_of_a_task_changes_its_digest(project: Project) -> None:
    directory = project.task("crm/benign/1")

    def digest() -> str:
        return the_task(load_dtap(directory)).digest

    seen = [digest()]
    (directory / "notes.txt").write_text("no part of the task")
    assert digest() == seen[0]
    (directory / "judge.py").write_text("one")
    seen.append(digest())
    (directory / "judge.py").write_text("two")
    seen.append(digest())
    (directory / "config.yaml").write_text(f"{GMAIL}# edited\n")
    seen.append(digest())
    assert len(set(seen)) == 4


# --- Environments -----------------------------------------------------------------------------


def test_environments_are_those_behind_the_agents_servers(project: Project) -> None:
    """P11, P13, P15"""
    config = "Agent: {mcp_servers: [{name: Gmail}, {name: zoom, enabled: false}, {name: gmail}]}\n"
    assert environments(project, config) == ("gmail",)


def test_environments_of_sub_agents_and_of_the_top_level_are_found(project: Project) -> None:
    """P11, P12"""
    deep = "Agent: {sub_agents: [{sub_agents: [{mcp_servers: [{name: slack}]}]}]}\n"
    assert environments(project, deep) == ("slack",)
    assert environments(project, "mcp_servers: [{name: slack}]\nAgent:\n") == ("slack",)


def test_unknown_servers_need_nothing_where_there_is_an_mcp_yaml(project: Project) -> None:
    """P13"""
    assert environments(project, "Agent: {mcp_servers: [{name: of-nobody}]}\n") == ()


def test_a_named_mcp_yaml_wins_over_the_projects(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "servers.yaml"
    other.write_text("servers: [{name: gmail, environment: [b, a]}]\n")
    assert environments(project, GMAIL, mcp_config=other) == ("b", "a")


def test_without_an_mcp_yaml_servers_are_environments(project: Project) -> None:
    """P14"""
    (project.config / "mcp.yaml").unlink()
    config = "Agent: {mcp_servers: [{name: Slack}, {name: gmail}]}\n"
    assert environments(project, config) == ("slack", "gmail")


def test_a_server_that_cannot_be_an_environment_is_refused_with_its_line(project: Project) -> None:
    """P14"""
    (project.config / "mcp.yaml").unlink()
    directory = project.task("crm/benign/1", "Agent:\n  mcp_servers:\n    - name: Google Docs\n")
    (problem,) = load_dtap(directory).problems
    assert (problem.file, problem.line) == (str(directory / "config.yaml"), 3)
    assert "--mcp-config" in problem.remedy


@pytest.mark.parametrize("config", ["", "# nothing\n", "Agent:\n", "Task: {task_id: 1}\n"])
def test_a_config_without_servers_needs_no_environment(project: Project, config: str) -> None:
    """P10, PD29"""
    assert environments(project, config) == ()


@pytest.mark.parametrize(
    ("config", "line", "said"),
    [
        ("Agent: [\n", 2, "not YAML"),
        ("Agent: gmail\n", 1, "Agent"),
        ("Agent:\n  mcp_servers:\n    - gmail\n", 3, "Agent.mcp_servers[0]"),
        ("Agent:\n  mcp_servers:\n    - name: 7\n", 3, "Agent.mcp_servers[0].name"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_file_and_line(
    project: Project, config: str, line: int, said: str
) -> None:
    """P10, PD29"""
    directory = project.task("crm/benign/1", config)
    (problem,) = load_dtap(directory).problems
    assert (problem.file, problem.line) == (str(directory / "config.yaml"), line)
    assert said in str(problem)


def test_a_null_name_and_duplicates_of_a_config_are_warnings(project: Project) -> None:
    """PD29"""
    config = "Agent: {mcp_servers: [{name: }, {name: gmail}]}\nTask: 1\nTask: 2\n"
    documents = load_dtap(project.task("crm/benign/1", config))
    assert the_task(documents).task.environments == ("gmail",)
    told = [str(warning) for warning in documents.warnings]
    assert any("the server has no name" in text for text in told)
    assert any("'Task' is there twice" in text for text in told)


def test_a_broken_mcp_yaml_is_one_problem_for_all_tasks(project: Project) -> None:
    (project.config / "mcp.yaml").write_text("servers: 3\n")
    project.task("crm/benign/1")
    project.task("crm/benign/2")
    (problem,) = load_dtap(project.root / "dataset").problems
    assert problem.file == str(project.config / "mcp.yaml")


def test_files_that_options_name_are_checked_even_if_no_task_needs_them(tmp_path: Path) -> None:
    task = tmp_path / "plain.yaml"
    task.write_text("steps: [{id: a, type: command, command: x}]\n")
    missing = tmp_path / "nowhere.yaml"
    problems = load_dtap(task, env_config=missing, mcp_config=missing).problems
    assert [problem.file for problem in problems] == [str(missing)] * 2


def test_a_project_without_its_compose_files_loads_and_says_what_it_lacks(project: Project) -> None:
    documents = load_dtap(project.task("crm/benign/1"), project.task("crm/benign/2"))
    assert [unsupported(loaded) for loaded in documents.tasks] == [[], []]
    assert documents.problems == []
    (unready,) = documents.unready
    assert unready.key == "environments.gmail.docker_compose"
    assert unready.file == str(project.config / "env.yaml")
    assert "there is no file" in unready.message


def test_a_file_linked_into_a_loop_or_a_pipe_is_a_problem(project: Project) -> None:
    directory = project.task("crm/benign/1")
    (directory / "config.yaml").unlink()
    os.mkfifo(directory / "config.yaml")
    os.mkfifo(directory / "judge.py")
    (problem,) = load_dtap(directory).problems
    assert "not a regular file" in problem.message


def test_links_to_directories_are_not_followed(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.yaml").write_text("{}")
    project.task("crm/benign/1")
    (project.root / "dataset" / "crm" / "benign" / "2").symlink_to(outside)
    assert ids(load_dtap(project.root / "dataset")) == ["crm.benign.1"]


def test_a_path_that_is_not_utf_8_is_a_problem(project: Project) -> None:
    directory = os.fsencode(project.root) + b"/dataset/crm/benign/\xff"
    os.makedirs(directory)
    with open(directory + b"/config.yaml", "w") as file:
        file.write("{}")
    problems = load_dtap(project.root / "dataset").problems
    assert problems
    assert all(str(problem).isprintable() for problem in problems)


def test_a_seed_that_contains_itself_is_refused_as_elsewhere(project: Project) -> None:
    seed: dict[str, Any] = {}
    seed["a"] = seed
    documents = load(
        [project.task("crm/benign/1")], seed=seed, lists=ListOptions(task_command="x {task_dir}")
    )
    assert any("contain themselves" in problem.message for problem in documents.problems)
