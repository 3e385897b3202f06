"""What the end of a run leaves in the files of results, whatever its steps have planted."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.contexts import Contexts
from activities.leftovers import ARTIFACT_LIMIT_BYTES
from activities.places import RunPlace
from activities.results import Results
from activities.suite_results import SuiteResults
from perdure.job_messages import JobEnd
from perdure.messages import FinishTask, RunRef, TrialSummary, WriteSuite

RUN = RunRef("task/s/t/1", "run-1", "s", "t", 1)
CLIENT = cast(Any, None)  # none of these has a suite to tell


class Place:
    """A run on this host, and what its end makes of it."""

    def __init__(self, folder: Path) -> None:
        self.kept = folder / "results" / "s" / "t" / "1"
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("precious")
        self.run = RunPlace.of(folder / "runs", RUN)
        self.suites = SuiteResults(folder / "results")
        self.results = Results(CLIENT, folder / "runs", folder / "results", Contexts(CLIENT))
        self.attempts: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []

    def job(self, exec_id: str, **end: Any) -> Path:
        """One more background job, which has left these words where it ran."""
        folder = self.run.job(exec_id)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("printed\n")
        self.jobs.append(asdict(JobEnd(exec_id, **end)) | {"name": None})
        return folder

    def attempt(self, artifacts: dict[str, str] | None = None, log: str = "hello") -> Path:
        """One more attempt of the step `a`, with these files."""
        number = len(self.attempts) + 1
        folder = self.run.attempt("a", number)
        (folder / "artifacts").mkdir(parents=True)
        (folder / "stdout.log").write_text(log)
        (folder / "outcome.json").write_text("{}")
        for path, text in (artifacts or {}).items():
            (folder / "artifacts" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "artifacts" / path).write_text(text)
        self.attempts.append(
            {
                "number": number,
                "status": "succeeded",
                "artifacts": [self.listed(path) for path in artifacts or {}],
            }
        )
        return folder

    @staticmethod
    def listed(path: str) -> dict[str, Any]:
        return {"path": path, "size_bytes": 1, "kept": True}

    def end(self, results_dir: Path | None = None) -> FinishTask:
        step = {"id": "a", "status": "succeeded", "duration": 1.0, "attempts": self.attempts}
        record = {
            "suite": "s", "task_id": "t", "trial": 1, "run_id": "run-1", "status": "succeeded",
            "failure": None, "steps": [step], "retry_resets": [], "instances": [], "usage": {},
            "started_at": 1.0, "duration": 1.0,
        }  # fmt: skip
        if self.jobs:
            record["jobs"] = self.jobs
        summary = TrialSummary("t", 1, "run-1", "succeeded")
        return FinishTask(RUN, record, [{"seq": 1}], summary, str(results_dir or "") or None)

    async def finish(self, results_dir: Path | None = None) -> TrialSummary:
        return await ActivityEnvironment().run(self.results.finish_task, self.end(results_dir))

    def files(self) -> dict[str, str]:
        """Every kept log and artifact, by path."""
        return {
            str(path.relative_to(self.kept)): path.read_text()
            for path in sorted(self.kept.rglob("*"))
            if path.is_file() and path.name not in ("record.json", "events.jsonl")
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_logs_and_artifacts_are_kept_and_a_later_attempt_wins(place: Place) -> None:
    place.attempt({"d/x": "old", "d/y": "y", "file/below": "old"})
    place.attempt({"d/x": "new", "file": "now a file"}, log="again")
    assert (await place.finish()).note is None
    assert place.files() == {
        "steps/a.1/stdout.log": "hello",
        "steps/a.2/stdout.log": "again",
        "artifacts/d/x": "new",
        "artifacts/d/y": "y",
        "artifacts/file": "now a file",
    }


async def test_what_is_written_after_the_end_does_not_reach_the_results(place: Place) -> None:
    folder = place.attempt({"x": "as listed"})
    await place.finish()
    (folder / "artifacts" / "x").write_text("later")
    (folder / "stdout.log").write_text("later")
    assert place.files() == {"artifacts/x": "as listed", "steps/a.1/stdout.log": "hello"}


@pytest.mark.parametrize("planted", ["artifacts/d", "artifacts", ".", "artifacts/d/secret"])
async def test_c51_no_link_is_followed_wherever_in_the_path_it_stands(
    place: Place, planted: str
) -> None:
    folder = place.attempt({"d/secret": "own"})
    target = folder / planted
    os.rename(target, folder.parent / "away")
    inside = {"artifacts/d": "", "artifacts": "d", ".": "artifacts/d"}.get(planted)
    if inside is None:
        target.symlink_to(place.outside / "secret")
    else:
        (place.outside / inside).mkdir(parents=True, exist_ok=True)
        (place.outside / inside / "secret").write_text("precious")
        (place.outside / "context.json").write_text("precious")
        target.symlink_to(place.outside)
    assert (await place.finish()).note is None
    assert "precious" not in "".join(place.files().values())
    assert all(path.read_text() == "precious" for path in place.outside.rglob("*.json"))


async def test_c51_a_log_that_became_a_link_or_a_pipe_is_left_out(place: Place) -> None:
    folder = place.attempt()
    (folder / "stdout.log").unlink()
    (folder / "stdout.log").symlink_to(place.outside / "secret")
    os.mkfifo(folder / "stderr.log")
    (folder / "stdout.2.log").write_text("fine")
    assert (await place.finish()).note is None
    assert place.files() == {"steps/a.1/stdout.2.log": "fine"}


@pytest.mark.parametrize("path", ["../../../../../secret", "d/../../x", "/etc/hostname", "a\0b"])
async def test_c51_a_path_that_leads_elsewhere_is_refused(place: Place, path: str) -> None:
    place.attempt()
    place.attempts[0]["artifacts"] = [place.listed(path)]
    before = sorted(place.kept.parents[3].rglob("*"))
    assert (await place.finish()).note is None
    assert place.files() == {"steps/a.1/stdout.log": "hello"}
    assert all(old.exists() for old in before)


async def test_an_artifact_that_grew_over_the_limit_is_left_out(place: Place) -> None:
    folder = place.attempt({"big": "", "small": "s"})
    os.truncate(folder / "artifacts" / "big", ARTIFACT_LIMIT_BYTES + 1)
    assert (await place.finish()).note is None
    assert sorted(path.name for path in (place.kept / "artifacts").iterdir()) == ["small"]


async def test_calls_that_overlap_leave_one_whole_result(place: Place) -> None:
    place.attempt({f"f{number}": "x" * 1000 for number in range(20)})
    failed: list[BaseException] = []

    def write() -> None:
        try:
            place.results.write_run(place.end())
        except OSError as error:
            failed.append(error)

    for _ in range(5):
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # A call that came later may take the place of an earlier one, never leave half of it.
    assert len(failed) < 20
    place.results.write_run(place.end())
    assert len(place.files()) == 21
    assert [path.name for path in place.kept.parent.iterdir()] == ["1"]
    assert len((place.kept.parents[1] / "results.jsonl").read_text().splitlines()) == 1


async def test_a_draft_that_a_killed_worker_left_is_removed(place: Place) -> None:
    place.attempt()
    stale = place.kept.with_name(".1.run-1.0123.old")
    stale.mkdir(parents=True)
    other = place.kept.with_name(".1.run-2.0123")
    other.mkdir()
    await place.finish()
    assert not stale.exists()
    assert other.exists()


async def test_a_record_that_cannot_be_written_is_a_note_and_the_secrets_go(place: Place) -> None:
    folder = place.attempt()
    place.run.secrets.write_text("{}")
    (folder / "context.json").write_text("{}")
    summary = await place.finish(results_dir=place.outside / "secret")
    assert "could not be written" in (summary.note or "")
    assert not place.run.secrets.exists()
    assert not (folder / "context.json").exists()


async def test_a_suite_whose_file_cannot_be_written_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    results_dir = str(place.outside / "secret")
    suite = WriteSuite("s", "run", "digest", "running", [], 1.0, results_dir)
    await ActivityEnvironment().run(place.suites.write_suite, suite)
    assert "could not be written" in caplog.text
    await ActivityEnvironment().run(
        place.suites.write_suite, WriteSuite("s", "run", "digest", "running", [], 1.0)
    )
    assert json.loads((place.kept.parents[1] / "suite.json").read_text())["status"] == "running"


# --- Background jobs ------------------------------------------------------------------------------

EXEC_ID = "exec-0123456789ab"


async def test_a_job_that_was_lost_is_kept_with_what_it_had_printed(place: Place) -> None:
    place.job(EXEC_ID, status="lost", error="its worker was lost", ended_at=2.0)
    assert (await place.finish()).note is None
    kept = place.files()
    assert kept[f"jobs/{EXEC_ID}/stdout.log"] == "printed\n"
    told = json.loads(kept[f"jobs/{EXEC_ID}/job.json"])
    assert (told["status"], told["error"]) == ("lost", "its worker was lost")


async def test_what_a_job_has_put_there_itself_stays_and_the_record_has_the_last_word(
    place: Place,
) -> None:
    place.job(EXEC_ID, status="killed", error="killed: it still ran 5 s after its interrupt")
    own = place.kept / "jobs" / EXEC_ID
    own.mkdir(parents=True)
    (own / "stdout.log").write_text("all of it\n")
    (own / "job.json").write_text("{}")
    foreign = place.kept / "jobs" / "exec-ba9876543210"
    foreign.mkdir()
    (foreign / "stdout.log").write_text("of an earlier run\n")
    for _ in range(2):
        assert (await place.finish()).note is None
        kept = place.files()
        assert kept[f"jobs/{EXEC_ID}/stdout.log"] == "all of it\n"
        assert json.loads(kept[f"jobs/{EXEC_ID}/job.json"])["status"] == "killed"
        assert not any(foreign.name in name for name in kept)


async def test_c49_a_job_that_was_lost_leaves_no_secret_where_it_ran(place: Place) -> None:
    folder = place.job(EXEC_ID, status="lost")
    (folder / "context.json").write_text('{"seed": {"token": "precious"}}')
    await place.finish()
    assert [path.name for path in folder.iterdir()] == ["stdout.log"]


async def test_c51_nothing_that_a_job_puts_beside_its_results_is_taken_or_costs_the_record(
    place: Place,
) -> None:
    place.job(EXEC_ID, status="done")
    own = place.kept / "jobs" / EXEC_ID
    own.mkdir(parents=True)
    (own / "stdout.log").symlink_to(place.outside / "secret")
    (own / "loop").symlink_to(place.kept)
    os.mkfifo(own / "stderr.log")
    assert (await place.finish()).note is None
    kept = [name for name in place.files() if name.startswith("jobs/")]
    assert kept == [f"jobs/{EXEC_ID}/job.json"]


@pytest.mark.parametrize("planted", ["stdout.log", ".", ".."])
async def test_c51_no_link_is_followed_to_what_a_job_has_printed(
    place: Place, planted: str
) -> None:
    folder = place.job(EXEC_ID, status="lost")
    target = Path(os.path.normpath(folder / planted))
    os.rename(target, place.outside / "away")
    (place.outside / "secret").rename(place.outside / "stdout.log")
    (place.outside / EXEC_ID).mkdir()
    (place.outside / EXEC_ID / "stdout.log").write_text("precious")
    target.symlink_to(place.outside / "stdout.log" if planted == "stdout.log" else place.outside)
    await place.finish()
    assert "precious" not in place.files()[f"jobs/{EXEC_ID}/stdout.log"]
