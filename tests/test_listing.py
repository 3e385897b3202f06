"""What a server has run, as lists of suites and runs."""

from __future__ import annotations

from pathlib import Path

from perdure.client import Perdure, SuiteEntry
from tests.test_client import WAIT, name, task
from tests.waiting import until


async def entry_of(perdure: Perdure, suite: str) -> SuiteEntry:
    (entry,) = [entry for entry in await perdure.suites() if entry.suite == suite]
    return entry


async def test_an_open_suite_tells_what_runs_what_waits_and_that_it_is_paused(
    perdure: Perdure, tmp_path: Path
) -> None:
    wait = {**WAIT, "command": f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"}
    suite = name()
    tasks = [{"id": "a", "steps": [wait]}, task("b"), task("c")]
    run = await perdure.start_suite(tasks, suite=suite, max_parallel=1)

    async def running() -> bool:
        # A suite that has just begun may not be listed yet.
        return any(e.suite == suite and e.running == 1 for e in await perdure.suites())

    await until(running)
    await run.pause()
    entry = await entry_of(perdure, suite)
    assert (entry.status, entry.paused, entry.stopped) == ("running", True, None)
    assert (entry.total, entry.running, entry.pending, entry.not_run) == (3, 1, 2, 0)
    document = entry.to_dict()
    assert (document["paused"], document["totals"]["pending"]) == (True, 2)
    await run.cancel()
    await run.wait()
    entry = await entry_of(perdure, suite)
    assert (entry.status, entry.cancelled, entry.not_run) == ("cancelled", 1, 2)
    totals = (await run.outcome())["totals"]
    assert entry.to_dict()["totals"] == totals  # to the names of the keys


async def test_a_suite_that_stopped_tells_why_and_its_failures_by_kind(perdure: Perdure) -> None:
    suite = name()
    tasks = [task("a", "exit 3"), task("b", "sleep 30"), task("c")]
    tasks[1]["steps"][0]["timeout"] = 0.5
    await perdure.run_suite(tasks, suite=suite, max_parallel=1, max_failures=2)
    entry = await entry_of(perdure, suite)
    assert (entry.status, entry.failed, entry.not_run) == ("failed", 2, 1)
    assert entry.failed_by_kind == {"task": 1, "timeout": 1}
    assert "max_failures" in (entry.stopped or "")
    runs = {run.task_id: run for run in await perdure.runs(suite)}
    assert sorted(runs) == ["a", "b"]
    assert (runs["b"].failure_kind, runs["b"].failure_step) == ("timeout", "s0")
    assert runs["b"].to_dict()["failure"]["reason"].startswith("ended after ")


async def test_runs_without_a_suite_know_their_failures_themselves(perdure: Perdure) -> None:
    suite = name()
    handle = await perdure.start_task(task("alone", "exit 4"), suite=suite)

    async def failed() -> bool:
        return (await perdure.runs(suite))[0].status == "failed"

    await until(failed)
    (run,) = await perdure.runs(suite)
    assert (run.id, run.failure_kind, run.failure_step) == (handle.id, "task", "s0")
    assert run.failure_reason == "exit code 4"


async def test_a_run_that_was_terminated_is_told_with_what_its_suite_made_of_it(
    perdure: Perdure, tmp_path: Path
) -> None:
    suite = name()
    run = await perdure.start_suite([{"id": "a", "steps": [WAIT]}], suite=suite)

    async def running() -> bool:
        return bool((await run.progress()).running)

    await until(running)
    await perdure.client.get_workflow_handle(f"task/{suite}/a/1").terminate("by hand")
    await run.wait()
    (entry,) = await perdure.runs(suite)
    assert (entry.status, entry.failure_kind) == ("terminated", "infrastructure")
    lines = perdure.settings.state.results / suite / "results.jsonl"
    assert entry.run_id in lines.read_text(), "it has its line, too"
