"""What the next attempt takes over from one whose worker was lost, and what it kills."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from activities.adoption import (
    SWEPT,
    Earlier,
    note_outcome,
    noted_outcome,
    own_end,
    process_key,
    take_over,
    write_outcome,
)
from activities.places import RunPlace
from activities.supervise import ProcessExit, ProcessSpec, Supervisor
from perdure.messages import StepFailure, StepOutcome, StepTask
from tests.activities.steps_kit import RUN
from tests.waiting import written


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
        await written(self.step_dir / f"begun.{number}")
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


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    return RunPlace(tmp_path / "not-there-yet")


def test_an_outcome_without_a_directory_is_found_by_its_attempt(place: RunPlace) -> None:
    failed = StepOutcome("failed", [{"op": "unset", "path": ["a\nb"]}], failure=StepFailure("ü"))
    note_outcome(place, "a.1", failed)
    note_outcome(place, "a.10", StepOutcome("cancelled"))
    assert noted_outcome(place, "a.1") == failed
    assert noted_outcome(place, "a.10") == StepOutcome("cancelled")
    assert noted_outcome(place, "a.2") is None
    assert not place.steps.exists()


async def test_the_next_attempt_adopts_an_outcome_without_a_directory(place: RunPlace) -> None:
    note_outcome(place, "a.1", StepOutcome("succeeded", host="h"))
    note_outcome(place, "a.2", StepOutcome("cancelled"))
    task = StepTask(RUN, {"id": "a"}, 0, 1, attempt=3, epoch=0, version=0, lost_attempts=[1, 2])
    found = await Earlier(place, task).outcome()
    assert found == StepOutcome("succeeded", host="h", adopted=True)


def test_an_outcome_that_was_cut_short_is_none_and_spoils_no_other(place: RunPlace) -> None:
    note_outcome(place, "a.1", StepOutcome("succeeded"))
    whole = place.outcomes.read_bytes()
    for length in range(len(whole) - 2):
        place.outcomes.write_bytes(whole[:length])
        assert noted_outcome(place, "a.1") is None
        note_outcome(place, "b.1", StepOutcome("failed"))
        assert noted_outcome(place, "b.1") == StepOutcome("failed")
        assert noted_outcome(place, "a.1") is None


def test_a_link_in_the_place_of_the_outcomes_is_not_followed(place: RunPlace) -> None:
    place.root.mkdir()
    elsewhere = place.root.with_name("elsewhere")
    elsewhere.write_text("precious")
    place.outcomes.symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"outcomes\.jsonl"):
        note_outcome(place, "a.1", StepOutcome("succeeded"))
    assert noted_outcome(place, "a.1") is None
    assert elsewhere.read_text() == "precious"


async def test_parallel_steps_leave_whole_outcomes(place: RunPlace) -> None:
    long = StepOutcome("failed", failure=StepFailure("x" * 100_000))
    names = [f"s{number}.1" for number in range(30)]
    await asyncio.gather(*(asyncio.to_thread(note_outcome, place, name, long) for name in names))
    assert all(noted_outcome(place, name) == long for name in names)
