"""Loading task documents: every accepted form, ids, seeds, scripts, digests, and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.documents import (
    DocumentProblem,
    Documents,
    InvalidDocuments,
    load,
    load_document,
    unsupported,
)

STEPS = "- {id: a, type: command, command: 'true'}\n"
TASK = f"steps:\n{STEPS}"


def write(path: Path, text: str | bytes = TASK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def ids(loaded: Documents) -> list[str]:
    assert [str(problem) for problem in loaded.problems] == []
    return [loaded_task.task.id for loaded_task in loaded.tasks]


def the_problem(loaded: Documents) -> DocumentProblem:
    (problem,) = loaded.problems
    assert loaded.tasks == []
    assert problem.remedy
    assert str(problem).isprintable()
    return problem


# --- Forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["refund.yaml", "refund.yml", "refund.YAML"])
def test_a_yaml_file_is_a_task_named_by_its_stem_unless_it_has_an_id(
    tmp_path: Path, name: str
) -> None:
    assert ids(load([write(tmp_path / name)])) == ["refund"]
    assert ids(load([write(tmp_path / name, f"id: other\n{TASK}")])) == ["other"]
    assert ids(load([write(tmp_path / name, STEPS)])) == ["refund"]


def test_a_json_file_is_a_task(tmp_path: Path) -> None:
    steps = [{"id": "a", "type": "command", "command": "echo \u00e9\\ \U0001f600"}]
    for document in (steps, {"steps": steps}):
        for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
            loaded = load([write(tmp_path / "refund.json", text)])
            assert ids(loaded) == ["refund"]
            assert loaded.tasks[0].task.steps[0].body["command"] == "echo \u00e9\\ \U0001f600"


def test_json_values_are_read_exactly(tmp_path: Path) -> None:
    metadata = {"n": [0, -1, 1.5, 1e300, 2**70, True, False, None, "", '"\\/\b\f\n\r\t'], "e": {}}
    metadata["l"] = [[], {}, [[[]]]]
    document = {"steps": [{"id": "a", "type": "command", "command": "x"}], "metadata": metadata}
    loaded = load([write(tmp_path / "t.json", json.dumps(document, indent=2))])
    assert loaded.checked()[0].task.metadata == metadata


@pytest.mark.parametrize("name", ["task.yaml", "task.yml", "task.json"])
def test_a_directory_with_a_task_file_is_that_task(tmp_path: Path, name: str) -> None:
    text = TASK if not name.endswith("json") else json.dumps({"steps": [json_step("a")]})
    write(tmp_path / "refund" / name, text)
    write(tmp_path / "refund" / "data.yaml", "not: [a, task")
    assert ids(load([tmp_path / "refund"])) == ["refund"]


def json_step(id: str) -> dict[str, Any]:
    return {"id": id, "type": "command", "command": "true"}


def test_a_tree_is_read_in_sorted_order_with_ids_from_the_paths(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    write(root / "b.yaml")
    write(root / "a" / "z.yml")
    write(root / "a" / "deep" / "task.yaml")
    write(root / "a" / "deep" / "other.yaml", "belongs: to the task")
    write(root / "a" / "named.json", json.dumps({"id": "own", "steps": [json_step("a")]}))
    write(root / ".hidden" / "x.yaml", "{")
    write(root / "__pycache__" / "x.json", "{")
    write(root / "env.yaml", "environments: {}")
    write(root / "docker-compose.yml", "services: {}")
    write(root / "notes.txt", "nothing")
    (root / "loop").symlink_to(root, target_is_directory=True)
    loaded = load([root])
    assert ids(loaded) == ["a.deep", "own", "a.z", "b"]
    assert [task.source for task in loaded.tasks] == [
        str(root / part) for part in ("a/deep/task.yaml", "a/named.json", "a/z.yml", "b.yaml")
    ]


def test_the_current_directory_can_be_named_by_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "refund" / "task.yaml")
    monkeypatch.chdir(tmp_path / "refund")
    assert ids(load(["."])) == ["refund"]


def test_a_jsonl_list_names_paths_and_holds_documents(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "b.yaml")
    write(tmp_path / "tasks" / "a" / "task.yaml")
    lines = [
        json.dumps("tasks/b.yaml"),
        "",
        json.dumps({"id": "inline", "steps": [json_step("s")]}),
        json.dumps("tasks/a"),
    ]
    loaded = load([write(tmp_path / "list.jsonl", "\r\n".join(lines))])
    assert ids(loaded) == ["b", "inline", "a"]
    assert loaded.tasks[1].source == f"{tmp_path / 'list.jsonl'}:3"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "x", "steps": [}', "this is not JSON"),
        ('{"steps": [{"id": "a", "type": "command", "command": "x"}]}', "has no id"),
        ('{"domain": "crm", "type": "benign", "task_id": "1"}', "no folder above the list"),
        ('"nowhere.yaml"', "nowhere.yaml: cannot be read"),
        ('"list.jsonl"', "cannot name another list"),
        ("tasks/a.yaml", "this is not JSON"),
        ("3", "not a number"),
        ('"a\\u0000b"', "can be opened"),
    ],
)
def test_a_bad_line_of_a_list_is_named(tmp_path: Path, line: str, said: str) -> None:
    problem = the_problem(load([write(tmp_path / "list.jsonl", f"\n{line}\n")]))
    assert problem.file == str(tmp_path / "list.jsonl")
    assert problem.line == 2
    assert said in problem.message


def test_a_line_without_its_project_does_not_hide_the_other_mistakes_of_a_list(
    tmp_path: Path,
) -> None:
    lines = ['{"domain": "crm", "type": "benign", "task_id": "1"}', "3", '"nowhere.yaml"']
    loaded = load([write(tmp_path / "list.jsonl", "\n".join(lines))])
    assert [problem.line for problem in loaded.problems] == [1, 2, 3]


def test_a_dtap_directory_without_a_task_command_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "one" / "config.yaml", "Task: {}")
    for path in (tmp_path / "tasks", tmp_path / "tasks" / "one"):
        assert "DTap" in the_problem(load([path])).message
        assert "--task-command" in the_problem(load([path])).remedy


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "holds no task documents"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.write_bytes(b""), "empty"),
    ],
)
def test_paths_that_lead_to_no_task_are_problems(tmp_path: Path, make: Any, said: str) -> None:
    path = tmp_path / "t.yaml"
    make(path)
    problem = the_problem(load([path]))
    assert problem.file == str(path)
    assert said in problem.message


def test_odd_paths_are_problems_too(tmp_path: Path) -> None:
    for path in ("a\0b.yaml", "x" * 5000, tmp_path / "t.yaml" / "x.yaml", "\udcff.yaml"):
        assert load([path]).problems
        assert str(load([path]).problems[0]).encode()
    assert "name" in the_problem(load([])).remedy
    assert "does not say what it is" in the_problem(load([write(tmp_path / "t.txt")])).message


def test_a_directory_with_two_task_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "t" / "task.yaml")
    write(tmp_path / "t" / "task.json", "[]")
    assert "task.yaml and task.json" in the_problem(load([tmp_path / "t"])).message


# --- Ids --------------------------------------------------------------------------------------


def test_two_tasks_with_one_id_are_refused_with_both_files(tmp_path: Path) -> None:
    first = write(tmp_path / "one.yaml", f"id: same\n{TASK}")
    second = write(tmp_path / "two.yaml", f"version: 1\nid: same\n{TASK}")
    (problem,) = load([first, second]).problems
    assert (problem.file, problem.line) == (str(second), 2)
    assert str(first) in problem.message


def test_ids_that_differ_only_in_case_are_pointed_out(tmp_path: Path) -> None:
    loaded = load([write(tmp_path / "one" / "A.yaml"), write(tmp_path / "two" / "a.yaml")])
    assert ids(loaded) == ["A", "a"]
    assert "case" in str(loaded.warnings[0])


def test_a_file_that_is_named_twice_is_taken_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t" / "a.yaml")
    loaded = load([path, tmp_path / "t", tmp_path / "t" / ".." / "t" / "a.yaml"])
    assert ids(loaded) == ["a"]
    assert len(loaded.warnings) == 2


def test_c51_a_file_name_that_gives_no_id_is_refused_with_the_nearest(tmp_path: Path) -> None:
    for name, nearest in (("a b", "a-b"), ("cafe\u0301", "cafe"), ("\udcff", "unnamed")):
        try:
            path = write(tmp_path / f"{name}.yaml")
        except UnicodeEncodeError:
            continue  # the file system does not take such names
        problem = the_problem(load([path]))
        assert "file's name" in problem.message
        assert repr(nearest) in problem.remedy
        path.write_text(f"id: fine\n{TASK}")
        assert ids(load([path])) == ["fine"]


def test_only_keeps_what_is_asked_for(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        write(tmp_path / f"{name}.yaml")
    assert ids(load([tmp_path], only=["third", "first"])) == ["first", "third"]
    problem = load([tmp_path], only=["frist"]).problems[0]
    assert "'frist'" in problem.message
    assert "'first'" in problem.remedy


# --- Problems ---------------------------------------------------------------------------------


def test_a_problem_is_one_line_with_file_line_step_key_and_remedy(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.yaml",
        """\
        id: t
        steps:
          - id: first
            type: command
            command: x
          - type: command
            id: second
            command: x
            retry:
              max_attempts: 0
            depends_on:
              - first
              - nope
        """.replace("        ", "", 1).replace("\n        ", "\n"),
    )
    assert [str(problem) for problem in load([path]).problems] == [
        f"{path}:10: step 'second': retry.max_attempts: 0 is not between 1 and 1,000,000; "
        "change it",
        f"{path}:11: step 'second': depends_on: step 'second' at position 1 depends on 'nope', and "
        "there is no such step (earlier steps: 'first'); correct the id",
    ]
    with pytest.raises(InvalidDocuments, match="nope"):
        load([path]).checked()


def test_all_problems_of_all_documents_come_in_one_go(tmp_path: Path) -> None:
    """C40."""
    write(tmp_path / "a.yaml", "steps:\n- {id: a, type: comand}\n- {id: a, type: command}\n")
    write(tmp_path / "b.yaml", "steps: []\nstpes: []\n")
    write(tmp_path / "c.json", '{"steps":\n [{"id": "x", "type": "command", "command": 5}]}')
    write(tmp_path / "d.yaml")
    loaded = load([tmp_path])
    found = [(Path(p.file).name, p.line) for p in loaded.problems]
    assert found == [
        ("a.yaml", 2),
        ("a.yaml", 3),
        ("a.yaml", 3),
        ("b.yaml", 1),
        ("b.yaml", 2),
        ("c.json", 2),
    ]
    assert [task.task.id for task in loaded.tasks] == ["d"]


def test_lines_are_right_in_a_bare_list_and_through_merges(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.yaml",
        "- &a\n  id: a\n  type: command\n  command: x\n  timeout: soon\n-\n  <<: *a\n  id: b\n",
    )
    assert [(p.line, p.step, p.key) for p in load([path]).problems] == [
        (5, "a", "timeout"),
        (5, "b", "timeout"),
    ]


@pytest.mark.parametrize("word", ["1", "true", "on", "No", "2020-01-01", "1_000", "0x1f", "1:30"])
def test_c40_a_bare_word_that_yaml_reads_as_something_else_says_to_quote_it(
    tmp_path: Path, word: str
) -> None:
    path = write(tmp_path / "t.yaml", f"steps:\n- {{id: {word}, type: command, command: x}}\n")
    problems = load([path]).problems
    assert problems
    assert all(problem.line == 2 for problem in problems)
    assert any("quote it" in problem.remedy for problem in problems)
    quoted = write(tmp_path / "q.yaml", '- {id: "1", type: command, command: x}\n')
    assert load([quoted]).checked()[0].task.steps[0].id == "1"


# --- Seeds, scripts, digests ------------------------------------------------------------------


def test_seeds_are_filled_in_those_given_over_the_documents_own(tmp_path: Path) -> None:
    text = (
        "seed: {order: 1, user: ann}\nsteps:\n- {id: s-<order>, type: command, command: '<user>'}\n"
    )
    path = write(tmp_path / "t.yaml", text)
    (loaded,) = load([path], seed={"order": "7", "more": "x"}).checked()
    assert loaded.seed == {"order": "7", "user": "ann", "more": "x"}
    assert loaded.task.seed == loaded.seed
    assert loaded.task.steps[0].id == "s-7"
    assert loaded.task.steps[0].body["command"] == "ann"
    bad = load([path], seed={"order": "../x"})
    assert bad.problems[0].line == 3
    assert "'../x'" not in bad.problems[0].message
    assert "'s-../x'" in bad.problems[0].message


def test_a_secret_given_as_a_seed_is_refused(tmp_path: Path) -> None:
    loaded = load([write(tmp_path / "t.yaml")], seed={"litellm_api_key": "sk-CANARY"})
    assert "secret" in the_problem(loaded).message
    assert "CANARY" not in str(loaded.problems[0])


def test_a_scripts_text_is_embedded_and_not_filled_in(tmp_path: Path) -> None:
    write(tmp_path / "lib" / "score-7.py", "def run(input):\n    return '<n>'\n")
    text = """\
seed: {n: 7}
steps:
- {id: a, type: python, file: lib/score-<n>.py}
- {id: b, type: command, command: x, compensate: {type: python, file: lib/score-7.py}}
"""
    (loaded,) = load([write(tmp_path / "t.yaml", text)]).checked()
    first, second = loaded.task.steps
    assert first.body["code"] == "def run(input):\n    return '<n>'\n"
    assert first.body["file_name"] == "lib/score-7.py"
    assert "file" not in first.body
    assert second.body["compensate"]["code"] == first.body["code"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"\xff", "not UTF-8"), (b"x" * (1 << 20) + b"x", "larger than 1")],
)
def test_a_script_that_cannot_be_embedded_is_a_problem_at_its_line(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        write(tmp_path / "s.py", content)
    path = write(tmp_path / "t.yaml", "steps:\n- id: a\n  type: python\n  file: s.py\n")
    problem = the_problem(load([path]))
    assert (problem.line, problem.step, problem.key) == (4, "a", "file")
    assert said in problem.message


def test_the_digest_changes_with_everything_that_is_run_and_with_nothing_else(
    tmp_path: Path,
) -> None:
    path, script = tmp_path / "t.yaml", tmp_path / "s.py"

    def digest(text: str, code: str = "1", **seed: str) -> str:
        script.write_text(code)
        (loaded,) = load([write(path, text)], seed=seed).checked()
        assert len(loaded.digest) == 64
        return loaded.digest

    text = "steps: [{id: a, type: python, file: s.py}]"
    first = digest(text)
    assert (
        digest("# a comment\nsteps:\n- type: python\n  id: a\n  timeout: 1h\n  file: s.py") == first
    )
    others = [digest(text, code="2"), digest(text, x="1"), digest(f"version: 2\n{text}")]
    assert len({first, *others}) == 4


def test_load_document_takes_a_mapping_and_leaves_it_as_it_was() -> None:
    document = {"id": "t", "seed": {"n": 1}, "steps": [json_step("s<n>")]}
    before = json.dumps(document)
    (loaded,) = load_document(document, seed={"n": 2}).checked()
    assert loaded.task.steps[0].id == "s2"
    assert json.dumps(document) == before
    assert loaded.source == "document"
    problem = the_problem(load_document({"id": "t", "steps": [{"id": "a"}]}))
    assert str(problem).startswith("document: step 'a': has no type")


def test_what_this_version_cannot_run_is_named_with_its_line(tmp_path: Path) -> None:
    text = """\
id: t
environments: [shop]
steps:
- {id: a, type: reset, environment: shop}
- {id: b, type: http, environment: shop, port: P, path: /}
- id: c
  type: command
  command: x
  limit: openai
  retry_config: {go_to_step_id: a}
  compensate: {type: agent, capability: c}
"""
    (loaded,) = load([write(tmp_path / "t.yaml", text)]).checked()
    found = [(p.line, p.step, p.key) for p in unsupported(loaded)]
    assert found == [
        (11, "c", "compensate.type"),
    ]
    assert all("cannot run" in p.message for p in unsupported(loaded))
    (plain,) = load([write(tmp_path / "p.yaml")]).checked()
    assert unsupported(plain) == []
    line = write(
        tmp_path / "l.jsonl",
        json.dumps({"id": "x", "steps": [{"id": "a", "type": "agent", "capability": "j"}]}),
    )
    (listed,) = load([line]).checked()
    assert str(unsupported(listed)[0]).startswith(f"{line}:1: step 'a': type: this version")
