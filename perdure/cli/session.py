"""One call that runs a suite: begin it or join it, follow it, heed Ctrl-C, tell how it ended."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.cli.console import emit, emit_json, printable, say
from perdure.cli.following import Following, watch
from perdure.cli.pool_clearing import clear_pool, pool_of
from perdure.cli.progress import Display, display
from perdure.cli.signals import LEAVING, asked_to_end
from perdure.cli.summary import print_summary, report_junit, status_of, tell_unwritten
from perdure.client import Perdure, SuiteRun
from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.suite_input import suite_queue
from perdure.workers import WorkerConfig

SUCCEEDED, INTERRUPTED = 0, 130

_IGNORED = {
    "max_failures": ("--max-failures", "--fail-fast"),
    "max_cost": ("--max-cost",),
    "retry_infrastructure": ("--retry-infrastructure",),
    "limits": ("--limit",),
    "task_timeout": ("--task-timeout",),
    "results_dir": ("--results",),
    "pool": ("--pool",),
    "keep_envs": ("--keep-envs",),
}
"""By `SuiteRun.ignored`: what an open suite does not heed, and a hint need not repeat."""
_FLAGS = frozenset({"--fresh", "--detach", "--fail-fast", "--keep-envs"})
"""Options that have no value."""

Begin = Callable[[Perdure, Callable[[str], None]], Awaitable[SuiteRun]]
"""Starts or joins the suite; the second argument tells people notes on the way."""


@dataclass(frozen=True)
class Call:
    """What a call asks for, beside how its suite begins."""

    begin: Begin
    suite: str | None
    """None: it gets a name when it begins."""
    worker: WorkerConfig
    detach: bool = False
    json: bool = False
    junit: Path | None = None
    attaches: bool = True
    """Whether the same command follows the suite while another process runs it."""


async def run_suite(call: Call) -> int:
    """Run a suite to its end, or leave it to a worker; returns the exit status.

    Raises PerdureError for what stands in the way of the run as a whole.
    """
    session = _Session(call, display())
    try:
        async with asked_to_end(
            session.leave_at_once, asking=(signal.SIGINT,), insisting=(*LEAVING, signal.SIGQUIT)
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
    def __init__(self, call: Call, shown: Display) -> None:
        self._call = call
        self._shown = shown
        self._starting = False
        self._suite: SuiteRun | None = None
        self._asked = False
        self._ended = False
        self._clearing = False
        self._leave = asyncio.Event()
        """Set: what is left in the pool is not waited for."""
        self._since = time.monotonic()

    def close(self) -> None:
        self._shown.close()

    async def run(self) -> int:
        async with await Perdure.connect(Settings.from_env()) as perdure:
            self._starting = True
            if perdure.ui_url:
                self._shown.say(f"UI: {perdure.ui_url}")
            elif self._call.worker != WorkerConfig():
                self._shown.say(
                    "note: options for steps' processes are the workers' on a team's server; "
                    "give them to `perdure worker`"
                )
            suite = self._suite = await self._call.begin(perdure, self._shown.say)
            told_below = self._call.detach and not self._call.json
            run_id = "" if told_below else f" (run id {suite.run_id})"
            self._shown.say(f"{_beginning(suite)}{run_id}")
            if self._call.detach:
                return await self._detach(suite)
            if suite.how == "attached":
                self._shown.say(_ctrl_c(perdure, suite))
            watching = asyncio.create_task(watch(perdure, suite, self._shown))
            try:
                await Following(suite, self._shown, pool_of(perdure, suite)).until_closed()
                self._clearing = True
                await clear_pool(perdure, suite, self._shown.say, self._leave)
            finally:
                watching.cancel()
            return await self._tell_end(suite, _results(perdure, suite))

    async def cancel(self, work: asyncio.Task[int]) -> None:
        """Ctrl-C came: cancel the suite; its clean-up is part of `work`."""
        if self._clearing:
            self._leave.set()  # the suite has ended: there is nothing to cancel
            return
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

    async def _tell_end(self, suite: SuiteRun, results: Path | None) -> int:
        self._ended = True
        outcome = await suite.outcome()
        self._shown.close()
        took = None if suite.how == "finished" else time.monotonic() - self._since
        if took is not None and suite.how == "attached":
            took = max(took, time.time() - suite.started_at)  # it had been running before
        if self._call.json:
            emit_json(outcome)
        else:
            print_summary(outcome, took)
        told = [status_of(outcome), tell_unwritten(outcome, self._command())]
        if self._call.junit:
            told.append(report_junit(self._call.junit, outcome, results))
        if self._asked:
            self._shown.say(f"cancelled and cleaned up; go on with: {self._command()}")
            return INTERRUPTED
        return max(told)

    async def _detach(self, suite: SuiteRun) -> int:
        suite.detach()
        self._shown.close()
        if self._call.json:
            emit_json(await suite.outcome())
        else:
            emit(f"suite {suite.suite}  run id {suite.run_id}  workflow {suite.workflow_id}")
        look = self._command() if self._call.attaches else f"perdure suite {suite.suite}"
        verb = "follow" if self._call.attaches else "look at"
        self._shown.say(f"it goes on by itself; {verb} it with: {look}")
        self._shown.say(f"stop it with: perdure cancel {suite.suite}")
        return SUCCEEDED

    def _command(self) -> str:
        """The command that goes on with this suite."""
        left_out = {"--fresh", "--detach", "--changed"}
        if self._suite and not self._ended:
            left_out.update(option for name in self._suite.ignored for option in _IGNORED[name])
        arguments = without(sys.argv[1:], left_out)
        name = self._suite.suite if self._suite else self._call.suite
        if name and self._call.suite is None:
            arguments += ["--suite", name]
        return f"perdure {shlex.join(arguments)}"


def without(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """The arguments of a command without these options and their values."""
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest]
        option, equals, _ = argument.partition("=")
        if option not in options:
            kept.append(argument)
        elif not equals and option not in _FLAGS and rest:
            rest.pop(0)
    return kept


def _results(perdure: Perdure, suite: SuiteRun) -> Path | None:
    """The directory of the suite's results; None if the workers of a team's server have it."""
    if not perdure.embedded:
        return None
    return Path(suite.definition.options.results_dir or perdure.settings.state.results)


def _ctrl_c(perdure: Perdure, suite: SuiteRun) -> str:
    """What a follower can do to the suite that others have started."""
    queue = suite_queue(perdure.settings.queue, suite.suite)
    told = "Ctrl-C cancels the suite, whoever has started it"
    if not perdure.embedded or perdure.is_served_by_others(queue):
        told += "; Ctrl-\\ leaves it running"
    return told


def _beginning(suite: SuiteRun) -> str:
    name = printable(suite.suite)
    match suite.how:
        case "attached":
            return f"suite {name} is under way; following it"
        case "took_over":
            return f"suite {name} goes on: {suite.taken_over} finished before"
        case "finished":
            return f"suite {name} had succeeded before; nothing is run"
    return f"suite {name}"
