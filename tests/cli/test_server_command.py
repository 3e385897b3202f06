"""`perdure server` and `perdure worker`: they start, serve, and end when asked."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import CommandLine, end, finish, wait_for


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of the test; none is left behind."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    end(processes)


def line_of(process: subprocess.Popen[str], beginning: str) -> str:
    """The next line of stderr that holds a text."""
    assert process.stderr
    for line in process.stderr:
        if beginning in line:
            return line
    raise AssertionError(f"ended without saying {beginning!r}")


def users_of(state: Path) -> list[str]:
    return sorted(json.loads(file.read_text())["role"] for file in (state / "users").glob("*.json"))


def test_the_server_says_where_it_is_and_ends_with_ctrl_c(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    server = perdure.start("server")
    started.append(server)
    line_of(server, "Ctrl-C")

    status, out, error = finish(server, signal.SIGINT)

    assert status == 0, error
    told = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert told["address"].startswith("127.0.0.1:")
    assert told["UI"].startswith("http://")
    assert told["state"] == str(perdure.state)
    assert not (perdure.state / "server.json").exists()


def test_c19_c31_workers_serve_under_w_error_whatever_their_stdin_is_and_leave_it_unread(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    strict = dataclasses.replace(perdure, python=(sys.executable, "-W", "error"))
    plugin = "import os, pathlib\nPLACES = os.environ.get('HOME'), pathlib.Path.home()\n"
    perdure.write("plugin_of_a_user.py", plugin)
    where = f"{perdure.environment()['PYTHONPATH']}{os.pathsep}{perdure.folder}"
    reading, writing = os.pipe()
    os.write(writing, b"a line for somebody else\n")
    options = ("worker", "--steps", "plugin_of_a_user", "--host", "here")

    with_pipe = strict.start(*options, stdin=reading, PYTHONPATH=where)
    without = strict.start(*options, PYTHONPATH=where)
    started += [with_pipe, without]
    for worker in started:
        assert "as host here" in line_of(worker, "serving queue")
    assert users_of(perdure.state) == ["worker", "worker"]

    for worker in started:
        status, out, error = finish(worker, signal.SIGTERM)
        assert (status, out) == (0, ""), error
        assert "sandbox" not in error
        assert "imported after" not in error
        assert "Traceback" not in error
    assert os.read(reading, 100) == b"a line for somebody else\n"
    os.close(reading)
    os.close(writing)
    assert not (perdure.state / "server.json").exists(), "the last user stops the server"


def test_server_stop_ends_the_workers_too(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    worker = perdure.start("worker")
    started.append(worker)
    line_of(worker, "serving queue")

    stopped = perdure.process("server", "stop")

    assert stopped.returncode == 0
    assert "stopped" in stopped.stderr
    assert finish(worker)[0] == 0
    again = perdure("server", "stop")
    assert (again.returncode, again.stdout) == (0, "")
    assert "no embedded server runs" in again.stderr


def test_a_second_signal_makes_a_worker_leave_at_once(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    worker = perdure.start("worker")
    started.append(worker)
    line_of(worker, "serving queue")

    os.kill(worker.pid, signal.SIGINT)
    os.kill(worker.pid, signal.SIGTERM)

    # Whichever it saw second; one that drained in between has ended by itself.
    assert finish(worker)[0] in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)


@pytest.mark.parametrize(
    ("options", "variables", "named"),
    [
        (["--address", "127.0.0.1:9"], {"PERDURE_BLOBS_SHARED": "1"}, "127.0.0.1:9"),
        (["--steps", "no_such_module"], {}, "--steps no_such_module"),
        ([], {"PERDURE_LOG": "loud"}, "PERDURE_LOG='loud'"),
    ],
    ids=["nothing listens", "no module", "no level"],
)
def test_a_worker_that_cannot_serve_says_why_in_a_line(
    perdure: CommandLine, options: list[str], variables: dict[str, str], named: str
) -> None:
    done = perdure.process("worker", *options, **variables)

    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") <= 2


def test_c19_a_worker_ends_when_its_parent_does_unless_told_to_stay(
    perdure: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    left = perdure.start("worker", "--exit-with-parent", stdin=subprocess.PIPE)
    kept = perdure.start("worker", "--exit-with-parent", stdin=subprocess.PIPE)
    started += [left, kept]
    for worker in started:
        line_of(worker, "serving queue")
    assert left.stdin
    assert kept.stdin

    left.stdin.close()
    kept.stdin.write("stay\n")
    kept.stdin.close()
    left.stdin = kept.stdin = None
    line_of(kept, "left behind")

    assert left.wait(timeout=60) == 0
    wait_for(lambda: users_of(perdure.state) == ["worker"], "one worker left")
    assert finish(kept, signal.SIGTERM)[0] == 0
