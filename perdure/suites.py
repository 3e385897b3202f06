"""Starting a suite, or going on with it: what `--suite ID` does when it is typed again.

The old definition and what ended are read from the server's histories, so no worker is needed to
decide, and a suite that was killed or terminated is known as well as one that ended by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import PerdureError
from perdure.event_log import Execution, UnknownRun, find_execution, until_closed
from perdure.messages import SuiteInput, SuiteTask, TrialSummary
from perdure.names import SUITE_WORKFLOW, suite_workflow_id
from perdure.search_attributes import attributes_of
from perdure.state import FileLock, explained
from perdure.suite_changes import SuiteChanged, difference, ignored, other_bounds, other_results
from perdure.suite_history import definition_of
from perdure.takeover import Finished, finished_trials

__all__ = ["Begun", "Changed", "How", "Starter", "SuiteChanged", "SuiteOpen"]

How = Literal["started", "attached", "took_over", "finished", "found"]
"""`attached`: it was open, and goes on. `took_over`: a new run, with finished trials of an earlier
one. `finished`: everything had succeeded, nothing was started. `found`: only looked up."""

Changed = Literal["keep", "rerun"]

LOCK_SECONDS = 60.0
"""How long a starter waits for others that decide about the same suite; each needs moments."""

START_SECONDS = timedelta(seconds=20)
START_TRIES = 5
"""Looks at a suite before giving up; more than one is needed only when others act as well."""


class SuiteOpen(PerdureError):
    """What is asked for can be done only of a closed suite."""

    def __init__(self, suite: str) -> None:
        super().__init__(
            f"suite {suite!r} is open: follow it by `perdure run ... --suite {suite}`, or end it "
            f"first by `perdure cancel {suite}`; `perdure suite {suite} requeue TASK` runs one "
            "task of it again"
        )


class TaskOpen(PerdureError):
    """A task of a closed suite is under way by itself."""

    def __init__(self, workflow_id: str) -> None:
        name = workflow_id.removeprefix("task/").removesuffix("/1")
        super().__init__(
            f"{name} runs by itself, from one of its steps on: follow it by `perdure events {name} "
            f"--follow`, or end it first by `perdure cancel {name}`"
        )


@dataclass(frozen=True)
class Begun:
    """A suite that runs, or has nothing left to run."""

    how: How
    execution: Execution
    definition: SuiteInput
    """What it was started with: the old documents, if they were kept."""
    taken_over: int = 0
    """Trials that had succeeded before and do not run again."""
    ignored: tuple[str, ...] = ()
    """Keywords of the call that an open suite does not heed, such as `limits`."""


@dataclass(frozen=True)
class Starter:
    """How suites are started on one server."""

    client: Client
    queue: str
    """For a suite that is new."""
    locks: Path
    """A directory where starters on this machine wait for each other."""
    serve: Callable[[str], Awaitable[None]]
    """Have a worker on this queue; called before anything is to run."""
    say: Callable[[str], None]
    """Tell people, in one line."""
    make_way: Callable[[str], Awaitable[None]] | None = None
    """End workers that earlier calls left on this queue; called before a new run is started."""

    async def begin(
        self, start: SuiteInput, *, fresh: bool = False, changed: Changed | None = None
    ) -> Begun:
        """Start the suite, attach to it, or find that nothing is left to do.

        However many start it at once, there is one run; the others attach to it.
        Raises SuiteChanged, or PerdureError if the server refuses.
        """
        for _ in range(START_TRIES):
            async with self.decision(start.suite):
                found = await find_execution(self.client, suite_workflow_id(start.suite))
                if found is None:
                    begun = await self._start(start, None)
                elif not found.is_open:
                    begun = await self._start_again(start, found, fresh=fresh)
                else:
                    begun = None if fresh else await self._attach(start, found, changed)
            if begun is not None:
                if begun.how != "finished":
                    await self.serve(begun.execution.queue)
                return begun
            if found is not None and found.is_open:
                await self._clear_away(found)
        raise _not_startable(start.suite)

    async def retry(
        self,
        suite: str,
        *,
        only_failed_trials: bool = False,
        changed: Callable[[SuiteInput], SuiteInput] = lambda start: start,
        check: Callable[[Sequence[SuiteTask]], Awaitable[None]] | None = None,
    ) -> Begun:
        """Run again what did not succeed of a closed suite, by the documents of its newest run.

        A task of which any trial did not succeed runs again with all its trials, or, with
        `only_failed_trials`, with those alone. What had succeeded is taken over; if that is
        everything, nothing is started (`finished`). `changed` gives the new run other bounds than
        the newest run had; `check` is called with the tasks that are to run, and may raise.

        Raises SuiteOpen if it is not closed, UnknownRun if there is no such suite, and PerdureError
        if the server refuses.
        """
        workflow_id = suite_workflow_id(suite)
        for _ in range(START_TRIES):
            async with self.decision(suite):
                found = await find_execution(self.client, workflow_id)
                if found is None:
                    raise UnknownRun(f"there is no suite {suite!r} on the server")
                if found.is_open:
                    raise SuiteOpen(suite)
                begun = await self._retry(
                    found, changed, check, only_failed_trials=only_failed_trials
                )
            if begun is not None:
                if begun.how != "finished":
                    await self.serve(begun.execution.queue)
                return begun
        raise _not_startable(suite)

    @asynccontextmanager
    async def decision(self, suite: str) -> AsyncIterator[None]:
        """One starter of a suite, or of a task of it, at a time looks and acts on what it saw."""
        with explained(self.locks):
            self.locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(self.locks / f"{suite}.lock")
        async with lock.held(within_seconds=LOCK_SECONDS):
            yield

    async def _attach(
        self, start: SuiteInput, found: Execution, changed: Changed | None
    ) -> Begun | None:
        """Go on with an open suite; None if it must make room for new documents first."""
        old = await definition_of(self.client, found.workflow_id, found.run_id)
        if old.digest != start.digest:
            if changed is None:
                raise difference(old, start)
            if changed == "rerun":
                return None
            self.say(f"suite {start.suite!r} goes on with the documents that it was started with")
        if kept := other_bounds(old, start):
            self.say(
                f"suite {start.suite!r} goes on as it was started: {kept}; while it runs, only "
                "max_parallel can be changed"
            )
        if elsewhere := other_results(old, start):
            self.say(elsewhere)
        return Begun("attached", found, old, ignored=ignored(old, start))

    async def _start_again(
        self, start: SuiteInput, found: Execution, *, fresh: bool
    ) -> Begun | None:
        """A new run of a closed suite, unless nothing is left to run."""
        if fresh:
            return await self._start(replace(start, since=found.closed_at), found)
        done = await self._finished(found, start)
        if done.definition.digest == start.digest and done.all_heard:
            if elsewhere := other_results(done.definition, start):
                self.say(elsewhere)
            return Begun("finished", found, done.definition, taken_over=len(done.trials))
        if unwritten := sum(1 for trial in done.trials if trial.unwritten):
            self.say(f"{unwritten} finished before without a record on disk: it is written now")
        start = replace(start, finished=done.trials, since=done.definition.since)
        return await self._start(start, found)

    async def _retry(
        self,
        found: Execution,
        changed: Callable[[SuiteInput], SuiteInput],
        check: Callable[[Sequence[SuiteTask]], Awaitable[None]] | None,
        *,
        only_failed_trials: bool,
    ) -> Begun | None:
        """A new run of a closed suite by its own definition; None if others act as well."""
        old = await definition_of(self.client, found.workflow_id, found.run_id)
        start = changed(replace(old, finished=[], state=None, by_priority=True))
        done = await self._finished(found, start)
        if done.all_heard:
            return Begun("finished", found, old, taken_over=len(done.trials))
        again = {task.task["id"] for task in _unfinished(start, done.trials)}
        kept = [t for t in done.trials if only_failed_trials or t.task_id not in again]
        if check:
            await check(_unfinished(start, kept))
        return await self._start(replace(start, finished=kept), found)

    async def _finished(self, found: Execution, start: SuiteInput) -> Finished:
        """What need not run again. Raises TaskOpen: the suite would end what is under way."""
        done = await finished_trials(self.client, found, start)
        if done.going_on:
            raise TaskOpen(done.going_on[0])
        return done

    async def _start(self, start: SuiteInput, found: Execution | None) -> Begun | None:
        """Start a run; None if another starter was faster, or nobody knows whether it began."""
        workflow_id = suite_workflow_id(start.suite)
        if self.make_way:
            await self.make_way(self.queue)
        try:
            handle = await self.client.start_workflow(
                SUITE_WORKFLOW,
                start,
                id=workflow_id,
                task_queue=self.queue,
                # Never seen: so not even one that began and ended meanwhile is run again.
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
                if found
                else WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                search_attributes=attributes_of(
                    "suite", start.suite, known=start.options.search_attributes
                ),
                static_summary=f"{len(start.tasks)} tasks",
                rpc_timeout=START_SECONDS,
            )
        except WorkflowAlreadyStartedError:
            return None
        except RPCError as error:
            # Such a request may have arrived all the same: another look tells. A second start on
            # the same grounds could make a second run.
            if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE):
                return None
            raise PerdureError(
                f"suite {start.suite!r} cannot be started: the Temporal service says "
                f"{error.status.name} ({error.message})"
            ) from error
        execution = await find_execution(self.client, workflow_id, handle.result_run_id)
        assert execution is not None, "it was started just now"
        how: How = "took_over" if start.finished else "started"
        return Begun(how, execution, start, taken_over=len(start.finished))

    async def _clear_away(self, found: Execution) -> None:
        """Cancel an open suite and wait until it has cleaned up."""
        self.say(f"{found.workflow_id} is cancelled first, to make room for its new run")
        await self.serve(found.queue)
        handle = self.client.get_workflow_handle(
            found.workflow_id, first_execution_run_id=found.first_run_id
        )
        try:
            await handle.cancel(reason="a new run of the suite takes its place")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended by itself
                raise PerdureError(f"{found.workflow_id} cannot be cancelled: {error}") from error
        await until_closed(self.client, found)


def _not_startable(suite: str) -> PerdureError:
    return PerdureError(
        f"suite {suite!r} cannot be started: the Temporal service does not answer in time, or "
        "others start it again and again; look with `perdure list`, and try again"
    )


def _unfinished(start: SuiteInput, done: Sequence[TrialSummary]) -> list[SuiteTask]:
    """The tasks that have not all of their trials among the finished ones."""
    counts = Counter(trial.task_id for trial in done)
    return [task for task in start.tasks if counts[task.task["id"]] < task.repeats]
