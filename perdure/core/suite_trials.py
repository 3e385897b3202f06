"""The trials of a suite: each task, as many times as it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.core.suite_order import PRIORITIES, StartOrder
from perdure.messages import SuiteInput
from perdure.names import task_workflow_id


@dataclass(frozen=True)
class Trial:
    """One run of one task of the suite."""

    index: int
    """The task's position in the suite."""
    task_id: str
    trial: int
    workflow_id: str


class SuiteTrials:
    """All trials, by workflow id and by task."""

    def __init__(self, start: SuiteInput) -> None:
        """`order`: in which they start; nothing waits yet."""
        self.by_name: dict[str, Trial] = {}
        self.by_task: dict[str, list[Trial]] = {}
        places, kinds = {}, {}
        for index, task in enumerate(start.tasks):
            task_id, rank = task.task["id"], _rank(task.task) if start.by_priority else 0
            for number in range(1, task.repeats + 1):
                name = task_workflow_id(start.suite, task_id, number)
                trial = Trial(index, task_id, number, name)
                self.by_name[name] = trial
                self.by_task.setdefault(task_id, []).append(trial)
                places[name] = (rank, index, number)
                if start.pool:
                    kinds[name] = tuple(task.task.get("environments", ()))
        self.order = StartOrder(places, kinds)


def _rank(task: dict[str, Any]) -> int:
    return PRIORITIES.index(task.get("priority", "medium"))
