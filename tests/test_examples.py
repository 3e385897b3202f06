"""The examples are what they say they are: valid tasks, the same each time they are made."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from perdure.core.task import parse_task

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MAKE_TASKS = EXAMPLES / "humaneval" / "make_tasks.py"


def make_tasks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MAKE_TASKS), *arguments], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("make_tasks", MAKE_TASKS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_like_a_step(document: dict[str, Any], folder: Path, *, limit_seconds: float) -> str:
    """Do what the steps `write` and `test` of a document say, without perdure.

    Answers `passed`, `failed` or `timeout`.
    """
    write, test, _ = document["steps"]
    subprocess.run(
        ["/bin/sh", "-c", write["command"]], input=write["stdin"].encode(), cwd=folder, check=True
    )
    try:
        done = subprocess.run(
            test["command"],
            input=test["stdin"].encode(),
            cwd=folder,
            capture_output=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return "passed" if done.returncode == 0 and b"all tests passed" in done.stdout else "failed"


def test_humaneval_becomes_164_valid_tasks_with_ids_of_their_own(tmp_path: Path) -> None:
    made = make_tasks("--out", str(tmp_path))

    assert made.returncode == 0, made.stderr
    paths = list(tmp_path.iterdir())
    tasks = [parse_task(yaml.safe_load(path.read_text("utf-8"))) for path in paths]
    assert len({task.id for task in tasks}) == 164
    assert {task.id for task in tasks} == {path.stem for path in paths}
    assert {tuple(step.id for step in task.steps) for task in tasks} == {
        ("write", "test", "verify")
    }


def test_the_same_tasks_are_made_twice_byte_for_byte(tmp_path: Path) -> None:
    made = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        make_tasks("--out", str(folder))
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})

    assert made[0]
    assert made[0] == made[1]


def test_every_solution_goes_through_its_document_unchanged(maker: ModuleType) -> None:
    for problem in maker.read_problems():
        document = maker.task_document(problem)
        assert document["steps"][0]["stdin"] == problem["prompt"] + problem["canonical_solution"]
        assert yaml.safe_load(maker.to_yaml(document)) == document


def test_a_reference_solution_passes_and_each_kind_of_broken_one_does_not(
    maker: ModuleType, tmp_path: Path
) -> None:
    problem = maker.read_problems()[0]
    outcomes = []
    for number, broken_by in enumerate([None, *maker.WRONG_SOLUTIONS]):
        folder = tmp_path / str(number)
        folder.mkdir()
        document = maker.task_document(problem, broken_by=broken_by)
        # The endless one is the second of the broken ones; the others get time on a busy machine.
        limit_seconds = 2.0 if number == 2 else 60.0
        outcomes.append(run_like_a_step(document, folder, limit_seconds=limit_seconds))

    assert outcomes == ["passed", "failed", "timeout", "failed"]


def test_as_many_tasks_are_broken_as_asked_for(tmp_path: Path) -> None:
    make_tasks("--out", str(tmp_path / "right"))
    make_tasks("--out", str(tmp_path / "broken"), "--break", "5")

    changed = Counter(
        path.read_bytes() != (tmp_path / "broken" / path.name).read_bytes()
        for path in (tmp_path / "right").iterdir()
    )
    assert changed == {True: 5, False: 159}


@pytest.mark.parametrize("number", ["-1", "165", "many"])
def test_a_senseless_number_to_break_is_refused_in_words(tmp_path: Path, number: str) -> None:
    made = make_tasks("--out", str(tmp_path / "tasks"), "--break", number)

    assert made.returncode == 2
    assert "--break" in made.stderr
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "tasks").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    made = make_tasks("--out", str(tmp_path / "file" / "tasks"))

    assert made.returncode == 1
    assert str(tmp_path / "file") in made.stderr
    assert "Traceback" not in made.stderr


@pytest.mark.parametrize(
    "path",
    sorted(EXAMPLES.rglob("*.yaml")),
    ids=lambda path: str(path.relative_to(EXAMPLES)),
)
def test_every_document_among_the_examples_is_a_valid_task(path: Path) -> None:
    task = parse_task(yaml.safe_load(path.read_text()))

    assert task.id == (path.parent.name if path.stem == "task" else path.stem)


def test_the_page_on_failures_names_each_of_its_tasks() -> None:
    page = (EXAMPLES / "failures" / "README.md").read_text()
    tasks = {path.stem for path in (EXAMPLES / "failures").glob("*.yaml")}

    assert {task for task in tasks if f"`{task}`" not in page} == set()


def shown_tasks() -> dict[str, str]:
    """The whole tasks that the documentation writes, by page and line.

    They stand between fences or in here-documents.
    """
    root = EXAMPLES.parent
    fenced = re.compile(r"^(?:```yaml|cat > .*<<'END')\n(.*?)^(?:```|END)$", re.M | re.S)
    return {
        f"{page.relative_to(root)}:{text.count(chr(10), 0, block.start()) + 1}": block[1]
        for page in [root / "README.md", *sorted(root.glob("docs/*.md"))]
        for text in [page.read_text()]
        for block in fenced.finditer(text)
        if "\nsteps:\n" in block[1]
    }


SHOWN_TASKS = shown_tasks()


@pytest.mark.parametrize("place", SHOWN_TASKS)
def test_every_task_that_the_documentation_shows_is_valid(place: str) -> None:
    assert parse_task(yaml.safe_load(SHOWN_TASKS[place])).steps


def test_the_readme_and_the_first_page_of_the_documentation_show_a_task() -> None:
    pages = {place.partition(":")[0] for place in SHOWN_TASKS}

    assert {"README.md", "docs/getting-started.md"} <= pages
