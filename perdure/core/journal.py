"""The journal of a run: what each step wrote, in the order in which the steps ended.

The context is the seed with every entry's diff applied. Taking steps back is leaving their entries
out and applying the others again, which `replay` does.

Within one epoch the journal only grows: `version` counts the diffs applied so far, and whoever has
the context of an older version gets to the newest by `since`. A replayed journal is another
epoch's; its versions have nothing to do with the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from perdure.core.context import Op, apply, diff

Json = Any

SEED = "__seed__"
"""Stands for the start context; never recorded."""
SCHEDULER = "__scheduler__"
"""Whose entries are the run's own marks (retry audit, failed steps); never taken back."""
RESERVED_IDS = frozenset({SEED, SCHEDULER})
"""No step may have one of these ids."""


@dataclass(frozen=True)
class Entry:
    """What one step wrote, as it ended."""

    step_id: str
    attempt: int
    epoch: int
    status: str
    ops: list[Op] = field(default_factory=list)


class Journal:
    """The start context, the entries, and the context that they amount to.

    The context is never changed in place: whoever holds one keeps that state.
    """

    def __init__(self, seed: dict[str, Json], entries: Iterable[Entry] = ()) -> None:
        self.seed = seed
        self.context = seed
        self.entries: list[Entry] = []
        """The scheduler's among them; a step has one at most."""
        self._log: list[list[Op]] = []
        for entry in entries:
            self.record(entry)

    @property
    def version(self) -> int:
        """How many diffs were applied to the seed in this epoch."""
        return len(self._log)

    @property
    def completed(self) -> list[str]:
        """The ids of the recorded steps, in the order in which they ended."""
        return [entry.step_id for entry in self.entries if entry.step_id != SCHEDULER]

    def record(self, entry: Entry) -> None:
        """Add what a step wrote, and bring the context up to it.

        A step recorded again moves to the end, and its older entry is forgotten: the new diff is
        then taken as the whole of what the step wrote. The scheduler may be recorded often.
        """
        if entry.step_id == SEED:
            raise ValueError(f"{SEED} is the start context and is not recorded")
        known = entry.step_id != SCHEDULER and entry.step_id in self.completed
        if known:
            self.entries = [e for e in self.entries if e.step_id != entry.step_id]
        self.entries.append(entry)
        # Versions must stay true for who has an older one, so even this is a diff on top.
        ops = diff(self.context, _written(self.seed, self._ordered())) if known else entry.ops
        self._log.append(ops)
        self.context = apply(self.context, ops)

    def since(self, have: int, want: int | None = None) -> list[list[Op]]:
        """The diffs number `have` + 1 to `want` (default: the newest), in order.

        -1 is as 0: who has not even the seed gets all of them, to be applied to `seed`.
        """
        return self._log[max(have, 0) : want]

    def entry(self, step_id: str) -> Entry | None:
        """What the step is recorded with."""
        return next((e for e in self.entries if e.step_id == step_id), None)

    def base(self) -> dict[str, Json]:
        """The context as if no step had written anything: the seed and the scheduler's marks."""
        return _written(self.seed, (e for e in self.entries if e.step_id == SCHEDULER))

    def replay(self, without: Set[str] = frozenset(), marks: Sequence[Entry] = ()) -> Journal:
        """The journal of a run in which the steps `without` never ended.

        The scheduler's marks come right after the seed, the new `marks` last of them; then the
        survivors in their order.
        """
        journal = Journal(self.seed)
        journal.entries = self._ordered(without, marks)
        journal._log = [entry.ops for entry in journal.entries]
        journal.context = _written(self.seed, journal.entries)
        return journal

    def _ordered(self, without: Set[str] = frozenset(), marks: Sequence[Entry] = ()) -> list[Entry]:
        known = [e for e in self.entries if e.step_id == SCHEDULER]
        steps = [e for e in self.entries if e.step_id != SCHEDULER and e.step_id not in without]
        return [*known, *marks, *steps]

    def to_dict(self) -> dict[str, Json]:
        """The whole journal as JSON, versions included; `from_dict` gives it back."""
        place = {id(entry.ops): number for number, entry in enumerate(self.entries)}
        return {
            "seed": self.seed,
            "entries": [dict(vars(entry)) for entry in self.entries],
            # Most diffs applied are an entry's own: its number stands for it.
            "log": [place.get(id(ops), ops) for ops in self._log],
        }

    @classmethod
    def from_dict(cls, state: dict[str, Json]) -> Journal:
        """The journal that `to_dict` wrote."""
        journal = cls(state["seed"])
        journal.entries = [Entry(**entry) for entry in state["entries"]]
        journal._log = [
            journal.entries[item].ops if isinstance(item, int) else item for item in state["log"]
        ]
        for ops in journal._log:
            journal.context = apply(journal.context, ops)
        return journal


def _written(seed: dict[str, Json], entries: Iterable[Entry]) -> dict[str, Json]:
    # All operations in one go: each by itself would copy the results of all steps anew.
    context: dict[str, Json] = apply(seed, (op for entry in entries for op in entry.ops))
    return context
