"""`perdure tasks`, and runs of what it stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli import status_of
from perdure.cli.tasks_command import to_yaml
from perdure.reading import read_yaml
from tests.cli.support import CommandLine
from tests.core.strategies import KEYS

TASK = """\
id: greet
seed: {who: you}
metadata: {type: benign}
steps:
  - {id: say, type: command, command: "echo hello <who>"}
  - {id: note, type: python, file: note.py}
"""
NOTE = 'def run(given):\n    return "first <who>"\n'

Perdure = Callable[..., tuple[int, str, str]]


@pytest.fixture
def perdure_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Perdure:
    """The command line within this process; answers status, stdout and stderr."""
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = status_of(arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    (tmp_path / "greet.yaml").write_text(TASK)
    (tmp_path / "note.py").write_text(NOTE)
    return call


def test_what_is_put_is_listed_and_got_back_version_by_version(perdure_here: Perdure) -> None:
    assert perdure_here("tasks", "list") == (
        0, "", "no task is stored yet; `perdure tasks put FILE` stores one\n",
    )  # fmt: skip
    assert perdure_here("tasks", "put", "greet.yaml") == (0, "store:greet@1\n", "")
    Path("greet.yaml").write_text(TASK.replace("hello", "good day,"))
    assert perdure_here("tasks", "put", "greet.yaml") == (0, "store:greet@2\n", "")

    status, listed, _ = perdure_here("tasks", "list")
    assert status == 0
    assert listed.splitlines()[1].split()[:4] == ["greet", "2", "benign", "2"]
    old = perdure_here("tasks", "get", "greet@1")[1]
    assert "command: echo hello <who>\n" in old
    assert f"code: |\n    {NOTE.splitlines()[0]}\n" in old
    newest = json.loads(perdure_here("tasks", "get", "store:greet", "--json")[1])
    assert (newest["version"], newest["steps"][0]["command"]) == (2, "echo good day, <who>")


def test_what_is_printed_can_be_put_again(perdure_here: Perdure) -> None:
    perdure_here("tasks", "put", "greet.yaml")
    Path("note.py").unlink()
    first = json.loads(perdure_here("tasks", "get", "greet", "--json")[1])
    Path("again.yaml").write_text(perdure_here("tasks", "get", "greet")[1])
    Path("again.json").write_text(json.dumps(first))

    assert perdure_here("tasks", "put", "again.yaml")[:2] == (0, "store:greet@2\n")
    assert perdure_here("tasks", "put", "again.json")[:2] == (0, "store:greet@3\n")
    assert perdure_here("tasks", "put", "store:greet@1")[:2] == (0, "store:greet@4\n")
    for version in (2, 3, 4):
        same = json.loads(perdure_here("tasks", "get", f"greet@{version}", "--json")[1])
        assert same == {**first, "version": version}


def test_tasks_are_listed_for_programs_by_pattern_and_type(perdure_here: Perdure) -> None:
    steps = "steps: [{id: s, type: command, command: 'true'}]\n"
    Path("tree").mkdir()
    for name, extra in (("shop-a", "project_id: p\n"), ("shop-b", "metadata: {type: direct}\n")):
        Path("tree", f"{name}.yaml").write_text(extra + steps)
    perdure_here("tasks", "put", "tree", "greet.yaml")

    def ids(*arguments: str) -> list[str]:
        status, out, _ = perdure_here("tasks", "list", "--json", *arguments)
        assert status == 0
        return [entry["id"] for entry in json.loads(out)]

    assert ids() == ["greet", "shop-a", "shop-b"]
    assert ids("shop-*") == ["shop-a", "shop-b"]
    assert ids("--type", "benign") == ["greet"]
    assert ids("shop-*", "--type", "benign") == []
    entry = json.loads(perdure_here("tasks", "list", "--json", "shop-a")[1])[0]
    assert entry.pop("stored_at") > 1e9
    assert entry == {
        "id": "shop-a", "version": 1, "source": "store:shop-a@1", "type": "task",
        "project_id": "p", "steps": 1,
    }  # fmt: skip
    assert perdure_here("tasks", "list", "x*")[2].startswith("no stored task is like that")


def test_one_wrong_document_keeps_all_out_and_every_problem_is_told(perdure_here: Perdure) -> None:
    Path("bad.yaml").write_text("id: bad\nsteps: [{id: s, type: comand}]\nsed: {}\n")

    status, out, err = perdure_here("tasks", "put", "greet.yaml", "bad.yaml", "gone.yaml")

    assert (status, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()] == [
        "bad.yaml", "bad.yaml", "gone.yaml", "nothing was stored",
    ]  # fmt: skip
    assert perdure_here("tasks", "list")[1] == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tasks", "get", "gret"), "the store has no task 'gret'; did you mean 'greet'?"),
        (("tasks", "get", "greet@7"), "has no version 7; there is version 1 alone"),
        (("tasks", "get", "greet@new"), "'new' is not a version; write store:greet@1"),
        (("tasks", "get", "../greet"), "is not an id"),
        (("validate", "store:gret"), "store:gret: the store has no task 'gret'; did you mean"),
        (("run", "store:greet@2"), "store:greet@2: the stored task 'greet' has no version 2"),
        (("run", "store:"), "store:: the id of a stored task: is empty"),
    ],
)
def test_names_that_lead_nowhere_are_answered_with_what_there_is(
    perdure_here: Perdure, arguments: tuple[str, ...], said: str
) -> None:
    perdure_here("tasks", "put", "greet.yaml")

    status, out, err = perdure_here(*arguments)

    assert status == 2
    assert said in out + err
    assert "Traceback" not in err


def test_a_damaged_store_is_named_by_every_command_that_needs_it(
    perdure_here: Perdure, tmp_path: Path
) -> None:
    perdure_here("tasks", "put", "greet.yaml")
    (tmp_path / "state" / "tasks.sqlite").write_text("something else\n" * 100)

    for command in (
        ("tasks", "list"),
        ("tasks", "get", "greet"),
        ("tasks", "put", "greet.yaml"),
        ("validate", "store:greet"),
        ("run", "store:greet"),
    ):
        status, out, err = perdure_here(*command)
        assert (status, out) == (2, ""), command
        assert "tasks.sqlite is damaged" in err, command
        assert len(err.splitlines()) == 1, command


def test_validate_checks_stored_tasks(perdure_here: Perdure) -> None:
    perdure_here("tasks", "put", "greet.yaml")

    assert perdure_here("validate", "store:greet@1") == (0, "1 valid task\n", "")


DOCUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    KEYS,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"]))
        | st.text("a \n\t#:-'\"<>|&*!%@`\\\r\x85\u2028\ufeff"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


@given(DOCUMENTS)
def test_yaml_that_is_printed_reads_as_it_was(document: dict[str, Any]) -> None:
    assert read_yaml(to_yaml(document)).value == document


# --- Runs ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_server")
def test_a_stored_version_runs_without_its_files_and_the_record_says_which_it_was(
    perdure: CommandLine,
) -> None:
    perdure.write("greet.yaml", TASK)
    script = perdure.write("note.py", NOTE)
    perdure("tasks", "put", "greet.yaml")
    perdure.write("greet.yaml", TASK.replace("hello", "good day,"))
    perdure("tasks", "put", "greet.yaml")
    script.unlink()

    old = perdure("run", "store:greet@1", "--suite", "old", "--seed", "who=me", "--json")
    assert old.returncode == 0, old.stderr
    newest = perdure("run", "store:greet", "--suite", "newest", "--json")
    assert newest.returncode == 0, newest.stderr

    records = [
        json.loads((perdure.state / "results" / suite / "greet" / "1" / "record.json").read_text())
        for suite in ("old", "newest")
    ]
    stdout = [record["context"]["results"]["say"]["stdout"] for record in records]
    assert stdout == ["hello me\n", "good day, you\n"]
    assert [record["context"]["results"]["note"] for record in records] == ["first <who>"] * 2
    assert [record["task_version"] for record in records] == [1, 2]


def test_a_task_command_that_nobody_gave_is_not_warned_of(
    perdure_here: Perdure, tmp_path: Path
) -> None:
    task = tmp_path / "dataset" / "crm" / "benign" / "1"
    task.mkdir(parents=True)
    (task / "config.yaml").write_text("Task: {task_id: '1'}\n")
    (tmp_path / "list.jsonl").write_text('{"domain": "crm", "type": "benign", "task_id": "1"}\n')
    status, _, told = perdure_here("tasks", "put", "list.jsonl")
    assert status == 2
    assert "--task-command" not in told
