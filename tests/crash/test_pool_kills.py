"""What is killed under a pool comes back: nothing leaks, no two tasks meet on one instance."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.crash.dtap_project import DtapProject
from tests.crash.own_engine import OwnEngine
from tests.crash.pool_project import PoolProject
from tests.crash.pool_run import PoolRun, pool_run

TASKS = ("a", "b", "c", "d")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor's promises hold on Linux"),
]


@pytest.fixture(scope="module")
def own_engine() -> Iterator[OwnEngine]:
    """An engine that no other test uses, with the example's images."""
    engine = OwnEngine()
    try:
        engine.start()
        engine.build_images()
        yield engine
    finally:
        engine.end()


@pytest.fixture
def engine(own_engine: OwnEngine) -> Iterator[OwnEngine]:
    """The same, with nothing left by the test before."""
    own_engine.sweep()
    yield own_engine
    own_engine.sweep()


def work_begins(run: PoolRun, project: PoolProject, *tasks: str, times: int = 1) -> None:
    """Wait until the work of these tasks was begun so often."""
    for task in tasks:
        run.wait(lambda task=task: project.starts_of_work(task) >= times, f"{task} is at work")  # type: ignore[misc]


def first_two(run: PoolRun, project: PoolProject) -> tuple[str, str]:
    """The two tasks that were given instances first, once both are at work."""
    run.wait(lambda: sum(map(project.starts_of_work, TASKS)) >= 2, "two tasks are at work")
    one, two = (task for task in TASKS if project.starts_of_work(task))
    return one, two


def attempts(trial: dict[str, Any]) -> dict[str, int]:
    """How many attempts each step took, over all starts of the task."""
    return {step["id"]: step["attempts"] for step in trial["steps"]}


def assert_all_went_well(
    run: PoolRun, project: PoolProject, engine: OwnEngine
) -> dict[str, dict[str, Any]]:
    """All tasks succeeded, apart from each other, and nothing is left."""
    status, trials = run.finish()
    assert status == 0, {id: trial["failure"] for id, trial in trials.items()}
    assert {trial["status"] for trial in trials.values()} == {"succeeded"}
    assert project.two_on_one() == []
    assert engine.left() == []
    return trials


async def test_a_worker_may_die_in_each_part_of_an_instances_life(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """PD6, PD25: no slot stays booked, and nothing that was half made stays.

    Killed during `up` and a task, during the resets after a start and after a use, and during
    `down`.
    """
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    project.hold("up")
    project.let_one_come_up()
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        run.wait(lambda: any(map(project.starts_of_work, TASKS)), "a task is at work")
        (hit,) = filter(project.starts_of_work, TASKS)
        (place,) = project.said(f"begin {hit}")
        run.wait(lambda: len(project.said("up")) == 2, "the other instance comes up")
        run.kill_worker()
        work_begins(run, project, hit, times=2)

        # One is reset after its use, and the other one as a part of its start.
        project.hold("reset")
        project.let_go("up")
        project.open(hit)
        (fresh,) = {*project.said("up")} - {place}
        resets = len(project.said("resets"))
        run.wait(lambda: len(project.said("resets")) == resets + 2, "both are reset")
        assert {*project.said("resets")[resets:]} == {place, fresh}
        assert await run.doing() == ["resetting", "starting"]
        run.kill_worker()
        project.let_go("reset")
        # Two tasks hold an instance each, so that none is left out.
        rest = [task for task in TASKS if task != hit]
        run.wait(lambda: sum(map(project.starts_of_work, rest)) >= 2, "both are used")

        project.hold("down")
        project.open(*TASKS)
        run.wait(lambda: project.said("down"), "an instance is asked to go")
        with run.frozen():
            # The command is told that the suite is over when nobody is left to clean up.
            await run.closed()
            run.kill_worker()
        project.let_go("down")

        trials = assert_all_went_well(run, project, engine)

    assert attempts(trials[hit]) == {"begin": 1, "work": 2, "end": 1}
    assert project.said(f"end {hit}") == [place], "it kept its instance"
    assert project.said("resets").count(fresh) > 1, "what began before the kill did not count"
    assert project.said("up").count(fresh) == 1, "it was found as it was, and not started again"
    assert {attempts(trials[task])["work"] for task in rest} == {1}
    assert all(run.record(task)["leases_lost"] == [] for task in TASKS)
    assert project.most_alive() <= 2


def test_after_the_death_of_everything_the_same_command_goes_on_and_can_be_interrupted(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """PD25: what was left running is known, is used again, and is gone in the end."""
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        hit = first_two(run, project)
        others = set(TASKS) - {*hit}
        before = engine.projects()
        run.kill_everything()
        run.start()
        work_begins(run, project, *hit, times=2)
        assert engine.projects() == before
        project.open(*hit)
        work_begins(run, project, *others)
        run.interrupt()
        status, trials = run.finish()

    assert status == 130
    assert {trials[task]["status"] for task in hit} == {"succeeded"}
    assert [attempts(trials[task])["begin"] for task in hit] == [1, 1]
    assert {trials[task]["status"] for task in others} == {"cancelled"}
    assert project.two_on_one() == []
    assert engine.left() == []


def test_a_run_that_is_interrupted_while_an_instance_comes_up_leaves_nothing(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """C38: cleanup is a part of cancelling, also of what is half-way up."""
    project = PoolProject(tmp_path / "project", ["a"], max_instances=1)
    project.hold("up")
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        run.wait(lambda: project.said("up"), "one is held")
        run.interrupt()
        status, trials = run.finish()

    assert status == 130
    assert {trial["status"] for trial in trials.values()} <= {"cancelled"}
    assert engine.left() == []


async def test_a_terminated_task_and_a_killed_container_give_way_to_others_and_nobody_notices(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """C13, with a real instance: whoever waits gets it in bounded time, reset."""
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        gone, spared = first_two(run, project)
        waiting = [task for task in TASKS if task not in (gone, spared)]
        await run.terminate(gone)
        run.wait(lambda: any(map(project.starts_of_work, waiting)), "one that waited is at work")
        assert project.two_on_one() == []

        (hit,) = filter(project.starts_of_work, waiting)
        (killed,) = project.said(f"begin {hit}")
        assert [killed] == project.said(f"begin {gone}")
        engine.docker("kill", killed)
        # It waits behind the one that came before it the second time.
        project.open(*(task for task in waiting if task != hit))
        work_begins(run, project, hit, times=2)
        project.open(hit, spared)
        status, trials = run.finish()

    assert status == 1
    succeeded = {id for id, trial in trials.items() if trial["status"] == "succeeded"}
    assert succeeded == set(TASKS) - {gone}
    first, second = project.said(f"begin {hit}")
    assert (first, second) == (killed, *project.said(f"end {hit}"))
    assert first != second
    assert len(run.record(hit)["leases_lost"]) == 1
    assert attempts(trials[spared]) == {"begin": 1, "work": 1, "end": 1}
    assert project.said(f"begin {spared}") == project.said(f"end {spared}")
    assert project.two_on_one() == []
    assert engine.left() == []


def test_tasks_start_over_after_a_restart_of_the_engine(engine: OwnEngine, tmp_path: Path) -> None:
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        hit = first_two(run, project)
        engine.stop()
        engine.start()
        project.open(*(task for task in TASKS if task not in hit))
        work_begins(run, project, *hit, times=2)
        project.open(*hit)

        assert_all_went_well(run, project, engine)

    assert [len(run.record(task)["leases_lost"]) for task in hit] == [1, 1]


def test_two_pools_on_one_engine_leave_each_other_alone(engine: OwnEngine, tmp_path: Path) -> None:
    """Two servers, each with a pool of the same name: what one of them sweeps is its own.

    P8, P30, P52, P57: the one whose worker is killed runs a project of the DTap layout as it is,
    and its driver comes back with servers of its own, of which none is left in the end.
    """
    mine = DtapProject(tmp_path / "mine" / "project", ["a"])
    theirs = PoolProject(tmp_path / "theirs" / "project", ["a"], max_instances=1)
    with (
        pool_run(tmp_path / "mine", mine, engine.variables) as run,
        pool_run(tmp_path / "theirs", theirs, engine.variables) as other,
    ):
        work_begins(run, mine, "a")
        work_begins(other, theirs, "a")
        before = engine.projects()
        assert len(before) == 2
        run.kill_worker()
        work_begins(run, mine, "a", times=2)  # its host has joined again, and swept
        assert engine.projects() == before
        (first, _), (second, port) = mine.servers("a")
        assert not psutil.pid_exists(first)
        assert port not in {int(each) for each in re.findall(r":(\d+)->", engine.docker("ps"))}
        mine.open("a")
        status, _ = run.finish()
        assert status == 0
        assert mine.is_validated
        assert not psutil.pid_exists(second)
        assert len(engine.projects()) == 1, "the other pool's instance is all that is left"
        theirs.open("a")
        trials = assert_all_went_well(other, theirs, engine)

    assert attempts(trials["a"])["work"] == 1
    assert mine.two_on_one() == []
