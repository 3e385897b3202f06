"""The program as a whole: how it starts, how it ends, how it takes a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import perdure.cli
from perdure.cli import READER_GONE, status_of
from perdure.cli.console import printable
from tests.cli.support import CommandLine

HEAVY = (
    "temporalio",
    "pydantic",
    "rich.live",
    "worker",
    "activities",
    "workflows",
    "yaml",
    "httpx",
)


def test_parsing_loads_nothing_heavy(perdure: CommandLine) -> None:
    """Start-up time is felt at every call; what is loaded is its cause, and does not vary."""
    code = "import sys, perdure.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=perdure.environment(), capture_output=True, text=True
    ).stdout.split()

    assert "perdure.cli" in loaded
    assert sorted(set(HEAVY) & set(loaded)) == []


def test_a_worker_begins_without_what_few_steps_need(perdure: CommandLine) -> None:
    code = "import sys, worker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=perdure.environment(), capture_output=True, text=True
    ).stdout.split()

    assert "worker" in loaded
    assert sorted({"httpx", "jsonschema", "rich", "typer"} & set(loaded)) == []


def test_a_closed_pipe_ends_a_command_quietly(perdure: CommandLine) -> None:
    for number in range(300):
        perdure.write(f"{number}.yaml", "steps: [{id: a, type: nope}]\n")

    reading, writing = os.pipe()
    os.close(reading)  # as `perdure validate . | head -0` does
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "validate", "."],
        env=perdure.environment(),
        cwd=perdure.folder,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (READER_GONE, "")


def test_python_m_worker_and_worker_py_are_the_command_worker(perdure: CommandLine) -> None:
    helped = subprocess.run(
        [sys.executable, "-m", "worker", "--help"],
        env=perdure.environment(),
        cwd=perdure.folder,
        capture_output=True,
        text=True,
    )
    assert helped.returncode == 0, helped.stderr
    assert "Usage: perdure worker" in helped.stdout


def test_a_defect_is_a_line_that_asks_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(perdure.cli, "parser", lambda: broken)

    assert status_of([]) == 70
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "ZeroDivisionError: a b" in error
    assert "PERDURE_DEBUG=1" in error

    monkeypatch.setenv("PERDURE_DEBUG", "1")
    assert status_of([]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(perdure.cli, "parser", lambda: interrupted)

    assert status_of([]) == 130
    assert capsys.readouterr() == ("", "")


def test_text_from_outside_is_one_printable_line() -> None:
    assert printable("a\x1b[31mb\r\n\tc\x9b") == "a\\x1b[31mb c\\x9b"
    assert printable("x" * 10, 5) == "xxxx…"
    assert printable(None) == ""


def test_closed_standard_streams_are_no_obstacle(perdure: CommandLine) -> None:
    perdure.write("task.yaml", "steps: [{id: a, type: command, command: [echo, hi]}]")
    command = 'exec "$0" -m perdure run task.yaml --suite s 0<&- 1>&- 2>&-'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        env=perdure.environment(),
        cwd=perdure.folder,
        timeout=90,
    )
    assert done.returncode == 0
    assert (perdure.state / "results" / "s" / "task" / "1" / "record.json").exists()
