"""What the next attempt takes over from one whose worker was lost, and what it kills."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from activities.adoption import (
    SWEPT,
    Earlier,
    own_end,
    process_key,
    take_over,
    write_outcome,
)
from activities.places import RunPlace
from activities.supervise import ProcessExit, ProcessSpec, Supervisor
from perdure.messages import StepOutcome, StepTask
from tests.activities.steps_kit import RUN, appears


class Lost:
    """A lost attempt whose worker, here the supervisor, still lives."""

    def __init__(self, folder: Path, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        place = RunPlace(folder)
        # A marker of its own: tests of several runs may be under way.
        step = {"id": f"s-{folder.name[-60:]}", "type": "kit", "command": "true"}
        self.task = StepTask(RUN, step, 0, 1, attempt=2, epoch=0, version=0, lost_attempts=[1])
        self.step_dir = place.attempt(step["id"], 1)
        self.step_dir.mkdir(parents=True)
        self.earlier = Earlier(place, self.task)

    def start(self, command: str, number: int = 1) -> asyncio.Task[ProcessExit]:
        key, stem = process_key(self.task, 1), "exit" if number == 1 else f"exit.{number}"
        spec = ProcessSpec(
            key=key if number == 1 else f"{key}/{number}",
            argv=["/bin/sh", "-c", command],
            cwd=self.step_dir,
            env={"PATH": "/usr/bin:/bin"},
            stdin=None,
            stdout=self.step_dir / f"stdout.{number}.log",
            stderr=self.step_dir / f"stderr.{number}.log",
            exit_file=self.step_dir / f"{stem}.json",
        )
        return asyncio.create_task(self._supervisor.run(spec))

    async def begun(self, number: int = 1) -> asyncio.Task[ProcessExit]:
        process = self.start(f"echo > begun.{number}; sleep 600; exit 0", number)
        await appears(self.step_dir / f"begun.{number}")
        return process


@pytest.fixture
def lost(tmp_path: Path, steps_supervisor: Supervisor) -> Lost:
    return Lost(tmp_path, steps_supervisor)


async def test_a_process_that_the_sweep_killed_is_not_taken_for_ended(lost: Lost) -> None:
    process = await lost.begun()
    await lost.earlier.sweep()
    ended = await process
    assert (ended.ended_by, ended.exit_code != 0) == ("exit", True)
    assert (lost.step_dir / "exit.json").exists()
    assert lost.earlier.home() is None
    write_outcome(lost.step_dir, StepOutcome("failed"))  # by the worker that was given up
    assert await lost.earlier.outcome() is None
    await lost.earlier.sweep()  # the attempt after the next sees it the same way
    assert lost.earlier.home() is None


async def test_a_process_that_ended_before_the_sweep_is_taken_over(lost: Lost) -> None:
    await lost.start("exit 3")
    second = await lost.begun(2)
    third = await lost.begun(3)
    await lost.earlier.sweep()
    await asyncio.wait_for(asyncio.gather(second, third), 30)
    assert lost.earlier.home() == lost.step_dir
    ended = own_end(lost.step_dir / "exit.json")
    assert ended is not None
    assert ended.exit_code == 3
    assert own_end(lost.step_dir / "exit.2.json") is None
    assert own_end(lost.step_dir / "exit.3.json") is None
    await lost.start("exit 0", 2)  # begun after the sweep, so its end is its own
    assert own_end(lost.step_dir / "exit.2.json") is not None
    write_outcome(lost.step_dir, StepOutcome("succeeded"))
    take_over(lost.step_dir)  # the attempt that began it has come to its end there
    assert await lost.earlier.outcome() == StepOutcome("succeeded", adopted=True)


async def test_an_outcome_from_before_the_sweep_counts(lost: Lost) -> None:
    process = await lost.begun()
    write_outcome(lost.step_dir, StepOutcome("succeeded"))
    await lost.earlier.sweep()
    await process
    assert await lost.earlier.outcome() == StepOutcome("succeeded", adopted=True)


async def test_an_end_that_is_recorded_during_a_sweep_that_killed_nothing_counts(
    lost: Lost,
) -> None:
    await lost.earlier.sweep()
    assert not (lost.step_dir / SWEPT).exists()
    await lost.start("exit 0")
    assert lost.earlier.home() == lost.step_dir


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"at": "x"}]', '[{"at": 9e9}]'])
async def test_a_file_of_the_steps_own_in_the_notes_place_is_no_note(
    lost: Lost, content: str
) -> None:
    await lost.start("exit 0")
    (lost.step_dir / SWEPT).write_text(content)
    assert lost.earlier.home() == lost.step_dir
