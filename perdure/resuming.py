"""Running a task again from one of its steps on: what its newest run came to, and the new start.

The old run is read from the server's history, as everything is that needs no worker. Documents,
seeds and bounds are those that it was started with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from temporalio.client import Client

from perdure.core.run_resume import CannotResume, Resumption
from perdure.errors import PerdureError
from perdure.event_log import UnknownRun, find_execution
from perdure.history import history_of
from perdure.later_runs import open_tasks
from perdure.messages import SuiteTask, TaskInput
from perdure.names import suite_workflow_id, task_workflow_id
from perdure.preparation import Preparation
from perdure.suite_history import definition_of
from perdure.task_handle import parse_run
from perdure.task_start import begin_task
from perdure.workers import WorkerConfig


class RunRefused(PerdureError):
    """A run cannot be gone on with from a step, as it was asked."""


class ResumedTask:
    """A task that is to run again from a step on."""

    def __init__(self, start: TaskInput, resumption: Resumption) -> None:
        self.start = replace(
            start,
            state=None,
            resumed=resumption.start,
            # As a task that is started by itself: its suite is closed, and hears of nothing.
            suite_workflow_id=None,
        )
        self.resumption = resumption

    def lines(self) -> list[str]:
        """What runs again and why, for people."""
        known, start = self.resumption, self.start.resumed
        assert start is not None
        told = [
            f"goes on from step {start.step!r} of run {start.run_id}, by the document that it had: "
            f"runs {_names(known.span)}"
        ]
        if known.widened:
            environments = ", ".join(self.start.task.get("environments", []))
            told.append(
                f"its environments are new ({environments}), so who used one runs again too: "
                f"{_names(known.widened)}"
            )
        if known.unfinished:
            told.append(f"not finished before, and so run as well: {_names(known.unfinished)}")
        told.append(f"done before, and not run again: {_names(known.kept) or 'nothing'}")
        if known.not_undone:
            told.append(
                "note: only a rollback undoes; what these did before is left as it is "
                f"(`compensate`): {_names(known.not_undone)}"
            )
        return told


async def go_on(
    client: Client,
    preparation: Preparation,
    run: str,
    step_id: str,
    worker: WorkerConfig,
    say: Callable[[str], None],
) -> tuple[TaskInput, str]:
    """Run a task again from a step on; what it was started with, and its run id.

    One that runs from that step on already is not run twice. `say` is told what runs, and why.
    Raises as `Perdure.retry_task`.
    """
    suite, task_id, trial = parse_run(run)
    queue = preparation.queue(suite)
    async with preparation.starter(suite, worker, say).decision(suite):
        under_way = await _under_way(client, (suite, task_id, trial), step_id)
        if under_way:
            start, run_id = under_way
            await preparation.check_types([_task(start)], worker)
            say(f"runs from step {step_id!r} on already; following it (run id {run_id})")
        else:
            again = await resumed_task(client, suite, task_id, trial, step_id)
            start = again.start
            environments = dict(
                zip(start.task.get("environments", ()), start.environments, strict=False)
            )
            await preparation.check_again([_task(start)], environments, worker)
            if not await open_tasks(client, suite):  # else they share its worker
                await preparation.make_way(queue)
            begun = await begin_task(client, start, queue)
            if begun is None:
                raise RunRefused(f"{run} was started by somebody else; look with `perdure list`")
            run_id = begun
            for line in again.lines():
                say(line)
    await preparation.serve(queue, worker, say)
    return start, run_id


async def _under_way(
    client: Client, run: tuple[str, str, int], step_id: str
) -> tuple[TaskInput, str] | None:
    """The newest run of a task, if it is open, and runs from this step on.

    Raises RunRefused: from another one.
    """
    workflow_id = task_workflow_id(*run)
    found = await find_execution(client, workflow_id)
    if found is None or not found.is_open:
        return None
    start = (await history_of(client, workflow_id, found.run_id)).start
    if start.resumed is None:
        return None
    if start.resumed.step != step_id:
        again = f"perdure retry {_name(*run)} --from-step {start.resumed.step}"
        raise RunRefused(
            f"{_name(*run)} runs, from step {start.resumed.step!r} on: go on with it by "
            f"`{again}`, or end it first by `perdure cancel {_name(*run)}`"
        )
    return start, found.first_run_id


async def resumed_task(
    client: Client, suite: str, task_id: str, trial: int, step_id: str
) -> ResumedTask:
    """What it takes to run a task again from a step on.

    Raises UnknownRun, RunRefused with the reason and the remedy, and HistoryError if the history
    cannot be read.
    """
    workflow_id = task_workflow_id(suite, task_id, trial)
    name = _name(suite, task_id, trial)
    found = await find_execution(client, workflow_id)
    if found is None:
        raise UnknownRun(
            f"the server knows no run {name}, and only from its history a run can go on from a "
            "step; `perdure list` shows what there is, `perdure run` runs a task whole"
        )
    if found.is_open:
        raise RunRefused(
            f"{name} is still running: follow it by `perdure events {name} --follow`, or end it "
            f"first by `perdure cancel {name}`"
        )
    history = await history_of(client, workflow_id, found.run_id)
    await _check_suite(client, suite, history.start)
    try:
        resumption = history.run.resumption(step_id)
    except CannotResume as error:
        raise RunRefused(f"{name}: {error}") from None
    return ResumedTask(history.start, resumption)


def _task(start: TaskInput) -> SuiteTask:
    """The task as a suite has it, for the checks before it starts."""
    return SuiteTask(start.task, start.digest, start.seed, folder=start.folder)


async def _check_suite(client: Client, suite: str, start: TaskInput) -> None:
    """Refuse where a suite would not know what happens to its task, or has another one by now."""
    workflow_id = suite_workflow_id(suite)
    found = await find_execution(client, workflow_id)
    if found is None:
        return  # a task that was started by itself
    task_id = start.task["id"]
    if found.is_open:
        raise RunRefused(
            f"suite {suite!r} is open: wait for its end, or end it by `perdure cancel {suite}`; "
            f"`perdure suite {suite} requeue {task_id}` runs the task again whole"
        )
    newest = await definition_of(client, workflow_id, found.run_id)
    digests = {task.task["id"]: task.digest for task in newest.tasks}
    if digests.get(task_id, start.digest) != start.digest:
        raise RunRefused(
            f"the document of {task_id!r} has changed since its newest run, whose journal does "
            f"not fit it; run it whole by `perdure retry {suite}`"
        )


def _name(suite: str, task_id: str, trial: int) -> str:
    """What people call a run."""
    return f"{suite}/{task_id}" + (f"/{trial}" if trial != 1 else "")


def _names(steps: tuple[str, ...]) -> str:
    return ", ".join(steps)
