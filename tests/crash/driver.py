"""Runs a suite, kills what runs it at chosen moments, and keeps a list of what was hit."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from activities.adoption import noted_outcome, read_outcome
from activities.places import RunPlace
from activities.supervise import FAULT, read_exit
from perdure.config import Settings
from perdure.messages import StepOutcome
from perdure.server import users
from perdure.server_process import ServerRecord
from tests.cli.support import CommandLine
from tests.crash.suite_of_twenty import SuiteOfTwenty, Work

SUITE = "crash"

Kind = Literal["worker", "worker and supervisor", "whole run", "server"]
KINDS: tuple[Kind, ...] = ("worker", "worker and supervisor", "whole run", "server")

Aim = Literal["window", "running", "any moment"]
"""`window`: a process has ended, and nobody has heard of it. `running`: a step is at work."""

HOLD_SECONDS = 0.7
"""How wide the window is opened."""

PATIENCE_SECONDS = 60.0
"""For whatever must happen next on a loaded machine."""

_LOOK_SECONDS = 0.04


@dataclass(frozen=True)
class Sight:
    """What could be seen at one moment; steps by name."""

    ended: frozenset[str]
    """Those with an outcome on disk, or the exit of their process, after which no attempt comes."""
    unheard: frozenset[str]
    """Those whose process has ended, and whose outcome is not there yet."""
    running: frozenset[str]
    """Those at work."""
    starts: dict[str, int]
    """How many times each was begun."""


@dataclass
class Kill:
    """One kill, what it met, and how long the way back was."""

    kind: Kind
    aim: Aim
    at: float
    seen: Sight
    in_window: frozenset[str] = frozenset()
    """Steps whose process had ended, and whose outcome nobody wrote before the worker died."""
    hit: dict[str, float | None] = field(default_factory=dict)
    """Steps at work whose worker died: seconds from the worker's return to their new start; None
    for one that needed no new start."""
    back_after: float = 0.0
    """Seconds until a worker and a server were there again."""

    @property
    def kills_worker(self) -> bool:
        return self.kind != "server"


class Driver:
    """One `perdure run` after another over the same suite."""

    def __init__(self, perdure: CommandLine, suite: SuiteOfTwenty, chance: random.Random) -> None:
        self.suite = suite
        self.kills: list[Kill] = []
        self.log = perdure.folder / "run.log"
        self.answer = perdure.folder / "answer.json"
        """What the newest `perdure run --json` printed."""
        self._perdure = perdure
        self._chance = chance
        self._works = {work.name: work for work in suite.works}
        self._settings = Settings.from_env({"PERDURE_STATE_DIR": str(perdure.state)})
        self._over: set[str] = set()
        """Steps that were seen to be at their last end, and heard of: they stay so."""
        self._run: subprocess.Popen[bytes] | None = None

    # --- The command ------------------------------------------------------------------------

    def start(self, *, hold_reports: bool) -> None:
        """Type the command; the same each time."""
        fault = {FAULT: f"hold-report:{HOLD_SECONDS}"} if hold_reports else {}
        command = ["run", str(self.suite.documents), "--suite", SUITE, "--max-parallel", "4"]
        command += ["--steps", "tests.crash.step_types", "--json"]
        with self.log.open("ab") as log, self.answer.open("wb") as answer:
            self._run = subprocess.Popen(
                [sys.executable, "-m", "perdure", *command],
                cwd=self._perdure.folder,
                env=self._perdure.environment(**fault),
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=log,
                start_new_session=True,
            )

    def finish(self) -> int:
        """Let the command come to its end; its exit status."""
        assert self._run
        return self._run.wait(2 * PATIENCE_SECONDS)

    def end(self) -> None:
        """Leave nothing behind, however the test went."""
        for process in self.left():
            with suppress(psutil.Error):
                process.kill()
        if self._run:
            self._run.wait()

    def left(self) -> list[psutil.Process]:
        """Every process that has to do with the test: all of them name its folder somewhere."""
        mark = str(self._perdure.state.parent)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                told = [process.cwd(), *process.cmdline(), *process.environ().values()]
                if any(mark in text for text in told):
                    found.append(process)
        return found

    # --- What there is to see ---------------------------------------------------------------

    def look(self) -> Sight:
        """Look at all files, outcomes last: what is seen to be unheard is so."""
        lines = self.suite.all_lines()
        running, ended, unheard = set(), set[str](), set()
        for name, left in lines.items():
            if name in self._over:
                continue
            work, last = self._works[name], left[-1]
            if self.has_end(work, last.attempt):
                if self._outcome(work, last.attempt) is None:
                    unheard.add(name)
                ends = [line.attempt for line in left if line.what == "end"]
                if sum(self.has_end(work, attempt) for attempt in ends) == work.ends:
                    ended.add(name)
            elif last.what == "start":
                running.add(name)
        starts = {n: sum(x.what == "start" for x in left) for n, left in lines.items()}
        self._over |= ended - unheard
        return Sight(frozenset(ended | self._over), frozenset(unheard), frozenset(running), starts)

    def has_end(self, work: Work, attempt: int) -> bool:
        """Whether an attempt came to its own end, and a file says so."""
        exits = (read_exit(p.attempt(work.step, attempt) / "exit.json") for p in self._runs(work))
        if any(exit_ is not None and exit_.ended_by == "exit" for exit_ in exits):
            return True
        outcome = self._outcome(work, attempt)
        return outcome is not None and outcome.status != "cancelled"

    def _outcome(self, work: Work, attempt: int) -> StepOutcome | None:
        """What an attempt came to, as it lies on disk, with a directory of its own or without."""
        for run in self._runs(work):
            home = run.attempt(work.step, attempt)
            if found := read_outcome(home) or noted_outcome(run, home.name):
                return found
        return None

    def _runs(self, work: Work) -> list[RunPlace]:
        trial = self._perdure.state / "runs" / SUITE / work.task / "1"
        return [RunPlace(path) for path in trial.glob("*")]

    def _child(self, pid: int | None) -> psutil.Process | None:
        """The process, if it is the command's own."""
        assert self._run
        with suppress(psutil.Error):
            process = psutil.Process(pid) if pid else None
            if process and process.ppid() == self._run.pid:
                return process
        return None

    def _worker(self) -> psutil.Process | None:
        """The worker that serves."""
        for user in users(self._settings.state):
            for log in (self._perdure.state / "workers").glob(f"*.{user.pid}.log"):
                if "serving queue" in log.read_text() and (worker := self._child(user.pid)):
                    return worker
        return None

    def _server(self) -> psutil.Process | None:
        """The server, once it is ready."""
        record = ServerRecord.read(self._settings.state)
        return self._child(record.pid) if record and record.alive else None

    # --- Killing ----------------------------------------------------------------------------

    def kill(self, kind: Kind, aim: Aim, after_ends: int) -> Kill:
        """Wait for `after_ends` steps to end and then for the moment, and kill."""
        goal = self.suite.ends() + after_ends
        self.suite.allow(after_ends)
        self._wait(lambda: self.suite.ends() >= goal, f"{after_ends} steps end")
        self._wait(lambda: self._worker() and self._server(), "worker and server are there")
        if aim == "any moment":
            time.sleep(self._chance.uniform(0, 0.5))
        while True:
            if aim != "any moment":
                self._wait(lambda: self._at(aim), f"the moment: {aim}")
                time.sleep(self._chance.uniform(0, 0.3))
            targets = self._targets(kind)
            seen = self.look()
            if aim == "any moment" or (seen.unheard if aim == "window" else seen.running):
                break
        kill = Kill(kind, aim, time.time(), seen)
        for process in targets:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in targets:
            _wait_for(lambda process=process: _is_dead(process), f"{process.pid} dies")
        if kind == "whole run":
            self.finish()
        if kill.kills_worker:
            kill.in_window = seen.unheard & self.look().unheard
        self.kills.append(kill)
        return kill

    def _at(self, aim: Aim) -> bool:
        seen = self.look()
        if aim == "window" and not seen.unheard:
            self.suite.allow(1)
        return bool(seen.unheard if aim == "window" else seen.running)

    def _targets(self, kind: Kind) -> list[psutil.Process]:
        """The processes to kill, in the order to do it."""
        worker, server = self._worker(), self._server()
        assert self._run
        assert worker
        assert server
        supervisor = [p for p in worker.children() if "supervisor.py" in " ".join(_argv(p))]
        match kind:
            case "worker":
                return [worker]
            case "worker and supervisor":
                return self._shuffled([worker, *supervisor])
            case "server":
                return [server]
            case "whole run":
                everything = [psutil.Process(self._run.pid), worker, server]
                return self._shuffled(everything + self._chance.choice([[], supervisor]))

    def _shuffled(self, processes: list[psutil.Process]) -> list[psutil.Process]:
        self._chance.shuffle(processes)
        return processes

    def go_on(self, kill: Kill) -> None:
        """Wait until worker and server are back, and the steps that were hit with them."""
        killed = time.time()
        self._wait(lambda: self._worker() and self._server(), "worker and server come back")
        back = time.time()
        kill.back_after = back - killed
        self._wait(lambda: self._goes_on(kill.seen), "a step begins")
        if kill.kills_worker:
            self._wait(lambda: self._is_mended(kill), "the steps that were hit begin again")
            kill.hit = {name: self._new_start(name, kill, back) for name in kill.seen.running}

    def _goes_on(self, before: Sight) -> bool:
        """Whether a step has begun since, or none is left to begin."""
        now = self.look()
        begun = sum(now.starts.values()) > sum(before.starts.values())
        if not begun:
            self.suite.allow(1)  # what is at work may stand in the way of what is to begin
        return begun or now.starts.keys() == self._works.keys()

    def _is_mended(self, kill: Kill) -> bool:
        """Whether all that was hit has begun again, and all that had ended has been heard of."""
        seen, before = self.look(), kill.seen
        return not kill.in_window & seen.unheard and all(
            seen.starts[name] > before.starts[name] or name in seen.ended for name in before.running
        )

    def _new_start(self, name: str, kill: Kill, back: float) -> float | None:
        starts = [line.time for line in self.suite.lines(name) if line.what == "start"]
        again = starts[kill.seen.starts[name] :]
        return max(0.0, again[0] - back) if again else None

    def _wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition, as long as the command runs."""
        run = self._run
        assert run
        _wait_for(lambda: condition() or run.poll() is not None, what)
        assert run.poll() is None, f"the command ended (status {run.poll()}) before: {what}"

    # --- Telling ----------------------------------------------------------------------------

    def report(self) -> str:
        """What was killed, for whoever reads the test's output."""
        lines = [
            f"{number:2}. {kill.kind:21} {kill.aim:10} at work {len(kill.seen.running)}, "
            f"in the window {len(kill.in_window)}, back after {kill.back_after:.1f} s, "
            f"begun again after {_times(kill.hit.values())}"
            for number, kill in enumerate(self.kills, 1)
        ]
        return "\n".join(lines)


def _wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(_LOOK_SECONDS)


def _times(seconds: Iterable[float | None]) -> str:
    return ", ".join("-" if each is None else f"{each:.1f}" for each in seconds) or "-"


def _argv(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _is_dead(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
