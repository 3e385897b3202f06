"""Results that lie below the tasks: a tree passes over them, and who names them is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.documents import Documents, ListOptions, load

TASK = "steps: [{id: a, type: command, command: 'true'}]\n"
SUITE = {"suite": "s", "run_id": "r", "status": "failed", "totals": {}, "tasks": []}
LINE = {"task": "a", "trial": 1, "run_id": "r", "status": "failed", "steps": []}
RECORD = {"suite": "s", "task_id": "a", "trial": 1, "run_id": "r", "status": "failed", "steps": []}
EVENT = {"seq": 1, "type": "task.started", "at": 1.0}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    write(tree / "task-a.yaml", TASK)
    return tree


def write(path: Path, text: str | dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text) + "\n")
    return path


def a_suite(folder: Path) -> Path:
    write(folder / "suite.json", SUITE)
    write(folder / "results.jsonl", LINE)
    write(folder / "a" / "1" / "record.json", RECORD)
    write(folder / "a" / "1" / "events.jsonl", EVENT)
    write(folder / "a" / "1" / "artifacts" / "whatever.json", {"any": "thing"})
    return folder


def only_the_task(documents: Documents) -> None:
    assert [str(problem) for problem in documents.problems] == []
    assert [loaded.task.id for loaded in documents.tasks] == ["task-a"]


def the_problem(path: Path) -> str:
    (problem,) = load([path]).problems
    return str(problem)


def test_a_tree_passes_over_a_suites_files_of_results(tree: Path) -> None:
    a_suite(tree / "out" / "nightly")
    only_the_task(load([tree]))


def test_a_tree_passes_over_results_of_tasks_that_were_started_by_themselves(tree: Path) -> None:
    a_suite(tree / "out" / "adhoc")
    (tree / "out" / "adhoc" / "suite.json").unlink()
    only_the_task(load([tree]))


def test_a_tree_passes_over_the_directory_of_results_whatever_it_holds(tree: Path) -> None:
    write(tree / "out" / "nightly" / "suite.json", "{cut off")
    only_the_task(load([tree], lists=ListOptions(results=tree / "out")))


def test_a_tree_that_is_the_directory_of_results_is_read_all_the_same(tree: Path) -> None:
    a_suite(tree / "nightly")
    only_the_task(load([tree], lists=ListOptions(results=tree)))


@pytest.mark.parametrize("document", [SUITE, RECORD, [dict(LINE, suite="s")]])
def test_a_tree_passes_over_what_json_printed(tree: Path, document: object) -> None:
    write(tree / "result.json", json.dumps(document))
    only_the_task(load([tree]))


def test_a_tree_passes_over_printed_events(tree: Path) -> None:
    write(tree / "events.jsonl", EVENT)
    only_the_task(load([tree]))


def test_a_tree_passes_over_a_state_directory(tree: Path) -> None:
    for name in ("temporal.db", "start.lock", "server.json", "runs/r/some.json"):
        write(tree / "state" / name, "{}")
    only_the_task(load([tree]))


def test_a_tree_passes_over_judgements(tree: Path) -> None:
    write(tree / "results" / "benchmark" / "agent" / "model" / "x" / "trace.json", "{}")
    write(tree / "elsewhere" / "agent" / "x" / "judge_result.json", "{}")
    write(tree / "elsewhere" / "agent" / "x" / "trace.json", "{}")
    write(tree / "judge_result.json", "{}")
    only_the_task(load([tree]))


def test_documents_that_only_look_a_little_like_results_are_still_read(tree: Path) -> None:
    write(tree / "suite.json", {"suite": "s"})
    assert any("suite.json" in str(problem) for problem in load([tree]).problems)


def test_results_that_are_named_are_refused_by_what_they_are(tmp_path: Path) -> None:
    suite = a_suite(tmp_path / "out" / "nightly")
    assert "holds perdure's results of a suite" in the_problem(suite)
    assert "it is perdure's result of a suite" in the_problem(suite / "suite.json")
    assert "it holds perdure's results of trials" in the_problem(suite / "results.jsonl")
    assert "it is perdure's record of a run" in the_problem(suite / "a" / "1" / "record.json")
    assert "it holds perdure's events of a run" in the_problem(suite / "a" / "1" / "events.jsonl")
    assert "no task documents, but results" in the_problem(tmp_path / "out")
    assert "a task's judgement" in the_problem(write(tmp_path / "judge_result.json", "{}"))
    assert "XML" in the_problem(write(tmp_path / "junit.xml", "<testsuites/>"))
