"""What ends a suite before its last task: its limits, Ctrl-C; and what it says then."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from perdure.cli.summary import closing_lines, tell_unwritten
from tests.cli.gates import Gates
from tests.cli.support import CommandLine, end, finish, wait_for

COSTLY = """\
id: {id}
steps:
  - id: ask
    type: command
    limit: model
    command: 'echo "{{\\"usage\\": {{\\"cost\\": 0.5, \\"tokens\\": 1200}}}}" > "$PERDURE_OUTPUT"'
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    end(processes)


@pytest.mark.usefixtures("one_server")
def test_after_the_first_failure_the_rest_is_not_run_and_a_retry_runs_it(
    perdure: CommandLine,
) -> None:
    gates = Gates.of(perdure, "a", "b", "c")
    gates.open()
    gates.spoil("a")

    failed = perdure(
        *("run", "tasks", "--suite", "s", "--max-parallel", "1"),
        *("--fail-fast", "--junit", "report/out.xml"),
    )

    assert failed.returncode == 1, failed.stderr
    assert "stopping: 1 failure (max_failures: 1); nothing more is started\n" in failed.stderr
    assert "stopped: 1 failure (max_failures: 1); run the rest with: perdure retry s" in (
        failed.stdout
    )
    assert "s: 0 of 3 succeeded, 1 failed, 2 not run" in failed.stdout
    assert re.search(r"^a +failed +task +wait +exit code 1", failed.stdout, re.M)
    clock = r"\d\d:\d\d:\d\d"
    assert re.search(rf"^\[1/3\] failed +a .* \({clock} to {clock}\) ", failed.stderr, re.M)
    report = (perdure.folder / "report" / "out.xml").read_text()
    assert 'tests="3" failures="1" errors="0" skipped="2"' in report

    gates.mend("a")
    rest = perdure("retry", "s", "--json")
    assert rest.returncode == 0, rest.stderr
    assert json.loads(rest.stdout)["totals"]["succeeded"] == 3


@pytest.mark.usefixtures("one_server")
def test_at_its_cost_a_suite_starts_nothing_more(perdure: CommandLine) -> None:
    for id in ("a", "b", "c"):
        perdure.write(f"tasks/{id}.yaml", COSTLY.format(id=id))

    run = perdure(
        *("run", "tasks", "--suite", "s", "--max-parallel", "1"),
        *("--max-cost", "1", "--limit", "model=1", "--limit", "modle=2"),
    )

    assert run.returncode == 1, run.stderr
    assert "warning: --limit modle: no step says `limit: modle`" in run.stderr
    assert "stopped: cost 1 (max_cost: 1); run the rest with: perdure retry s --max-cost X" in (
        run.stdout
    )
    assert "usage: cost 1, tokens 2,400" in run.stdout
    assert "s: 2 of 3 succeeded, 1 not run" in run.stdout
    rest = perdure("retry", "s", "--max-cost", "2")
    assert rest.returncode == 0, rest.stderr
    assert "s: 3 of 3 succeeded" in rest.stdout


@pytest.mark.usefixtures("one_server")
def test_ctrl_c_ends_a_paused_suite_and_what_did_not_start_is_not_run(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    gates = Gates.of(perdure, "a", "b")
    run = perdure.start(
        *("run", "tasks", "--suite", "s", "--max-parallel", "1", "--junit", "out.xml")
    )
    started.append(run)
    gates.await_start("a")
    assert perdure("suite", "s", "pause").returncode == 0

    status, out, error = finish(run, signal.SIGINT)

    assert status == 130, error
    assert "cancelled and cleaned up; go on with: perdure run tasks --suite s" in error
    assert "s: 0 of 2 succeeded, 1 cancelled, 1 not run" in out
    assert 'skipped="2"' in (perdure.folder / "out.xml").read_text()
    gates.open()
    assert perdure("run", "tasks", "--suite", "s").returncode == 0, "a new run is not paused"


def test_a_second_terminal_attaches_with_more_places(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    gates = Gates.of(perdure, "a", "b")
    left = perdure("run", "tasks", "--suite", "s", "--max-parallel", "1", "--detach")
    assert left.returncode == 0, left.stderr
    gates.await_start("a")

    elsewhere = perdure.folder / "elsewhere"
    options = ("--max-failures", "9", "--results", str(elsewhere))
    again = perdure("run", "tasks", "--suite", "s", *options, "--changed", "keep", "--detach")
    assert again.stderr.endswith(
        "it goes on by itself; follow it with: perdure run tasks --suite s\n"
        "stop it with: perdure cancel s\n"
    ), again.stderr
    assert not elsewhere.exists(), "the suite keeps to its own"

    left = perdure.start("run", "tasks", "--suite", "s")
    started.append(left)
    assert left.stderr
    for line in left.stderr:
        if "Ctrl-C cancels the suite, whoever has started it; Ctrl-\\ leaves it running" in line:
            break
    status, _, error = finish(left, signal.SIGQUIT)
    assert (status, "go on with: perdure run tasks --suite s\n" in error) == (130, True), error

    run = perdure.start("run", "tasks", "--suite", "s", "--max-parallel", "2", *options)
    started.append(run)
    gates.await_start("b")
    gates.open()
    status, out, error = finish(run)

    assert status == 0, error
    assert "max_parallel is 2 (was 1)" in error
    assert "goes on as it was started: max_failures unset" in error
    assert "is under way; following it" in error
    assert "s: 2 of 2 succeeded" in out
    wait_for(lambda: not (perdure.state / "server.json").exists(), "the server ends by itself")


@pytest.mark.usefixtures("one_server")
def test_a_suite_that_is_open_is_followed_without_its_limits(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    gates = Gates.of(perdure, "a")
    path = perdure.folder / "tasks" / "a.yaml"
    path.write_text(path.read_text() + "    limit: slot\n")
    refused = perdure("run", "tasks", "--suite", "s")
    assert (refused.returncode, "give it slots by --limit slot=N" in refused.stderr) == (2, True)
    left = perdure("run", "tasks", "--suite", "s", "--limit", "slot=2", "--detach")
    assert left.returncode == 0, left.stderr
    gates.await_start("a")

    run = perdure.start("run", "tasks", "--suite", "s")
    started.append(run)
    assert run.stderr
    for line in run.stderr:
        assert "goes on as it was started" not in line, "nothing was said that is not heeded"
        if "is under way; following it" in line:
            break
    gates.open()
    status, out, error = finish(run)
    assert (status, "s: 1 of 1 succeeded" in out) == (0, True), error
    refused = perdure("run", "tasks", "--suite", "s")
    assert refused.returncode == 2, "it is closed: a new run needs them"


@pytest.mark.usefixtures("one_server")
def test_of_a_task_all_trials_that_run_are_cancelled_and_waiting_ones_are_told_of(
    perdure: CommandLine,
) -> None:
    gates = Gates.of(perdure, "a", "b", repeats=3)
    left = perdure("run", "tasks", "--suite", "s", "--max-parallel", "2", "--detach")
    assert left.returncode == 0, left.stderr
    gates.await_start("a", 1)
    gates.await_start("a", 2)
    for name in ("s/b", "s/b/2", "s/a/3"):
        waits = perdure("cancel", name)
        assert waits.returncode == 2
        assert f"{name} has not started yet; have nothing more started with: " in waits.stderr
    assert "perdure suite s pause" in waits.stderr
    assert "there is no run s/a/4" in perdure("cancel", "s/a/4").stderr
    perdure("suite", "s", "pause")

    both = perdure("cancel", "s/a")

    assert (both.returncode, both.stdout) == (0, "s/a/1 is cancelled\ns/a/2 is cancelled\n")
    assert "note: trials of s/a that have not started yet will start: 1;" in both.stderr
    again = perdure("cancel", "s/a")
    assert "nothing of s/a runs; trials that have not started yet: 1;" in again.stderr
    assert "s/a/2 has ended already" in perdure("cancel", "s/a/2").stdout
    assert perdure("cancel", "s").returncode == 0


def test_records_that_could_not_be_written_are_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials = [
        {"trial": n, "status": "succeeded", "unwritten": True, "note": "/x: no space left"}
        for n in range(1, 8)
    ]
    trials.append({"trial": 8, "status": "succeeded"})
    outcome = {"tasks": [{"id": "t", "repeats": 8, "trials": trials}]}

    assert tell_unwritten(outcome, "perdure run tasks --suite s") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: t/1: /x: no space left"
    assert lines[-2:] == [
        "error: likewise 2 other records",
        "nothing is lost: make room, then write what is missing with: perdure run tasks --suite s",
    ]
    assert tell_unwritten({"tasks": []}, "") == 0


def test_the_closing_lines_are_those_that_say_something() -> None:
    totals = {"not_run": 0, "usage": {}}
    quiet = {"suite": "s", "status": "failed", "stopped": None, "totals": totals, "pass_at_k": {}}

    assert closing_lines(quiet | {"pass_at_k": {"1": 0.5}}) == []
    assert closing_lines(quiet | {"status": "running", "stopped": "3 failures"}) == [
        "stopping: 3 failures; nothing more is started, running tasks end by themselves"
    ]
    used = {"not_run": 0, "usage": {"tokens": 12_000_000.0, "cost": 0.1 + 0.2}}
    assert closing_lines(quiet | {"totals": used}) == ["usage: cost 0.3, tokens 12,000,000"]
