"""One call of `perdure run`: start or join the suite, follow it, tell how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perdure.cli.console import emit, emit_json, emit_table, printable, say
from perdure.cli.progress import Display, Picture, RunningTask, display
from perdure.cli.signals import LEAVING, asked_to_end
from perdure.cli.tables import failures_table, note_lines, totals_line
from perdure.cli.times import clock
from perdure.client import Perdure, SuiteRun
from perdure.config import Settings
from perdure.documents import LoadedTask
from perdure.errors import PerdureError
from perdure.messages import SuiteProgress, TaskOptions
from perdure.server import status, users
from perdure.state import StateDir
from perdure.suite_input import suite_queue
from perdure.workers import WorkerConfig, log_pids

if TYPE_CHECKING:
    from perdure.client import TaskHandle

SUCCEEDED, SOME_FAILED, INTERRUPTED = 0, 1, 130

POLL_SECONDS = 0.5
WATCH_SECONDS = 0.5
ASKED_PER_SECOND = 4
"""Running tasks whose steps are asked for, each second at most: a question costs the server."""


@dataclass(frozen=True)
class SuiteRequest:
    """What a call of `perdure run` asks for."""

    tasks: list[LoadedTask]
    suite: str | None
    max_parallel: int
    repeats: int | None
    options: TaskOptions
    worker: WorkerConfig
    fresh: bool
    changed: Literal["keep", "rerun"] | None
    detach: bool
    json: bool


async def run_suite(request: SuiteRequest) -> int:
    """Run a suite to its end, or leave it to a worker; returns the exit status.

    Raises PerdureError for what stands in the way of the run as a whole.
    """
    session = _Session(request, display())
    try:
        async with asked_to_end(
            session.leave_at_once, asking=(signal.SIGINT,), insisting=LEAVING
        ) as asked:
            work = asyncio.create_task(session.run())
            first = asyncio.create_task(asked.event.wait())
            await asyncio.wait({work, first}, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            if not work.done():
                await session.cancel(work)
            return await work
    except asyncio.CancelledError:
        say("interrupted; nothing was started")
        return INTERRUPTED
    finally:
        session.close()


class _Session:
    def __init__(self, request: SuiteRequest, shown: Display) -> None:
        self._request = request
        self._shown = shown
        self._starting = False
        self._suite: SuiteRun | None = None
        self._asked = False
        self._since = time.monotonic()

    def close(self) -> None:
        self._shown.close()

    async def run(self) -> int:
        request = self._request
        async with await Perdure.connect(Settings.from_env()) as perdure:
            self._starting = True
            if perdure.ui_url:
                self._shown.say(f"UI: {perdure.ui_url}")
            elif request.worker != WorkerConfig():
                self._shown.say(
                    "note: options for steps' processes are the workers' on a team's server; "
                    "give them to `perdure worker`"
                )
            suite = self._suite = await perdure.start_suite(
                request.tasks,
                suite=request.suite,
                max_parallel=request.max_parallel,
                repeats=request.repeats,
                options=request.options,
                steps=request.worker.steps,
                fresh=request.fresh,
                changed=request.changed,
                worker=request.worker,
                say=self._shown.say,
            )
            self._tell_start(suite)
            if request.detach:
                return await self._detach(suite)
            watch = asyncio.create_task(self._watch(perdure, suite))
            try:
                await _Following(suite, self._shown).until_closed()
            finally:
                watch.cancel()
            return await self._tell_end(suite)

    async def cancel(self, work: asyncio.Task[int]) -> None:
        """Ctrl-C came: cancel the suite; its clean-up is part of `work`."""
        self._asked = True
        if not self._starting:
            work.cancel()
            return
        self._shown.say("cancelling; cleaning up (Ctrl-C again leaves at once)")
        while self._suite is None and not work.done():
            await asyncio.wait({work}, timeout=0.1)  # it is being started: cancel it whole
        if self._suite is not None and not work.done():
            try:
                await self._suite.cancel("Ctrl-C")
            except PerdureError as error:
                self._shown.say(f"the suite could not be cancelled: {error}")

    def leave_at_once(self, number: signal.Signals) -> None:
        """Leave everything as it is; the worker sees the end of its pipe and cleans up."""
        self._shown.close()
        self._shown.say("")
        self._shown.say(f"left at once; go on with: {self._command()}")
        os._exit(INTERRUPTED)

    async def _watch(self, perdure: Perdure, suite: SuiteRun) -> None:
        """Tell of a server or a worker that died and was started again."""
        state = perdure.settings.state
        queue = suite_queue(perdure.settings.queue, suite.suite)
        server, workers = status(state).pid, _workers_on(state, queue)
        while perdure.embedded:
            await asyncio.sleep(WATCH_SECONDS)
            now = status(state).pid
            if now and now != server:
                self._shown.say(f"the server died and was started again: {perdure.ui_url}")
                server = now
            serving = _workers_on(state, queue)
            if serving and not serving & workers:
                self._shown.say("the worker died; another one goes on")
            workers = serving or workers

    # --- What is told -----------------------------------------------------------------------

    def _tell_start(self, suite: SuiteRun) -> None:
        name = printable(suite.suite)
        match suite.how:
            case "attached":
                told = f"suite {name} is under way; following it"
            case "took_over":
                told = f"suite {name} goes on: {suite.taken_over} finished before"
            case "finished":
                told = f"suite {name} had succeeded before; nothing is run"
            case _:
                told = f"suite {name}"
        self._shown.say(f"{told} (run id {suite.run_id})")

    async def _tell_end(self, suite: SuiteRun) -> int:
        outcome = await suite.outcome()
        self._shown.close()
        if self._request.json:
            emit_json(outcome)
        else:
            self._print_summary(outcome)
        if self._asked:
            self._shown.say(f"cancelled and cleaned up; go on with: {self._command()}")
            return INTERRUPTED
        totals = outcome["totals"]
        return SUCCEEDED if totals["succeeded"] == totals["total"] else SOME_FAILED

    def _print_summary(self, outcome: dict[str, Any]) -> None:
        failures = failures_table(outcome)
        if failures:
            emit_table(failures)
            emit("")
        for line in note_lines(outcome):
            emit(line)
        assert self._suite
        took = f" in {clock(time.monotonic() - self._since)}"
        emit(
            f"{printable(outcome['suite'])}: {totals_line(outcome['totals'])}"
            + ("" if self._suite.how == "finished" else took)
        )
        if failures:
            emit(f"see one with: perdure show {outcome['suite']}/{_first_failed(outcome)}")

    async def _detach(self, suite: SuiteRun) -> int:
        suite.detach()
        self._shown.close()
        if self._request.json:
            emit_json(await suite.outcome())
        else:
            emit(f"suite {suite.suite}  run id {suite.run_id}  workflow {suite.workflow_id}")
        self._shown.say(f"it goes on by itself; follow it with: {self._command()}")
        self._shown.say(f"stop it with: perdure cancel {suite.suite}")
        return SUCCEEDED

    def _command(self) -> str:
        """The command that goes on with this suite."""
        arguments = [a for a in sys.argv[1:] if a not in ("--fresh", "--detach")]
        name = self._suite.suite if self._suite else self._request.suite
        if name and self._request.suite is None:
            arguments += ["--suite", name]
        return f"perdure {shlex.join(arguments)}"


class _Following:
    """Keeps the display up to date until the suite is closed."""

    def __init__(self, suite: SuiteRun, shown: Display) -> None:
        self._suite = suite
        self._shown = shown
        self._picture = Picture()
        self._steps: dict[str, str] = {}
        """By workflow id: what a running task is at."""
        self._known = 0
        """Trials that had ended before."""
        self._heard = 0
        """Trials that have ended, those among them."""

    async def until_closed(self) -> None:
        # What ended before this command began to look is told in the summary only.
        self._known = self._suite.taken_over
        if self._suite.how in ("attached", "found", "finished"):
            self._known = (await self._suite.progress()).next_offset
        self._picture.ended_before = self._known
        asking = asyncio.create_task(self._ask_tasks()) if self._shown.is_live else None
        try:
            await self._suite.follow(on_progress=self._take, poll_seconds=POLL_SECONDS)
        finally:
            if asking:
                asking.cancel()

    def _take(self, progress: SuiteProgress) -> None:
        for trial in progress.ended:
            self._heard += 1
            if self._heard > self._known:
                self._shown.ended(trial, self._heard, progress.total)
        self._picture.progress = progress
        self._picture.running = [
            RunningTask(_short(name, self._suite.suite), self._steps.get(name, ""))
            for name in progress.running
        ]
        self._shown.show(self._picture)

    async def _ask_tasks(self) -> None:
        """Ask running tasks for their steps in turn, a few each second."""
        turn = 0
        while True:
            await asyncio.sleep(1 / ASKED_PER_SECOND)
            progress = self._picture.progress
            running = progress.running if progress else []
            if not running:
                continue
            name = running[turn % min(len(running), 10)]
            turn += 1
            with contextlib.suppress(PerdureError):  # it has just ended, or its worker died
                told = await self._task(name).progress()
                at = ", ".join([*told["running"], *told["waiting"]])
                self._steps[name] = f"{told['completed']}/{told['total']} {at}"
            for gone in self._steps.keys() - set(running):
                del self._steps[gone]

    def _task(self, workflow_id: str) -> TaskHandle:
        _, _, task_id, trial = workflow_id.split("/")
        return self._suite.task(task_id, int(trial))


def _workers_on(state: StateDir, queue: str) -> set[int]:
    """The live workers on a queue of the embedded server."""
    return {user.pid for user in users(state) if user.role == "worker"} & log_pids(state, queue)


def _short(workflow_id: str, suite: str) -> str:
    return workflow_id.removeprefix(f"task/{suite}/").removesuffix("/1")


def _first_failed(outcome: dict[str, Any]) -> str:
    for task in outcome["tasks"]:
        for trial in task["trials"]:
            if trial["status"] != "succeeded":
                suffix = f"/{trial['trial']}" if trial["trial"] != 1 else ""
                return f"{task['id']}{suffix}"
    return ""
