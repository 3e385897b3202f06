"""A disk that is really full: no finished record is lost, and what is missing is written later."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.contexts import Contexts
from activities.missing import MissingRecords
from activities.results import Results
from perdure.history import record_of
from perdure.messages import TaskOptions, TrialSummary, WriteMissing
from perdure.outcome import unwritten
from perdure.results import suite_files
from perdure.stored_results import stored_suite
from tests.cli.support import CommandLine, command_line, finish
from tests.kit import bench
from tests.stored import Store, ended

SAY_HI = {"id": "say", "type": "command", "command": "echo hi; echo x > $PERDURE_ARTIFACTS/made"}


class Ballast:
    """What fills a disk to its last byte, and can be thrown out."""

    def __init__(self, disk: Path) -> None:
        self.path = disk / "ballast"

    def fill(self) -> None:
        with self.path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def throw_out(self) -> None:
        self.path.unlink()


@pytest.fixture
def ballast(small_disk: Path) -> Ballast:
    return Ballast(small_disk)


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path, within=True) as command:
        yield command


@pytest.fixture
def one_server(perdure: CommandLine) -> Iterator[None]:
    with perdure.served():
        yield


def everything_below(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


async def test_the_end_of_a_run_says_so_and_leaves_the_other_records_alone(
    small_disk: Path, ballast: Ballast, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(small_disk)
    assert not (await store.end(ended("a"))).unwritten
    ballast.fill()
    before = everything_below(store.root)

    told = await store.end(ended("b"))

    assert told.unwritten
    assert told.status == "succeeded"
    assert told.note is not None
    assert str(store.root / "s" / "b" / "1") in told.note
    assert "No space left on device" in told.note
    assert "make room there" in told.note
    assert everything_below(store.root) == before, "nothing lost, and no half record"
    await store.suite("running", [ended("a")], a=1, b=1)
    assert "its file could not be written" in caplog.text
    assert everything_below(store.root) == before

    ballast.throw_out()
    assert not (await store.end(ended("b"))).unwritten
    lines = (store.root / "s" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["a", "b"]


async def test_a_record_of_an_earlier_run_stays_until_the_new_one_is_whole(
    small_disk: Path, ballast: Ballast
) -> None:
    store = Store(small_disk)
    await store.end(ended("a", "failed"))
    ballast.fill()
    assert (await store.end(ended("a", run_id="again"))).unwritten
    record = json.loads((store.root / "s" / "a" / "1" / "record.json").read_text())
    assert record["run_id"] == "run-a-1"
    ballast.throw_out()
    assert not (await store.end(ended("a", run_id="again"))).unwritten
    record = json.loads((store.root / "s" / "a" / "1" / "record.json").read_text())
    assert record["run_id"] == "again"


async def test_a_line_that_the_disk_cuts_off_is_taken_back(
    small_disk: Path, ballast: Ballast
) -> None:
    store = Store(small_disk)
    await store.end(ended("a"))
    ballast.fill()
    # What is left in the file's last page lets a part of the line through.
    files = suite_files(store.root, "s")
    before = files.lines_file.read_bytes()
    with pytest.raises(OSError) as raised:
        files.append_line({**files.lines()[0], "run_id": "x" * 8192})
    assert raised.value.errno == errno.ENOSPC
    assert files.lines_file.read_bytes() == before


async def test_missing_records_are_written_from_the_history_once_there_is_room(
    temporal: WorkflowEnvironment, tmp_path: Path, small_disk: Path, ballast: Ballast
) -> None:
    """T52, TD14."""
    results = small_disk / "results"
    ballast.fill()
    async with bench(temporal.client, tmp_path) as here:
        options = TaskOptions(results_dir=str(results))
        handle = await here.start(SAY_HI, options=options, id="t")
        summary = await handle.result()
        assert summary.unwritten
        assert "No space left on device" in (summary.note or "")
        missing = WriteMissing(here.suite, [summary], str(results))

        # The disk is still full: the answer names what is missing.
        (left,) = await write_missing(temporal.client, here.options.runs, missing)
        assert (left.run_id, left.unwritten) == (summary.run_id, True)
        assert "No space left on device" in (left.note or "")

        ballast.throw_out()
        assert await write_missing(temporal.client, here.options.runs, missing) == []
        folder = results / here.suite / "t" / "1"
        written = everything_below(folder)
        record = await record_of(temporal.client, handle.id)
        assert json.loads(written["record.json"]) == json.loads(json.dumps(record))
        assert written["steps/say.1/stdout.log"] == b"hi\n"
        assert written["artifacts/made"] == b"x\n"
        events = [json.loads(line)["type"] for line in written["events.jsonl"].splitlines()]
        assert events == [event["type"] for event in await handle.query("events", 0)]
        (line,) = (results / here.suite / "results.jsonl").read_text().splitlines()
        assert json.loads(line)["run_id"] == summary.run_id

        # Asked again, it changes nothing.
        inode = folder.stat().st_ino
        assert await write_missing(temporal.client, here.options.runs, missing) == []
        assert folder.stat().st_ino == inode
        assert len((results / here.suite / "results.jsonl").read_text().splitlines()) == 1


async def test_a_record_that_is_there_lacks_its_line_alone(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with bench(temporal.client, tmp_path) as here:
        handle = await here.start(SAY_HI, id="t")
        summary = await handle.result()
        lines = here.options.results / here.suite / "results.jsonl"
        told = lines.read_text()
        lines.unlink()
        missing = WriteMissing(here.suite, [summary], str(here.options.results))
        assert await write_missing(temporal.client, here.options.runs, missing) == []
        assert lines.read_text() == told


async def test_a_run_that_the_server_has_forgotten_stays_missing_with_the_reason(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    gone = ended("a", run_id="11111111-2222-4333-8444-555555555555", unwritten=True)
    missing = WriteMissing("nothing-of-this-name", [gone], str(tmp_path))
    (left,) = await write_missing(temporal.client, tmp_path, missing)
    assert left.unwritten
    assert "knows no run" in (left.note or "")


async def write_missing(client: Client, runs: Path, missing: WriteMissing) -> list[TrialSummary]:
    results = Results(client, runs, runs / "none", Contexts(client))
    found: list[TrialSummary] = await ActivityEnvironment().run(
        MissingRecords(client, results).write_missing, missing
    )
    return found


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_server")
def test_a_run_says_what_is_missing_and_the_same_command_writes_it(
    perdure: CommandLine, small_disk: Path, ballast: Ballast
) -> None:
    tally = perdure.folder / "tally"
    fill = f"cat /dev/zero > {ballast.path}; true"
    for name, text in (("a", "echo of a"), ("b", f"echo of b; {fill}"), ("c", "echo of c")):
        step = {"id": "say", "type": "command", "command": f"{text}; echo {name} >> {tally}"}
        perdure.write(f"tasks/{name}.json", json.dumps({"id": name, "steps": [step]}))
    results = small_disk / "results"
    again = ("run", "tasks", "--suite", "s", "--max-parallel", "1", "--results", results, "--json")

    first = perdure.start(*again, *perdure.hasty())  # it waits a while for room
    status, out, err = finish(first)

    assert status == 2, err
    assert json.loads(out)["totals"]["succeeded"] == 3
    assert f"could not be written to {results / 's' / 'b' / '1'}" in err
    assert "No space left on device" in err
    assert "make room" in err
    assert "Traceback" not in err
    assert (results / "s" / "a" / "1" / "record.json").exists()
    assert not (results / "s" / "b" / "1").exists()

    full = perdure(*again)
    assert full.returncode == 2
    assert f"{results}: results cannot be written there (No space left on device); make room" in (
        full.stderr
    )

    ballast.throw_out()
    second = perdure(*again)

    assert second.returncode == 0, second.stderr
    assert tally.read_text().split() == ["a", "b", "c"], "nothing ran again"
    for name in "abc":
        log = results / "s" / name / "1" / "steps" / "say.1" / "stdout.log"
        assert log.read_text() == f"of {name}\n"
    found = stored_suite(results, "s")
    assert found is not None
    assert found.document["status"] == "succeeded"
    assert not unwritten(found.document)
    assert sorted(path.name for path in (results / "s").iterdir()) == [
        "a", "b", "c", "results.jsonl", "suite.json",
    ]  # fmt: skip
