"""`--skip-existing`: tasks that have been judged are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.documents import Documents, ListOptions, load
from perdure.errors import PerdureError
from perdure.task_sources import NothingToRun, load_tasks
from tests.dtap_kit import COMMAND, Project, benign, load_dtap, malicious

TASKS = ("crm/benign/1", "crm/malicious/direct/exfil/2")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path / "project")
    for path in TASKS:
        project.task(path, "{}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("EVAL_RESULTS_ROOT", raising=False)
    return project


def judge(results: Path, whose: str, task: str = TASKS[0], kind: str = "benchmark") -> Path:
    file = results / kind / whose / task / "judge_result.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    return file


def skipped(project: Project, command: str = COMMAND, **options: Any) -> list[str]:
    documents = load_dtap(
        project.root / "dataset", task_command=command, skip_existing=True, **options
    )
    assert [str(problem) for problem in documents.problems] == []
    left = [task.task.id for task in documents.tasks]
    out = [task.id for task in documents.skipped]
    assert sorted(left + out) == sorted(task.replace("/", ".") for task in TASKS)
    return out


def test_judged_tasks_are_left_out_and_told(project: Project) -> None:
    """P55"""
    file = judge(project.root / "results", "agent/model")
    documents = load_dtap(project.root / "dataset", skip_existing=True)
    (left_out,) = documents.skipped
    assert left_out.id == "crm.benign.1"
    assert left_out.judged == str(file)
    assert left_out.source.endswith("crm/benign/1/config.yaml")
    assert [task.task.id for task in documents.tasks] == ["crm.malicious.direct.exfil.2"]
    assert load_dtap(project.root / "dataset").skipped == []


def test_perdures_own_documents_are_never_judged(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text('steps: [{id: a, type: command, command: "true"}]')
    documents = load([file], lists=ListOptions(skip_existing=True))
    assert [task.task.id for task in documents.tasks] == ["own"]
    assert documents.problems == []


def test_the_tasks_of_lists_are_left_out_as_well(project: Project) -> None:
    """P55"""
    judge(project.root / "results", "a/m", TASKS[1])
    file = project.list(benign("1"), malicious("2", "direct", "exfil"))
    documents = load_dtap(file, skip_existing=True)
    assert [task.id for task in documents.skipped] == ["dataset.crm.malicious.direct.exfil.2"]


def test_results_are_looked_for_here_in_the_project_or_where_the_variable_says(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P55"""
    assert skipped(project) == []
    judge(tmp_path / "here" / "results", "a/m")
    assert skipped(project) == ["crm.benign.1"]
    monkeypatch.setenv("EVAL_RESULTS_ROOT", str(tmp_path / "elsewhere"))
    assert skipped(project) == []
    judge(tmp_path / "elsewhere", "a/m", TASKS[1])
    assert skipped(project) == ["crm.malicious.direct.exfil.2"]


def test_the_path_may_begin_with_dataset(project: Project) -> None:
    judge(project.root / "results", "a/m", f"dataset/{TASKS[0]}")
    assert skipped(project) == ["crm.benign.1"]


@pytest.mark.parametrize(
    ("command", "kind", "found"),
    [
        ("run {task_dir}", "benchmark", True),
        ("run {task_dir}", "direct_prompt", True),
        ("run {task_dir} --direct-prompt", "direct_prompt", True),
        ("run {task_dir} --direct-prompt", "benchmark", False),
        ("run {task_dir} --model m", "direct_prompt", False),
        ("run {task_dir} --model m", "benchmark", True),
    ],
)
def test_the_kind_of_results_is_that_of_the_command(
    project: Project, command: str, kind: str, found: bool
) -> None:
    """P55"""
    judge(project.root / "results", "a/m", kind=kind)
    assert bool(skipped(project, command)) is found


@pytest.mark.parametrize(
    ("command", "options", "found"),
    [
        ("run {task_dir}", {"agent_model": "m/1:x"}, True),
        ("run {task_dir}", {"agent_model": "other"}, False),
        ("run {task_dir}", {"agent_artifact_id": "a"}, True),
        ("run {task_dir}", {"agent_artifact_id": "b"}, False),
        ("run {task_dir} --agent-type a --model=m/1:x", {}, True),
        ("run {task_dir} --agent-type b --model m/1:x", {}, False),
        ("run {task_dir} --agent-type b", {"agent_artifact_id": "a"}, True),
        ("run {task_dir} --model $MODEL", {}, True),
        ("run {task_dir} 'unclosed", {}, True),
        ("run {task_dir}", {"agent_model": ".."}, False),
        ("run {task_dir}", {"agent_model": "\0"}, False),
    ],
)
def test_agent_and_model_are_those_of_the_options_or_of_the_command(
    project: Project, command: str, options: dict[str, str], found: bool
) -> None:
    """P55"""
    judge(project.root / "results", "a/m_1_x")
    assert bool(skipped(project, command, **options)) is found


def test_judgements_of_several_agents_are_refused_until_one_is_named(project: Project) -> None:
    judge(project.root / "results", "a/m")
    judge(project.root / "results", "b/m", TASKS[1])
    documents = load_dtap(project.root / "dataset", skip_existing=True)
    (problem,) = documents.problems
    assert problem.file == "--skip-existing"
    assert "a/m, b/m" in problem.message
    assert "--agent-model" in problem.remedy
    assert skipped(project, agent_artifact_id="b") == ["crm.malicious.direct.exfil.2"]


def test_a_task_outside_of_a_dataset_is_never_left_out(project: Project) -> None:
    outside = project.root / "other" / "one"
    outside.mkdir(parents=True)
    (outside / "config.yaml").write_text("{}")
    judge(project.root / "results", "a/m", "one")
    assert load_dtap(outside, skip_existing=True).skipped == []


def test_filters_come_first(project: Project) -> None:
    judge(project.root / "results", "a/m")
    documents = load_dtap(project.root / "dataset", skip_existing=True, type="malicious")
    assert documents.skipped == []
    assert len(documents.tasks) == 1


def all_judged(project: Project) -> Documents:
    for path in TASKS:
        judge(project.root / "results", "a/m", path)
    return load_dtap(project.root / "dataset", skip_existing=True)


def test_when_all_are_judged_there_is_nothing_to_run_and_no_problem(project: Project) -> None:
    """P56"""
    documents = all_judged(project)
    assert (documents.tasks, documents.problems) == ([], [])
    assert len(documents.skipped) == 2


async def test_the_client_is_told_that_there_is_nothing_to_run(project: Project) -> None:
    """P56"""
    all_judged(project)
    lists = ListOptions(task_command=COMMAND, skip_existing=True)
    path = project.root / "dataset"

    async def load_only(*only: str) -> None:
        await load_tasks(path, seed=None, only=only, steps=(), lists=lists)

    with pytest.raises(NothingToRun, match="2 tasks have been judged already") as raised:
        await load_only()
    assert raised.value.exit_code == 0
    with pytest.raises(NothingToRun):
        await load_only("crm.benign.1")
    with pytest.raises(PerdureError, match=r"there is no task 'crm\.benign\.9'"):
        await load_only("crm.benign.9")


async def test_the_client_gets_the_tasks_that_are_left(project: Project) -> None:
    judge(project.root / "results", "a/m")
    lists = ListOptions(task_command=COMMAND, skip_existing=True)
    tasks = await load_tasks([project.root / "dataset"], seed=None, only=(), steps=(), lists=lists)
    assert [task.task.id for task in tasks] == ["crm.malicious.direct.exfil.2"]


def test_tasks_that_are_not_of_a_project_are_kept(tmp_path: Path) -> None:
    task = tmp_path / "ok.yaml"
    task.write_text("steps: [{id: a, type: command, command: 'true'}]\n")
    documents = load_dtap(task, skip_existing=True)
    assert [loaded.task.id for loaded in documents.tasks] == ["ok"]
