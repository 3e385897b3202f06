"""What is typed wrong is said in a line, with exit status 2 and without a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.cli import status_of
from perdure.cli.options import seeds
from perdure.cli.reading import Named, named
from perdure.cli.session import without
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
        (["--max-parallel", "9" * 30], "--max-parallel"),
        (["--repeats", "0"], "--repeats"),
        (["--repeats", "100001"], "--repeats"),
        (["--retry-infrastructure", "9" * 9], "from 0 to 1,000,000"),
        (["--limit", "a=9999999"], "at most 1,000,000"),
        (["--limit", "openai"], "such as openai=4"),
        (["--limit", "=4"], "NAME=N"),
        (["--limit", "openai=0"], "at least 1 slot"),
        (["--limit", "openai=1.5"], "NAME=N"),
        (["--limit", "a b=1"], "--limit"),
        (["--limit", "a=1", "--limit", "a=2"], "--limit a=... is given twice"),
        (["--max-failures", "0"], "--max-failures '0'"),
        (["--max-failures", "120%"], "a share of all such as 10%"),
        (["--fail-fast", "--max-failures", "3"], "--fail-fast is --max-failures 1"),
        (["--fresh", "--changed", "rerun"], "give one of the two"),
        (["--detach", "--junit", "out.xml"], "give it to the `perdure run` that follows"),
        (["--max-cost", "0"], "--max-cost 0"),
        (["--max-cost", "0"], "--max-cost 0:"),
        (["--max-cost", "nan"], "--max-cost nan"),
        (["--max-cost", "abc"], "--max-cost 'abc': write a number"),
        (["--repeats", "x"], "--repeats 'x': write a whole number"),
        (["--repeats", "1000000"], "--repeats '1000000': write 100000 or less"),
        (["--changed", "nonsense"], "'nonsense' is not one of"),
        (["--changed", "nonsense"], "--changed: "),
        (["--junit", ""], "--junit: the path is empty; name it"),
        (["--results", ""], "--results: the path is empty; name it"),
        (["--root", ""], "--root: the path is empty; name it"),
        (["--env-file", ""], "--env-file: the path is empty; name it"),
        (["--env-config", ""], "--env-config: the path is empty; name it"),
        (["--mcp-config", ""], "--mcp-config: the path is empty; name it"),
        (["--task-timeout", "5x"], "--task-timeout: '5x' is not a length of time"),
        (["--task-timeout", "0"], "--task-timeout '0': it must be longer than nothing"),
        (["--retry-infrastructure", "-1"], "--retry-infrastructure"),
        (["--junit", "."], "the JUnit file cannot be written"),
        (["--domain", "crm"], "--domain"),
        (["--env-config", "no-such.yaml"], "no-such.yaml"),
        (["--root", "no-such-folder"], "--root"),
        (["--changed", "maybe"], "--changed"),
        (["--start-step", "1"], "--start-step 1 is outside 0 to 0; write a number within"),
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


@pytest.mark.parametrize("value", ["", "much", "0", "-1", "nan", "inf", "1e3", "4 GB", "9" * 9])
def test_a_wrong_amount_of_memory_is_named_and_no_worker_is_started(
    task: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["worker", "--max-memory", value]) == 2
    error = capsys.readouterr().err
    assert f"--max-memory {value!r} is not a number of GB such as 4 or 0.5" in error
    assert not (task.parent / "state").exists()


@pytest.mark.parametrize("command", [["run"], ["validate"], ["tasks", "put"]])
def test_an_empty_path_is_not_the_current_folder(
    task: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of([*command, ""]) == 2
    assert "PATH: the path is empty; name it" in capsys.readouterr().err


def test_more_trials_than_a_suite_may_have_are_refused_before_anything_starts(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = task.with_name("other.yaml")
    other.write_text(TASK)
    assert status_of(["run", str(task), str(other), "--repeats", "60000"]) == 2
    assert "120,000 trials, and a suite has at most 100,000" in capsys.readouterr().err
    assert not (task.parent / "state").exists()


def test_of_many_problems_the_first_are_told_and_known_keys_once(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = task.parent / "tree"
    tree.mkdir()
    for number in range(60):
        (tree / f"{number:02}.yaml").write_text(f"frobnicate: 1\n{TASK}")
    assert status_of(["run", str(tree)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 52
    assert lines[-2:] == ["... and 10 more (perdure validate)", "nothing was started"]
    assert sum("known: environments, id" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "step 'b': the suite has no limit 'openai'; give it slots by --limit openai=N"),
        (["--limit", "opnai=3"], "the suite has no limit 'openai'; it has 'opnai'"),
    ],
)
def test_a_limit_without_slots_is_found_before_anything_starts(
    task: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task.write_text(
        "steps:\n- {id: a, type: command, command: x}\n"
        "- {id: b, type: command, command: x, limit: openai}\n"
    )

    assert status_of(["run", str(task), *options]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert told in lines[0]
    assert lines[0].startswith(f"{task}:3: ")
    assert lines[1:] == ["nothing was started"]


def test_with_everything_left_out_by_skip_existing_it_says_so_and_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """P20."""
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EVAL_RESULTS_ROOT", str(tmp_path / "judged"))
    path = Path("dataset/crm/benign/1")
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / path / "config.yaml").write_text("Task: {task_id: '1'}\n")
    for agent in ("benchmark/a/m", "direct_prompt/a/m"):
        judged = tmp_path / "judged" / agent / path.relative_to("dataset")
        judged.mkdir(parents=True)
        (judged / "judge_result.json").write_text("{}")
    (tmp_path / "list.jsonl").write_text('{"domain": "crm", "type": "benign", "task_id": "1"}\n')

    status = status_of(
        [
            *("run", str(tmp_path / "list.jsonl"), "--root", str(tmp_path), "--skip-existing"),
            *("--task-command", "true", "--agent-artifact-id", "a", "--agent-model", "m"),
            *("--json", "--junit", str(tmp_path / "out.xml")),
        ]
    )

    printed = capsys.readouterr()
    told = printed.err
    assert status == 0, told
    assert json.loads(printed.out)["totals"]["total"] == 0
    assert 'tests="0"' in (tmp_path / "out.xml").read_text()
    assert "1 left out: judged already (--skip-existing)" in told
    assert "there is nothing to run" in told
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["one", "pasue"], "there is no action 'pasue'; did you mean 'pause'?"),
        (["one", "frob"], "there are pause, resume, requeue, prioritise"),
        (["one", "requeue"], "perdure suite one requeue TASK"),
        (["one", "pause", "refund"], "write: perdure suite one pause"),
        (["a b"], "the nearest legal id is 'a-b'"),
        (["one", "--max-parallel", "0"], "--max-parallel"),
        (["one", "pause", "--results", "."], "--results reads files"),
        (["one"], "there is no suite 'one'"),
        (["one", "pause"], "nothing has run in"),
        (["one", "--results", "no-such"], "there is no directory"),
    ],
)
def test_what_cannot_be_asked_of_a_suite_is_a_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "state"))

    assert status_of(["suite", *arguments]) == 2

    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["one", "--from-step", "ask"], "'one' is a suite; name one of its runs: SUITE/TASK"),
        (["one/two/3/4", "--from-step", "ask"], "names no run"),
        (["one/refund", "--from-step", "ask", "--fail-fast"], "leave out --max-failures"),
        (["one/refund"], "perdure suite one requeue refund"),
        (["a b"], "the nearest legal id is 'a-b'"),
        (["one", "--max-failures", "-1"], "--max-failures '-1'"),
    ],
)
def test_what_cannot_be_retried_is_a_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["retry", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_every_option_of_run_stands_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["run", "--help"]) == 0
    options = capsys.readouterr().out.split("─ Options ─")[1].split("╰")[0]
    assert [word for word in options.split() if word.startswith("--")] == ["--help"]


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
    [
        [],
        *(
            [name]
            for name in (
                *("run", "retry", "suite", "validate", "worker"),
                *("server", "list", "show", "gc"),
            )
        ),
    ],
)
def test_every_command_has_a_help_with_examples(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of([*command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Usage: perdure" in printed
    assert "Examples:" in printed


def test_a_hint_leaves_options_out_with_their_values() -> None:
    typed = ["run", "t", "--changed", "keep", "--fresh", "--limit=a=1", "--suite", "s"]
    assert without(typed, {"--changed", "--fresh", "--limit"}) == ["run", "t", "--suite", "s"]
    assert without(["run", "--", "--fresh"], {"--fresh"}) == ["run", "--", "--fresh"]


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


def test_control_of_a_suite_that_is_given_a_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["suite", "nightly/refund", "pause"]) == 2
    told = capsys.readouterr().err
    assert "'nightly/refund' names a run" in told
    assert "perdure show nightly/refund" in told


@pytest.mark.parametrize(
    ("type", "hint"), [("frob", "there are task.started"), ("step.fialed", "'step.failed'")]
)
def test_a_type_that_no_event_has_is_refused(
    type: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["events", "nightly/refund", "--type", type]) == 2
    told = capsys.readouterr().err
    assert f"--type {type!r}: no event is of this type" in told
    assert hint in told


def test_a_state_directory_that_is_a_file_holds_no_tasks(
    task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERDURE_STATE_DIR", str(task / "state"))
    assert status_of(["tasks", "list"]) == 2
    assert f"{task} is not a directory" in capsys.readouterr().err


def test_a_junit_file_below_a_file_is_no_question_of_room(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["run", str(task), "--junit", str(task / "out.xml")]) == 2
    told = capsys.readouterr().err
    assert "name a file in a folder" in told
    assert "make room" not in told
