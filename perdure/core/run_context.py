"""The context of a run: what it began with, and what its steps have written, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from perdure.core.context import new_context, size_bytes
from perdure.core.journal import Entry, Journal
from perdure.core.run_record import instance_id
from perdure.core.task import Task
from perdure.messages import ContextDiffs, ContextRequest, RunRef


def first_context(
    task: Task,
    run: RunRef,
    seed: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
    agent_model: str | None,
    agent_artifact_id: str | None,
) -> dict[str, Any]:
    """The context before the first step."""
    given = metadata or {}
    return new_context(
        metadata={
            **task.metadata,
            **given,
            **({"seed": seed} if seed else {}),
            "run_group_id": given.get("run_group_id") or run.run_id.replace("-", ""),
        },
        agent_model=agent_model,
        agent_artifact_id=agent_artifact_id,
        instance_id=instance_id(run),
    )


class RunContext:
    """A journal, and how large its context is."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.size_bytes = size_bytes(journal.context)
        """An upper bound of the context's size as JSON, kept without walking it again."""

    @property
    def value(self) -> dict[str, Any]:
        """The context as of now; treat it as read-only."""
        return self._journal.context

    @property
    def version(self) -> int:
        """Number of diffs applied in this epoch."""
        return self._journal.version

    def write(self, entry: Entry) -> None:
        """Take over what a step wrote."""
        self._journal.record(entry)
        self.size_bytes += size_bytes(entry.ops)

    def diffs(self, request: ContextRequest) -> ContextDiffs:
        """What a worker's copy lacks, if it is of this epoch."""
        if not -1 <= request.have <= request.want <= self.version:
            return ContextDiffs(stale=True)
        return ContextDiffs(
            seed=self._journal.seed if request.have < 0 else None,
            diffs=self._journal.since(request.have, request.want),
        )

    def restarted(self) -> RunContext:
        """The context before the first step, with the run's own marks."""
        return self.without(set(self._journal.completed))

    @property
    def base(self) -> dict[str, Any]:
        """The context as if no step had written anything: with the run's own marks alone."""
        return self._journal.base()

    def without(self, step_ids: Set[str], marks: Sequence[Entry] = ()) -> RunContext:
        """The context as if those steps had never ended, with some more marks of the run's own."""
        return RunContext(self._journal.replay(step_ids, marks))

    @property
    def entries(self) -> list[Entry]:
        """What was recorded, the run's own marks among it."""
        return list(self._journal.entries)

    def entry(self, step_id: str) -> Entry | None:
        """What the step is recorded with."""
        return self._journal.entry(step_id)

    def state(self) -> dict[str, Any]:
        """Its form over a continue-as-new."""
        return self._journal.to_dict()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RunContext:
        """The inverse of `state`."""
        return cls(Journal.from_dict(state))
