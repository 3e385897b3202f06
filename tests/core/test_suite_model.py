"""No sequence of edits, kills, retries, pauses and requeues loses or repeats a suite's result.

The suite under test is driven as the workflow drives it, beside a plain model: where each trial is,
by which run, and what it ended in. After each step both must agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from perdure.core import suite_control as control
from perdure.core.suite import Suite
from perdure.core.suite_order import PRIORITIES
from perdure.messages import ClosedTrial, ProgressRequest, SuiteInput, SuiteTask, TrialSummary
from perdure.names import task_workflow_id

IDS = ["a", "b", "c", "d", "e"]
MOVES = [
    *["start", "start", "end_a_run", "end_a_run", "hear_of_a_start", "deliver_news", "probe"],
    *["close_without_a_word", "hear_late_of_a_closed_run", "fail_to_start", "continue_as_new"],
    *["ask", "ask", "ask"],
]
WISHES = ["pause", "resume", "resume", "requeue", "requeue", "prioritise", "set_max_parallel"]
ENDS = ["succeeded", "task", "infrastructure", "cancelled"]

tasks_of = st.lists(
    st.builds(
        lambda id, repeats, priority, version: (id, repeats, priority, version),
        st.sampled_from(IDS),
        st.integers(1, 3),
        st.sampled_from(PRIORITIES),
        st.integers(1, 2),
    ),
    min_size=3,
    unique_by=lambda task: task[0],
)
bounds_of = st.fixed_dictionaries(
    {
        "max_parallel": st.integers(1, 4),
        "max_failures": st.sampled_from([None, None, 2, 4, 6]),
        "max_cost": st.sampled_from([None, None, 4.0, 12.0]),
        "retry_infrastructure": st.integers(0, 2),
    }
)
luck = st.integers(0, 7).map(lambda number: number == 7)
"""For what ends a story: rare enough that there is one."""


@dataclass
class Wanted:
    """One trial as the model knows it."""

    place: tuple[int, int, int]
    digest: str
    where: Literal["waiting", "running", "ended"] = "waiting"
    run: str = ""
    """The run that counts; while it is running, empty until acknowledged by `Suite.started`."""
    acknowledged: bool = False
    end: TrialSummary | None = None
    """The newest; of a trial that waits for another run, what counts if that never starts."""
    is_inherited: bool = False
    retries: int = 0
    lift: int = 0
    runs: list[str] = field(default_factory=list)

    def key(self) -> tuple[int, tuple[int, int, int]]:
        return -self.lift, self.place


class SuiteMachine(RuleBasedStateMachine):
    """A suite, its model, and a world of task runs that end and tell of it, or do not."""

    @initialize(tasks=tasks_of, bounds=bounds_of)
    def begin(self, tasks: list[tuple[str, int, str, int]], bounds: dict[str, Any]) -> None:
        self.numbers = iter(range(1, 1_000_000))
        self.open_runs: dict[str, tuple[str, str, int]] = {}
        """By run: workflow id, task and trial, for runs that have not closed."""
        self.mail: list[TrialSummary] = []
        """Every end of every run, told or not; each may arrive any number of times."""
        self.early: dict[str, TrialSummary] = {}
        """By run: news that were told before the start was acknowledged."""
        self._begin(tasks, bounds, [])

    def _begin(
        self,
        tasks: list[tuple[str, int, str, int]],
        bounds: dict[str, Any],
        finished: list[TrialSummary],
    ) -> None:
        self.start = SuiteInput(
            "s",
            [
                SuiteTask({"id": id, "priority": priority}, f"{id}-{version}", repeats=repeats)
                for id, repeats, priority, version in tasks
            ],
            finished=finished,
            by_priority=True,
            **bounds,
        )
        self.suite = Suite(self.start)
        self.max_parallel = self.start.max_parallel
        self.paused = self.cancelled = False
        self.stopped: str | None = None
        self.told: list[TrialSummary] = list(finished)
        self.cost = sum(end.usage.get("cost", 0.0) for end in finished)
        self.trials = {
            task_workflow_id("s", id, n): Wanted(
                (PRIORITIES.index(priority), index, n), f"{id}-{version}"
            )
            for index, (id, repeats, priority, version) in enumerate(tasks)
            for n in range(1, repeats + 1)
        }
        for end in finished:
            trial = self.trials[self._name(end)]
            trial.where, trial.end = "ended", end

    # --- What the workflow does -------------------------------------------------------------

    @rule(story=st.binary(min_size=30, max_size=90))
    def live(self, story: bytes) -> None:
        """Trials start and end, news of them arrive, and people ask, in any order.

        Three bytes are a move and a pick among what it may concern: drawing them one by one takes
        a hundred times as long as the moves do.
        """
        for first, second, third in zip(story[::3], story[1::3], story[2::3], strict=False):
            move = MOVES[first % len(MOVES)]
            note(move)
            getattr(self, f"_{move}")(second * 256 + third)
            self._agree()

    def _start(self, pick: int) -> None:
        limit, acknowledged = 1 + pick % 6, pick % 3 > 0
        self._judge()
        waiting = sorted(self._in("waiting"), key=lambda name: self.trials[name].key())
        free = max(0, min(limit, self.max_parallel - len(self._in("running"))))
        expected = [] if self.cancelled or self.stopped or self.paused else waiting[:free]
        taken = [trial.workflow_id for trial in self.suite.take_startable(limit)]
        assert taken == expected, "the order of start, and never more than max_parallel"
        for name in taken:
            trial = self.trials[name]
            assert trial.end is None or trial.end.status != "succeeded", "a success ran again"
            run = f"run-{next(self.numbers)}"
            trial.where, trial.run, trial.acknowledged = "running", run, False
            trial.end, trial.is_inherited = None, False
            trial.runs.append(run)
            _, _, task_id, number = name.split("/")
            self.open_runs[run] = name, task_id, int(number)
            if acknowledged:
                self._acknowledge(name)

    def _hear_of_a_start(self, pick: int) -> None:
        names = [name for name in self._in("running") if not self.trials[name].acknowledged]
        if names:
            self._acknowledge(names[pick % len(names)])

    def _acknowledge(self, name: str) -> None:
        trial = self.trials[name]
        self.suite.started(name, trial.run)
        trial.acknowledged = True
        if early := self.early.pop(trial.run, None):
            self._end(name, early)

    def _fail_to_start(self, pick: int) -> None:
        """The start of a trial is given up, as when the suite is cancelled meanwhile."""
        names = [name for name in self._in("running") if not self.trials[name].acknowledged]
        if names and self.cancelled:
            name = names[pick % len(names)]
            self.suite.lose(name, "", "cancelled before it could start", cancelled=True)
            self.open_runs.pop(self.trials[name].run, None)
            self._lose(name, "")

    def _continue_as_new(self, pick: int) -> None:
        """Or a crash: everything that is known is what the state tells."""
        state = json.loads(json.dumps(self.suite.state()))
        self.start = replace(self.start, finished=[], state={"suite": state})
        self.suite = Suite(self.start)
        for trial in self.trials.values():
            trial.is_inherited = trial.where == "running" and trial.acknowledged

    # --- What task runs do ------------------------------------------------------------------

    def _end_a_run(self, pick: int) -> None:
        how, cost, at_once = ENDS[pick % len(ENDS)], pick % 3, pick % 5 > 0
        runs = list(self.open_runs)
        if not runs:
            return
        run = runs[pick % len(runs)]
        _, task_id, number = self.open_runs.pop(run)
        failed = how in ("task", "infrastructure")
        self.mail.append(
            TrialSummary(
                task_id,
                number,
                run,
                "failed" if failed else how,  # type: ignore[arg-type]
                failure_kind=how if failed else None,  # type: ignore[arg-type]
                usage={"cost": float(cost)} if cost else {},
            )
        )
        if at_once:
            self._deliver(self.mail[-1])

    def _deliver_news(self, pick: int) -> None:
        """Of now or of long ago, once or again."""
        if self.mail:
            self._deliver(self.mail[-1 - pick % len(self.mail)])

    def _deliver(self, summary: TrialSummary) -> None:
        self.suite.hear(summary)
        name = self._name(summary)
        trial = self.trials.get(name)
        if trial is None or trial.where != "running" or trial.run != summary.run_id:
            return
        if trial.acknowledged:
            self._end(name, summary)
        else:
            self.early[summary.run_id] = summary

    def _close_without_a_word(self, pick: int) -> None:
        """A run is terminated by hand; the suite hears of it by its handle or by a probe."""
        cancelled, by_probe = pick % 2 == 0, pick % 3 == 0
        runs = [run for run, (name, *_) in self.open_runs.items() if self._is_current(name, run)]
        if not runs:
            return
        run = runs[pick % len(runs)]
        name = self.open_runs[run][0]
        if not self.trials[name].acknowledged:
            return
        if by_probe:
            if not self.trials[name].is_inherited:
                return
            assert name in self.suite.unheard
            self.suite.found_closed(ClosedTrial(name, None, "terminated", cancelled))
        else:
            self.suite.lose(name, run, "terminated", cancelled=cancelled)
        del self.open_runs[run]
        self._lose(name, run, "cancelled" if cancelled else "failed")

    def _hear_late_of_a_closed_run(self, pick: int) -> None:
        """What closed without a word is told again, by a handle or by a probe that was slow."""
        old = [
            (name, run)
            for name, trial in self.trials.items()
            for run in trial.runs
            if run not in self.open_runs and not self._is_current(name, run)
        ]
        if old:
            cancelled = pick % 2 == 0
            name, run = old[pick % len(old)]
            self.suite.lose(name, run, "terminated", cancelled=cancelled)
            if not self.trials[name].is_inherited:
                self.suite.found_closed(ClosedTrial(name, None, "terminated", cancelled))

    def _probe(self, pick: int) -> None:
        """Look after inherited trials, as an earlier run of the suite started them."""
        for name in self.suite.unheard:
            trial = self.trials[name]
            assert trial.is_inherited
            for summary in self.mail:
                if summary.run_id == trial.run:
                    self.suite.found_closed(ClosedTrial(name, summary))
                    self._end(name, summary)
                    break

    # --- What people ask for ------------------------------------------------------------------

    def _ask(self, pick: int) -> None:
        """For something that is likely to make sense, or for anything at all."""
        wish = WISHES[pick % len(WISHES)]
        if wish in ("pause", "resume"):
            getattr(self, f"_{wish}")()
        elif wish == "set_max_parallel":
            self._set_max_parallel(pick // 7 % 8 - 1)
        else:
            where = "ended" if wish == "requeue" else "waiting"
            likely = [name for name in self._in(where) if not self._has_succeeded(name)]
            ids = [name.split("/")[2] for name in likely] if pick % 5 else []
            ids = ids or [*IDS, "x"]
            trial = None if pick % 2 else pick // 11 % 4
            getattr(self, f"_{wish}")(ids[pick // 3 % len(ids)], trial)

    def _set_max_parallel(self, number: int) -> None:
        if self._asked(lambda: control.check_max_parallel(self.suite, number)):
            control.set_max_parallel(self.suite, number)
            assert number >= 1
            self.max_parallel = number

    def _pause(self) -> None:
        if self._asked(lambda: control.check_pause(self.suite)):
            control.pause(self.suite)
            self.paused = True

    def _resume(self) -> None:
        if self._asked(lambda: control.check_resume(self.suite)):
            control.resume(self.suite)
            assert self.paused
            self.paused = False

    def _requeue(self, task: str, trial: int | None) -> None:
        wanted = task if trial is None else f"{task}/{trial}"
        again = [
            name
            for name in self._named(task, trial)
            if (end := self.trials[name].end) and self.trials[name].where == "ended"
            if end.status != "succeeded"
        ]
        if self._asked(lambda: control.check_requeue(self.suite, wanted)):
            assert control.requeue(self.suite, wanted).trials == again != []
            for name in again:
                self.trials[name].where = "waiting"
        elif again and not (self.cancelled or self.stopped or self._over()):
            spared = sum(1 for name in again if self.trials[name].end.status == "failed")  # type: ignore[union-attr]
            assert self._reached(spared) or (self._in("waiting") and self._reached(0))

    def _prioritise(self, task: str, trial: int | None) -> None:
        wanted = task if trial is None else f"{task}/{trial}"
        waiting = [n for n in self._named(task, trial) if self.trials[n].where == "waiting"]
        if self._asked(lambda: control.check_prioritise(self.suite, wanted)):
            assert waiting
            control.prioritise(self.suite, wanted)
            lift = max(trial.lift for trial in self.trials.values()) + 1
            for name in waiting:
                self.trials[name].lift = lift

    @rule(luck=luck)
    def cancel(self, luck: bool) -> None:
        if not luck:
            return
        self.suite.cancel()
        self.cancelled = True
        self._let_stand()

    @rule(luck=luck, tasks=tasks_of, bounds=bounds_of)
    def edit(
        self, luck: bool, tasks: list[tuple[str, int, str, int]], bounds: dict[str, Any]
    ) -> None:
        """A new suite of changed tasks takes over what succeeded, by digest, after a kill."""
        if not luck and not self._over():
            return
        known = {name: trial for name, trial in self.trials.items() if trial.end}
        finished = []
        for id, repeats, _, version in tasks:
            for number in range(1, repeats + 1):
                trial = known.get(task_workflow_id("s", id, number))
                if trial and trial.digest == f"{id}-{version}" and trial.where == "ended":
                    assert trial.end
                    if trial.end.status == "succeeded":
                        finished.append(trial.end)
        self._begin(tasks, bounds, finished)

    # --- The model --------------------------------------------------------------------------

    def _end(self, name: str, summary: TrialSummary) -> None:
        trial = self.trials[name]
        self.cost += summary.usage.get("cost", 0.0)
        trial.end, trial.is_inherited = summary, False
        retried = summary.failure_kind == "infrastructure" and summary.status == "failed"
        goes_on = not self.cancelled and not self.stopped
        if retried and goes_on and trial.retries < self.start.retry_infrastructure:
            trial.retries += 1
            trial.where = "waiting"
        else:
            trial.where = "ended"
            self.told.append(summary)

    def _lose(self, name: str, run: str, status: str = "cancelled") -> None:
        trial = self.trials[name]
        _, _, task_id, number = name.split("/")
        trial.where, trial.is_inherited = "ended", False
        trial.end = TrialSummary(task_id, int(number), run, status)  # type: ignore[arg-type]
        self.told.append(trial.end)

    def _reached(self, spared: int) -> bool:
        failed = sum(
            1
            for trial in self.trials.values()
            if trial.where == "ended" and trial.end and trial.end.status == "failed"
        )
        bounds = self.start
        too_many = bounds.max_failures is not None and failed - spared >= bounds.max_failures
        return too_many or (bounds.max_cost is not None and self.cost >= bounds.max_cost)

    def _judge(self) -> None:
        if self.stopped or self.cancelled or not self._in("waiting") or not self._reached(0):
            return
        self.stopped = self.suite.stopping
        assert self.stopped
        self._let_stand()

    def _let_stand(self) -> None:
        """Trials that wait for another run do not get it."""
        for trial in self.trials.values():
            if trial.where == "waiting" and trial.end:
                trial.where = "ended"
                if trial.end not in self.told:  # it was about to be retried, and is told only now
                    self.told.append(trial.end)

    def _over(self) -> bool:
        halted = self.cancelled or self.stopped
        return not self._in("running") and bool(halted or not self._in("waiting"))

    def _in(self, where: str) -> list[str]:
        return [name for name, trial in self.trials.items() if trial.where == where]

    def _has_succeeded(self, name: str) -> bool:
        end = self.trials[name].end
        return end is not None and end.status == "succeeded"

    def _named(self, task: str, trial: int | None) -> list[str]:
        names = [name for name in self.trials if name.split("/")[2] == task]
        return [n for n in names if trial is None or n == task_workflow_id("s", task, trial)]

    def _is_current(self, name: str, run: str) -> bool:
        trial = self.trials.get(name)
        return trial is not None and trial.where == "running" and trial.run == run

    def _name(self, summary: TrialSummary) -> str:
        return task_workflow_id("s", summary.task_id, summary.trial)

    def _asked(self, check: Any) -> bool:
        """Whether the suite agrees; one that refuses says why, and is as it was."""
        before = self.suite.state()
        try:
            check()
        except control.Refused:
            assert self.suite.state() == before
            return False
        assert not self.cancelled
        assert not self.stopped
        assert not self._over()
        return True

    # --- After each step ----------------------------------------------------------------------

    @invariant()
    def suite_and_model_agree(self) -> None:
        if hasattr(self, "suite"):
            self._agree()

    def _agree(self) -> None:
        self._totals_add_up()
        self._every_trial_is_where_the_model_has_it()
        self._no_end_is_lost_or_repeated()
        self._a_stop_is_for_good()
        self._usage_is_that_of_the_newest_ends()

    def _totals_add_up(self) -> None:
        progress = self.suite.progress(ProgressRequest())
        ended = progress.succeeded + progress.failed + progress.cancelled
        rest = len(progress.running) + progress.pending + progress.not_run
        assert ended + rest == progress.total == len(self.trials)
        assert progress.pending == 0 or progress.not_run == 0
        assert (progress.not_run > 0) <= self.suite.over
        assert self.suite.over == self._over()

    def _every_trial_is_where_the_model_has_it(self) -> None:
        assert sorted(self.suite.running) == sorted(self._in("running"))
        assert sorted(self.suite.ends) == sorted(self._in("ended"))
        waiting = [name for name in self.trials if self.suite.is_waiting(name)]
        assert waiting == self._in("waiting")

    def _no_end_is_lost_or_repeated(self) -> None:
        for name, end in self.suite.ends.items():
            known = self.trials[name].end
            assert known
            assert (known.run_id, known.status) == (end.run_id, end.status)
        told = [(end.task_id, end.trial, end.run_id, end.status) for end in self.suite.news]
        model = [(end.task_id, end.trial, end.run_id, end.status) for end in self.told]
        assert sorted(told) == sorted(model)
        with_runs = [end for end in told if end[2]]
        assert len(set(with_runs)) == len(with_runs), "an end was told twice"

    def _a_stop_is_for_good(self) -> None:
        if self.stopped:
            assert self.suite.stopped == self.stopped
            assert self.suite.take_startable(10) == []
        if self.cancelled:
            assert self.suite.take_startable(10) == []

    def _usage_is_that_of_the_newest_ends(self) -> None:
        costs = [end.usage.get("cost", 0.0) for end in self.suite.ends.values()]
        usage = self.suite.progress(ProgressRequest()).usage
        assert usage.get("cost", 0.0) == sum(costs)


pytestmark = pytest.mark.timeout(600)  # a failure is made small before it is told
TestSuiteModel = SuiteMachine.TestCase
TestSuiteModel.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
