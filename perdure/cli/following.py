"""Following a suite to its end: what the display shows, and what people are told on the way."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from perdure.cli.clearing import Look
from perdure.cli.console import printable
from perdure.cli.instances import Teller, seen_by
from perdure.cli.progress import Display, Picture, RunningTask
from perdure.cli.rollbacks import rolled_back_lines
from perdure.client import Perdure, SuiteRun
from perdure.embedded import workers_on
from perdure.errors import PerdureError
from perdure.messages import SuiteProgress
from perdure.names import trial_name
from perdure.server import status
from perdure.suite_input import suite_queue

if TYPE_CHECKING:
    from perdure.client import TaskHandle

POLL_SECONDS = 0.5
WATCH_SECONDS = 0.5
ASKED_PER_SECOND = 4
"""Running tasks whose steps are asked for, each second at most: a question costs the server."""
ASKED_IN_TURN = 10

POOL_SECONDS = 1.0
"""Between two looks at the pool."""
POOL_ANSWER_SECONDS = 5.0


class Following:
    """Keeps the display up to date until the suite is closed."""

    def __init__(self, suite: SuiteRun, shown: Display, pool: Look | None = None) -> None:
        """`pool` looks at the suite's pool; None: it uses none."""
        self._suite = suite
        self._pool = pool
        self._shown = shown
        self._picture = Picture()
        self._several = {t.task["id"] for t in suite.definition.tasks if t.repeats > 1}
        """The tasks of more than one trial."""
        self._steps: dict[str, str] = {}
        """By workflow id: what a running task is at."""
        self._undoing = {t.task["id"] for t in suite.definition.tasks if may_roll_back(t.task)}
        """The tasks that may take steps back: that is told as it happens."""
        self._rollbacks: dict[str, int] = {}
        """By workflow id of a task: how many of its rollbacks have been told."""
        self._known = 0
        """Ends of trials that were told before this command began to look."""
        self._heard = 0
        """Ends of trials, those among them."""
        self._before: SuiteProgress | None = None

    async def until_closed(self) -> None:
        """Show the suite until it is closed. Raises as `SuiteRun.follow`."""
        # What ended before this command began to look is told in the summary only.
        self._known = self._suite.taken_over
        if self._suite.how in ("attached", "found", "finished"):
            self._known = (await self._suite.progress()).next_offset
        asks = self._shown.is_live or self._undoing
        beside = [asyncio.create_task(self._ask_tasks())] if asks else []
        if self._pool:
            beside.append(asyncio.create_task(self._watch_pool(self._pool)))
        try:
            await self._suite.follow(on_progress=self._take, poll_seconds=POLL_SECONDS)
        finally:
            for task in beside:
                task.cancel()

    def _take(self, progress: SuiteProgress) -> None:
        picture, before = self._picture, self._before
        picture.progress = progress
        if self._heard <= self._known:
            picture.ended_before = picture.ended
        # Counted back from the sum: a trial that was requeued ends a second time.
        number = picture.ended - len(progress.ended)
        for trial in progress.ended:
            self._heard += 1
            number += 1
            if self._heard > self._known:
                name = self._name(trial.task_id, trial.trial)
                self._shown.ended(name, trial, max(1, number), progress.total)
        for line in changes(before, progress):
            self._shown.say(line)
        self._before = progress
        self._show()

    def _show(self) -> None:
        self._picture.running = [
            RunningTask(self._name(*_trial_of(name)), self._steps.get(name, ""))
            for name in self._at_work
        ]
        self._shown.show(self._picture)

    @property
    def _at_work(self) -> list[str]:
        """The running tasks that have the environments that they need."""
        progress, waits = self._picture.progress, self._picture.pool.waits
        return [name for name in progress.running if name not in waits] if progress else []

    async def _watch_pool(self, look: Look) -> None:
        """Keep what the pool has in the picture; elsewhere than on a terminal, tell its news."""
        environments = [*self._suite.definition.environments]
        teller = Teller()
        while True:
            # Its worker may just have died; and a pool opens only when it is needed.
            with contextlib.suppress(PerdureError, TimeoutError):
                async with asyncio.timeout(POOL_ANSWER_SECONDS):
                    view = await look()
                if view:
                    seen = self._picture.pool = seen_by(self._suite.suite, environments, view)
                    if not self._shown.is_live:
                        for line in teller.lines(seen):
                            self._shown.say(line)
                    self._show()
            await asyncio.sleep(POOL_SECONDS)

    async def _ask_tasks(self) -> None:
        """Ask running tasks for their steps in turn, a few each second."""
        turn = 0
        while True:
            await asyncio.sleep(1 / ASKED_PER_SECOND)
            running = self._to_ask
            if not running:
                continue
            name = running[turn % len(running)]
            turn += 1
            with contextlib.suppress(PerdureError):  # it has just ended, or its worker died
                told = await self._task(name).progress()
                self._steps[name] = at_steps(told)
                self._tell_rollbacks(name, told["rollbacks"])
            for gone in self._steps.keys() - set(running):
                del self._steps[gone]

    def _tell_rollbacks(self, name: str, rollbacks: list[dict[str, Any]]) -> None:
        for line in rolled_back_lines(
            self._name(*_trial_of(name)), rollbacks, self._rollbacks.get(name, 0)
        ):
            self._shown.say(line)
        self._rollbacks[name] = len(rollbacks)

    @property
    def _to_ask(self) -> list[str]:
        """The running tasks that are worth a question: those in the picture, or, where there is
        none, those that may take steps back."""
        if self._shown.is_live:
            return self._at_work[:ASKED_IN_TURN]
        return [name for name in self._at_work if _trial_of(name)[0] in self._undoing]

    def _task(self, workflow_id: str) -> TaskHandle:
        return self._suite.task(*_trial_of(workflow_id))

    def _name(self, task_id: str, trial: int) -> str:
        return trial_name(task_id, trial, several=task_id in self._several)


def changes(before: SuiteProgress | None, now: SuiteProgress) -> list[str]:
    """What people are told once: that the suite is paused, goes on, stops, or has more places."""
    name, told = printable(now.suite), []
    if now.paused and not (before and before.paused):
        told.append(
            "paused: nothing more is started, running tasks go on; "
            f"resume with: perdure suite {name} resume"
        )
    elif before and before.paused and not now.paused and not now.stopped:
        told.append("resumed")
    if now.stopped and not (before and before.stopped) and now.pending + now.not_run:
        rest = ", running tasks end by themselves" if now.running else ""
        told.append(f"stopping: {printable(now.stopped)}; nothing more is started{rest}")
    if before and before.max_parallel and now.max_parallel not in (0, before.max_parallel):
        told.append(f"max_parallel is {now.max_parallel} (was {before.max_parallel})")
    return told


def may_roll_back(task: dict[str, Any]) -> bool:
    """Whether a step of the task's document takes others back when it fails."""
    return any(step.get("retry_config") for step in task["steps"])


def at_steps(told: dict[str, Any]) -> str:
    """What a running task is at: `2/5 build, test`, `2/5 ask (waiting for openai)`.

    Also `2/5 taking back order, agent`.
    """
    if told.get("rolling_back"):
        return f"{told['completed']}/{told['total']} taking back {', '.join(told['rolling_back'])}"
    slots = told.get("waiting_for", {})
    steps = [
        f"{step} (waiting for {slots[step]})" if step in slots else step
        for step in [*told["running"], *told["waiting"]]
    ]
    return f"{told['completed']}/{told['total']} {', '.join(steps)}"


async def watch(perdure: Perdure, suite: SuiteRun, shown: Display) -> None:
    """Tell of a server or a worker that died and was started again; never ends by itself."""
    state = perdure.settings.state
    queue = suite_queue(perdure.settings.queue, suite.suite)
    server, workers = status(state).pid, workers_on(state, queue)
    while perdure.embedded:
        await asyncio.sleep(WATCH_SECONDS)
        now = status(state).pid
        if now and now != server:
            shown.say(f"the server died and was started again: {perdure.ui_url}")
            server = now
        serving = workers_on(state, queue)
        if serving and not serving & workers:
            shown.say("the worker died; another one goes on")
        workers = serving or workers


def _trial_of(workflow_id: str) -> tuple[str, int]:
    _, _, task_id, trial = workflow_id.split("/")
    return task_id, int(trial)
