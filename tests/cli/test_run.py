"""`perdure run` from end to end, as a process, with a server and a worker of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perdure.cli import status_of
from tests.cli.support import CommandLine, end, finish, wait_for

GOOD = """\
id: good
seed: {word: hi}
steps:
  - {id: say, type: command, command: 'echo <word>; echo x >> "$TALLY"', env: {TALLY: TALLY_FILE}}
  - {id: check, type: verify, checks: [{path: results.say.stdout, contains: <word>}]}
"""
BAD = """\
id: bad
steps:
  - {id: fail, type: command, command: "sleep 0.7; echo '[bold]why' >&2; exit 3"}
  - {id: never, type: command, command: "true"}
"""
LONG = """\
id: long
steps:
  - id: wait
    type: command
    command: 'echo $$ > "$PIDS/$PERDURE_ATTEMPT"; sleep 600'
    env: {PIDS: PIDS_DIR}
"""

SHORT_HEARTBEAT = "    heartbeat_timeout: 2\n"


@pytest.fixture
def tally(perdure: CommandLine) -> Path:
    """Where the step of `good.yaml` leaves a line each time it runs; both tasks are written."""
    path = perdure.folder / "tally"
    perdure.write("good.yaml", GOOD.replace("TALLY_FILE", str(path)))
    perdure.write("bad.yaml", BAD)
    return path


@pytest.fixture
def pids(perdure: CommandLine) -> Path:
    """Where the step of `long.yaml` leaves its process id."""
    path = perdure.folder / "pids"
    path.mkdir()
    perdure.write("long.yaml", LONG.replace("PIDS_DIR", str(path)))
    return path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    end(processes)


def pid_in(folder: Path, attempt: int = 1) -> int:
    """The process of the long step, once it runs."""
    file = folder / str(attempt)
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"), "the step runs")
    return int(file.read_text())


def test_a_suite_runs_fails_in_part_and_goes_on_when_typed_again(
    perdure: CommandLine, tally: Path
) -> None:
    call = ("run", "good.yaml", "bad.yaml", "--suite", "s", "--seed", "word=yo")
    first = perdure.process(*call, "--json")

    assert first.returncode == 1, first.stderr
    outcome = json.loads(first.stdout)
    assert outcome["suite"] == "s"
    assert outcome["totals"] == {
        "total": 2, "succeeded": 1, "failed": 1, "cancelled": 0, "not_run": 0,
        "failed_by_kind": {"task": 1}, "usage": {},
    }  # fmt: skip
    good, bad = outcome["tasks"]
    assert (good["id"], good["status"], good["passed"]) == ("good", "succeeded", True)
    assert [step["id"] for step in good["trials"][0]["steps"]] == ["say", "check"]
    failure = bad["trials"][0]["failure"]
    assert (failure["kind"], failure["step"]) == ("task", "fail")
    assert "exit code 3" in failure["reason"]
    # Off a terminal: where the UI is, which suite, and a line for each ended trial.
    lines = first.stderr.splitlines()
    assert len(lines) == 4, first.stderr
    assert lines[0].startswith("UI: http://")
    assert sorted(line[6:15] for line in lines[2:]) == ["failed   ", "succeeded"]

    again = perdure(*call)

    assert again.returncode == 1
    assert "1 finished before" in again.stderr
    assert "[2/2] failed    bad" in again.stderr
    assert "good" not in again.stderr
    assert tally.read_text() == "x\n", "what had succeeded did not run again"
    assert re.search(r"^bad +failed +task +fail +exit code 3.*\[bold\]why$", again.stdout, re.M)
    assert "s: 1 of 2 succeeded, 1 failed" in again.stdout
    assert "perdure show s/bad" in again.stdout


def test_reading_commands_start_no_worker_and_files_do_without_a_server(
    perdure: CommandLine,
    tally: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def read(*arguments: str) -> str:
        assert status_of(arguments) == 0
        return capsys.readouterr().out

    with perdure.served():
        assert perdure("run", "good.yaml", "bad.yaml", "--suite", "s").returncode == 1
        monkeypatch.setenv("PERDURE_STATE_DIR", str(perdure.state))
        workers = sorted((perdure.state / "workers").iterdir())

        run = read("show", "s/bad")
        assert re.search(r"^fail +command +failed +1 .*exit code 3", run, re.M)
        assert re.search(r"^never +command +not_run", run, re.M)
        assert "  | [bold]why" in run
        assert str(perdure.state / "results" / "s" / "bad" / "1") in run
        record = json.loads(read("show", "s/good", "--json"))
        assert record["context"]["results"]["say"]["stdout"] == "hi\n"
        listed = json.loads(read("list", "--json"))
        assert [(suite["suite"], suite["status"]) for suite in listed] == [("s", "failed")]
        suite = read("show", "s")
        assert "1 of 2 succeeded, 1 failed" in suite
        assert re.search(r"^bad +failed ", suite, re.M)
        events = read("events", "s/bad", "--type", "step").splitlines()
        began, failed = "step.started" in events[0], "step.failed" in events[1]
        assert [began, failed, len(events)] == [True, True, 2]
        assert json.loads(read("gc", "--json"))["collected"] == 0
        assert "nothing to cancel" in read("cancel", "s")
        assert sorted((perdure.state / "workers").iterdir()) == workers
        assert tally.read_text() == "x\n"

    for file in perdure.state.glob("temporal.db*"):
        file.unlink()
    assert read("show", "s") == suite
    assert "  | [bold]why" in read("show", "s/bad")
    assert re.search(r"^s/bad +failed ", read("list", "s"), re.M)
    assert read("events", "s/bad", "--type", "step").splitlines() == events
    assert not (perdure.state / "temporal.db").exists(), "reading files starts no server"
    for unknown in (["show", "t"], ["show", "s/t"], ["list", "t"], ["events", "s/t"]):
        assert status_of(unknown) == 2
        assert capsys.readouterr().err.startswith("perdure: there is no ")


def test_c21_five_at_once_and_another_after_the_end_make_one_run(
    perdure: CommandLine, tally: Path, started: list[subprocess.Popen[str]]
) -> None:
    started += [perdure.start("run", "good.yaml", "--suite", "x", "--json") for _ in range(5)]
    ended = [finish(process) for process in started]

    assert [status for status, _, _ in ended] == [0] * 5, [error for _, _, error in ended]
    assert len({json.loads(out)["run_id"] for _, out, _ in ended}) == 1
    assert "Traceback" not in "".join(error for _, _, error in ended)
    told = [error for _, _, error in ended if "(run id " in error]
    assert len(told) == 5
    assert sum("following it" in error or "had succeeded" in error for error in told) == 4
    assert tally.read_text() == "x\n"

    after = perdure("run", "good.yaml", "--suite", "x")
    assert after.returncode == 0
    assert "had succeeded before; nothing is run" in after.stderr
    assert "x: 1 of 1 succeeded" in after.stdout
    assert tally.read_text() == "x\n"


def test_ctrl_c_cancels_cleans_up_and_says_how_to_go_on(
    perdure: CommandLine, pids: Path, started: list[subprocess.Popen[str]]
) -> None:
    run = perdure.start("run", "long.yaml", "--suite", "s")
    started.append(run)
    step = pid_in(pids)

    status, out, error = finish(run, signal.SIGINT)

    assert status == 130, error
    assert "cancelled and cleaned up; go on with: perdure run long.yaml --suite s" in error
    assert "s: 0 of 1 succeeded, 1 cancelled" in out
    assert not psutil.pid_exists(step)
    assert not (perdure.state / "server.json").exists()
    changed = perdure.write(
        "long.yaml", "id: long\nsteps: [{id: a, type: command, command: 'true'}]"
    )
    assert perdure("run", changed, "--suite", "s").returncode == 0, "it counts as unfinished"


def test_ctrl_c_twice_leaves_at_once_and_the_suite_goes_on_later(
    perdure: CommandLine, tally: Path, pids: Path, started: list[subprocess.Popen[str]]
) -> None:
    stubborn = "trap '' TERM; echo $$ > \"$PIDS/$PERDURE_ATTEMPT\"; while :; do sleep 0.1; done"
    perdure.write(
        "long.yaml",
        json.dumps(
            {
                "id": "long",
                "steps": [
                    {"id": "w", "type": "command", "command": stubborn, "env": {"PIDS": str(pids)}}
                ],
            }
        ),
    )
    run = perdure.start("run", "long.yaml", *perdure.hasty())
    started.append(run)
    step = pid_in(pids)

    os.killpg(run.pid, signal.SIGINT)
    assert run.stderr
    for line in run.stderr:
        if "Ctrl-C again" in line:
            break
    status, out, error = finish(run, signal.SIGINT)

    assert (status, out) == (130, "")
    match = re.search(r"go on with: perdure run long.yaml --steps hasty --suite (\S+)", error)
    assert match, error
    # The worker sees that its parent is gone, cleans up and ends the server.
    wait_for(lambda: not psutil.pid_exists(step), "the step's process is gone")
    wait_for(lambda: not (perdure.state / "server.json").exists(), "the server has ended")

    # It is open still, and nobody works on it: whoever looks is told so.
    suite = match[1]
    with perdure.served():
        looked_at_by_others(perdure, suite)


def looked_at_by_others(perdure: CommandLine, suite: str) -> None:
    for command, state in (
        (("suite", suite), f"suite {suite}: open, but no worker serves it, 5 at once\n"),
        (("show", suite), "state    no worker\n"),
        (("list",), f"{suite}  no worker "),
    ):
        shown = perdure(*command).stdout
        assert state in shown, shown
        assert f"go on with: perdure retry {suite}, or end it with: perdure cancel " in shown
        told = json.loads(perdure(*command, "--json").stdout)
        assert (told[0] if command == ("list",) else told)["served"] is False
    perdure("cancel", suite)
    assert json.loads(perdure("suite", suite, "--json").stdout)["served"] is None


def test_a_worker_and_a_server_that_die_are_replaced_and_that_is_said(
    perdure: CommandLine, pids: Path, started: list[subprocess.Popen[str]]
) -> None:
    perdure.write("long.yaml", (perdure.folder / "long.yaml").read_text() + SHORT_HEARTBEAT)
    run = perdure.start("run", "long.yaml", "--suite", "s")
    started.append(run)
    first = pid_in(pids)
    (worker,) = (perdure.state / "workers").glob("*.log")

    os.kill(int(worker.name.split(".")[-2]), signal.SIGKILL)
    second = pid_in(pids, attempt=2)
    assert not psutil.pid_exists(first)
    server = json.loads((perdure.state / "server.json").read_text())["pid"]
    os.kill(server, signal.SIGKILL)
    assert run.stderr
    told = []
    for line in run.stderr:
        told.append(line)
        if "the server died and was started again" in line:
            break

    status, _, error = finish(run, signal.SIGINT)
    assert "the worker died; another one goes on\n" in told
    assert status == 130, error
    assert not psutil.pid_exists(second)


def test_ctrl_c_before_the_start_starts_nothing(
    perdure: CommandLine, tally: Path, started: list[subprocess.Popen[str]]
) -> None:
    perdure.state.mkdir()
    with (perdure.state / "start.lock").open("w") as lock:  # as if another command were joining
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = perdure.start("run", "good.yaml")
        started.append(run)
        wait_for(lambda: (perdure.state / "users").exists(), "it waits for the lock")
        status, out, error = finish(run, signal.SIGINT)

    assert (status, out) == (130, "")
    assert error == "interrupted; nothing was started\n"


def test_detached_it_goes_on_by_itself_and_can_be_cancelled(
    perdure: CommandLine, pids: Path
) -> None:
    left = perdure.process("run", "long.yaml", "--suite", "s", "--detach")

    assert left.returncode == 0, left.stderr
    assert "suite s  run id " in left.stdout
    assert "follow it with: perdure run long.yaml --suite s\n" in left.stderr
    step = pid_in(pids)
    assert re.search(r"^s +running ", perdure("list").stdout, re.M)

    cancelled = perdure("cancel", "s")

    assert cancelled.returncode == 0, cancelled.stderr
    assert "s is cancelled" in cancelled.stdout
    assert not psutil.pid_exists(step)
    assert re.search(r"^s/long +cancelled ", perdure("list", "s").stdout, re.M)
    # Now that nothing is left to do for it.
    wait_for(lambda: not (perdure.state / "server.json").exists(), "the server has ended")


def test_on_a_terminal_it_shows_a_picture_and_leaves_the_summary(
    perdure: CommandLine, tally: Path
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "run", "good.yaml", "bad.yaml"],
        cwd=perdure.folder,
        env=perdure.environment(TERM="xterm", COLUMNS="60", LINES="24"),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                seen.extend(data)
        except OSError:  # how a terminal says that its last user is gone
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=90) == 1
    reader.join()
    os.close(ours)

    written = seen.decode()
    assert "failed bad: step fail: exit code 3" in re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert "running" in written
    assert "1 of 2 succeeded, 1 failed" in written
    assert "\x1b[?25h" in written, "the cursor is shown again"
    assert "\x1b[31m" in written


@pytest.mark.usefixtures("one_server")
def test_what_had_ended_before_is_told_in_the_summary_only(perdure: CommandLine) -> None:
    # More than one page of the suite's history.
    for number in range(45):
        perdure.write(f"many/t{number}.yaml", "steps: [{id: a, type: command, command: 'true'}]\n")
    first = perdure("run", "many", "--suite", "m", "--max-parallel", "20")
    assert "[45/45]" in first.stderr
    again = perdure("run", "many", "--suite", "m")
    assert again.returncode == 0
    assert not re.search(r"^\[ *\d+/45\]", again.stderr, re.M)
    assert "45 of 45 succeeded" in again.stdout + again.stderr


@pytest.mark.usefixtures("one_server")
def test_results_below_the_tasks_are_found_again_and_are_no_tasks(perdure: CommandLine) -> None:
    perdure.write("ok.yaml", "steps: [{id: a, type: command, command: 'true'}]\n")
    arguments = ("run", ".", "--suite", "t", "--results", "out", "--junit", "junit.xml")
    first = perdure(*arguments)
    assert first.returncode == 0, first.stderr

    again = perdure(*arguments)

    assert again.returncode == 0, again.stderr
    assert "had succeeded before" in again.stderr
    listed = json.loads(perdure("list", "t", "--json").stdout)[0]
    record = json.loads(perdure("show", "t/ok", "--json").stdout)
    assert (listed["started_at"], listed["duration"]) == (record["started_at"], record["duration"])
    shown = perdure("show", "t/ok")
    assert re.search(r"^files +.*/out/t/ok/1$", shown.stdout, re.M), shown.stdout
