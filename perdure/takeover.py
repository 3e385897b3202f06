"""Which trials of a closed suite need not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus

from perdure.event_log import Decoder, Execution, find_execution, pages
from perdure.later_runs import suite_by_now
from perdure.messages import SuiteInput, TaskInput, TrialSummary
from perdure.names import task_workflow_id

LOOKS_AT_ONCE = 20
"""Questions to the server at a time."""

_Trial = tuple[str, int]


@dataclass(frozen=True)
class Finished:
    """What of a suite need not run again."""

    definition: SuiteInput
    """What its last run was started with."""
    trials: list[TrialSummary]
    """Those that succeeded, in order of the new start."""
    all_heard: bool
    """Whether the last run itself knows every trial as succeeded, and its record as written: it
    has nothing to add."""
    going_on: list[str]
    """Workflow ids of trials that are under way again by themselves, from one of their steps on."""


async def finished_trials(client: Client, suite: Execution, start: SuiteInput) -> Finished:
    """The trials of `start` that have succeeded in earlier runs of the suite.

    A trial counts if it was made from the same task: same document, scripts, seeds and options,
    by digest. What the suite heard of is in its history; the workflow of a task knows what a suite
    that was terminated did not hear of, or what an earlier run had that the last one left out;
    but not if the suite was started anew since then.
    """
    history = await suite_by_now(client, suite.workflow_id, suite.run_id)
    digests = {task.task["id"]: task.digest for task in start.tasks}
    made_from = {task.task["id"]: task.digest for task in history.definition.tasks}
    heard = {(trial.task_id, trial.trial): trial for trial in history.ended}
    wanted = [
        (task.task["id"], trial) for task in start.tasks for trial in range(1, task.repeats + 1)
    ]
    found: dict[_Trial, TrialSummary] = {}
    unknown: list[_Trial] = []
    for task_id, trial in wanted:
        known = heard.get((task_id, trial))
        same = made_from.get(task_id) == digests[task_id]
        if known and same and known.status == "succeeded":
            found[task_id, trial] = known
        else:
            unknown.append((task_id, trial))
    since = history.definition.since or 0.0
    found |= await _ask(client, start.suite, unknown, digests, since)
    trials = [found[trial] for trial in wanted if trial in found]
    all_heard = not unknown and not any(trial.unwritten for trial in trials)
    return Finished(history.definition, trials, all_heard, history.going_on)


async def _ask(
    client: Client, suite: str, trials: Iterable[_Trial], digests: dict[str, str], since: float
) -> dict[_Trial, TrialSummary]:
    """The successes among these trials, as their own workflows know them."""
    places = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def ask(task_id: str, trial: int) -> TrialSummary | None:
        async with places:
            name = task_workflow_id(suite, task_id, trial)
            return await _success(client, name, digests[task_id], since)

    asked = list(trials)
    answers = await asyncio.gather(*(ask(*trial) for trial in asked))
    return {trial: answer for trial, answer in zip(asked, answers, strict=True) if answer}


async def _success(
    client: Client, workflow_id: str, digest: str, since: float
) -> TrialSummary | None:
    """The summary of a task that succeeded, was made from `digest`, and began after `since`."""
    found = await find_execution(client, workflow_id)
    if found is None or found.status is not WorkflowExecutionStatus.COMPLETED:
        return None
    if found.started_at < since:
        return None
    decoder = Decoder(client, workflow_id)
    is_same = False
    async for page in pages(client, workflow_id, found.run_id):
        for event in page:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                attributes = event.workflow_execution_started_event_attributes
                start = await decoder.value(attributes.input, TaskInput)
                is_same = start.digest == digest
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                result = event.workflow_execution_completed_event_attributes.result
                if is_same:
                    return await decoder.value(result, TrialSummary)
    return None
