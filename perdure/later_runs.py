"""A closed suite as it stands now: with what became of its tasks since it was over.

A task that went on from one of its steps (`retry --from-step`) did so without its suite, which was
closed by then and cannot hear of it. What a suite came to is therefore read together with the runs
that were started since: one that went on from the run that counts, and has ended, counts instead.
"""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.core.summary import summarise
from perdure.event_log import Decoder, HistoryError, UnknownRun, pages
from perdure.history import TaskHistory
from perdure.messages import TrialSummary
from perdure.names import TASK_WORKFLOW
from perdure.payloads import adapter
from perdure.suite_history import SuiteHistory, suite_of


async def suite_by_now(client: Client, workflow_id: str, run_id: str | None = None) -> SuiteHistory:
    """As `suite_of`, with the runs that went on from those of a suite that is over.

    Raises as `suite_of`, and HistoryError if the server cannot list its runs.
    """
    history = await suite_of(client, workflow_id, run_id)
    if history.ended_at is None:
        return history
    since = datetime.fromtimestamp(history.ended_at, UTC).isoformat()
    chains: dict[str, WorkflowExecution] = {}
    for execution in await _runs(client, history.definition.suite, f"StartTime >= '{since}'"):
        chains[_first_run(execution)] = execution
    for later in chains.values():
        counts = history.run_of(later.id)
        if counts:
            await _take(client, history, later, counts)
    return history


async def open_tasks(client: Client, suite: str) -> set[str]:
    """The workflow ids of a suite's tasks that are open.

    Raises HistoryError if the server cannot list them.
    """
    return {execution.id for execution in await _runs(client, suite, "ExecutionStatus = 'Running'")}


async def _runs(client: Client, suite: str, condition: str) -> list[WorkflowExecution]:
    """The runs of a suite's tasks, in order of their start."""
    query = f"WorkflowType = '{TASK_WORKFLOW}' AND WorkflowId STARTS_WITH 'task/{suite}/'"
    try:
        found = [run async for run in client.list_workflows(f"{query} AND {condition}")]
    except RPCError as error:
        raise HistoryError(
            f"the Temporal service cannot list the runs of {suite!r} ({error.message}); try again"
        ) from error
    return sorted(found, key=lambda run: run.start_time)


async def _take(
    client: Client, suite: SuiteHistory, execution: WorkflowExecution, earlier: str
) -> None:
    """Tell the suite of a chain of runs, by its last one, if it goes on from the run `earlier`."""
    decoder = Decoder(client, execution.id)
    history = TaskHistory(client, execution.id)
    told: TrialSummary | None = None
    try:
        async for page in pages(client, execution.id, _first_run(execution)):
            for event in page:
                await history.take(event)
                resumed = history.start.resumed
                if resumed is None or resumed.run_id != earlier:
                    return
                if execution.status is WorkflowExecutionStatus.RUNNING:
                    suite.going_on.append(execution.id)
                    return
                told = await _told_by(decoder, event) or told
    except (UnknownRun, HistoryError):
        return  # deleted, or its stored values are gone: what the suite heard stands
    suite.replace_end(told or summarise(history.run))


async def _told_by(decoder: Decoder, event: HistoryEvent) -> TrialSummary | None:
    """What the task itself told at its end."""
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        result = event.workflow_execution_completed_event_attributes.result
        return await decoder.value(result, TrialSummary)
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        failure = event.workflow_execution_failed_event_attributes.failure
        error = await decoder.error(failure)
        if isinstance(error, ApplicationError) and error.details:
            summary: TrialSummary = adapter(TrialSummary).validate_python(error.details[0])
            return summary
    return None


def _first_run(execution: WorkflowExecution) -> str:
    return execution.raw_info.first_run_id or execution.run_id
