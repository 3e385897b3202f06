"""`perdure retry`: what did not succeed of a suite runs again, and nothing else."""

from __future__ import annotations

import os
import re
import signal

from tests.cli.gates import Gates
from tests.cli.support import CommandLine, end, finish, wait_for


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
    assert "knows no suite 't'" in unknown.stderr


def test_a_retry_that_was_killed_goes_on_when_it_is_typed_again(perdure: CommandLine) -> None:
    gates = Gates.of(perdure, "a")
    gates.open()
    gates.spoil("a")
    assert perdure("run", "tasks", "--suite", "s").returncode == 1
    gates.mend("a")
    gates.close()
    killed = perdure.start("retry", "s")
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
