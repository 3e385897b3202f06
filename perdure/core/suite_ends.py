"""How the trials of a suite ended: every end that was told, and the newest of each trial."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from perdure.core.record import summed
from perdure.messages import TrialSummary


class SuiteEnds:
    """Ends by the workflow id of their trial."""

    def __init__(self) -> None:
        self.news: list[TrialSummary] = []
        """Every end that was told, in order: of a trial that was run again, all of them."""
        self.newest: dict[str, TrialSummary] = {}
        """In order: the newest end of each trial that has ended."""
        self.cost = 0.0
        """What all runs cost, those among them that count no longer."""
        self._counts: Counter[str] = Counter()

    def tell(self, name: str, summary: TrialSummary) -> None:
        """A trial has ended."""
        self.news.append(summary)
        self.keep(name, summary)

    def keep(self, name: str, summary: TrialSummary) -> None:
        """An end that was told before is what counts of the trial."""
        self.newest[name] = summary
        self._counts[summary.status] += 1

    def withdraw(self, name: str) -> TrialSummary | None:
        """The trial's end counts no longer; returns it, if there was one."""
        summary = self.newest.pop(name, None)
        if summary:
            self._counts[summary.status] -= 1
        return summary

    def pay(self, summary: TrialSummary) -> None:
        """A run has cost what its end says, whether it counts or not."""
        self.cost += cost_of(summary)

    def count(self, status: str) -> int:
        """Trials whose newest end is this."""
        return self._counts[status]

    def usage(self) -> dict[str, float]:
        """Summed over the newest ends."""
        return summed([summary.usage for summary in self.newest.values()])

    @property
    def unwritten(self) -> list[TrialSummary]:
        """Those whose records are not among the files of results."""
        return [summary for summary in self.newest.values() if summary.unwritten]

    def written(self, missing: Mapping[str, str | None]) -> None:
        """All records are written by now, but those of the `missing` trials, for this reason."""
        for name, summary in self.newest.items():
            if summary.unwritten:
                self.newest[name] = replace(
                    summary, unwritten=name in missing, note=missing.get(name)
                )


def cost_of(summary: TrialSummary) -> float:
    """What a run cost; what is no amount of money is nothing."""
    cost = summary.usage.get("cost", 0.0)
    return cost if math.isfinite(cost) and cost > 0 else 0.0
