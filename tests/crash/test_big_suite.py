"""Five hundred tasks with every limit set: killed five times and edited once, they end the same."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.support import CommandLine, wait_for
from tests.crash.suite_of_five_hundred import SuiteOfFiveHundred

SUITE = "big"
PATIENCE_SECONDS = 240.0
EVERY = 16
"""Of so many tasks, one is run in peace, too: to see that an undisturbed run ends as drawn."""
ENDS = 30
"""So many trials end before each kill."""
LIMITS = [
    *("--max-parallel", "20", "--limit", "openai=4", "--task-timeout", "2m"),
    *("--max-failures", "95%", "--max-cost", "100000", "--retry-infrastructure", "1"),
]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor's promises hold on Linux"),
]


class Run:
    """One suite of five hundred with a state directory of its own."""

    def __init__(self, folder: Path, seed: int, *, every: int = 1) -> None:
        (folder / "cwd").mkdir(parents=True)
        self.perdure = CommandLine(folder / "state", folder / "cwd")
        self.suite = SuiteOfFiveHundred(folder, seed, every=every)
        self.results = folder / "state" / "results" / SUITE
        self._answer = folder / "answer.json"
        self._log = folder / "run.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Type the command."""
        command = ["run", str(self.suite.documents), "--suite", SUITE, *LIMITS, *more]
        with self._log.open("ab") as log, self._answer.open("wb") as answer:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "perdure",
                    *command,
                    "--steps",
                    "tests.crash.draw",
                    "--json",
                ],
                cwd=self.perdure.folder,
                env=self.perdure.environment(),
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=log,
                start_new_session=True,
            )

    def finish(self) -> dict[str, Any]:
        """Let it come to its end: some tasks failed."""
        assert self._process
        assert self._process.wait(PATIENCE_SECONDS) == 1, self.log()
        answer: dict[str, Any] = json.loads(self._answer.read_bytes())
        return answer

    def ended(self) -> int:
        """Trials that have a line among the results, by now."""
        with suppress(FileNotFoundError):
            return (self.results / "results.jsonl").read_bytes().count(b"\n")
        return 0

    def await_ends(self, number: int) -> None:
        """Wait until so many more trials have ended."""
        assert self._process
        goal, process = self.ended() + number, self._process
        wait_for(lambda: self.ended() >= goal or process.poll() is not None, f"{number} ends")
        assert process.poll() is None, self.log()

    def kill(self, what: str) -> None:
        """Kill a part of what runs: by the word in its command, or the whole run."""
        assert self._process
        children = psutil.Process(self._process.pid).children(recursive=True)
        if what == "whole run":
            everything = [p for p in children if "worker" in _argv(p) or "start-dev" in _argv(p)]
            self._process.kill()
            self._process.wait()
            for process in everything:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return
        for process in children:
            if what in _argv(process):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing behind, however the test went."""
        mark = str(self.perdure.state)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PERDURE_STATE_DIR") == mark:
                    process.kill()

    def log(self) -> str:
        """The end of what the commands said."""
        return self._log.read_text()[-4000:]


def test_a_suite_of_five_hundred_killed_and_edited_ends_as_one_left_in_peace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results, totals and pass@k are those of an undisturbed run of the same documents.

    How each trial ends is drawn by its document's seed. A part of them, left in peace, shows that
    an undisturbed run ends as drawn, and the five hundred must do the same.
    """
    seed = int(os.environ.get("PERDURE_CRASH_SEED") or secrets.randbelow(1_000_000))
    print(f"PERDURE_CRASH_SEED={seed}")
    peaceful = Run(tmp_path / "peaceful", seed, every=EVERY)
    disturbed = Run(tmp_path / "disturbed", seed)
    try:
        peaceful.suite.edit()
        peaceful.start()
        in_peace = peaceful.finish()
        # The documents differ in their folders' names alone, so that each has marks of its own.
        disturbed.start()
        for what in ("worker", "whole run", "start-dev"):
            disturbed.await_ends(ENDS)
            disturbed.kill(what)
            if what == "whole run":
                disturbed.start()
        disturbed.await_ends(ENDS)
        disturbed.kill("whole run")
        disturbed.suite.edit()
        disturbed.start("--changed", "rerun")
        disturbed.await_ends(ENDS)
        disturbed.kill("worker")
        found = disturbed.finish()
    finally:
        peaceful.end()
        disturbed.end()
    trials = disturbed.suite.trials
    assert found["totals"]["total"] == trials
    for run, told in ((peaceful, in_peace), (disturbed, found)):
        assert _gist(told) == _gist(run.suite.expected())
        _assert_the_files_say_the_same(run, told)
    kinds = {t["failure"]["kind"] for t in _trials(found) if t["failure"]}
    assert kinds == {"task", "timeout", "environment", "infrastructure", "bad_input"}
    with capsys.disabled():
        totals = found["totals"]
        print(
            f"\nPERDURE_CRASH_SEED={seed}: {trials} trials, {totals['succeeded']} succeeded, "
            f"{totals['failed']} failed, {disturbed.ended()} runs of trials in all, "
            f"pass@k {found['pass_at_k']}"
        )


def _trials(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [trial for task in told["tasks"] for trial in task["trials"]]


def _gist(told: dict[str, Any]) -> dict[str, Any]:
    """What must be the same, however often it was killed; not times, ids and attempts."""
    return {
        "totals": told["totals"],
        "pass_at_k": told["pass_at_k"],
        "tasks": [
            {
                **{key: task[key] for key in ("id", "index", "status", "passed")},
                "trials": [
                    {
                        **{key: trial[key] for key in ("trial", "status", "failure", "usage")},
                        "steps": [(step["id"], step["status"]) for step in trial["steps"]],
                    }
                    for trial in task["trials"]
                ],
            }
            for task in told["tasks"]
        ],
    }


def _assert_the_files_say_the_same(run: Run, told: dict[str, Any]) -> None:
    suite = json.loads((run.results / "suite.json").read_text())
    assert {k: suite["totals"][k] for k in ("total", "succeeded", "failed", "cancelled")} == {
        k: told["totals"][k] for k in ("total", "succeeded", "failed", "cancelled")
    }
    newest = {}
    for line in map(json.loads, (run.results / "results.jsonl").read_text().splitlines()):
        newest[line["task"], line["trial"]] = line
    for task in told["tasks"]:
        for trial in task["trials"]:
            line = newest[task["id"], trial["trial"]]
            assert (line["status"], line["failure"]) == (trial["status"], trial["failure"])
            record = run.results / task["id"] / str(trial["trial"]) / "record.json"
            assert json.loads(record.read_text())["status"] == trial["status"]


def _argv(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []
