"""The rules of a suite: which trial starts next, what has ended, when the suite is over.

A *trial* is one run of one task (`repeats` gives a task several). The suite knows each trial by
its workflow id and keeps no more of an ended one than its summary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perdure.messages import ClosedTrial, ProgressRequest, SuiteProgress, SuiteTask, TrialSummary


@dataclass(frozen=True)
class Trial:
    """One run of one task of the suite."""

    index: int
    """The task's position in the suite."""
    task_id: str
    trial: int
    workflow_id: str


class Suite:
    """The state of one suite and the rules that move it."""

    def __init__(
        self,
        suite: str,
        tasks: Sequence[SuiteTask],
        *,
        max_parallel: int,
        digest: str,
        finished: Sequence[TrialSummary] = (),
        workflow_id: Callable[[str, str, int], str],
    ) -> None:
        """A suite of `tasks`; the trials in `finished` were run before and do not run again.

        `workflow_id` derives a trial's workflow id from suite, task id and trial number.
        """
        self.suite = suite
        self.digest = digest
        self.max_parallel = max(1, max_parallel)
        self.ended: list[TrialSummary] = list(finished)
        self.cancelled = False
        self._trials: dict[str, Trial] = {}
        for index, task in enumerate(tasks):
            task_id = task.task["id"]
            for trial in range(1, task.repeats + 1):
                name = workflow_id(suite, task_id, trial)
                self._trials[name] = Trial(index, task_id, trial, name)
        self._name = workflow_id
        known = {self._name_of(s) for s in self.ended}
        self._pending = [name for name in self._trials if name not in known]
        self._running: dict[str, str] = {}  # the run id; empty until the start is acknowledged
        self._heard: list[TrialSummary] = []

    def take_startable(self, limit: int) -> list[Trial]:
        """At most `limit` trials to be started now, in order; each is handed out once."""
        if self.cancelled:
            return []
        free = max(0, min(limit, self.max_parallel - len(self._running)))
        names, self._pending = self._pending[:free], self._pending[free:]
        for name in names:
            self._running[name] = ""
        return [self._trials[name] for name in names]

    def started(self, workflow_id: str, run_id: str) -> None:
        """A trial has begun as the run `run_id`; only that run can end it."""
        if workflow_id in self._running:
            self._running[workflow_id] = run_id
            self._settle()

    def hear(self, summary: TrialSummary) -> None:
        """Take the news of a trial's end.

        News told twice, of an older run, or of a trial that is not ours, change nothing. News
        that come before the start is acknowledged are kept until then.
        """
        self._heard.append(summary)
        self._settle()

    def _settle(self) -> None:
        unsettled: list[TrialSummary] = []
        for summary in self._heard:
            name = self._name_of(summary)
            run_id = self._running.get(name)
            if run_id == "":
                unsettled.append(summary)
            elif run_id is not None and run_id == summary.run_id:
                del self._running[name]
                self.ended.append(summary)
        self._heard = unsettled

    def lose(self, workflow_id: str, reason: str, *, cancelled: bool = False) -> None:
        """A trial's workflow closed without a word: terminated by hand, or failed in itself."""
        trial, run_id = self._trials.get(workflow_id), self._running.get(workflow_id)
        if trial is None or run_id is None:
            return
        del self._running[workflow_id]
        self.ended.append(
            TrialSummary(
                task_id=trial.task_id,
                trial=trial.trial,
                run_id=run_id,
                status="cancelled" if cancelled else "failed",
                failure_kind="infrastructure",
                failure_reason=reason,
            )
        )

    def found_closed(self, closed: ClosedTrial) -> None:
        """Take what a probe found: an end that was not heard."""
        if closed.summary:
            self.hear(closed.summary)
        else:
            self.lose(closed.workflow_id, closed.reason, cancelled=closed.cancelled)

    def cancel(self) -> None:
        """Start nothing more; what has not started stays as it is."""
        self.cancelled = True

    @property
    def running(self) -> list[str]:
        """Workflow ids of the trials under way, in order of start."""
        return list(self._running)

    @property
    def pending(self) -> int:
        """Trials that have not started."""
        return len(self._pending)

    @property
    def over(self) -> bool:
        """True when nothing runs and nothing is to be started."""
        return not self._running and (self.cancelled or not self._pending)

    def count(self, status: str) -> int:
        """Trials that ended so."""
        return sum(1 for s in self.ended if s.status == status)

    def progress(self, request: ProgressRequest) -> SuiteProgress:
        """Totals, what runs, and the trials that ended since `request.offset`."""
        return SuiteProgress(
            suite=self.suite,
            digest=self.digest,
            total=len(self._trials),
            succeeded=self.count("succeeded"),
            failed=self.count("failed"),
            cancelled=self.count("cancelled"),
            running=self.running,
            pending=self.pending,
            ended=self.ended[request.offset :],
            next_offset=len(self.ended),
            max_parallel=self.max_parallel,
        )

    def state(self) -> dict[str, Any]:
        """What goes over a continue-as-new, beside the tasks themselves."""
        return {
            "max_parallel": self.max_parallel,
            "running": dict(self._running),
            "ended": [asdict(s) for s in self.ended],
            "cancelled": self.cancelled,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, taken from a suite of the same tasks."""
        self.max_parallel = state["max_parallel"]
        self.cancelled = state["cancelled"]
        self.ended = [TrialSummary(**s) for s in state["ended"]]
        self._running = dict(state["running"])
        known = {self._name_of(s) for s in self.ended} | set(self._running)
        self._pending = [name for name in self._trials if name not in known]

    def _name_of(self, summary: TrialSummary) -> str:
        return self._name(self.suite, summary.task_id, summary.trial)
