"""What people may ask of a suite while it runs, and what they are told.

Each wish has a check, which raises `Refused` with the reason and changes nothing, and a deed, which
answers with a sentence.
"""

from __future__ import annotations

from perdure.core.problems import nearest, shown
from perdure.core.suite import Suite, Trial
from perdure.messages import Requeued


class Refused(Exception):
    """A wish makes no sense as the suite is now; the text says why, and what does."""


def check_max_parallel(suite: Suite, number: int) -> None:
    """Whether so many tasks may run at once from now on."""
    if number < 1:
        raise Refused(f"max_parallel is {shown(number)}: at least 1 task must run at once; "
                      f"`perdure suite {suite.suite} pause` starts nothing more")  # fmt: skip
    _check_goes_on(suite)


def set_max_parallel(suite: Suite, number: int) -> str:
    """Run at most so many tasks at once; those that run go on."""
    before, suite.max_parallel = suite.max_parallel, max(1, number)
    if before == number:
        return f"max_parallel is {shown(before)} already"
    running = len(suite.running)
    more = ""
    if suite.has_pool:
        more = "; what has its environments goes on" if number < before else ""
    elif number < before and number <= running:
        more = f"; {_some(running)}, and nothing is started until fewer than {number} do"
    return f"max_parallel is {shown(number)} (was {before}){more}"


def check_pause(suite: Suite) -> None:
    """Whether the suite may be paused."""
    _check_goes_on(suite)
    if suite.paused:
        raise Refused(f"the suite is paused already; `perdure suite {suite.suite} resume` goes on")


def pause(suite: Suite) -> str:
    """Start nothing more until `resume`; what runs goes on."""
    suite.paused = True
    what = "what has its environments goes on" if suite.has_pool else _some(len(suite.running))
    return (
        f"suite {suite.suite} is paused: nothing more is started, "
        f"{what}; go on with `perdure suite {suite.suite} resume`"
    )


def check_resume(suite: Suite) -> None:
    """Whether the suite may go on."""
    _check_goes_on(suite)
    if not suite.paused:
        raise Refused("the suite is not paused")


def resume(suite: Suite) -> str:
    """Start tasks again."""
    suite.paused = False
    return f"suite {suite.suite} goes on: {suite.pending} waiting"


def check_requeue(suite: Suite, wanted: str) -> None:
    """Whether a task (`TASK`), or one trial of it (`TASK/TRIAL`), may run again."""
    _check_goes_on(suite)
    trials = _trials_named(suite, wanted)
    unsuccessful = _unsuccessful(suite, trials)
    if not unsuccessful:
        raise Refused(f"{_what(wanted)} {_why_not_again(suite, trials)}")
    failed = sum(1 for name in unsuccessful if suite.ends[name].status == "failed")
    if reached := suite.limit_reached(spared=failed):
        raise Refused(f"nothing more is started: {reached}; once the suite has ended, "
                      f"`perdure retry {suite.suite}` runs it again")  # fmt: skip


def requeue(suite: Suite, wanted: str) -> Requeued:
    """Run again what of the task, or trial, ended failed or cancelled."""
    names = _unsuccessful(suite, _trials_named(suite, wanted))
    suite.requeue(names)
    again = "runs again" if len(names) == 1 else f"runs again: {len(names)} trials"
    return Requeued(f"{_what(wanted)} {again}{_unless_paused(suite)}", names)


def check_prioritise(suite: Suite, wanted: str) -> None:
    """Whether a task (`TASK`), or one trial of it (`TASK/TRIAL`), may be put first."""
    _check_goes_on(suite)
    trials = _trials_named(suite, wanted)
    if suite.has_pool and any(suite.is_running(trial.workflow_id) for trial in trials):
        return  # it may wait in the pool
    if not any(suite.is_waiting(trial.workflow_id) for trial in trials):
        runs = any(suite.is_running(trial.workflow_id) for trial in trials)
        raise Refused(f"{_what(wanted)} {'runs already' if runs else 'has ended'}: nothing of it "
                      "waits")  # fmt: skip


def prioritise(suite: Suite, wanted: str) -> str:
    """Start what waits of the task, or trial, before all others."""
    trials = [trial.workflow_id for trial in _trials_named(suite, wanted)]
    suite.prioritise(trials)
    waits = any(map(suite.is_waiting, trials))
    unless = "" if waits else ", unless it has its environments already"
    return f"{_what(wanted)} is next{unless}{_unless_paused(suite)}"


# --- Inside -----------------------------------------------------------------------------------


def _check_goes_on(suite: Suite) -> None:
    if suite.cancelled:
        raise Refused("the suite is being cancelled: nothing more is started")
    if suite.over:
        raise Refused(f"the suite has just ended; `perdure retry {suite.suite}` runs again what "
                      "did not succeed")  # fmt: skip
    if suite.stopping:
        raise Refused(
            f"the suite has stopped at its limit, {suite.stopping}: nothing more is started; once "
            f"it has ended, `perdure retry {suite.suite}` runs the rest"
        )


def _trials_named(suite: Suite, wanted: str) -> list[Trial]:
    task_id, slash, number = wanted.partition("/")
    trials = suite.trials_of(task_id)
    if not trials:
        near = nearest(task_id, suite.task_ids)
        hint = f"did you mean {near!r}?" if near else f"`perdure list {suite.suite}` shows them"
        raise Refused(f"the suite has no task {shown(task_id)}; {hint}")
    found = [trial for trial in trials if str(trial.trial) == number] if slash else trials
    if not found:
        last = trials[-1].trial
        known = f"trials 1 to {last}" if last > 1 else "trial 1 alone"
        raise Refused(f"task {task_id!r} has {known}, and no trial {shown(number)}")
    return found


def _unsuccessful(suite: Suite, trials: list[Trial]) -> list[str]:
    names = [trial.workflow_id for trial in trials if trial.workflow_id in suite.ends]
    return [name for name in names if suite.ends[name].status != "succeeded"]


def _why_not_again(suite: Suite, trials: list[Trial]) -> str:
    """Why none of these is to be requeued: each waits, runs or has succeeded."""
    running = [trial for trial in trials if suite.is_running(trial.workflow_id)]
    if running:
        first = running[0]
        name = f"{suite.suite}/{first.task_id}/{first.trial}"
        return f"is running; cancel it first: `perdure cancel {name}`"
    if any(suite.is_waiting(trial.workflow_id) for trial in trials):
        return "still waits: it runs when its turn comes (sooner by `prioritise`)"
    return "has succeeded: there is nothing to run again"


def _what(wanted: str) -> str:
    task_id, slash, number = wanted.partition("/")
    return f"trial {number} of task {task_id!r}" if slash else f"task {task_id!r}"


def _some(running: int) -> str:
    return "1 task runs" if running == 1 else f"{running} tasks run"


def _unless_paused(suite: Suite) -> str:
    return f"; the suite is paused (`perdure suite {suite.suite} resume`)" if suite.paused else ""
