"""`perdure jobs`, `peek`, `interrupt` and `launch`, in-process, on a real server and worker."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli import interrupt_command, status_of
from perdure.cli.job_text import ERASE, Screen, harmless
from perdure.job_messages import JobEnd
from perdure.payloads import adapter
from perdure.peeks import Peek
from tests.cli.support import CommandLine, command_line, finish, wait_for

EXEC_ID = "exec-0123456789ab"

# --- What a terminal is shown -------------------------------------------------------------------


def test_output_cannot_act_on_a_terminal_but_for_its_own_line() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\tü\r\n12%\r13%\u202e\x9b1m"
    shown = harmless(hostile)
    assert shown == f"\\x1b]0;title\\x07\\x1b[2Jred\tü\n12%{ERASE}13%\\u202e\\x9b1m"


def test_a_colour_that_comes_in_two_pieces_is_left_out_like_any_other() -> None:
    screen = Screen()
    assert screen.shown("a\x1b[3") == "a"
    assert screen.shown("1mb\x1b") == "b"
    assert screen.shown("[0mc") == "c"


def test_a_line_that_is_redrawn_gives_way_to_what_comes() -> None:
    screen = Screen()
    assert screen.shown("", "10%") == "10%"
    assert screen.shown("", "10%") == ""
    assert screen.shown("", "20%") == f"{ERASE}20%"
    assert screen.shown("100%\ndone\n") == f"{ERASE}100%\ndone\n"
    assert screen.shown("more\n") == "more\n"


# --- Words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["jobs", "suite"], "is a suite; name one of its runs"),
        (["launch", "s/t"], "say what to run by one of"),
        (["launch", "s/t", "1", "--", "true"], "say what to run by one of"),
        (["launch", "s/t", "1", "--time-limit", "soon"], "--time-limit: 'soon' is not a length"),
        (["launch", "s/t", "--file", "absent.py"], "--file absent.py: "),
        (["peek", EXEC_ID, "--follow", "--json"], "leave out --json"),
        (["interrupt", EXEC_ID, "--kill", "--kill-after", "3"], "give one of the two"),
        (["interrupt", EXEC_ID, "--kill-after", "never"], "--kill-after: 'never' is not a length"),
        (["interrupt", EXEC_ID], "nothing has run in"),
        (["peek", "exec-\x1b[2J"], "there is no job 'exec-\\x1b[2J'"),
        (["peek", EXEC_ID], f"there is no job '{EXEC_ID}'"),
        (["jobs", "s/t"], "there is no run s/t"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    perdure: CommandLine, arguments: list[str], told: str
) -> None:
    done = perdure(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


# --- Files alone ----------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The files of a job that failed; nothing else of its task."""
    folder = tmp_path / "copied" / "s" / "t" / "1" / "jobs" / EXEC_ID
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("one\ntwo")
    (folder / "stderr.log").write_text("oh\n")
    end = JobEnd(EXEC_ID, "failed", error="exit code 3", exit_code=3, started_at=1, ended_at=2)
    (folder / "job.json").write_bytes(adapter(JobEnd).dump_json(end))
    (tmp_path / "copied" / "s" / "suite.json").write_text("{}")  # by which results are known
    return tmp_path / "copied"


def test_a_job_is_read_from_files_alone(perdure: CommandLine, results: Path) -> None:
    peek = perdure("peek", EXEC_ID, "--results", results)
    assert (peek.returncode, peek.stdout) == (0, "one\ntwo")
    assert peek.stderr == f"{EXEC_ID} failed after 1.00 s, exit code 3: exit code 3\n"
    assert perdure("peek", EXEC_ID, "--results", results, "--offset", "4").stdout == "two"
    assert perdure("peek", EXEC_ID, "--results", results, "--stderr").stdout == "oh\n"
    follow = perdure("peek", EXEC_ID, "--results", results, "--follow")
    assert (follow.returncode, follow.stdout) == (1, "one\ntwo")
    (listed,) = json.loads(perdure("jobs", "s/t", "--results", results, "--json").stdout)
    assert (listed["exec_id"], listed["stdout"]) == (EXEC_ID, "one\ntwo")
    record = json.loads(perdure("peek", EXEC_ID, "--results", results, "--json").stdout)
    assert record == listed


def test_a_terminal_is_given_whole_lines(
    results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    assert status_of(["peek", EXEC_ID, "--results", str(results)]) == 0
    assert shown.getvalue() == "one\ntwo\n"


def test_an_interrupt_that_reaches_nobody_says_so(
    perdure: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13."""

    async def unheard(exec_id: str, kill_after: float | None) -> Peek:
        return Peek(exec_id, "running", done=False, interrupt_undelivered="no \x1b[2Jworker")

    monkeypatch.setattr(interrupt_command, "_interrupt", unheard)
    done = perdure("interrupt", EXEC_ID)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "perdure: the interrupt reached nobody: no \\x1b[2Jworker\n"
    told = perdure("interrupt", EXEC_ID, "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["interrupt_undelivered"] == "no \x1b[2Jworker"


# --- On a server ----------------------------------------------------------------------------------


HOLD = "steps: [{id: hold, type: command, command: 'while [ ! -e %s ]; do sleep 0.05; done'}]\n"


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A suite with one task that runs until the end of the module, and `perdure` beside it."""
    folder = tmp_path_factory.mktemp("jobs")
    with command_line(folder, within=True) as command, command.served():
        go = command.folder / "go"
        command.write("hold.yaml", HOLD % go)
        suite = command.start("run", "hold.yaml", "--suite", "s")
        wait_for(lambda: '"running"' in command("show", "s/hold", "--json").stdout, "it runs")
        yield command
        go.touch()
        assert finish(suite)[0] == 0


def launched(command: CommandLine, *arguments: str) -> str:
    done = command("launch", "s/hold", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(command: CommandLine, exec_id: str) -> tuple[int, str, str]:
    """Follow a job to its end: status, stdout and stderr of the command."""
    done = command("peek", exec_id, "--follow")
    return done.returncode, done.stdout, done.stderr


def test_a_cell_is_launched_listed_and_followed_to_its_end(command: CommandLine) -> None:
    exec_id = launched(command, "print('hi'); 6 * 7", "--name", "cell")
    assert ended(command, exec_id)[:2] == (0, "hi\n42\n")
    (listed,) = [
        job
        for job in json.loads(command("jobs", "s/hold", "--json").stdout)
        if job["exec_id"] == exec_id
    ]
    assert listed == json.loads(command("peek", exec_id, "--json").stdout)
    assert (listed["name"], listed["status"], listed["stdout"]) == ("cell", "done", "hi\n42\n")
    table = command("jobs", "s/hold").stdout
    (row,) = [line for line in table.splitlines() if exec_id in line]
    assert row.split()[:3] == [exec_id, "cell", "done"]
    assert exec_id in command("show", "s/hold").stdout


def test_a_command_behind_two_dashes_is_run_as_it_stands(command: CommandLine) -> None:
    exec_id = launched(command, "--", "printf", "%s|", "--name", "a b", "--")
    assert ended(command, exec_id)[:2] == (0, "--name|a b|--|")


def test_a_cell_comes_from_a_file(command: CommandLine) -> None:
    file = command.write("cell.py", "1/0\n")
    status, _, told = ended(command, launched(command, "--file", str(file)))
    assert status == 1
    assert "failed" in told
    assert "ZeroDivisionError: division by zero (line 1: 1/0)" in told


def test_a_job_is_interrupted_and_says_so(command: CommandLine) -> None:
    exec_id = launched(command, "import time\nprint('on')\nwhile True: time.sleep(0.01)")
    wait_for(lambda: command("peek", exec_id).stdout == "on\n", "it prints")
    done = command("interrupt", exec_id)
    assert (done.returncode, exec_id in done.stdout) == (0, True)
    assert ended(command, exec_id)[:2] == (0, "on\n")
    again = command("interrupt", exec_id, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["status"] == "interrupted"


def test_a_job_that_heeds_nothing_is_killed(command: CommandLine) -> None:
    """BD4."""
    deaf = "import time\nwhile True:\n  try:\n    print('on')\n    time.sleep(60)\n"
    exec_id = launched(command, f"{deaf}  except KeyboardInterrupt: print('no')")
    wait_for(lambda: "on" in command("peek", exec_id).stdout, "it prints")
    assert command("interrupt", exec_id).returncode == 0
    wait_for(lambda: "no" in command("peek", exec_id).stdout, "it does not heed the interrupt")
    assert command("interrupt", exec_id, "--kill").returncode == 0
    status, _, told = ended(command, exec_id)
    assert (status, f"{exec_id} killed" in told) == (1, True)


def test_ctrl_c_ends_following_and_leaves_the_job(command: CommandLine) -> None:
    exec_id = launched(command, "import time\nprint('on')\ntime.sleep(600)")
    following = command.start("peek", exec_id, "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == "on\n"
    status, _, told = finish(following, signal.SIGINT)
    assert status == 130
    assert f"perdure interrupt {exec_id}" in told
    assert "Traceback" not in told
    assert json.loads(command("peek", exec_id, "--json").stdout)["status"] == "running"
    command("interrupt", exec_id, "--kill")


def test_a_refusal_says_why(command: CommandLine) -> None:
    launched(command, "import time; time.sleep(600)", "--name", "held")
    second = command("launch", "s/hold", "1", "--name", "held")
    assert second.returncode == 2
    assert "perdure: the name 'held' is that of exec-" in second.stderr
    nowhere = command("launch", "s/hold", "1", "--environment", "shop", "--service", "web")
    assert (nowhere.returncode, "'shop'" in nowhere.stderr) == (2, True)
    unknown = command("launch", "s/absent", "1")
    assert (unknown.returncode, "there is no run s/absent" in unknown.stderr) == (2, True)


def test_a_task_that_has_ended_takes_no_job_and_its_jobs_are_read_without_a_worker(
    perdure: CommandLine, one_server: None
) -> None:
    perdure.write(
        "t.yaml",
        "steps:\n"
        "  - {id: go, type: background, name: j, code: 'print(1)'}\n"
        "  - {id: end, type: await, job: j}\n",
    )
    assert perdure("run", "t.yaml", "--suite", "s").returncode == 0
    (job,) = json.loads(perdure("jobs", "s/t", "--json").stdout)
    assert (job["status"], job["stdout"], job["step"]) == ("done", "1\n", "go")
    assert perdure("peek", job["exec_id"]).stdout == "1\n"
    events = perdure("events", "s/t", "--type", "job").stdout.splitlines()
    assert [line.split()[2:] for line in events] == [
        ["job.launched", "go", job["exec_id"], "(j)"],
        ["job.ended", "go", job["exec_id"], "(j)", "done"],
    ]
    late = perdure("launch", "s/t", "1")
    assert late.returncode == 2
    assert "has ended: no job can be launched" in late.stderr
