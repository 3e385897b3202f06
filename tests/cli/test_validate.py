"""`perdure validate`: every problem of every document, a line each, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli import status_of
from tests.cli.support import CommandLine
from tests.dtap_kit import Project, benign

GOOD = """\
steps:
  - {id: a, type: command, command: [echo, hi]}
"""
BAD = """\
steps:
  - {id: a, type: command, command: [echo, hi], depends_on: [nowhere]}
  - {id: a, type: nonsense}
"""
LATER = """\
environments: [shop]
steps:
  - {id: order, type: exec, environment: shop, service: api, command: ls}
  - {id: aside, type: command, command: "true", uses: [shop], depends_on: [],
     compensate: {type: agent, capability: c}}
  - {id: agent, type: command, command: "true", uses: [], depends_on: [order]}
  - id: check
    type: verify
    checks: [{path: results.agent.exit_code, equals: 0}]
    depends_on: [agent]
    retry_config: {retry_from_step_id: order, max_retries: 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def test_valid_documents_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["validate", str(folder)]) == 0
    assert capsys.readouterr().out == "1 valid task\n"


def test_every_problem_of_every_document_is_a_line_with_file_line_and_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.yaml").write_text(BAD)
    (folder / "worse.yaml").write_text("steps: [\n")

    assert status_of(["validate", str(folder)]) == 2

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert sum(line.startswith(f"{folder}/bad.yaml:") for line in lines) == 3
    assert any("'nowhere'" in line and "bad.yaml:2: step 'a'" in line for line in lines)
    assert any(line.startswith(f"{folder}/worse.yaml:") for line in lines)
    assert lines[-1] == "4 problems; 1 valid task beside them"


def test_what_this_version_cannot_run_is_a_note_and_spans_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "later.yaml").write_text(LATER)

    assert status_of(["validate", str(folder)]) == 0

    printed = capsys.readouterr().out
    assert printed.count("note: ") == 1
    assert (
        "step 'check': a failure rolls back to 'order' at most 2 times "
        "and undoes order, aside, agent, check; resets shop"
    ) in printed
    assert printed.endswith("2 valid tasks\n")


def test_run_refuses_what_it_cannot_run_before_anything_is_started(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "later.yaml").write_text(LATER)
    (folder / "bad.yaml").write_text(BAD)
    monkeypatch.setenv("PERDURE_STATE_DIR", str(folder / "state"))

    assert status_of(["run", str(folder)]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == "nothing was started"
    assert printed.err.count("bad.yaml:") == 3
    assert printed.err.count("later.yaml:") == 2
    assert "no env.yaml describes the environment 'shop'" in printed.err
    assert not (folder / "state").exists()


def test_a_problem_s_text_cannot_move_the_cursor(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.yaml").write_text('steps: [{id: "a\\e[2J\\nb", type: command}]\n')

    assert status_of(["validate", str(folder)]) == 2
    assert "\x1b" not in capsys.readouterr().out


def test_c42_a_file_that_cannot_be_read_is_a_line_and_no_trace(perdure: CommandLine) -> None:
    perdure.folder.joinpath("latin.yaml").write_bytes(b"id: caf\xe9\nsteps: []\n")
    perdure.write("twice.yaml", "steps: []\nsteps: []\n")
    perdure.write("empty.yaml", "")

    done = perdure("validate", "latin.yaml", "twice.yaml", "empty.yaml", "missing.yaml")

    assert done.returncode == 2
    for name in ("latin.yaml:1", "twice.yaml:2", "empty.yaml", "missing.yaml"):
        assert name in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not perdure.state.exists()


SECRETS = """\
steps:
  - id: call
    type: command
    command: "true"
    env:
      KEY: {from_env: PERDURE_TEST_NO_SUCH_VARIABLE}
      CERT: {from_file: no/such/file}
  - {id: ask, type: http, url: "http://127.0.0.1:9/", headers: {A: {from_env: PERDURE_TEST_OTHER}}}
"""


def test_secrets_that_are_not_there_are_found_before_anything_is_started(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "secrets.yaml").write_text(SECRETS)
    (folder / "values").write_text("PERDURE_TEST_OTHER=x\n")
    monkeypatch.setenv("PERDURE_STATE_DIR", str(folder / "state"))

    assert status_of(["run", str(folder), "--env-file", str(folder / "values")]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3, lines
    assert any(
        "secrets.yaml:6: step 'call': {from_env: PERDURE_TEST_NO_SUCH_VARIABLE}" in line
        for line in lines
    )
    assert any("secrets.yaml:7: step 'call': {from_file: no/such/file}" in line for line in lines)
    assert lines[-1] == "nothing was started"
    assert not (folder / "state").exists()


def test_a_secret_file_is_looked_for_beside_its_document(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "t.yaml").write_text(
        "steps: [{id: s, type: command, command: 'true', env: {K: {from_file: key}}}]"
    )
    (folder / "key").write_text("in the wrong place")
    monkeypatch.setenv("PERDURE_STATE_DIR", str(folder / "state"))
    monkeypatch.chdir(folder)

    assert status_of(["run", "tasks"]) == 2

    told = capsys.readouterr().err
    assert f"starts at the document's folder, {tasks}" in told
    assert not (folder / "state").exists()


def test_results_that_cannot_be_written_are_refused_before_anything_is_started(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "t.yaml").write_text("steps: [{id: s, type: command, command: 'true'}]")
    (folder / "file").touch()
    monkeypatch.setenv("PERDURE_STATE_DIR", str(folder / "state"))

    assert status_of(["run", str(folder / "t.yaml"), "--results", str(folder / "file/below")]) == 2

    told = capsys.readouterr().err
    assert "results cannot be written there" in told
    assert "name another" in told
    assert not (folder / "state").exists()


def test_configuration_among_the_paths_is_checked_as_what_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "env.yaml").write_text("environments:\n  shop: {max_instances: 2}\n  shop: {}\n")
    (folder / "mcp.yaml").write_text("servers: [{name: a, environment: shop}]\n")

    assert status_of(["validate", str(folder)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"warning: {folder}/env.yaml:3: the key 'shop' is there twice")
    assert lines[1:] == [
        f"{folder}/env.yaml: 1 environment",
        f"{folder}/mcp.yaml: 1 server with environments",
        "1 valid task",
    ]


def test_a_broken_env_yaml_is_a_problem_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "env.yaml"
    file.write_text("environments:\n  shop:\n    health_timeout: soon\n")
    for words in ([str(file)], [str(folder / "good.yaml"), "--env-config", str(file)]):
        assert status_of(["validate", *words]) == 2
        out = capsys.readouterr().out
        assert out.startswith(f"{file}:3: environments.shop.health_timeout: 'soon' is not a length")


def test_a_project_is_validated_without_a_task_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path / "project")
    project.task("crm/benign/1")
    project.list(benign("1"), benign("../1"))
    root = str(project.root)

    assert status_of(["validate", f"{root}/dataset", f"{root}/benchmark", "--root", root]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 valid task"
    assert any("list.jsonl:2: the line leads to no task" in line for line in lines)
    assert any("env.yaml:444: the key 'customer_service' is there twice" in line for line in lines)
