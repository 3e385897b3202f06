"""Starting one task by itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from perdure.errors import PerdureError
from perdure.messages import PoolUse, SuiteTask, TaskInput, TaskOptions
from perdure.names import TASK_WORKFLOW, task_workflow_id
from perdure.search_attributes import attributes_of
from perdure.suite_input import check_steps
from perdure.workflow_task import workflow_task_timeout

_START = timedelta(seconds=20)

MAX_TRIALS = 100_000
"""Of one task that is started by itself; they are tried in turn where the server's list lags."""


@dataclass(frozen=True)
class Leasing:
    """Where a task takes its environments, and their definitions in its order."""

    pool: PoolUse | None = None
    """None: it needs none."""
    environments: tuple[dict[str, Any], ...] = ()


NO_LEASE = Leasing()


class TaskRunning(PerdureError):
    """The named trial of the task is open."""


async def start_trial(
    client: Client,
    task: SuiteTask,
    suite: str,
    trial: int | None,
    options: TaskOptions,
    queue: str,
    leasing: Leasing = NO_LEASE,
) -> tuple[int, str]:
    """Start a trial of a task; without a number, the next free one. Returns number and run id.

    Raises TaskRunning, and PerdureError for a bad range or a server that refuses.
    """
    check_steps(task, options)
    if trial is not None:
        if trial < 1:
            raise PerdureError(f"trial {trial}: trials are counted from 1")
        start = _input(task, suite, trial, options, leasing)
        run_id = await begin_task(client, start, queue)
        if run_id is None:
            name = task_workflow_id(suite, task.task["id"], trial)
            raise TaskRunning(f"{name} is open; cancel it first, or name another trial")
        return trial, run_id
    prefix = task_workflow_id(suite, task.task["id"], 0).removesuffix("0")
    try:
        count = (await client.count_workflows(f"WorkflowId STARTS_WITH '{prefix}'")).count
    except RPCError:
        count = 0  # a server without such queries: then one by one
    for number in range(count + 1, count + MAX_TRIALS):
        start = _input(task, suite, number, options, leasing)
        run_id = await begin_task(client, start, queue, may_follow=False)
        if run_id is not None:
            return number, run_id
    raise PerdureError(f"{prefix}... has no free trial left; start it under another suite")


def _input(
    task: SuiteTask, suite: str, trial: int, options: TaskOptions, leasing: Leasing
) -> TaskInput:
    return TaskInput(
        task=task.task,
        suite=suite,
        trial=trial,
        digest=task.digest,
        seed=task.seed,
        options=options,
        folder=task.folder,
        pool=leasing.pool,
        environments=list(leasing.environments),
    )


async def begin_task(
    client: Client, start: TaskInput, queue: str, *, may_follow: bool = True
) -> str | None:
    """The run id; None if the trial is open, or taken and nothing `may_follow` it.

    Raises PerdureError for a server that refuses.
    """
    suite, task_id, trial = start.suite, start.task["id"], start.trial
    told = f" · from step {start.resumed.step} on" if start.resumed else ""
    try:
        handle = await client.start_workflow(
            TASK_WORKFLOW,
            start,
            id=task_workflow_id(suite, task_id, trial),
            task_queue=queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
            if may_follow
            else WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            search_attributes=attributes_of(
                "task", suite, task_id, known=start.options.search_attributes
            ),
            static_summary=f"{task_id} · trial {trial}{told}",
            task_timeout=workflow_task_timeout(start.task),
            rpc_timeout=_START,
        )
    except WorkflowAlreadyStartedError:
        return None
    except RPCError as error:
        raise PerdureError(
            f"task {task_id!r} cannot be started: the Temporal service says "
            f"{error.status.name} ({error.message})"
        ) from error
    return handle.first_execution_run_id or handle.result_run_id
