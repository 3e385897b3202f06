"""The rules of a suite: which trial starts next, what has ended, when the suite is over.

A *trial* is one run of one task (`repeats` gives a task several), and may be run again: after a
failure of the infrastructure, or because somebody asks. Its newest end is what counts. The suite
knows each trial by its workflow id and keeps no more of an end than its summary.

In one step of a workflow several things happen at once, and the workflow and who reads its history
may see them in different orders. So what happened is noted first, and `take_startable` draws the
conclusion, whether to go on, from all of it.

Where tasks need environments, a trial that runs may still wait for them in a pool. Which of them
is next, the pool decides best among many; so more are started than may have environments at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from perdure.core.suite_ends import SuiteEnds, cost_of
from perdure.core.suite_trials import SuiteTrials, Trial
from perdure.messages import (
    ClosedTrial,
    ProgressRequest,
    SuiteInput,
    SuiteProgress,
    TrialSummary,
)
from perdure.names import task_workflow_id

__all__ = [
    "CANCELLED",
    "CANCELLED_UNSTARTED",
    "POOL_WINDOW",
    "REPLACED_BY_HAND",
    "TERMINATED",
    "TIMED_OUT",
    "Suite",
    "Trial",
]

CANCELLED_UNSTARTED = "cancelled before it could start"
CANCELLED, TERMINATED, TIMED_OUT = "cancelled", "terminated by hand", "its workflow timed out"
REPLACED_BY_HAND = "another run of its id, not of this suite, took its place"
"""Reasons of ends without a word, as the suite's workflow and readers of its history tell them."""


POOL_WINDOW = 200
"""Trials that run at once, of a suite with a pool: nearly all of them wait there."""


class Suite:
    """The state of one suite and the rules that move it.

    Every trial waits, runs, or has ended. The cost of each event is that of the trials it concerns.
    """

    def __init__(self, start: SuiteInput) -> None:
        """A suite as it begins, or goes on after a continue-as-new.

        The trials in `start.finished` were run before and do not run again.
        """
        self.suite = start.suite
        self.digest = start.digest
        self.max_parallel = max(1, start.max_parallel)
        self.cancelled = False
        self.paused = False
        self.stopped: str | None = None
        """Why nothing more is started, once one of the suite's limits is reached; for good."""
        self._pool = start.pool is not None
        self._ends = SuiteEnds()
        self._max_failures = start.max_failures
        self._max_failures_share = start.max_failures_share
        self._max_cost = start.max_cost
        self._retries_allowed = start.retry_infrastructure
        trials = SuiteTrials(start)
        self._trials, self._by_task = trials.by_name, trials.by_task
        self._waiting = trials.order
        self._running: dict[str, str] = {}
        """By workflow id: the run id; empty until the start is acknowledged."""
        self._inherited: dict[str, str] = {}
        """Those among the running that an earlier run of the suite started."""
        self._early: dict[str, list[TrialSummary]] = {}
        """News of trials whose start is not acknowledged yet."""
        self._retries: Counter[str] = Counter()
        self._retrying: dict[str, TrialSummary] = {}
        """Ends that do not count if the trial, which waits, is started again; else they do. With a
        pool they are kept until that run ends: it may be withdrawn."""
        self._requeued: dict[str, TrialSummary] = {}
        """Likewise, of trials that ended and were asked for again."""
        for summary in start.finished:
            if self._name_of(summary) in self._trials:
                self._ends.tell(self._name_of(summary), summary)
                self._ends.pay(summary)
        if start.state:
            self._restore(start.state["suite"])
        for name in self._trials:
            if name not in self.ends and name not in self._running:
                self._waiting.add(name)

    # --- What is to be done -----------------------------------------------------------------

    def take_startable(self, limit: int) -> list[Trial]:
        """At most `limit` trials to be started now, in order; each is handed out once."""
        self.judge()
        if self.cancelled or self.stopped or self.paused:
            return []
        at_once = max(self.max_parallel, POOL_WINDOW) if self._pool else self.max_parallel
        free = max(0, min(limit, at_once - len(self._running), len(self._waiting)))
        taken = [self._waiting.pop() for _ in range(free)]
        for name in taken:
            self.take(name)
        return [self._trials[name] for name in taken]

    def take(self, workflow_id: str) -> None:
        """This trial is being started, whatever was known of it."""
        if workflow_id not in self._trials or workflow_id in self._running:
            return
        self._waiting.remove(workflow_id)
        if not self._pool:
            self._forget_end(workflow_id)
        self._ends.withdraw(workflow_id)
        self._running[workflow_id] = ""

    def judge(self) -> None:
        """Stop for good if something waits, and one of the suite's limits is reached."""
        if self.stopped is None and not self.cancelled and self.stopping:
            self.stopped = self.stopping
            self._let_ends_stand()

    @property
    def stopping(self) -> str | None:
        """Why nothing more is started, or will be; None: the suite goes on.

        Of a suite with a pool whatever runs may be waiting there.
        """
        if self._pool and not self._waiting and not self._running:
            return None  # nothing was kept from running
        waits = self._waiting or (self._pool and self._running)
        return self.stopped or (self.limit_reached() if waits else None)

    def limit_reached(self, *, spared: int = 0) -> str | None:
        """Which limit of the suite is reached, for people; `spared` failures do not count."""
        failed = self._ends.count("failed") - spared
        if self._max_failures is not None and failed >= self._max_failures:
            some = "1 failure" if failed == 1 else f"{failed} failures"
            share = f"{self._max_failures_share}, here " if self._max_failures_share else ""
            return f"{some} (max_failures: {share}{self._max_failures})"
        if self._max_cost is not None and self._ends.cost >= self._max_cost:
            return f"cost {self._ends.cost:g} (max_cost: {self._max_cost:g})"
        return None

    @property
    def over(self) -> bool:
        """True when nothing runs and nothing is to be started."""
        halted = self.cancelled or self.stopped is not None
        return not self._running and (halted or not self._waiting)

    # --- What happened ----------------------------------------------------------------------

    def started(self, workflow_id: str, run_id: str) -> None:
        """A trial has begun as the run `run_id`; only that run can end it."""
        if self._running.get(workflow_id) != "":
            return
        self._running[workflow_id] = run_id
        for summary in self._early.pop(workflow_id, []):
            self.hear(summary)

    def hear(self, summary: TrialSummary) -> None:
        """Take the news of a trial's end.

        News told twice, of an older run, or of a trial that is not ours, change nothing. News
        that come before the start is acknowledged are kept until then.
        """
        name = self._name_of(summary)
        run_id = self._running.get(name)
        if run_id == "":
            self._early.setdefault(name, []).append(summary)
        elif run_id is None or run_id != summary.run_id:
            pass
        elif summary.withdrawn:
            self._take_back(name)
        else:
            self._close(name)
            self._ends.pay(summary)
            if self._runs_again(name, summary):
                self._retries[name] += 1
                self._retrying[name] = summary
                self._waiting.add(name)
            else:
                self._ends.tell(name, summary)

    def lose(self, workflow_id: str, run_id: str, reason: str, *, cancelled: bool = False) -> None:
        """A run closed without a word: terminated by hand, or failed in itself.

        `run_id` is empty for a trial that could not be started.
        """
        trial = self._trials.get(workflow_id)
        if trial is None or self._running.get(workflow_id) != run_id:
            return
        self._close(workflow_id)
        self._ends.tell(
            workflow_id,
            TrialSummary(
                task_id=trial.task_id,
                trial=trial.trial,
                run_id=run_id,
                status="cancelled" if cancelled else "failed",
                failure_kind=None if cancelled else "infrastructure",
                failure_reason=reason,
            ),
        )

    def found_closed(self, closed: ClosedTrial) -> None:
        """Take what a probe found of an inherited trial: an end that was not heard."""
        name = closed.workflow_id
        if closed.summary:
            self.hear(closed.summary)
        if name in self._inherited:  # not if it was heard by now, and perhaps runs again
            reason = REPLACED_BY_HAND if closed.summary else closed.reason
            self.lose(name, self._running[name], reason, cancelled=closed.cancelled)

    def replace_end(self, summary: TrialSummary) -> None:
        """A run that goes on from the one that counts has ended, and counts in its place."""
        name = self._name_of(summary)
        if name in self._running:
            self._close(name)
        self._waiting.remove(name)
        self._ends.withdraw(name)
        self._ends.pay(summary)
        self._ends.tell(name, summary)

    def cancel(self) -> None:
        """Start nothing more; what has not started stays as it is."""
        self.cancelled = True
        self._let_ends_stand()

    # --- What people ask for (whether they may is said in `perdure.core.suite_control`) --------

    def requeue(self, names: Sequence[str]) -> None:
        """These trials, which failed or were cancelled, run again."""
        for name in names:
            summary = self.ends.get(name)
            if summary and summary.status != "succeeded":
                self._ends.withdraw(name)
                self._requeued[name] = summary
                self._waiting.add(name)

    def prioritise(self, names: Sequence[str]) -> None:
        """Those among these trials that wait are next, in the pool as well."""
        in_pool = self._running if self._pool else ()
        self._waiting.prioritise(n for n in names if n in self._waiting or n in in_pool)

    # --- What can be seen -------------------------------------------------------------------

    @property
    def news(self) -> list[TrialSummary]:
        """Every end that was told, in order: of a trial that was run again, all of them."""
        return self._ends.news

    @property
    def ends(self) -> dict[str, TrialSummary]:
        """By workflow id, in order: the newest end of each trial that has ended."""
        return self._ends.newest

    @property
    def running(self) -> list[str]:
        """Workflow ids of the trials under way, in order of start."""
        return list(self._running)

    @property
    def unheard(self) -> list[str]:
        """The trials under way that an earlier run of the suite started."""
        return list(self._inherited)

    @property
    def run_ids(self) -> dict[str, str]:
        """By workflow id: the runs under way; empty for those whose start is not acknowledged."""
        return dict(self._running)

    @property
    def pending(self) -> int:
        """Trials that wait: for their first run, or for another."""
        return len(self._waiting)

    @property
    def has_pool(self) -> bool:
        """Whether its trials wait for environments in a pool."""
        return self._pool

    @property
    def prioritised(self) -> list[str]:
        """The trials under way that were prioritised; the one that is next comes last."""
        return self._waiting.lifted(self._running)

    def coming(self, starting: Iterable[str] = ()) -> dict[tuple[str, ...], int]:
        """How many trials wait, by the environments that they need; `starting` ones count, too."""
        counts = self._waiting.by_kind + Counter(self._waiting.kind(name) for name in starting)
        return {kind: counts[kind] for kind in sorted(counts)}

    @property
    def task_ids(self) -> list[str]:
        """Of every task, in order of the list."""
        return list(self._by_task)

    def trials_of(self, task_id: str) -> list[Trial]:
        """The trials of a task; none if there is no such task."""
        return self._by_task.get(task_id, [])

    def is_running(self, workflow_id: str) -> bool:
        """Whether the trial is under way."""
        return workflow_id in self._running

    def is_waiting(self, workflow_id: str) -> bool:
        """Whether the trial is to be started."""
        return workflow_id in self._waiting

    def progress(self, request: ProgressRequest) -> SuiteProgress:
        """Totals, what runs, and the ends that were told since `request.offset`."""
        waiting = len(self._waiting)
        return SuiteProgress(
            suite=self.suite,
            digest=self.digest,
            total=len(self._trials),
            succeeded=self._ends.count("succeeded"),
            failed=self._ends.count("failed"),
            cancelled=self._ends.count("cancelled"),
            running=self.running,
            pending=0 if self.over else waiting,
            ended=self.news[request.offset :],
            next_offset=len(self.news),
            max_parallel=self.max_parallel,
            paused=self.paused,
            stopped=self.stopping,
            usage=self._ends.usage(),
            not_run=waiting if self.over else 0,
        )

    # --- Records that could not be written ----------------------------------------------------

    @property
    def unwritten(self) -> list[TrialSummary]:
        """The ends whose records are not among the files of results."""
        return self._ends.unwritten

    def written(self, missing: Sequence[TrialSummary]) -> None:
        """The records of all ends are written by now, but for the `missing`."""
        self._ends.written({self._name_of(summary): summary.note for summary in missing})

    # --- Over a continue-as-new -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What goes over a continue-as-new, beside the suite's start itself."""
        return {
            "max_parallel": self.max_parallel,
            "running": dict(self._running),
            "ended": [dict(vars(summary)) for summary in self.news],
            "cancelled": self.cancelled,
            "paused": self.paused,
            "stopped": self.stopped,
            "cost": self._ends.cost,
            "lifts": dict(self._waiting.lifts),
            "retries": dict(self._retries),
            "retrying": {name: dict(vars(end)) for name, end in self._retrying.items()},
            "requeued": list(self._requeued),
            "early": [dict(vars(end)) for ends in self._early.values() for end in ends],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`; one of an earlier version lacks what that version did not know."""
        self.max_parallel = state["max_parallel"]
        self.cancelled = state["cancelled"]
        self.paused = state.get("paused", False)
        self.stopped = state.get("stopped")
        self._waiting.lifts = dict(state.get("lifts", {}))
        self._retries = Counter(state.get("retries", {}))
        self._running = dict(state["running"])
        self._inherited = {name: run for name, run in self._running.items() if run}
        for told in state["ended"]:
            summary = TrialSummary(**told)
            name = self._name_of(summary)
            self._ends.withdraw(name)
            self._ends.tell(name, summary)
        self._ends.cost = state.get("cost", sum(cost_of(end) for end in self.news))
        for name in state.get("requeued", []):
            self._requeued[name] = self.ends[name]
            self._ends.withdraw(name)
        for name in self._running:
            self._ends.withdraw(name)
        for name, told in state.get("retrying", {}).items():
            self._ends.withdraw(name)
            self._retrying[name] = TrialSummary(**told)
        for told in state.get("early", []):
            self.hear(TrialSummary(**told))

    # --- Inside -----------------------------------------------------------------------------

    def _runs_again(self, name: str, summary: TrialSummary) -> bool:
        by_infrastructure = summary.status == "failed" and summary.failure_kind == "infrastructure"
        goes_on = not self.cancelled and self.stopped is None
        return by_infrastructure and goes_on and self._retries[name] < self._retries_allowed

    def _close(self, name: str) -> None:
        self._forget_run(name)
        self._forget_end(name)

    def _take_back(self, name: str) -> None:
        """A trial had not begun, and is as it was before it was started."""
        self._forget_run(name)
        self._waiting.add(name)
        if self.cancelled or self.stopped:
            self._let_ends_stand()

    def _forget_run(self, name: str) -> None:
        del self._running[name]
        self._inherited.pop(name, None)
        self._early.pop(name, None)

    def _forget_end(self, name: str) -> None:
        self._retrying.pop(name, None)
        self._requeued.pop(name, None)

    def _let_ends_stand(self) -> None:
        """Trials that wait for another run do not get it: what they ended in counts."""
        for name in [name for name in self._retrying if name in self._waiting]:
            self._waiting.remove(name)
            self._ends.tell(name, self._retrying.pop(name))
        for name in [name for name in self._requeued if name in self._waiting]:
            self._waiting.remove(name)
            self._ends.keep(name, self._requeued.pop(name))

    def _name_of(self, summary: TrialSummary) -> str:
        return task_workflow_id(self.suite, summary.task_id, summary.trial)
