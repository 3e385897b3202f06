"""What is killed under a pool comes back: nothing leaks, no two tasks meet on one instance."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.own_engine import OwnEngine
from tests.crash.pool_project import Phase, PoolProject
from tests.crash.pool_run import PoolRun, pool_run

TASKS = ("a", "b", "c", "d")

pytestmark = [
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


@pytest.mark.parametrize("phase", ["up", "reset"])
def test_a_worker_that_dies_while_instances_come_up_or_are_reset_costs_nobody_anything(
    engine: OwnEngine, tmp_path: Path, phase: Phase
) -> None:
    """PD6, PD25: no slot stays booked, and nothing that was half made stays."""
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    project.open(*TASKS)
    project.hold(phase)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        run.wait(lambda: project.said("up" if phase == "up" else "resets"), f"one is held: {phase}")
        run.kill_worker()
        project.let_go(phase)

        trials = assert_all_went_well(run, project, engine)

    assert {attempts(trial)["work"] for trial in trials.values()} == {1}
    assert all(run.record(task)["leases_lost"] == [] for task in TASKS)


def test_a_worker_that_dies_under_a_task_leaves_it_its_instance(
    engine: OwnEngine, tmp_path: Path
) -> None:
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        hit = first_two(run, project)
        before = engine.projects()
        run.kill_worker()
        work_begins(run, project, *hit, times=2)
        assert engine.projects() == before
        project.open(*TASKS)

        trials = assert_all_went_well(run, project, engine)

    for task in hit:
        assert attempts(trials[task]) == {"begin": 1, "work": 2, "end": 1}
        assert len(set(project.said(f"begin {task}") + project.said(f"end {task}"))) == 1
    assert {attempts(trials[task])["work"] for task in set(TASKS) - set(hit)} == {1}


def test_a_worker_that_dies_while_an_instance_goes_down_takes_it_down_when_it_is_back(
    engine: OwnEngine, tmp_path: Path
) -> None:
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    project.open(*TASKS)
    project.hold("down")
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        run.wait(lambda: all(project.said(f"end {task}") for task in TASKS), "all tasks end")
        run.wait(lambda: project.said("down"), "an instance is asked to go")
        run.kill_worker()
        project.let_go("down")

        trials = assert_all_went_well(run, project, engine)

    assert {attempts(trial)["work"] for trial in trials.values()} == {1}


def test_after_the_death_of_everything_the_same_command_goes_on_with_the_same_instances(
    engine: OwnEngine, tmp_path: Path
) -> None:
    """PD25: what was left running is known, is used again, and is gone in the end."""
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        hit = first_two(run, project)
        before = engine.projects()
        run.kill_everything()
        run.start()
        work_begins(run, project, *hit, times=2)
        assert engine.projects() == before
        project.open(*TASKS)

        trials = assert_all_went_well(run, project, engine)

    assert [attempts(trials[task])["begin"] for task in hit] == [1, 1]


@pytest.mark.parametrize("moment", ["an instance comes up", "tasks are at work"])
def test_an_interrupted_run_leaves_nothing(engine: OwnEngine, tmp_path: Path, moment: str) -> None:
    """C38: cleanup is a part of cancelling, also of what is half-way up."""
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    if moment == "an instance comes up":
        project.hold("up")
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        if moment == "an instance comes up":
            run.wait(lambda: project.said("up"), "one is held")
        else:
            first_two(run, project)
        run.interrupt()
        status, trials = run.finish()

    assert status == 130
    assert {trial["status"] for trial in trials.values()} <= {"cancelled"}
    assert engine.left() == []


def test_a_task_whose_container_is_killed_starts_over_on_another_and_no_other_task_notices(
    engine: OwnEngine, tmp_path: Path
) -> None:
    project = PoolProject(tmp_path / "project", TASKS, max_instances=2)
    with pool_run(tmp_path / "run", project, engine.variables) as run:
        hit, spared = first_two(run, project)
        (killed,) = project.said(f"begin {hit}")
        engine.docker("kill", killed)
        # It waits behind those that came before it the second time.
        project.open(*(task for task in TASKS if task not in (hit, spared)))
        work_begins(run, project, hit, times=2)
        project.open(hit, spared)

        trials = assert_all_went_well(run, project, engine)

    first, second = project.said(f"begin {hit}")
    assert (first, second) == (killed, *project.said(f"end {hit}"))
    assert first != second
    assert len(run.record(hit)["leases_lost"]) == 1
    assert attempts(trials[spared]) == {"begin": 1, "work": 1, "end": 1}
    assert project.said(f"begin {spared}") == project.said(f"end {spared}")


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


async def test_the_instance_of_a_terminated_task_goes_to_the_next_one(
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
        project.open(*TASKS)
        status, trials = run.finish()

    assert status == 1
    assert {id for id, trial in trials.items() if trial["status"] == "succeeded"} == (
        set(TASKS) - {gone}
    )
    assert attempts(trials[spared]) == {"begin": 1, "work": 1, "end": 1}
    assert project.two_on_one() == []
    assert project.most_alive() <= 2
    assert engine.left() == []


def test_two_pools_on_one_engine_leave_each_other_alone(engine: OwnEngine, tmp_path: Path) -> None:
    """Two servers, each with a pool of the same name: what one of them sweeps is its own."""
    mine = PoolProject(tmp_path / "mine" / "project", TASKS, max_instances=2)
    theirs = PoolProject(tmp_path / "theirs" / "project", TASKS, max_instances=2)
    with (
        pool_run(tmp_path / "mine", mine, engine.variables) as run,
        pool_run(tmp_path / "theirs", theirs, engine.variables) as other,
    ):
        hit, spared = first_two(run, mine), first_two(other, theirs)
        before = engine.projects()
        assert len(before) == 4
        run.kill_worker()
        work_begins(run, mine, *hit, times=2)  # its host has joined again, and swept
        assert engine.projects() == before
        mine.open(*TASKS)
        status, _ = run.finish()
        assert status == 0
        assert len(engine.projects()) == 2, "the other pool's instances are all that is left"
        theirs.open(*TASKS)
        trials = assert_all_went_well(other, theirs, engine)

    assert all(attempts(trials[task])["work"] == 1 for task in spared)
    assert mine.two_on_one() == []
