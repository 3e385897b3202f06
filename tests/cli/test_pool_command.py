"""Environments on the command line: runs that use them, and `perdure pool`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.cli import status_of
from tests.cli.support import CommandLine, end, finish, wait_for

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "environments"

PAGE = """
environments:
  page:
    max_instances: 2
    process:
      command: ["python3", "-m", "http.server", "--bind", "127.0.0.1", "${PAGE_PORT}"]
      ready: {tcp: PAGE_PORT, timeout: 60}
    ports: {PAGE_PORT: {}}
memory: {required_gb: 0, reserve_gb: 0}
"""

BROKEN = """
  broken:
    process:
      command: ["python3", "-c", "raise SystemExit('no space left for the index')"]
      ready: {tcp: BROKEN_PORT, timeout: 60}
    ports: {BROKEN_PORT: {}}
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    end(processes)


@pytest.fixture
def page(perdure: CommandLine) -> Iterator[CommandLine]:
    """A folder with an environment `page`, and `tasks/look.yaml`, which needs one."""
    perdure.write("env.yaml", PAGE)
    perdure.write(
        "tasks/look.yaml",
        "environments: [page]\n"
        "steps:\n"
        "  - {id: look, type: http, environment: page, port: PAGE_PORT, path: /}\n",
    )
    yield perdure
    if folders(perdure):  # a test failed, and left something
        perdure("pool", "shutdown")


def view(perdure: CommandLine) -> dict[str, Any]:
    shown = perdure("pool", "--json")
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def folders(perdure: CommandLine) -> list[Path]:
    """Those of instances, which are there as long as the instances are."""
    return list((perdure.state / "instances").glob("*/*"))


# --- Runs -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_server")
def test_the_example_runs_on_as_many_instances_as_it_says_and_leaves_none(
    perdure: CommandLine,
) -> None:
    ran = perdure(
        *("run", EXAMPLE / "tasks", "--env-config", EXAMPLE / "env.yaml", "--suite", "todo"),
        "--json",
    )

    assert ran.returncode == 0, ran.stderr + ran.stdout
    outcome = json.loads(ran.stdout)
    assert outcome["totals"]["succeeded"] == 6
    trials = {task["id"]: task["trials"][0] for task in outcome["tasks"]}
    assert len({i["project"] for t in trials.values() for i in t["instances"]}) == 3, ran.stderr
    assert [i["environment"] for i in trials["tidy-inbox"]["instances"]] == ["todo", "inbox"]
    told = re.findall(r"^environment (\w+) \(\w+\): (?:starting|up) on", ran.stderr, re.M)
    assert set(told) <= {"todo", "inbox"}, ran.stderr  # one that is quick, nobody may have seen
    assert told.count("todo") <= 2, ran.stderr
    assert "todo" in told, ran.stderr
    assert folders(perdure) == []
    assert perdure("pool").stdout.startswith("pool default: no")
    shown = perdure("show", "todo/tidy-inbox")
    assert re.search(r"^lease    of pool default on \S+, after", shown.stdout, re.M), shown.stdout
    assert "TODO_PORT=" in shown.stdout


def test_environments_that_fail_are_told_apart_from_tasks_that_do(page: CommandLine) -> None:
    """P22."""
    page.write("env.yaml", PAGE.replace("\nmemory", BROKEN + "memory"))
    for name, environment, command in (
        ("good", "page", "true"),
        ("bad", "page", "exit 3"),
        ("none", "broken", "true"),
        ("neither", "broken", "true"),
    ):
        page.write(
            f"tasks/{name}.yaml",
            f"environments: [{environment}]\n"
            f"steps: [{{id: work, type: command, command: '{command}'}}]\n",
        )

    ran = page("run", "tasks", "--env-config", "env.yaml", "--suite", "s")

    assert ran.returncode == 1, ran.stderr + ran.stdout
    assert re.search(r"^bad +failed +task +work +exit code 3 *$", ran.stdout, re.M), ran.stdout
    assert re.search(r"^none +failed +environment +environment broken: ", ran.stdout, re.M)
    apart = ran.stdout.index("no environment for neither, none:")
    assert "  | no space left for the index" in ran.stdout[apart:], ran.stdout
    assert "environment broken: environment broken" not in ran.stdout + ran.stderr
    assert "2 of 5 succeeded, 3 failed (1 task, 2 environment)" in ran.stdout
    results = (page.state / "results" / "s" / "results.jsonl").read_text().splitlines()
    failures = {line["task"]: line["failure"] for line in map(json.loads, results)}
    kinds = {task: failure["kind"] for task, failure in failures.items() if failure}
    assert kinds == {"bad": "task", "none": "environment", "neither": "environment"}
    assert failures["none"]["reason"].startswith("environment broken: ")
    assert failures["none"]["reason"].endswith("no space left for the index")
    assert folders(page) == []


@pytest.mark.usefixtures("one_server")
def test_kept_environments_serve_the_next_run_until_they_are_stopped(page: CommandLine) -> None:
    call = ("run", "tasks", "--env-config", "env.yaml", "--keep-envs", "--json")
    projects = []
    for suite in ("first", "second"):
        ran = page(*call, "--suite", suite)
        assert ran.returncode == 0, ran.stderr
        (trial,) = json.loads(ran.stdout)["tasks"][0]["trials"]
        projects += [instance["project"] for instance in trial["instances"]]
    assert projects[0] == projects[1]
    kept = view(page)
    assert [(i["env_name"], i["doing"]) for i in kept["instances"]] == [("page", "clean")]
    shown = page("pool").stdout
    assert "pool default: 1 idle" in shown
    assert f"PAGE_PORT={kept['instances'][0]['ports']['PAGE_PORT']}" in shown

    stopped = page("pool", "stop", "page")

    assert (stopped.returncode, stopped.stdout) == (0, "1 instance of page being stopped\n")
    assert view(page)["instances"] == []
    assert folders(page) == []


def test_ctrl_c_takes_the_environments_down_with_the_suite(
    page: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    begun = page.folder / "begun"
    page.write(
        "tasks/look.yaml",
        "environments: [page]\n"
        f"steps: [{{id: wait, type: command, command: 'touch {begun}; sleep 600'}}]\n",
    )
    run = page.start("run", "tasks", "--env-config", "env.yaml", "--suite", "s")
    started.append(run)
    wait_for(begun.exists, "the task has its environment")
    assert len(folders(page)) == 1

    status, _, told = finish(run, signal.SIGINT)

    assert status == 130, told
    assert folders(page) == []


@pytest.mark.usefixtures("one_server")
def test_who_stops_waiting_for_an_environment_to_end_still_gets_the_suite_s_status(
    page: CommandLine, started: list[subprocess.Popen[str]]
) -> None:
    stubborn = "trap '' TERM; python3 -m http.server --bind 127.0.0.1 $PAGE_PORT & "
    command = json.dumps(stubborn + "while true; do sleep 1; done")
    page.write("env.yaml", re.sub(r"command: .*", lambda _: f"command: {command}", PAGE))
    run = page.start("run", "tasks", "--env-config", "env.yaml", "--suite", "s")
    started.append(run)
    assert run.stderr
    told = ""
    while "(Ctrl-C leaves)" not in told:
        line = run.stderr.readline()
        assert line, told
        told += line

    status, printed, rest = finish(run, signal.SIGINT)

    assert status == 0, told + rest
    assert "waiting until 1 instance is gone: page (" in told
    assert "not gone yet: environment page (" in rest
    assert "1 of 1 succeeded" in printed
    assert page("pool", "shutdown").returncode == 0
    assert folders(page) == []


def test_a_suite_that_was_left_to_itself_leaves_no_environment_behind(page: CommandLine) -> None:
    left = page("run", "tasks", "--env-config", "env.yaml", "--suite", "s", "--detach")
    assert left.returncode == 0, left.stderr

    wait_for(lambda: not list((page.state / "workers").glob("*.left")), "its worker ends")

    assert page("show", "s").stdout.count("succeeded") >= 1
    assert folders(page) == []


# --- Orders -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_server")
def test_a_pool_is_prepared_and_shut_down_without_any_run(page: CommandLine) -> None:
    prepared = page("pool", "prepare", "page", "--count", "2", "--env-config", "env.yaml")
    assert prepared.returncode == 0, prepared.stderr
    assert prepared.stdout == "2 instances of page kept ready from now on\n"
    assert [i["doing"] for i in view(page)["instances"]] == ["clean", "clean"]
    assert len(folders(page)) == 2

    too_many = page("pool", "prepare", "--count", "3", "--env-config", "env.yaml")
    assert (too_many.returncode, "its max_instances" in too_many.stderr) == (2, True)
    reset = page("pool", "--pool", "default", "reset", "page", "--json")
    assert (reset.returncode, json.loads(reset.stdout)["left"]) == (0, []), reset.stderr
    unknown = page("pool", "stop", "pages")
    assert (unknown.returncode, "'pages'" in unknown.stderr) == (2, True), unknown.stderr

    shut = page("pool", "shutdown")

    assert shut.returncode == 0, shut.stderr
    assert folders(page) == []
    assert view(page)["open"] is False
    again = page("pool", "shutdown")
    assert (again.returncode, "is not open" in again.stderr) == (2, True), again.stderr


@pytest.mark.usefixtures("one_server")
def test_an_environment_that_cannot_be_prepared_says_why_and_is_not_tried_for_ever(
    page: CommandLine,
) -> None:
    page.write("env.yaml", "environments:" + BROKEN + "memory: {required_gb: 0, reserve_gb: 0}\n")

    prepared = page("pool", "prepare", "--env-config", "env.yaml")

    assert prepared.returncode == 1, prepared.stderr
    assert "environment broken: " in prepared.stderr.splitlines()[-1]
    assert "ended with status 1" in prepared.stderr.splitlines()[-1]
    assert "no instance of broken is kept ready any longer" in prepared.stdout
    assert folders(page) == []


def test_a_pool_of_which_nothing_is_known_is_shown_as_closed_and_starts_no_server(
    perdure: CommandLine,
) -> None:
    assert perdure("pool").stdout == "pool default: nothing is up, and nobody waits\n"
    assert view(perdure) == {
        "pool": "default",
        "open": False,
        "closing": None,
        "hosts": [],
        "instances": [],
        "failures": [],
        "leases": [],
        "waiting": [],
    }
    assert not (perdure.state / "server.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pool", "--pool", "a/b"], "--pool 'a/b'"),
        (["pool", "stop"], "ENV"),
        (["pool", "stop", "shop"], "nothing has run in"),
        (["pool", "prepare"], "--env-config"),
        (["pool", "prepare", "--env-config", "nowhere.yaml"], "nowhere.yaml"),
        (["pool", "sweep", "--yes"], "--foreign"),
        (["pool", "sweep", "--of", "u"], "--foreign"),
        (["pool", "--json", "shutdown"], "behind shutdown"),
        (["run", ".", "--pool", "ü"], "--pool"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    perdure: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("PERDURE_STATE_DIR", str(perdure.state))
    monkeypatch.chdir(perdure.folder)

    assert status_of(arguments) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err


def test_an_environment_that_is_not_there_is_named_with_the_nearest_one(
    page: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(page.folder)

    assert status_of(["pool", "prepare", "pge", "--env-config", "env.yaml"]) == 2

    assert "did you mean 'page'?" in capsys.readouterr().err
