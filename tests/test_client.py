"""The Python client: on a server with a worker beside it, and on the embedded one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import workflows.suite
from perdure.client import (
    Perdure,
    RunRefused,
    SuiteRun,
    TaskFailed,
    UnknownRun,
    UnknownSuite,
    WorkerConfig,
)
from perdure.config import Settings
from perdure.documents import InvalidDocuments
from perdure.embedded import Embedded
from perdure.errors import PerdureError
from perdure.messages import SuiteProgress, TaskOptions
from perdure.results import suite_files
from perdure.server import status, users
from perdure.suite_input import BadId
from perdure.task_start import TaskRunning
from perdure.workers import WorkerFailed, log_pids
from tests import warm
from tests.conftest import find_program
from tests.waiting import HASTY, until

WAIT = {"id": "wait", "type": "command", "command": "while [ ! -e go ]; do sleep 0.05; done"}


def name() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


def task(id: str, *commands: str, **more: Any) -> dict[str, Any]:
    """A task whose steps `s0`, `s1`, ... are these shell commands."""
    steps = [
        {"id": f"s{number}", "type": "command", "command": command}
        for number, command in enumerate(commands or ("true",))
    ]
    return {"id": id, "steps": steps, **more}


# --- Suites -----------------------------------------------------------------------------------


async def test_a_suite_of_paths_and_documents_runs_to_its_document(
    perdure: Perdure, tmp_path: Path
) -> None:
    file = tmp_path / "first.yaml"
    file.write_text("steps: [{id: a, type: command, command: [echo, 'hi <who>']}]\n")
    document = await perdure.run_suite([file, task("second", "exit 3")], seed={"who": "you"})
    assert document["suite"].startswith("first-")
    assert document["totals"] == {
        "total": 2, "succeeded": 1, "failed": 1, "cancelled": 0, "not_run": 0,
        "failed_by_kind": {"task": 1}, "usage": {},
    }  # fmt: skip
    first, second = document["tasks"]
    assert (first["id"], first["status"], first["index"]) == ("first", "succeeded", 0)
    assert first["trials"][0]["steps"][0]["attempts"] == 1
    assert second["trials"][0]["failure"]["step"] == "s0"
    assert document["pass_at_k"] == {"1": 0.5}


async def test_the_document_is_the_same_without_the_files_of_results(perdure: Perdure) -> None:
    suite = name()
    document = await perdure.run_suite([task("a", "echo hi"), task("b", "exit 1")], suite=suite)
    files = suite_files(perdure.settings.state.results, suite)
    files.lines_file.unlink()
    again = await perdure.suite(suite)
    assert again.how == "found"
    assert await again.outcome() == document


async def test_callbacks_hear_of_every_start_and_every_success_with_the_context(
    perdure: Perdure,
) -> None:
    heard: list[tuple[Any, ...]] = []
    flaky = '[ "$PERDURE_ATTEMPT" = 2 ]'
    document = task("t", "echo one", flaky, "echo three")
    document["steps"][1]["retry"] = {"max_attempts": 2, "initial_interval": 0.1}

    def started(index: int, total: int, step: dict[str, Any], context: dict[str, Any]) -> None:
        heard.append(("start", index, total, step["id"], sorted(context["results"])))

    async def completed(
        index: int, total: int, step: dict[str, Any], context: dict[str, Any], seconds: float
    ) -> None:
        assert seconds >= 0
        heard.append(("complete", index, total, step["id"], sorted(context["results"])))

    await perdure.run_suite(document, on_step_start=started, on_step_complete=completed)
    assert heard == [
        ("start", 0, 3, "s0", []),
        ("complete", 0, 3, "s0", ["s0"]),
        ("start", 1, 3, "s1", ["s0"]),
        ("start", 1, 3, "s1", ["s0"]),
        ("complete", 1, 3, "s1", ["s0", "s1"]),
        ("start", 2, 3, "s2", ["s0", "s1"]),
        ("complete", 2, 3, "s2", ["s0", "s1", "s2"]),
    ]


async def test_a_callback_that_fails_or_writes_changes_nothing(
    perdure: Perdure, caplog: pytest.LogCaptureFixture
) -> None:
    """TD10."""

    def spoil(index: int, total: int, step: dict[str, Any], context: dict[str, Any]) -> None:
        context["results"]["s0"] = "spoilt"
        step["id"] = "spoilt"
        raise RuntimeError("not my day")

    document = await perdure.run_suite(task("t", "true", "true"), on_step_start=spoil)
    assert document["totals"]["succeeded"] == 1
    assert "not my day" in caplog.text
    record = await perdure.run(f"{document['suite']}/t").record()
    assert record["context"]["results"]["s0"]["exit_code"] == 0


async def test_progress_is_told_as_it_is_made_and_each_end_once(perdure: Perdure) -> None:
    """P20"""
    run = await perdure.start_suite([task(f"t{n}") for n in range(5)], max_parallel=2)
    seen: list[SuiteProgress] = []
    await run.follow(on_progress=seen.append, poll_seconds=0.01)
    ended = [t.task_id for p in seen for t in p.ended]
    assert sorted(ended) == [f"t{n}" for n in range(5)]
    lines = (perdure.settings.state.results / run.suite / "results.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["task"] for line in lines) == sorted(ended)
    assert (seen[-1].succeeded, seen[-1].pending, seen[-1].running) == (5, 0, [])
    assert (await run.wait()).succeeded == 5


async def test_a_suite_that_is_open_is_attached_to_and_waited_for(perdure: Perdure) -> None:
    suite, document = name(), {"id": "t", "steps": [WAIT]}
    first = await perdure.start_suite(document, suite=suite)
    second = await perdure.start_suite(document, suite=suite)
    assert (second.how, second.run_id) == ("attached", first.run_id)
    await until(lambda: _runs_step(second))
    await _release(perdure, suite, "t")
    assert (await second.outcome())["tasks"][0]["status"] in ("running", "succeeded")
    assert (await second.wait()).succeeded == 1
    third = await perdure.start_suite(document, suite=suite)
    assert third.how == "finished"
    assert (await third.outcome())["run_id"] == first.run_id


async def test_a_cancelled_suite_ends_cancelled_and_its_waiting_tasks_are_not_failed(
    perdure: Perdure,
) -> None:
    documents = [{"id": f"t{n}", "steps": [WAIT]} for n in range(3)]
    run = await perdure.start_suite(documents, max_parallel=1)
    await until(lambda: _runs_step(run))
    await run.cancel("enough")
    result = await run.wait()
    assert (result.cancelled, result.failed) == (1, 0)
    outcome = await run.outcome()
    assert [t["status"] for t in outcome["tasks"]] == ["cancelled", "not_run", "not_run"]
    await run.cancel()  # closed: without effect


async def _runs_step(run: SuiteRun) -> bool:
    progress = await run.progress()
    if not progress.running:
        return False
    task_id = progress.running[0].split("/")[2]
    return bool((await run.task(task_id).progress())["running"])


async def _release(perdure: Perdure, suite: str, task_id: str) -> None:
    """Let the step `wait` of a run end."""
    trial = perdure.settings.state.runs / suite / task_id / "1"
    # A step counts as running as soon as it is scheduled.
    await until(lambda: any(trial.glob("*/work")), "the working directory")
    (work,) = trial.glob("*/work")
    (work / "go").touch()


async def test_bad_documents_start_nothing(perdure: Perdure) -> None:
    suite = name()
    with pytest.raises(InvalidDocuments) as caught:
        await perdure.start_suite(
            [{"id": "a", "steps": [{"id": "x", "type": "nope"}]}, {"id": "b", "steps": []}],
            suite=suite,
        )
    assert len(caught.value.problems) >= 2
    with pytest.raises(BadId, match="nearest legal id is 'a-b'"):
        await perdure.start_suite(task("t"), suite="a b")
    with pytest.raises(PerdureError, match="is in"):
        await perdure.start_suite([task("t"), task("t")], suite=suite)
    with pytest.raises(PerdureError, match="no task 'other'"):
        await perdure.start_suite(task("t"), suite=suite, only=["other"])
    with pytest.raises(UnknownSuite):
        await perdure.suite(suite)


async def test_an_unknown_suite_is_refused_with_the_nearest_known_one(perdure: Perdure) -> None:
    suite = name()
    await perdure.run_suite(task("t"), suite=suite)

    async def listed() -> bool:
        return suite in [entry.suite for entry in await perdure.suites()]

    await until(listed)
    with pytest.raises(UnknownSuite, match=suite):
        await perdure.suite(f"{suite}x")


async def test_suites_and_runs_are_listed_with_their_state(perdure: Perdure) -> None:
    suite = name()
    await perdure.run_suite([task("good"), task("bad", "exit 1")], suite=suite)

    async def listed() -> bool:
        return len([r for r in await perdure.runs(suite) if r.status != "running"]) == 2

    await until(listed)
    (entry,) = [e for e in await perdure.suites() if e.suite == suite]
    assert (entry.status, entry.total, entry.succeeded, entry.failed) == ("failed", 2, 1, 1)
    runs = {entry.task_id: entry for entry in await perdure.runs(suite)}
    assert (runs["good"].status, runs["good"].failure_kind) == ("succeeded", None)
    bad = runs["bad"]
    assert (bad.status, bad.failure_kind, bad.failure_step) == ("failed", "task", "s0")
    assert bad.failure_reason == "exit code 1"


# --- Tasks by themselves ----------------------------------------------------------------------


async def test_a_task_is_started_as_often_as_one_likes(perdure: Perdure) -> None:
    suite, document = name(), task("t", "echo <n>", seed={"n": "0"})
    handles = [await perdure.start_task(document, seed={"n": n}, suite=suite) for n in "123"]
    assert [h.id for h in handles] == [f"task/{suite}/t/{n}" for n in (1, 2, 3)]
    results = [await h.result() for h in handles]
    assert [r.context["results"]["s0"]["stdout"] for r in results] == ["1\n", "2\n", "3\n"]
    assert results[0].context["metadata"]["seed"] == {"n": "1"}


async def test_events_follow_a_task_to_its_end(perdure: Perdure) -> None:
    handle = await perdure.start_task(task("t", "true", "false"), suite=name())
    events = [event async for event in handle.events()]
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert [e["type"] for e in events] == [
        "task.started", "step.started", "step.completed", "step.started", "step.failed",
        "task.failed",
    ]  # fmt: skip


async def test_a_failed_task_raises_with_its_record(perdure: Perdure) -> None:
    handle = await perdure.start_task(task("t", "echo oops >&2; exit 4"), suite=name())
    with pytest.raises(TaskFailed, match="step 's0'") as caught:
        await handle.result()
    assert caught.value.record["status"] == "failed"
    assert caught.value.record["context"]["results"]["s0"]["stderr"] == "oops\n"


async def test_a_cancelled_task_raises_with_the_reason(perdure: Perdure) -> None:
    handle = await perdure.start_task({"id": "t", "steps": [WAIT]}, suite=name())

    async def waits() -> bool:
        return (await handle.progress())["running"] == ["wait"]

    await until(waits)
    await handle.cancel("enough")
    with pytest.raises(TaskFailed, match="cancelled: enough"):
        await handle.result()
    await handle.cancel()  # closed: without effect


async def test_a_trial_that_is_open_is_not_started_twice(perdure: Perdure) -> None:
    suite, document = name(), {"id": "t", "steps": [WAIT]}
    handle = await perdure.start_task(document, suite=suite, trial=1)
    with pytest.raises(TaskRunning):
        await perdure.start_task(document, suite=suite, trial=1)
    await handle.cancel()
    with pytest.raises(TaskFailed):
        await handle.result()


async def test_a_task_is_run_again_from_a_step_on(perdure: Perdure, tmp_path: Path) -> None:
    document = task("t", "echo x >>log", f"test -e {tmp_path}/go && cat log")
    first = await perdure.start_task(document, suite=name(), seed={"order": "7"})
    with pytest.raises(TaskFailed):
        await first.result()
    (tmp_path / "go").touch()
    told: list[str] = []
    again = await perdure.retry_task(first.id, "s1", say=told.append)
    assert (again.id, told[1]) == (first.id, "done before, and not run again: s0")
    result = await again.result()
    assert result.context["results"]["s1"]["stdout"] == "x\n"
    assert result.context["metadata"]["seed"] == {"order": "7"}
    assert result.record["resumed_from"]["run_id"] == first.run_id != result.run_id
    assert (await first.record())["status"] == "failed", "it stays as it ended"
    with pytest.raises(RunRefused, match="no step 's2'"):
        await perdure.retry_task(first.id, "s2")
    with pytest.raises(UnknownRun, match="knows no run"):
        await perdure.retry_task(f"{first.suite}/u", "s1")


async def test_a_run_is_found_by_its_short_name_and_unknown_ones_are_refused(
    perdure: Perdure,
) -> None:
    suite = name()
    await perdure.run_suite(task("t"), suite=suite)
    names = (f"{suite}/t", f"{suite}/t/1", f"task/{suite}/t/1")
    assert {(await perdure.run(n).record())["status"] for n in names} == {"succeeded"}
    with pytest.raises(UnknownRun):
        await perdure.run(f"{suite}/other").record()
    with pytest.raises(UnknownRun):
        await perdure.run(f"{suite}/other").cancel()
    for bad in ("", "x", "a/b/c/d/e", "a/../b", "a/b/0", "suite/x y/z"):
        with pytest.raises(PerdureError):
            perdure.run(bad)


# --- The task store ---------------------------------------------------------------------------


async def test_stored_versions_run_by_their_names_and_the_record_says_which_it_was(
    perdure: Perdure,
) -> None:
    id = name()
    first = await perdure.tasks.put(task(id, "echo one"))
    second = await perdure.tasks.put(task(id, "echo two"))
    assert (first.name, second.version) == (f"store:{id}@1", 2)
    assert (await perdure.tasks.get(id, 1)).document == first.document
    assert [found.version for found in await perdure.tasks.query(id=id)] == [2]

    latest = await (await perdure.start_task(f"store:{id}")).result()
    assert latest.record["task_version"] == 2
    assert latest.context["results"]["s0"]["stdout"] == "two\n"
    suite = name()
    document = await perdure.run_suite([Path(first.name)], suite=suite)
    assert document["totals"]["succeeded"] == 1
    assert (await perdure.run(f"{suite}/{id}").record())["task_version"] == 1

    with pytest.raises(InvalidDocuments, match=r"has no version 3; its versions are 1 to 2"):
        await perdure.start_suite(f"store:{id}@3")


# --- The embedded server and its worker -------------------------------------------------------


@pytest.fixture
def embedded_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    binary = find_program("temporal")
    assert binary
    # The worker processes read the environment themselves.
    for variable in [v for v in os.environ if v.startswith(("TEMPORAL_", "PERDURE_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", f"{Path(binary).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    with warm.workers():
        yield Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path / "state")})


def worker_pids(settings: Settings) -> set[int]:
    return {user.pid for user in users(settings.state) if user.role == "worker"}


async def test_the_embedded_server_and_a_worker_come_and_go_with_the_client(
    embedded_settings: Settings,
) -> None:
    async with await Perdure.connect(embedded_settings) as perdure:
        assert perdure.embedded
        assert (perdure.ui_url or "").startswith("http://")
        document = await perdure.run_suite(task("t", "echo hi"), suite="first")
        assert document["totals"]["succeeded"] == 1
        queue = "perdure.first"
        assert log_pids(embedded_settings.state, queue) == worker_pids(embedded_settings)
    assert users(embedded_settings.state) == []
    # What a later client finds, and that it starts no worker for it.
    async with await Perdure.connect(embedded_settings) as perdure:
        again = await perdure.start_suite(task("t", "echo hi"), suite="first")
        assert again.how == "finished"
        assert worker_pids(embedded_settings) == set()


async def test_a_worker_that_is_killed_is_started_again_and_the_suite_goes_on(
    embedded_settings: Settings,
) -> None:
    waiting = {**WAIT, "heartbeat_timeout": 1}
    async with await Perdure.connect(embedded_settings) as perdure:
        run = await perdure.start_suite({"id": "t", "steps": [waiting]}, suite="killed")
        await until(lambda: _runs_step(run))
        (first,) = worker_pids(embedded_settings)
        os.kill(first, signal.SIGKILL)
        await until(lambda: bool(worker_pids(embedded_settings) - {first}))
        await _release(perdure, "killed", "t")
        assert (await run.wait()).succeeded == 1


async def test_a_worker_that_is_left_behind_outlives_its_client_and_finishes(
    embedded_settings: Settings,
) -> None:
    async with await Perdure.connect(embedded_settings) as perdure:
        run = await perdure.start_suite({"id": "t", "steps": [WAIT]}, suite="left")
        await until(lambda: _runs_step(run))
        run.detach()
    (pid,) = worker_pids(embedded_settings)
    try:
        async with await Perdure.connect(embedded_settings, role="reader") as perdure:
            await _release(perdure, "left", "t")
            found = await perdure.suite("left")
            assert (await found.wait()).succeeded == 1
            assert worker_pids(embedded_settings) == {pid}
            await until(lambda: pid not in worker_pids(embedded_settings), "the worker leaves")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


async def test_the_last_worker_that_is_left_behind_stops_the_server(
    embedded_settings: Settings,
) -> None:
    async with await Perdure.connect(embedded_settings) as perdure:
        run = await perdure.start_suite(task("t", "sleep 0.5"), suite="left")
        run.detach()
    await until(lambda: not status(embedded_settings.state).running, "the server stops")
    assert users(embedded_settings.state) == []


async def test_a_new_run_is_not_served_by_a_worker_that_an_earlier_call_left_behind(
    embedded_settings: Settings, tmp_path: Path
) -> None:
    def told(value: str) -> WorkerConfig:
        (tmp_path / value).write_text(f"WHO={value}\n")
        return WorkerConfig(env_file=tmp_path / value)

    who = {"WHO": {"from_env": "WHO"}}  # a secret, so its length is printed
    steps = [
        {"id": f"s{n}", "type": "command", "command": "echo ${#WHO}", "env": who} for n in range(3)
    ]
    tasks = {"id": "t", "repeats": 4, "steps": steps}
    async with await Perdure.connect(embedded_settings) as perdure:
        first = await perdure.start_suite(tasks, suite="left", worker=told("old"))
        first.detach()
        (old,) = worker_pids(embedded_settings)
        await first.wait()
        again = await perdure.start_suite(tasks, suite="left", fresh=True, worker=told("another"))
        assert old not in worker_pids(embedded_settings)
        await again.wait()
        for trial in range(1, 5):
            record = await again.task("t", trial).record()
            said = [result["stdout"].strip() for result in record["context"]["results"].values()]
            assert said == ["7"] * 3
        # Of the same queue, by itself: it has the worker that the call brings.
        again.detach()
        one = await perdure.start_task(
            {"id": "one", "steps": steps[:1]}, suite="left", worker=told("third")
        )
        result = await one.result()
        assert result.context["results"]["s0"]["stdout"].strip() == "5"


async def test_a_suite_with_a_worker_that_was_left_behind_gets_no_second_one(
    embedded_settings: Settings,
) -> None:
    said: list[str] = []
    waiting = {"id": "t", "steps": [{**WAIT, "heartbeat_timeout": 1}]}
    async with await Perdure.connect(embedded_settings) as perdure:
        run = await perdure.start_suite(waiting, suite="left")
        await until(lambda: _runs_step(run))
        run.detach()
    (pid,) = worker_pids(embedded_settings)
    for _ in range(2):
        async with await Perdure.connect(embedded_settings) as perdure:
            run = await perdure.start_suite(
                waiting,
                suite="left",
                worker=WorkerConfig(pass_env=("SOME",)),
                say=said.append,
            )
            assert run.how == "attached"
            run.detach()
    assert worker_pids(embedded_settings) == {pid}
    assert "no options for steps" in said[0]
    async with await Perdure.connect(embedded_settings) as perdure:
        run = await perdure.start_suite(waiting, suite="left")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bool(worker_pids(embedded_settings) - {pid}), "one takes its place")
        await run.cancel()
        await run.wait()


async def test_a_worker_that_cannot_start_says_why(embedded_settings: Settings) -> None:
    embedded = await Embedded.join(embedded_settings, role="test")
    try:
        with pytest.raises(WorkerFailed, match="no_such_module"):
            await embedded.serve("perdure.bad", WorkerConfig(steps=("no_such_module",)))
    finally:
        await embedded.close()


async def test_what_a_run_would_lack_is_found_before_anything_starts(
    embedded_settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "t.yaml").write_text(
        "steps: [{id: s, type: command, command: 'true', env: {K: {from_file: key}}}]"
    )
    (tmp_path / "file").touch()
    async with await Perdure.connect(embedded_settings) as perdure:
        with pytest.raises(PerdureError, match=r"from_file: key.*documents"):
            await perdure.start_suite(folder, suite="early")
        with pytest.raises(PerdureError, match=r"from_file: key.*documents"):
            await perdure.start_task(folder)
        with pytest.raises(PerdureError, match="results cannot be written there"):
            await perdure.start_suite(task("t"), suite="early", results_dir=tmp_path / "file")
        assert worker_pids(embedded_settings) == set()
        assert await perdure.suites() == []
        # The file lies beside the document, wherever the command is typed.
        (folder / "key").write_text("secret")
        document = await perdure.run_suite(folder, suite="late")
        assert document["totals"]["succeeded"] == 1


async def test_a_record_that_cannot_be_written_is_told_of(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.suite, "WRITE_AGAIN_AFTER", (timedelta(milliseconds=10),))
    results, blocked = tmp_path / "results", name()
    run = await perdure.start_suite(task("t", "true"), suite=name(), results_dir=results)
    assert (await run.wait()).succeeded == 1
    assert "note" not in (await run.outcome())["tasks"][0]["trials"][0]
    block = results / blocked / "t"
    block.parent.mkdir()
    block.touch()  # a file where the task's directory is to be
    document = await perdure.run_suite(task("t", "true"), suite=blocked, results_dir=results)
    [trial] = document["tasks"][0]["trials"]
    assert trial["status"] == "succeeded"
    assert "could not be written" in trial["note"]


async def test_whatever_ends_the_watch_over_server_and_workers_ends_the_run(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = await Embedded.join(embedded_settings, role="test")

    async def out_of_files() -> None:
        raise OSError(24, "Too many open files")

    try:
        monkeypatch.setattr(embedded._server, "restart_if_dead", out_of_files)
        with pytest.raises(PerdureError, match=r"Too many open files.*again"):
            await embedded.guard(asyncio.Event().wait())
    finally:
        await embedded.close()


@pytest.mark.parametrize(
    "more", [{"options": TaskOptions(agent_model="\ud800")}, {"results_dir": "/x\udcff"}]
)
async def test_half_a_character_in_an_option_is_refused(
    perdure: Perdure, more: dict[str, Any]
) -> None:
    with pytest.raises(PerdureError, match="not UTF-8"):
        await perdure.start_suite(task("t"), **more)


CLIENT = """
import asyncio, sys
from pathlib import Path
from perdure.client import Perdure, WorkerConfig
from perdure.config import Settings

async def main():
    settings = Settings.from_env({"PERDURE_STATE_DIR": sys.argv[1]})
    async with await Perdure.connect(settings) as perdure:
        worker = WorkerConfig(steps=("hasty",))
        await perdure.run_suite(sys.argv[2], suite="crashed", worker=worker)

asyncio.run(main())
"""


async def test_a_client_that_is_killed_takes_its_worker_along_and_cancel_cleans_up(
    embedded_settings: Settings, tmp_path: Path
) -> None:
    document = tmp_path / "t.json"
    document.write_text(json.dumps({"id": "t", "steps": [WAIT]}))
    (tmp_path / "hasty.py").write_text(HASTY)
    client = warm.Popen(
        [sys.executable, "-c", CLIENT, str(embedded_settings.state.path), str(document)],
        cwd=tmp_path,
    )
    runs = embedded_settings.state.runs / "crashed" / "t" / "1"
    await until(lambda: client.poll() is not None or any(runs.glob("*/steps/wait.1")))
    (orphan,) = worker_pids(embedded_settings)
    client.kill()
    client.wait()
    async with await Perdure.connect(embedded_settings, role="reader") as perdure:
        left = await perdure.suite("crashed")
        await left.cancel("by another")
        assert (await left.wait()).cancelled == 1
        record = await perdure.run("crashed/t").record()
        assert record["status"] == "cancelled"
        assert len(record["steps"][0]["attempts"]) == 1
        await until(lambda: orphan not in worker_pids(embedded_settings))
