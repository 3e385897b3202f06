"""`perdure suite`: looking at a suite, and controlling it while it runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.cli import status_of
from tests.cli.gates import Gates
from tests.cli.support import CommandLine, end, finish, wait_for

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    end(processes)


@pytest.fixture
def ask(
    perdure: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ask:
    """A command in this process: its status, and what it printed."""
    monkeypatch.setenv("PERDURE_STATE_DIR", str(perdure.state))

    def call(*arguments: str) -> tuple[int, str]:
        status = status_of(arguments)
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return call


def test_a_suite_is_controlled_from_another_terminal_while_it_runs(
    perdure: CommandLine, ask: Ask, started: list[subprocess.Popen[str]]
) -> None:
    gates = Gates.of(perdure, "a", "b", "c", "d")
    gates.spoil("a")
    run = perdure.start("run", "tasks", "--suite", "s", "--max-parallel", "1")
    started.append(run)
    gates.await_start("a")

    status, told = ask("suite", "s", "pause")
    assert (status, "is paused: nothing more is started" in told) == (0, True), told
    _, told = ask("suite", "s", "--json")
    seen = json.loads(told)
    assert (seen["status"], seen["paused"], seen["max_parallel"]) == ("running", True, 1)
    assert (seen["totals"]["running"], seen["totals"]["pending"]) == (1, 3)
    assert "tasks" not in seen
    assert seen["served"] is True
    status, told = ask("suite", "s", "requeue", "b")
    assert (status, "still waits" in told) == (2, True), told
    status, told = ask("suite", "s", "requeue", "a")
    assert (status, "is running; cancel it first" in told) == (2, True), told
    status, told = ask("retry", "s")
    assert (status, "is open" in told) == (2, True), told

    gates.open("a")
    wait_for(lambda: _failed(ask) == 1, "the suite hears that a has ended")
    gates.mend("a")
    assert ask("suite", "s", "requeue", "a")[0] == 0
    assert ask("suite", "s", "prioritise", "d/1")[0] == 0
    _, told = ask("suite", "s")
    assert told.splitlines() == [
        "suite s: running, 1 at once, paused (go on with: perdure suite s resume)",
        "0 of 4 succeeded, 4 waiting",
    ]
    assert run.stderr
    before = ""
    while "paused: nothing more" not in before:  # who follows it looks now and then
        line = run.stderr.readline()
        assert line, before
        before += line
    assert ask("suite", "s", "resume")[0] == 0
    gates.await_start("d")
    assert [gates.starts(task) for task in "abc"] == [1, 0, 0], "the one that was put first runs"

    status, told = ask("suite", "s", "--max-parallel", "4")
    assert (status, "max_parallel is 4 (was 1)" in told) == (0, True), told
    gates.await_start("c")
    gates.open()
    status, out, error = finish(run)
    assert status == 0, error
    assert "s: 4 of 4 succeeded" in out
    error = before + error
    lines = error.splitlines()
    assert "paused: nothing more is started, running tasks go on; " in error
    assert lines.index("resumed") < lines.index("max_parallel is 4 (was 1)")
    assert gates.starts("a") == 2


def _failed(ask: Ask) -> int:
    """How many ends the suite counts as failed, by now."""
    failed: int = json.loads(ask("suite", "s", "--json")[1])["totals"]["failed"]
    return failed


def test_a_suite_that_has_ended_has_totals_and_refuses_to_be_controlled(
    perdure: CommandLine, ask: Ask, tmp_path: Path
) -> None:
    gates = Gates.of(perdure, "a", "b")
    gates.open()
    gates.spoil("b")
    totals = ["suite s: failed", "3 of 4 succeeded, 1 failed", "pass@1 0.750, pass@2 1.000"]
    with perdure.served():
        assert perdure("run", "tasks", "--suite", "s", "--repeats", "2").returncode == 1

        assert ask("suite", "s") == (0, "\n".join([*totals, ""]))
        for wish in (["pause"], ["requeue", "b"], ["--max-parallel", "2"]):
            status, told = ask("suite", "s", *wish)
            assert (status, "perdure retry s" in told) == (2, True), told
        status, told = ask("suite", "ss")
        assert (status, "did you mean 's'?" in told) == (2, True), told

    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(perdure.state / "results", elsewhere)
    shutil.rmtree(perdure.state)
    assert ask("suite", "s", "--results", str(elsewhere)) == (0, "\n".join([*totals, ""]))
    assert not perdure.state.exists(), "reading files starts no server"
