"""Lists with DTap lines, filters, and what of a tree is configuration."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perdure.documents import Documents, load
from tests.dtap_kit import Project, benign, ids, load_dtap, malicious

STEPS = [{"id": "a", "type": "command", "command": "true"}]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.task("crm/benign/1")
    project.task("gmail/benign/1")
    project.task("crm/malicious/direct/exfil/2")
    project.task("crm/malicious/indirect/exfil/2")
    return project


def warned(documents: Documents) -> list[tuple[int | None, str]]:
    return [
        (warning.line, warning.message)
        for warning in documents.warnings
        if warning.file.endswith(".jsonl") and "does not start" not in warning.message
    ]


# --- DTap lines -------------------------------------------------------------------------------


def test_lines_lead_to_tasks_below_the_projects_dataset_in_their_order(project: Project) -> None:
    """P54"""
    file = project.list(
        malicious("2", "indirect", "exfil"),
        "",
        benign(1, "gmail"),
        malicious(2, "direct", "exfil"),
        benign("1"),
    )
    documents = load_dtap(file)
    assert ids(documents) == [
        "dataset.crm.malicious.indirect.exfil.2",
        "dataset.gmail.benign.1",
        "dataset.crm.malicious.direct.exfil.2",
        "dataset.crm.benign.1",
    ]
    assert warned(documents) == []
    assert [task.source for task in documents.tasks] == [f"{file}:{n}" for n in (1, 3, 4, 5)]
    assert documents.tasks[0].task.metadata == {
        **malicious("2", "indirect", "exfil"),
        "task_dir": str(project.root / "dataset/crm/malicious/indirect/exfil/2"),
    }


def test_a_benign_line_may_name_a_risk_category_above_its_id(project: Project) -> None:
    """P54"""
    project.task("code/benign/risk/7")
    file = project.list(
        benign(7, "code", risk_category="risk"), benign(1, "gmail", risk_category="risk")
    )
    assert ids(load_dtap(file)) == ["dataset.code.benign.risk.7", "dataset.gmail.benign.1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rubbish", "this is not JSON"),
        ("{", "this is not JSON"),
        ("7", "not a number"),
        ("null", "not nothing"),
        ('{"domain": "crm", "type": "benign"}', "no task_id"),
        ('{"task_id": "1"}', "no domain and no type"),
        ('{"domain": "crm", "type": "odd", "task_id": "1"}', "none of benign, malicious"),
        ('{"domain": "crm", "type": "malicious", "task_id": "1"}', "no threat_model and no risk"),
        ('{"domain": "crm", "type": "benign", "task_id": "99"}', "there is no"),
        ('{"domain": "crm", "type": "benign", "task_id": true}', "task_id is true or false"),
        ('{"domain": "crm", "type": "benign", "task_id": [1]}', "task_id is a list"),
        ('{"domain": "crm", "type": "benign", "task_id": ""}', "no task_id"),
        ('{"domain": "crm", "type": "benign", "task_id": "."}', "not the name of a folder"),
        ('{"domain": "crm", "type": "benign", "task_id": ".."}', "not the name of a folder"),
        ('{"domain": "..", "type": "benign", "task_id": "1"}', "not the name of a folder"),
        ('{"domain": "/etc", "type": "benign", "task_id": "1"}', "not the name of a folder"),
        ('{"domain": "crm", "type": "benign", "task_id": "a/b"}', "not the name of a folder"),
        ('{"domain": "crm", "type": "benign", "task_id": "a\\u0000"}', "not the name of a folder"),
        ('{"domain": "crm", "type": "benign", "task_id": "\\ud800"}', ""),
        (json.dumps(benign("x" * 5000)), "not the name of a folder"),
        (json.dumps(benign(10**300)), ""),
    ],
)
def test_a_bad_line_is_warned_about_and_passed_over(project: Project, line: str, said: str) -> None:
    """P54"""
    documents = load_dtap(project.list(benign("1"), line))
    assert ids(documents) == ["dataset.crm.benign.1"]
    ((number, message),) = warned(documents)
    assert number == 2
    assert said in message
    assert all(str(warning).isprintable() for warning in documents.warnings)


def test_a_list_of_bad_lines_alone_is_refused(project: Project) -> None:
    documents = load_dtap(project.list(benign("99"), "rubbish"))
    (problem,) = documents.problems
    assert "no line of the list leads to a task" in problem.message
    assert len(warned(documents)) == 2


def test_in_a_list_of_perdures_own_documents_mistakes_stay_errors(project: Project) -> None:
    """P54"""
    own = {"id": "own", "steps": STEPS}
    documents = load_dtap(project.list(own, benign("1"), "rubbish", benign("99")))
    (problem,) = documents.problems
    assert (problem.line, "this is not JSON" in problem.message) == (3, True)
    assert [number for number, _ in warned(documents)] == [4]
    assert [task.task.id for task in documents.tasks] == ["own", "dataset.crm.benign.1"]


@pytest.mark.parametrize("line", [".", "..", "../own/.", ""])
def test_a_list_cannot_lead_back_to_itself(tmp_path: Path, line: str) -> None:
    file = tmp_path / "own" / "list.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps(line) + "\n")
    for path in (file, tmp_path):
        (problem,) = load([path]).problems
        wrong = "a list cannot name another list" if line else "the path is empty"
        assert (problem.line, wrong in problem.message) == (1, True)


def test_of_very_many_bad_lines_some_are_told_and_the_rest_counted(project: Project) -> None:
    own = load([project.list(*["rubbish"] * 1_000)]).problems
    assert len(own) == 201
    assert "800 more lines are like these" in str(own[-1])

    dtap = load_dtap(project.list(benign("1"), *[benign("99")] * 1_000))
    assert ids(dtap) == ["dataset.crm.benign.1"]
    assert "800 more lines are like these" in warned(dtap)[-1][1]


def test_a_list_of_very_many_lines_is_refused_before_they_are_read(project: Project) -> None:
    (problem,) = load([project.list("{\n" * 200_000)]).problems
    assert "more than 100,000 lines" in str(problem)


def test_a_tree_may_be_as_deep_as_a_path_can_be_long(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    leaf = os.open("task.yaml", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here)
    os.write(leaf, json.dumps({"id": "leaf", "steps": STEPS}).encode())
    os.close(leaf)
    os.close(here)
    try:
        assert ids(load([tmp_path])) == ["leaf"]
    finally:  # what removes temporary directories may recurse
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_links_that_lead_out_of_the_dataset_are_not_followed(
    project: Project, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "3").mkdir(parents=True)
    (outside / "3" / "config.yaml").write_text("{}")
    folder = project.root / "dataset" / "crm" / "benign"
    (folder / "3").symlink_to(outside / "3")
    (folder / "4").mkdir()
    (folder / "4" / "config.yaml").symlink_to(outside / "3" / "config.yaml")
    (project.root / "dataset" / "linked").symlink_to(outside)
    documents = load_dtap(project.list(benign("1"), benign("3"), benign("4")))
    assert ids(documents) == ["dataset.crm.benign.1"]
    assert all("leads out of" in message for _, message in warned(documents))


def test_a_dataset_may_itself_be_a_link(project: Project, tmp_path: Path) -> None:
    os.rename(project.root / "dataset", tmp_path / "disk")
    (project.root / "dataset").symlink_to(tmp_path / "disk")
    assert ids(load_dtap(project.list(benign("1")))) == ["dataset.crm.benign.1"]


def test_the_dataset_is_looked_for_above_the_list_here_or_below_the_root(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away" / "list.jsonl"
    away.parent.mkdir()
    away.write_text(json.dumps(benign("1")) + "\n")
    (problem,) = load_dtap(away).problems
    assert "--root" in problem.remedy
    assert problem.line == 1
    assert ids(load_dtap(away, root=project.root)) == ["dataset.crm.benign.1"]
    (problem,) = load_dtap(away, root=tmp_path / "away").problems
    assert "there is no folder" in problem.message
    monkeypatch.chdir(project.root)
    assert ids(load_dtap(away)) == ["dataset.crm.benign.1"]


def test_a_directory_of_lists_is_read_in_sorted_order(project: Project) -> None:
    """P54"""
    project.list(benign("1"), name="benchmark/z.jsonl")
    project.list(benign("1", "gmail"), name="benchmark/b/c.jsonl")
    project.list(malicious("2", "direct", "exfil"), name="benchmark/a.jsonl")
    assert ids(load_dtap(project.root / "benchmark")) == [
        "dataset.crm.malicious.direct.exfil.2",
        "dataset.gmail.benign.1",
        "dataset.crm.benign.1",
    ]


def test_a_task_named_twice_by_its_path_is_taken_once(project: Project) -> None:
    file = project.list(benign("1"), benign("1"))
    documents = load_dtap(file, project.root / "dataset" / "crm" / "benign" / "1")
    assert ids(documents) == ["dataset.crm.benign.1"]
    twice = [w for w in documents.warnings if w.message == "is named twice"]
    assert [warning.file.rpartition("/")[2] for warning in twice] == ["list.jsonl:2", "config.yaml"]


def test_two_tasks_with_one_id_are_refused_with_both_files(
    project: Project, tmp_path: Path
) -> None:
    other = Project(tmp_path / "other")
    other.task("crm/benign/1")
    first, second = project.list(benign("1")), other.list(benign("1"))
    (problem,) = load_dtap(first, second).problems
    assert f"{first}:1" in problem.message
    assert str(other.root / "dataset/crm/benign/1/config.yaml") == problem.file


def test_a_list_may_name_directories_of_the_layout_and_bare_paths(project: Project) -> None:
    plain = project.root / "benchmark" / "plain.yaml"
    file = project.list('"../dataset/crm/benign/1"', "plain.yaml", {"id": "c", "steps": STEPS})
    plain.write_text(json.dumps(STEPS))
    assert ids(load_dtap(file)) == ["dataset.crm.benign.1", "plain", "c"]


# --- Filters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"domain": "gmail"}, ["gmail.benign.1"]),
        ({"type": "benign"}, ["crm.benign.1", "gmail.benign.1"]),
        ({"threat_model": "direct"}, ["crm.malicious.direct.exfil.2"]),
        (
            {"risk_category": "exfil", "threat_model": "indirect"},
            ["crm.malicious.indirect.exfil.2"],
        ),
        ({"domain": "crm", "type": "benign"}, ["crm.benign.1"]),
    ],
)
def test_filters_keep_what_has_the_fields(
    project: Project, filters: dict[str, Any], found: list[str]
) -> None:
    """P54"""
    assert ids(load_dtap(project.root / "dataset", **filters)) == found
    file = project.list(
        benign("1"),
        benign("1", "gmail"),
        malicious("2", "direct", "exfil"),
        malicious("2", "indirect", "exfil"),
    )
    assert ids(load_dtap(file, **filters)) == [f"dataset.{id}" for id in found]


def test_filters_go_by_the_metadata_of_perdures_own_documents(project: Project) -> None:
    task = {"id": "own", "metadata": {"domain": "shop"}, "steps": STEPS}
    file = project.list(task, {"id": "other", "steps": STEPS})
    assert ids(load_dtap(file, domain="shop")) == ["own"]


def test_a_filter_that_matches_nothing_says_what_there_is(project: Project) -> None:
    (problem,) = load_dtap(project.root / "dataset", domain="gmial").problems
    assert problem.file == "--domain"
    assert "'gmial'" in problem.message
    assert "did you mean 'gmail'?" in problem.remedy
    assert "'crm', 'gmail'" in problem.remedy


def test_filters_that_match_nothing_together_are_refused(project: Project) -> None:
    (problem,) = load_dtap(project.root / "dataset", domain="gmail", type="malicious").problems
    assert problem.file == "--domain, --type"


def test_ids_are_picked_before_the_filters(project: Project) -> None:
    documents = load_dtap(project.root / "dataset", only=("crm.benign.1",), domain="gmail")
    assert documents.problems[0].file == "--domain"
    assert documents.problems[0].remedy.endswith("there are: 'crm'")


# --- Configuration among the tasks ------------------------------------------------------------


def configured(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "env.yaml").write_text("environments: {a: {colour: red}}\n")
    (root / "servers.yml").write_text("servers: [{name: a, environment: b}]\n")
    (root / "task.d").mkdir()
    (root / "task.d" / "task.yaml").write_text(json.dumps({"steps": STEPS}))
    return root


def test_a_tree_is_run_without_its_configuration(tmp_path: Path) -> None:
    assert ids(load([configured(tmp_path)])) == ["task.d"]


def test_validating_checks_the_configuration_of_a_tree(tmp_path: Path) -> None:
    root = configured(tmp_path)
    documents = load_dtap(root, validating=True)
    assert ids(documents) == ["task.d"]
    assert [(known.name, known.holds) for known in documents.configurations] == [
        ("env.yaml", "1 environment"),
        ("mcp.yaml", "1 server with environments"),
    ]
    assert "colour" in str(documents.warnings[0])
    (root / "servers.yml").write_text("servers: [3]\n")
    assert "servers[0]" in str(load_dtap(root, validating=True).problems[0])


@pytest.mark.parametrize(
    ("name", "option"), [("env.yaml", "--env-config"), ("servers.yml", "--mcp")]
)
def test_configuration_named_as_a_task_is_refused(tmp_path: Path, name: str, option: str) -> None:
    (problem,) = load([configured(tmp_path) / name]).problems
    assert option in problem.remedy


def test_a_tree_of_configuration_alone_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "env.yaml").write_text("environments: {}\n")
    assert "no task documents" in load([root]).problems[0].message
    (root / "other.yaml").write_text("environments: {}\n")
    assert "there is no task" in load([root]).problems[0].message


@pytest.mark.parametrize(
    "value", [{"environments": ["shop"]}, {"environments": {}, "steps": STEPS}]
)
def test_what_could_be_a_task_is_checked_as_one(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(json.dumps(value))
    assert load([file]).configurations == []
    assert load([file]).problems
