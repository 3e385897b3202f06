"""`perdure retry`: what did not succeed of a suite runs again, and nothing else."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.cli.gates import Gates
from tests.cli.support import ROOT, CommandLine, end, finish, wait_for


@pytest.mark.usefixtures("one_server")
def test_a_suite_is_retried_by_whole_tasks_or_by_trials(perdure: CommandLine) -> None:
    gates = Gates.of(perdure, "good", "flaky", repeats=2)
    gates.open()
    gates.spoil("flaky", 2)
    first = perdure("run", "tasks", "--suite", "s", "--max-cost", "7")
    assert first.returncode == 1, first.stderr
    (perdure.folder / "tasks" / "flaky.yaml").unlink()  # the documents are not needed

    whole = perdure("retry", "s", "--junit", "out.xml")

    assert whole.returncode == 1, whole.stderr
    assert "suite s goes on: 2 finished before" in whole.stderr
    assert re.search(r"^flaky/2 +failed ", whole.stdout, re.M)
    assert "s: 3 of 4 succeeded, 1 failed" in whole.stdout
    assert 'failures="1"' in (perdure.folder / "out.xml").read_text()
    assert [gates.starts(*trial) for trial in (("good", 1), ("flaky", 1), ("flaky", 2))] == [
        1, 2, 2,
    ]  # fmt: skip

    gates.mend("flaky", 2)
    trials = perdure("retry", "s", "--only-failed-trials", "--max-parallel", "2")

    assert trials.returncode == 0, trials.stderr
    assert "s: 4 of 4 succeeded" in trials.stdout
    assert (gates.starts("flaky", 1), gates.starts("flaky", 2)) == (2, 3)

    again = perdure("retry", "s")
    assert again.returncode == 0
    assert "had succeeded before; nothing is run" in again.stderr
    unknown = perdure("retry", "t")
    assert unknown.returncode == 2
    assert "there is no suite 't'" in unknown.stderr


SECRETIVE = """\
id: {id}
steps:
  - {{id: use, type: command, command: 'test "$TOKEN" = right', env: {{TOKEN: {{from_env: {id}}}}}}}
"""


@pytest.mark.usefixtures("one_server")
def test_a_retry_does_not_begin_without_the_secrets_of_what_it_runs_again(
    perdure: CommandLine,
) -> None:
    perdure.write("GOOD.yaml", SECRETIVE.format(id="GOOD"))
    perdure.write("BAD.yaml", SECRETIVE.format(id="BAD"))
    perdure.write("first", "GOOD=right\nBAD=wrong\n")
    perdure.write("second", "BAD=right\n")
    tasks = ("GOOD.yaml", "BAD.yaml")
    assert perdure("run", *tasks, "--suite", "s", "--env-file", "first").returncode == 1

    without = perdure("retry", "s")

    assert without.returncode == 2
    assert (
        "task 'BAD': step 'use': {from_env: BAD}: there is no variable BAD; set it, or use "
        "--env-file" in without.stderr
    )
    assert "GOOD" not in without.stderr, "it has succeeded, and is not run again"
    given = perdure("retry", "s", "--env-file", "second")
    assert given.returncode == 0, given.stderr
    assert "s: 2 of 2 succeeded" in given.stdout


@pytest.mark.usefixtures("one_server")
def test_a_retry_does_not_begin_without_the_modules_of_what_it_runs_again(
    perdure: CommandLine,
) -> None:
    perdure.write(
        "own.py",
        "from perdure.steps import step\n\n\n@step('own')\n"
        "async def own(step, context, host):\n    raise RuntimeError('no')\n",
    )
    perdure.write("t.yaml", "steps: [{id: a, type: own}]\n")
    where = str(perdure.folder)
    arguments = ("run", "t.yaml", "--suite", "s", "--steps", "own")
    first = perdure.process(*arguments, PYTHONPATH=f"{ROOT}:{where}")
    assert first.returncode == 1, first.stderr

    again = perdure("retry", "s")

    assert again.returncode == 2, again.stderr
    assert "task 't': there is no step type 'own'" in again.stderr
    assert "--steps MODULE" in again.stderr


def test_what_is_left_after_too_many_failures_is_run_with_a_larger_bound(
    perdure: CommandLine,
) -> None:
    for id in "abc":
        perdure.write(f"tasks/{id}.yaml", "steps: [{id: a, type: command, command: 'false'}]\n")
    stopped = perdure("run", "tasks", "--suite", "s", "--fail-fast", "--max-parallel", "1")
    assert stopped.returncode == 1, stopped.stderr
    assert "perdure retry s --max-failures N, with a larger N" in stopped.stdout


def test_a_retry_that_was_killed_goes_on_when_it_is_typed_again(perdure: CommandLine) -> None:
    gates = Gates.of(perdure, "a")
    gates.open()
    gates.spoil("a")
    assert perdure("run", "tasks", "--suite", "s").returncode == 1
    gates.mend("a")
    gates.close()
    killed = perdure.start("retry", "s", *perdure.hasty())
    try:
        gates.await_start("a", times=2)
        served = perdure("retry", "s")
        assert served.returncode == 2
        assert "suite 's' is open" in served.stderr

        os.kill(killed.pid, signal.SIGKILL)
        wait_for(lambda: not (perdure.state / "server.json").exists(), "its server has ended")
    finally:
        end([killed])
    gates.open()
    again = perdure.start("retry", "s")
    status, out, error = finish(again)

    assert status == 0, error
    assert "suite s is under way; following it" in error
    assert "s: 1 of 1 succeeded" in out
