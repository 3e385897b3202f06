"""Calling back as the steps of a suite start and complete, in the caller's own process."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from temporalio.client import Client

from perdure.errors import PerdureError
from perdure.history import Context, RunEvent, happenings
from perdure.messages import SuiteInput

StepStarted = Callable[[int, int, dict[str, Any], dict[str, Any]], Awaitable[None] | None]
"""`(index, total, step, context)`: before each attempt of a step, retries included."""

StepCompleted = Callable[[int, int, dict[str, Any], dict[str, Any], float], Awaitable[None] | None]
"""`(index, total, step, context, seconds)`: after a step succeeded, never after a failure."""

FOLLOWED_AT_ONCE = 100
"""Tasks followed live; each is an open request. More of them are told of as places get free."""

_log = logging.getLogger("perdure.callbacks")


class StepCallbacks:
    """Two callbacks, and the suite whose steps they hear of.

    `index` and `total` count all steps of the task; `step` is the step's document, `context` a copy
    of the context as it was then. A callback that raises is logged, and changes nothing.
    """

    def __init__(
        self,
        client: Client,
        definition: SuiteInput,
        on_start: StepStarted | None,
        on_complete: StepCompleted | None,
    ) -> None:
        self._client = client
        self._on_start = on_start
        self._on_complete = on_complete
        self._steps = {task.task["id"]: task.task["steps"] for task in definition.tasks}
        self._places = asyncio.Semaphore(FOLLOWED_AT_ONCE)
        self._followed: set[str] = set()
        """Run ids: a trial may run again."""
        self._heard = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def skip(self, runs: Sequence[tuple[str, str]], running: Collection[str]) -> None:
        """Leave out what has happened so far in runs that began before anyone listened.

        `runs`: workflow ids and run ids; the newest of a trial is over unless it is `running`.
        """
        newest = dict(runs)
        for workflow_id, run_id in runs:
            self._followed.add(run_id)
            if workflow_id in running and newest[workflow_id] == run_id:
                told = 0
                async for _ in happenings(self._client, workflow_id, run_id, follow=False):
                    told += 1
                self._follow(workflow_id, run_id, told)

    def hear(self, runs: Sequence[tuple[str, str]]) -> None:
        """Follow the runs that are not followed yet, whether they are under way or have ended.

        `runs`: all that are known, in order of start.
        """
        for workflow_id, run_id in runs[self._heard :]:
            if run_id not in self._followed:
                self._followed.add(run_id)
                self._follow(workflow_id, run_id, 0)
        self._heard = len(runs)

    async def drain(self) -> None:
        """Wait until everything that happened has been told."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Tell no more."""
        for task in self._tasks:
            task.cancel()

    # --- Inside -----------------------------------------------------------------------------

    def _follow(self, workflow_id: str, run_id: str, skip: int) -> None:
        task = asyncio.create_task(self._tell_all(workflow_id, run_id, skip))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_all(self, workflow_id: str, run_id: str, skip: int) -> None:
        steps = self._steps[workflow_id.split("/")[2]]
        positions = {step["id"]: index for index, step in enumerate(steps)}
        async with self._places:
            try:
                async for event, context in happenings(self._client, workflow_id, run_id):
                    if event["seq"] > skip:
                        await self._tell(event, context, steps, positions)
            except PerdureError as error:
                _log.warning("the steps of %s are told of no more: %s", workflow_id, error)

    async def _tell(
        self,
        event: RunEvent,
        context: Context,
        steps: list[dict[str, Any]],
        positions: Mapping[str, int],
    ) -> None:
        kind = event["type"]
        if kind == "step.started" and self._on_start:
            callback: Callable[..., Awaitable[None] | None] = self._on_start
            more: tuple[float, ...] = ()
        elif kind == "step.completed" and self._on_complete:
            callback, more = self._on_complete, (event["seconds"],)
        else:
            return
        index = positions[event["step"]]
        step, seen = copy.deepcopy(steps[index]), copy.deepcopy(context)
        try:
            answer = callback(index, len(steps), step, seen, *more)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            _log.exception("a callback failed for %s of step %s", kind, event["step"])
