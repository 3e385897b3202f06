"""Reading commands on files of results alone: from any machine, with nothing started."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.cli import status_of
from tests.stored import Store, ended

Read = Callable[..., str]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two suites, copied from where they were written; no state directory, no server to ask."""
    made = Store(tmp_path / "written")

    async def fill() -> None:
        trials = [
            ended("a", usage={"cost": 0.5}),
            ended("a", "failed", 2, failure_kind="timeout", failure_reason="too \x1b[2Jlate"),
            ended("b", "failed", failure_kind="bad_input", failure_step=None, usage={"cost": 1.0}),
            ended("c", "cancelled"),
            ended("d", note="its record could not be written", unwritten=True),
        ]
        for trial in trials[:-1]:
            await made.end(trial)
        await made.suite(
            "failed", trials, suite="s", stopped="2 failures (max_failures: 2)",
            a=2, b=1, c=1, d=1, e=4,
        )  # fmt: skip
        await made.suite("running", suite="killed", started_at=1.0, a=3)
        await made.end(ended("a"), "killed")
        await made.end(ended("alone"), "adhoc")

    asyncio.run(fill())
    copied = tmp_path / "copied"
    shutil.move(made.root, copied)
    (tmp_path / "not-a-directory").write_text("")
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "not-a-directory" / "state"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    return copied


@pytest.fixture
def read(results: Path, capsys: pytest.CaptureFixture[str]) -> Read:
    def read(*arguments: str) -> str:
        status = status_of([*arguments, "--results", str(results)])
        told = capsys.readouterr()
        assert (status, told.err) == (0, "")
        return told.out

    return read


@pytest.fixture
def refused(results: Path, capsys: pytest.CaptureFixture[str]) -> Read:
    def refused(*arguments: str, at: Path = results) -> str:
        status = status_of([*arguments, "--results", str(at)])
        told = capsys.readouterr()
        assert (status, told.out) == (2, "")
        assert told.err.startswith("perdure: ")
        assert "Traceback" not in told.err
        return told.err

    return refused


def test_suites_are_listed_with_their_counts_and_why_they_stopped(read: Read) -> None:
    table = read("list")
    assert re.search(r"^SUITE +STATE +TASKS +OK +FAILED +CANCELLED +WAITING +NOT RUN ", table)
    row = next(line for line in table.splitlines() if line.startswith("s "))
    assert re.match(r"s +failed +9 +2 +2 +1 +4 .* 1 timeout, 1 bad input ", row)
    assert row.endswith("2 failures (max_failures: 2)")
    assert re.search(r"^killed +running +3 +1 +0 +0 +2 +0 ", table, re.M)
    listed = json.loads(read("list", "--json"))
    assert [suite["suite"] for suite in listed] == ["s", "killed"]
    assert listed[0]["totals"]["failed_by_kind"] == {"timeout": 1, "bad_input": 1}
    assert (listed[0]["stopped"], listed[0]["paused"]) == ("2 failures (max_failures: 2)", False)


def test_the_runs_of_a_suite_are_listed_with_trial_kind_and_note(read: Read) -> None:
    table = read("list", "s")
    assert re.search(r"^s/a/2 +failed +2 .* timeout +step ask: too .*late$", table, re.M)
    assert re.search(r"^s/a/1 +succeeded", table, re.M)
    assert "\x1b" not in table
    assert re.search(r"^s/b +failed +1 .* bad input +exit code 3 *$", table, re.M)
    assert "note: s/d: its record could not be written" in table
    runs = json.loads(read("list", "s", "--json"))
    assert [(run["task"], run["trial"], run["status"]) for run in runs] == [
        ("a", 1, "succeeded"), ("a", 2, "failed"), ("b", 1, "failed"), ("c", 1, "cancelled"),
        ("d", 1, "succeeded"),
    ]  # fmt: skip
    assert runs[1]["failure"]["kind"] == "timeout"
    assert "s/alone" not in table
    assert re.search(r"^adhoc/alone +succeeded +1 ", read("list", "adhoc"), re.M)
    assert re.search(r"^killed/a/1 +succeeded +1 ", read("list", "--tasks"), re.M)


def test_a_suite_is_shown_with_totals_estimates_usage_and_stop(read: Read, results: Path) -> None:
    shown = read("show", "s")
    lines = shown.splitlines()
    assert "state    failed" in lines
    assert "stopped  2 failures (max_failures: 2)" in lines
    assert (
        "totals   2 of 9 succeeded, 2 failed (1 timeout, 1 bad input), 1 cancelled, 4 not run"
        in lines
    )
    assert "pass@k   pass@1 0.500, pass@2 1.000" in lines
    assert "usage    cost 1.5" in lines
    assert re.search(r"^e \(4 trials\) +not_run", shown, re.M)
    assert lines[-1] == f"files    {results / 's'}"
    document = json.loads(read("show", "s", "--json"))
    assert document["totals"]["not_run"] == 4
    assert re.search(r"^a \(2 more\) +pending", read("show", "killed"), re.M)


def test_a_run_is_shown_whole_and_its_events_are_told(read: Read, results: Path) -> None:
    shown = read("show", "s/a/2")
    assert "failure  step ask: too \\x1b[2Jlate (timeout)" in shown
    assert f"files    {results / 's' / 'a' / '2'}" in shown
    record = json.loads(read("show", "s/a", "--json"))
    assert record["context"]["results"]["ask"]["stdout"] == "hi\n"
    assert [line.split()[2] for line in read("events", "s/a").splitlines()] == [
        "run.started", "step.started",
    ]  # fmt: skip


def test_what_is_not_there_is_said_with_the_place(refused: Read, results: Path) -> None:
    assert f"there is no suite 'x' in {results}" in refused("show", "x")
    assert f"there is no suite 'x' in {results}" in refused("list", "x")
    assert f"there is no run s/x in {results}" in refused("show", "s/x")
    assert "there is no run s/x" in refused("events", "s/x")
    assert "suite.json is missing: its tasks were started by themselves" in refused("show", "adhoc")


@pytest.mark.parametrize("command", [["list"], ["list", "s"], ["show", "s"], ["show", "s/a"],
                                     ["events", "s/a"]])  # fmt: skip
def test_a_directory_that_holds_no_results_is_refused(
    refused: Read, results: Path, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert "holds no results of perdure" in refused(*command, at=tmp_path / "empty")
    assert "there is no directory" in refused(*command, at=tmp_path / "nowhere")
    assert "is not a directory" in refused(*command, at=tmp_path / "file")
    assert f"--results {results} s\n" in refused(*command, at=results / "s")


@pytest.mark.parametrize(
    ("file", "commands"),
    [
        ("suite.json", [["show", "s"], ["list", "s"]]),
        ("results.jsonl", [["show", "s"], ["list", "s"]]),
        ("a/1/record.json", [["show", "s/a"]]),
        ("a/1/events.jsonl", [["events", "s/a"]]),
    ],
)
@pytest.mark.parametrize("content", ['{"half":', '{"name": "foreign"}\n'])
def test_damaged_and_foreign_files_are_named(
    refused: Read,
    results: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    commands: list[list[str]],
    content: str,
) -> None:
    (results / "s" / file).write_text(content)
    if file.endswith(".jsonl") and content == '{"half":':
        return  # a line that is cut off is left out
    for command in commands:
        assert str(results / "s" / file) in refused(*command)
    if file == "suite.json":
        assert status_of(["list", "--results", str(results)]) == 0
        told = capsys.readouterr()
        assert f"note: {results / 's' / file}: " in told.err
        assert "killed" in told.out


def test_what_a_suites_file_says_of_another_place_is_not_looked_at(
    read: Read, results: Path, tmp_path: Path
) -> None:
    path = results / "killed" / "suite.json"
    known: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "suite": "../../outside"}))
    assert [suite["suite"] for suite in json.loads(read("list", "--json"))] == ["s", "killed"]


@pytest.mark.parametrize("command", [["show", "nope"], ["suite", "nope"], ["list", "nope"],
                                     ["show", "nope/x"], ["events", "nope/x"]])  # fmt: skip
def test_what_is_unknown_is_told_with_the_directory_that_was_looked_in(
    refused: Read, results: Path, command: list[str]
) -> None:
    told = refused(*command)
    assert f" in {results}" in told
    assert f" --results {results}` shows those there are" in told


def test_what_a_copy_lacks_is_told_alike_by_each_command(refused: Read, results: Path) -> None:
    (results / "s" / "suite.json").unlink()
    (results / "killed" / "a" / "1" / "record.json").unlink()
    (results / "killed" / "a" / "1" / "events.jsonl").unlink(missing_ok=True)
    for command in ("show", "suite"):
        told = refused(command, "s")
        assert f"{results / 's' / 'suite.json'} is missing" in told
        assert f"perdure list s --results {results}" in told
    for command in ("show", "events"):
        assert "has no record of the run" in refused(command, "killed/a")
