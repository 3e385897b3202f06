"""A suite's trials as child workflows: how one is started, and why one closed without a word."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import CancelledError, TerminatedError, TimeoutError

with workflow.unsafe.imports_passed_through():
    from perdure.core.suite import CANCELLED, TERMINATED, TIMED_OUT, Trial
    from perdure.messages import SuiteInput, TaskInput, TrialSummary
    from perdure.names import TASK_WORKFLOW
    from perdure.search_attributes import attributes_of
    from perdure.workflow_task import workflow_task_timeout

TrialHandle = workflow.ChildWorkflowHandle[object, TrialSummary]


async def start_trial(start: SuiteInput, trial: Trial) -> TrialHandle:
    """Start a trial as a child that outlives this run of its suite.

    Raises WorkflowAlreadyStartedError if a run of its id is open.
    """
    task, options = start.tasks[trial.index], start.options
    return await workflow.start_child_workflow(
        TASK_WORKFLOW,
        TaskInput(
            task=task.task,
            suite=start.suite,
            trial=trial.trial,
            index=trial.index,
            digest=task.digest,
            seed=task.seed,
            metadata=_metadata(trial) if task.repeats > 1 else {},
            options=options,
            folder=task.folder,
            suite_workflow_id=workflow.info().workflow_id,
            pool=start.pool,
            environments=[start.environments[name] for name in task.task.get("environments", [])]
            if start.pool
            else [],
        ),
        id=trial.workflow_id,
        result_type=TrialSummary,
        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
        search_attributes=attributes_of(
            "task", start.suite, trial.task_id, known=options.search_attributes
        ),
        static_summary=f"{trial.task_id} · trial {trial.trial}",
        task_timeout=workflow_task_timeout(task.task),
    )


def why_closed(cause: BaseException | None) -> str:
    """The reason for people; readers of the history find the same."""
    match cause:
        case CancelledError():
            return CANCELLED
        case TerminatedError():
            return TERMINATED
        case TimeoutError():
            return TIMED_OUT
    return str(cause) if cause else "closed without a reason"


def _metadata(trial: Trial) -> dict[str, str]:
    """What the context of one trial of several knows of itself (T19)."""
    return {"pass_at_k_execution_id": f"{trial.task_id}/{trial.trial}"}
