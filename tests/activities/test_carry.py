"""A run that goes on from an earlier one begins with that one's files."""

from __future__ import annotations

import os
from pathlib import Path

from temporalio.testing import ActivityEnvironment

from activities.carry import Carrying
from activities.places import RunPlace
from perdure.messages import CarriedWork, CarryWork, RunRef

OLD = RunRef("task/s/t/1", "old", "s", "t", 1)
NEW = RunRef("task/s/t/1", "new", "s", "t", 1)


def written(folder: Path, name: str, text: str = "x") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


async def carry(runs: Path, **more: object) -> tuple[CarriedWork, RunPlace]:
    asked = CarryWork(NEW, "old", **{"hosts": ["here"], **more})  # type: ignore[arg-type]
    end = await ActivityEnvironment().run(Carrying("here", runs).carry_work, asked)
    return end, RunPlace.of(runs, NEW)


async def test_the_working_directory_and_the_attempts_logs_are_copied(tmp_path: Path) -> None:
    old = RunPlace.of(tmp_path, OLD)
    written(old.work, "deep/notes")
    (old.work / "link").symlink_to("deep/notes")
    tool = written(old.work, "tool")
    tool.chmod(0o755)
    written(old.attempt("a", 1), "stdout.log")
    end, place = await carry(tmp_path)
    assert end == CarriedWork(found=True, host="here", files=3)
    assert (place.work / "deep" / "notes").read_text() == "x"
    assert (place.work / "link").readlink() == Path("deep/notes")
    assert os.access(place.work / "tool", os.X_OK)
    assert (place.attempt("a", 1) / "stdout.log").exists()
    (place.work / "deep" / "notes").write_text("new")
    assert (old.work / "deep" / "notes").read_text() == "x"


async def test_what_steps_that_run_again_created_is_left_out(tmp_path: Path) -> None:
    old = RunPlace.of(tmp_path, OLD)
    for name in ("kept", "out/report", "gone/deep/file"):
        written(old.work, name)
    end, place = await carry(tmp_path, remove=["out/report", "gone", "../../../etc", "never"])
    assert end.found
    assert sorted(p.name for p in place.work.iterdir()) == ["kept", "out"]
    assert (old.work / "gone").exists()


async def test_the_directory_of_its_last_start_is_taken(tmp_path: Path) -> None:
    old = RunPlace.of(tmp_path, OLD)
    written(old.work, "first")
    written(old.work_after(1), "second")
    _, place = await carry(tmp_path, restarts=1)
    assert [p.name for p in place.work.iterdir()] == ["second"]


async def test_files_on_another_host_are_not_there(tmp_path: Path) -> None:
    end, place = await carry(tmp_path, hosts=["there", "yonder"])
    assert end == CarriedWork(found=False, host="here", reason="they are on there and yonder")
    assert not place.work.exists()


async def test_a_run_that_wrote_nothing_leaves_nothing_to_copy(tmp_path: Path) -> None:
    end, _ = await carry(tmp_path, hosts=[])
    assert end == CarriedWork(found=True, host="here", files=0), "it started no step"
    written(RunPlace.of(tmp_path, OLD).root, "outcomes.jsonl")
    end, _ = await carry(tmp_path)
    assert end == CarriedWork(found=True, host="here", files=0)


async def test_files_that_were_removed_since_are_missed(tmp_path: Path) -> None:
    end, _ = await carry(tmp_path)
    assert not end.found
    assert end.reason.startswith("they are gone from here; go on from the step ")


async def test_a_try_that_was_lost_leaves_no_half_of_a_copy(tmp_path: Path) -> None:
    written(RunPlace.of(tmp_path, OLD).work, "file")
    place = RunPlace.of(tmp_path, NEW)
    written(place.root, ".work.0123/half")
    end, _ = await carry(tmp_path)
    assert end.found
    assert [p.name for p in place.root.iterdir()] == ["work"]
    written(place.work, "since")
    await carry(tmp_path)
    assert sorted(p.name for p in place.work.iterdir()) == ["file", "since"], "it was all there"


async def test_pipes_and_links_in_the_directorys_place_hold_nobody_up(tmp_path: Path) -> None:
    old = RunPlace.of(tmp_path, OLD)
    written(old.work, "file")
    os.mkfifo(old.work / "pipe")
    end, place = await carry(tmp_path)
    assert end.found
    assert [p.name for p in place.work.iterdir()] == ["file"]
    other = RunRef("task/s/t/2", "new", "s", "t", 2)
    elsewhere = RunPlace.of(tmp_path, RunRef("task/s/t/2", "old", "s", "t", 2))
    elsewhere.root.mkdir(parents=True)
    elsewhere.work.symlink_to("/")
    asked = CarryWork(other, "old", hosts=["here"])
    end = await ActivityEnvironment().run(Carrying("here", tmp_path).carry_work, asked)
    assert (end.found, end.files) == (True, 0)
