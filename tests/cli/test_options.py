"""What is typed wrong is said in a line, with exit status 2 and without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli import status_of
from perdure.cli.options import seeds
from perdure.cli.reading import Named, named
from perdure.env_file import EnvFileError, read_env_file
from perdure.errors import PerdureError

TASK = "steps: [{id: a, type: command, command: [echo, hi]}]\n"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good task; no test here gets as far as to start anything."""
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "task.yaml"
    path.write_text(TASK)
    return path


@pytest.mark.parametrize(
    ("options", "named_by"),
    [
        (["--seed", "order"], "--seed 'order'"),
        (["--seed", "=7"], "KEY=VALUE"),
        (["--seed", "a=1", "--seed", "a=2"], "--seed a=... is given twice"),
        (["--pass-env", "A=B"], "--pass-env 'A=B'"),
        (["--pass-env", ""], "--pass-env ''"),
        (["--env-file", "no-such-file"], "--env-file no-such-file"),
        (["--host", "a b"], "--host 'a b'"),
        (["--suite", "../x"], "--suite '../x'"),
        (["--suite", "ünï"], "'uni'"),
        (["--max-parallel", "0"], "--max-parallel"),
        (["--max-parallel", "many"], "--max-parallel"),
        (["--repeats", "0"], "--repeats"),
        (["--changed", "maybe"], "--changed"),
        (["--start-step", "1"], "outside"),
        (["--end-step", "9"], "outside"),
        (["--only", "other"], "there is no task 'other'"),
        (["--steps", "no_such_module"], "--steps no_such_module"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_a_wrong_option_of_run_is_named_and_nothing_is_started(
    task: Path, options: list[str], named_by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = status_of(["run", str(task), *options])

    printed = capsys.readouterr()
    assert status == 2
    assert named_by in printed.err
    assert printed.err.count("\n") <= 2
    assert printed.out == ""
    assert not (task.parent / "state").exists()


def test_results_that_are_a_file_are_refused(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["run", str(task), "--results", str(task)]) == 2
    assert "is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["frob"], ["run"], ["show"], ["cancel"], ["server", "frob"]])
def test_a_senseless_call_is_a_line_that_leads_to_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--help" in error


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in ("run", "validate", "worker", "server", "list", "show", "gc"))],
)
def test_every_command_has_a_help_with_examples(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of([*command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Usage: perdure" in printed
    assert "Examples:" in printed


def test_a_seed_s_value_may_hold_anything() -> None:
    assert seeds(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize(
    ("run", "meant"),
    [
        ("nightly", Named("nightly")),
        ("suite/nightly", Named("nightly")),
        ("nightly/refund", Named("nightly", "refund")),
        ("nightly/refund/2", Named("nightly", "refund", 2)),
        ("task/nightly/refund/2", Named("nightly", "refund", 2)),
    ],
)
def test_a_run_is_named_by_its_workflow_id_or_in_short(run: str, meant: Named) -> None:
    assert named(run) == meant


@pytest.mark.parametrize(
    "run", ["", "/", "a/b/c", "a/b/0", "a/b/1/2", "../x", "a/..", "a b", "a/b\n", "a//b", "x" * 300]
)
def test_what_names_no_run_is_refused_before_a_path_is_made_of_it(run: str) -> None:
    with pytest.raises(PerdureError, match="names no run"):
        named(run)


def test_an_env_file_is_read_without_expanding_anything(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# a comment\n\nA=1\nexport B='x $A'\nC=\"y\"\nD = a=b \nA=2\nE=\n")

    assert read_env_file(file) == {"A": "2", "B": "x $A", "C": "y", "D": "a=b", "E": ""}


@pytest.mark.parametrize("content", [b"A=1\nsecret-value\n", b"1A=x\n", b"A=\xff\n", b"A=\0\n"])
def test_a_bad_env_file_is_refused_without_telling_its_values(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "env"
    file.write_bytes(content)

    with pytest.raises(EnvFileError, match=r"--env-file .*env") as refused:
        read_env_file(file)
    assert "secret-value" not in str(refused.value)
