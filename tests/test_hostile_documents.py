"""Documents that try to crash, confuse or exhaust whoever loads them (C42, C53)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.documents import DocumentProblem, Documents, load, load_document
from perdure.reading import Source, Unreadable, read_json, read_yaml

TASK = b"steps:\n- {id: a, type: command, command: 'true'}\n"


def load_bytes(folder: Path, content: bytes, name: str = "t.yaml") -> Documents:
    path = folder / name
    path.write_bytes(content)
    return load([path])


def the_problem(loaded: Documents) -> DocumentProblem:
    assert loaded.tasks == []
    problem = loaded.problems[0]
    assert str(problem).isprintable()
    assert len(str(problem)) < 1000
    return problem


def bomb(key: bytes) -> bytes:
    levels = [b"  a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"]
    levels += [
        b"  a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 10)
    ]
    return key + b":\n" + b"".join(levels) + TASK


C42_YAML = {
    "two keys steps": (b"steps: []\nid: t\n" + TASK, 3, "line 1 and on line 3"),
    "two keys env in one step": (
        b"steps:\n- id: a\n  type: command\n  command: x\n  env: {A: x}\n  env: {B: x}\n",
        6,
        "line 5 and on line 6",
    ),
    "a tab": (b"steps:\n\t- id: a\n", 2, "tab"),
    "utf-16": (TASK.decode().encode("utf-16"), 1, "UTF-16"),
    "utf-16 without a mark": (TASK.decode().encode("utf-16-le"), 1, "NUL"),
    "utf-32": (TASK.decode().encode("utf-32"), 1, "UTF-32"),
    "latin-1": (b"id: t\nproject_id: caf\xe9\n" + TASK, 2, "0xe9"),
    "nul": (b"id: t\nproject_id: a\0b\n" + TASK, 2, "NUL"),
    "a control character": (b"id: t\nproject_id: a\x1bb\n" + TASK, 2, "U+001B"),
    "two documents": (TASK + b"---\n" + TASK, 3, "second document"),
    "empty": (b"", 1, "empty"),
    "only blanks": (b" \n\n", 1, "empty"),
    "only a comment": (b"# nothing\n", 1, "empty"),
    "a list of no steps": (b"- 1\n- two\n", 1, "not a step"),
    "a word": (b"hello\n", 1, "mapping or a list of steps"),
    "a monster integer": (TASK + b"metadata:\n  x: " + b"9" * 5000 + b"\n", 4, "too many digits"),
    "a monster hex": (TASK + b"metadata:\n  x: 0x" + b"f" * 300 + b"\n", 4, "too large"),
    "a monster sexagesimal": (TASK + b"metadata:\n  x: 1" + b":59" * 500 + b"\n", 4, "digits"),
    "a bad number": (TASK + b"metadata:\n  x: 0b_\n", 4, "'0b_'"),
    "a bad date": (TASK + b"metadata:\n  x: 2020-13-45\n", 4, "'2020-13-45'"),
    "a date": (TASK + b"metadata:\n  x: 2020-12-05\n", 4, "is a date"),
    "not a number": (TASK + b"metadata:\n  x: .nan\n", 4, "nan"),
    "infinity": (TASK + b"metadata:\n  x: -.inf\n", 4, "inf"),
    "deep brackets": (b"x:\n " + b"[" * 3000, 2, "nest"),
    "deep dashes": (b"x:\n " + b"- " * 3000 + b"y", 2, "nested"),
    "deep mappings": (b"".join(b" " * i + b"a:\n" for i in range(500)), 101, "nested"),
    "a list as key": (TASK + b"metadata:\n  ? [a, b]\n  : 1\n", 4, "a key is a list"),
    "a mapping as key": (TASK + b"metadata:\n  {{a: b}: c}\n", 4, "a key is a mapping"),
    "a number as key": (TASK + b"metadata:\n  1: x\n", 3, "the key 1 is not text"),
    "a word as key": (TASK + b"metadata:\n  on: x\n", 3, "the key true is not text"),
    "an unknown anchor": (b"x:\n  *nope\n", 2, "no anchor &nope"),
    "a merge of text": (TASK + b"metadata:\n  <<: text\n", 4, "<<"),
    "two merges": (
        b"- &a {id: a, type: command, command: x}\n- {<<: *a,\n   <<: *a}\n",
        3,
        "twice",
    ),
    "an open quote": (b"x: 'abc\n", 2, "not YAML"),
    "colons": (b"x:\n  a: b: c\n", 2, "not YAML"),
    "a foreign version": (b"%YAML 9.9\n---\n" + TASK, 1, "not YAML"),
}

C42_JSON = {
    "duplicate keys": (b'{"steps": [],\n "steps": []}', 2, "line 1 and on line 2"),
    "nan": (b'{"metadata":\n {"x": NaN}}', 2, "'NaN'"),
    "infinity": (b'{"metadata":\n {"x": -Infinity}}', 2, "'-Infinity'"),
    "a float too large": (b'{"metadata":\n {"x": 1e999}, "id": "t", "steps": 1}', 2, "inf"),
    "a monster integer": (b'{"x":\n' + b"9" * 5000 + b"}", 2, "too many digits"),
    "deep lists": (b"\n" + b"[" * 100_000, 2, "nested"),
    "deep mappings": (b"\n" + b'{"a":' * 100_000, 2, "nested"),
    "a comma too many": (b'{"a": 1,\n}', 2, "comma"),
    "a comma too many in a list": (b"[1,\n]", 2, "comma"),
    "a missing comma": (b"[1\n2]", 2, "missing before '2'"),
    "a missing colon": (b'{"a"\n1}', 2, "colon"),
    "a key without quotes": (b"{\na: 1}", 2, "quotes"),
    "single quotes": (b"{\n'a': 1}", 2, "quotes"),
    "a comment": (b"// hi\n{}", 1, "missing"),
    "two documents": (b"{}\n{}", 2, "follows the end"),
    "an open text": (b'{"a":\n"x', 2, "not JSON"),
    "a broken line": (b'{"a":\n"x\ny"}', 2, "not JSON"),
    "a broken escape": (b'{"a":\n"\\q"}', 2, "not JSON"),
    "a lone surrogate": (b'{"steps": 1, "metadata": {\n"x": "\\ud800"}}', 2, "surrogate"),
    "an end too early": (b'{"a": [1,\n', 2, "the end"),
    "a zero in front": (b"[\n01]", 2, "missing before '1'"),
    "empty": (b" ", 1, "empty"),
    "utf-16": ("{}".encode("utf-16"), 1, "UTF-16"),
}


@pytest.mark.parametrize("kind", C42_YAML)
def test_c42_a_bad_yaml_file_is_one_line_with_file_line_and_reason(
    tmp_path: Path, kind: str
) -> None:
    content, line, said = C42_YAML[kind]
    problem = the_problem(load_bytes(tmp_path, content))
    assert problem.line == line
    assert said in str(problem)
    assert str(problem).startswith(f"{tmp_path / 't.yaml'}:{line}: ")


@pytest.mark.parametrize("kind", C42_JSON)
def test_c42_a_bad_json_file_is_one_line_with_file_line_and_reason(
    tmp_path: Path, kind: str
) -> None:
    content, line, said = C42_JSON[kind]
    loaded = load_bytes(tmp_path, content, "t.json")
    assert loaded.tasks == []
    assert any(problem.line == line and said in str(problem) for problem in loaded.problems)


def test_c42_a_byte_order_mark_of_utf_8_is_no_trouble(tmp_path: Path) -> None:
    assert len(load_bytes(tmp_path, b"\xef\xbb\xbf" + TASK).checked()) == 1
    content = b'\xef\xbb\xbf[{"id": "a", "type": "command", "command": "x"}]'
    assert len(load_bytes(tmp_path, content, "t.json").checked()) == 1


def test_c42_anchors_and_merges_work_as_yaml_has_them(tmp_path: Path) -> None:
    content = b"""\
x-command: &command {type: command, command: [echo, "1"], env: &env {A: a, B: b}}
x-slow: &slow {timeout: 2h, type: other}
steps:
- {<<: *command, id: a}
- <<: [*command, *slow]
  id: b
  env: {<<: *env, B: mine, C: c}
- {id: c, type: command, command: &word echo, stdin: *word}
"""
    (loaded,) = load_bytes(tmp_path, content).checked()
    a, b, c = loaded.task.steps
    assert a.body["command"] == ["echo", "1"]
    assert a.body["env"] == {"A": "a", "B": "b"}
    assert (b.type, b.timeout_seconds) == ("command", 7200.0)
    assert b.body["env"] == {"A": "a", "B": "mine", "C": "c"}
    assert c.body["stdin"] == "echo"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"id: t\nx: !!python/object/apply:os.system ['touch PWN']\n", 2),
        (b"id: t\nx: !!python/name:os.system\n", 2),
        (b"id: t\nx: !!python/object/new:os.system [touch PWN]\n", 2),
        (b"id: t\nx: !<tag:yaml.org,2002:python/name:os.system> ''\n", 2),
        (b"id: t\n? !!python/name:os.system\n: x\n", 2),
        (b"id: t\nx: !own {a: 1}\n", 2),
        (b"id: t\nx: !!binary aGk=\n", 2),
        (b"id: t\nx: !!set {a, b}\n", 2),
    ],
)
def test_c53_tags_run_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, line: int
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = the_problem(load_bytes(tmp_path, content))
    assert problem.line == line
    assert "tag" in problem.message
    assert not (tmp_path / "PWN").exists()


@pytest.mark.parametrize("key", [b"seed", b"metadata", b"env"])
def test_c53_an_alias_bomb_is_refused_at_its_line(tmp_path: Path, key: bytes) -> None:
    problem = the_problem(load_bytes(tmp_path, bomb(key)))
    assert "too large" in problem.message
    assert problem.line in range(2, 12)


def test_c53_a_bomb_of_merges_or_of_long_texts_is_refused(tmp_path: Path) -> None:
    keys = b", ".join(b"k%d: 1" % i for i in range(1000))
    merges = b"a: &a {" + keys + b"}\nb:\n- {<<: [" + b", ".join([b"*a"] * 1000) + b"]}\n"
    assert the_problem(load_bytes(tmp_path, merges)).line == 3
    texts = b"a: &a " + b"x" * 1_000_000 + b"\nb:\n- [" + b", ".join([b"*a"] * 1000) + b"]\n"
    assert the_problem(load_bytes(tmp_path, texts)).line == 3


def test_c53_an_anchor_that_contains_itself_is_refused_at_its_line(tmp_path: Path) -> None:
    for content in (b"metadata: &a\n  x: *a\n", b"metadata: &a\n  - [*a]\n", b"x: &a\n  <<: *a\n"):
        problem = the_problem(load_bytes(tmp_path, content + TASK))
        assert problem.line == 2
        assert "contains itself" in problem.message


def test_c53_a_client_cannot_send_what_a_file_cannot_hold() -> None:
    own: dict[str, object] = {"id": "t"}
    own["steps"] = [own]
    assert "contain themselves" in the_problem(load_document(own)).message
    grown: object = "lol"
    for _ in range(9):
        grown = [grown] * 10
    step = {"id": "a", "type": "command", "command": "<a>", "env": {"A": grown}}
    for document in (
        {"id": "t", "steps": [step]},
        {"id": "t", "seed": {"a": grown}, "steps": [step | {"env": {}}]},
    ):
        assert "too large" in the_problem(load_document(document)).message
    assert "too large" in the_problem(load_document([step], default_id="t")).message
    repeated = step | {"env": {}, "command": "<a>" * 100_000}
    filled = load_document({"id": "t", "seed": {"a": "x" * 100_000}, "steps": [repeated]})
    assert "filled in" in the_problem(filled).message


# Each hostile file in a process of its own that has 1,000,000 KiB of address space, as a shell's
# `ulimit -v 1000000` gives it.
_UNDER_LIMIT = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1_000_000 * 1024, 1_000_000 * 1024))
from perdure.documents import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loaded = load(sys.argv[1:])
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert not loaded.tasks
for problem in loaded.problems:
    print(problem)
print("grown", grown // 1024, "MiB", file=sys.stderr)
sys.exit(2 if loaded.problems and grown < 400 * 1024 else 1)
"""


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 1024 * 1024)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(bomb(b"seed")),
        lambda path: path.write_bytes(bomb(b"metadata")),
        huge,
        lambda path: path.write_bytes(b"- a\n" * (4 * 1024 * 1024)),
        lambda path: path.write_bytes(b"x: [" + b"{}," * (5 * 1024 * 1024)),
        lambda path: path.write_bytes(b"".join(b"k%d: 1\n" % i for i in range(1_000_000))),
        lambda path: path.write_bytes(b"- " * (8 * 1024 * 1024)),
        lambda path: path.write_bytes(b"x: '" + b"y" * (15 * 1024 * 1024)),
    ],
    ids=["bomb in seed", "bomb in metadata", "50 MiB", "dashes", "braces", "keys", "deep", "text"],
)
def test_c53_memory_stays_flat_under_a_limit(tmp_path: Path, make: object) -> None:
    path = tmp_path / "t.yaml"
    make(path)  # type: ignore[operator]
    ended = subprocess.run(
        [sys.executable, "-c", _UNDER_LIMIT, str(path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert str(path) in ended.stdout
    assert ended.returncode == 2, ended.stderr


FRAGMENTS = [*"[]{}:,-?&*!|>'\"%@`#~ \t\n\r\\=", "<<", "---", "...", "&a ", "*a", "!!", "a", "1"]
FRAGMENTS += [
    ": ",
    "- ",
    "\n  ",
    "\ufeff",
    "\x85",
    "\u2028",
    "é",
    "0x",
    "1e9",
    ".inf",
    "null",
    "\x07",
]
YAMLISH = st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


@settings(deadline=None)
@given(YAMLISH)
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    for read in (read_yaml, read_json):
        try:
            found: Source | Unreadable = read(text)
        except Unreadable as error:
            found = error
        if isinstance(found, Unreadable):
            assert found.finding.message
            assert found.finding.line is None or 1 <= found.finding.line <= len(text) + 1
        else:
            assert found.line(()) >= 1


@settings(deadline=None)
@given(YAMLISH)
def test_any_document_is_loaded_or_has_problems(text: str) -> None:
    try:
        value = read_yaml(text).value
    except Unreadable:
        return
    loaded = load_document(value, default_id="t")
    assert bool(loaded.tasks) != bool(loaded.problems)
    assert all(str(problem).isprintable() for problem in loaded.problems)
