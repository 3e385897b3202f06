"""Asking a suite for something by its handle, also where nobody can answer."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from perdure import suite_updates
from perdure.client import Perdure
from perdure.config import Settings
from perdure.documents import load_document
from perdure.messages import TaskOptions
from perdure.names import SUITE_WORKFLOW, suite_workflow_id
from perdure.suite_input import suite_input, suite_task
from perdure.suite_run import SuiteRefused
from tests.conftest import find_program
from tests.waiting import until


def document(id: str, command: str) -> dict[str, object]:
    return {"id": id, "steps": [{"id": "s", "type": "command", "command": command}]}


def name() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


def waiting_and_bad(go: Path, mended: Path) -> list[dict[str, Any]]:
    """A task that runs until `go` is there, and one that fails until `mended` is."""
    return [
        document("waits", f"while [ ! -e {go} ]; do sleep 0.05; done"),
        document("bad", f"test -e {mended}"),
    ]


async def start_where_nobody_serves(perdure: Perdure, queue: str) -> str:
    """An open suite on a queue that no worker polls, as a crash leaves one."""
    suite = name()
    (loaded,) = load_document(document("t", "true"), custom_types={}).checked()
    options = TaskOptions()
    start = suite_input(suite, [suite_task(loaded, options)], max_parallel=1, options=options)
    await perdure.client.start_workflow(
        SUITE_WORKFLOW, start, id=suite_workflow_id(suite), task_queue=queue.format(suite)
    )
    return suite


async def test_a_running_suite_is_controlled_by_its_handle(
    perdure: Perdure, tmp_path: Path
) -> None:
    go, bad = tmp_path / "go", tmp_path / "mended"
    suite = await perdure.start_suite(
        [*waiting_and_bad(go, bad), *(document(f"t{n}", "true") for n in range(3))],
        suite=name(),
        max_parallel=2,
    )

    async def only_waits() -> bool:
        progress = await suite.progress()
        return progress.succeeded == 3 and progress.failed == 1

    await until(only_waits)
    assert await suite.set_max_parallel(1) == (
        "max_parallel is 1 (was 2); 1 task runs, and nothing is started until fewer than 1 do"
    )
    assert "is paused" in await suite.pause()
    bad.touch()
    assert "runs again; the suite is paused" in await suite.requeue("bad")
    assert "is next" in await suite.prioritise("bad/1")
    progress = await suite.progress()
    assert (progress.paused, progress.max_parallel, progress.pending) == (True, 1, 1)
    with pytest.raises(SuiteRefused, match="still waits"):
        await suite.requeue("bad")
    assert "goes on" in await suite.resume()
    go.touch()
    result = await suite.wait()
    assert (result.succeeded, result.failed, result.not_run) == (5, 0, 0)
    outcome = await suite.outcome()
    assert (outcome["totals"]["succeeded"], len(outcome["tasks"][1]["trials"])) == (5, 1)
    assert await suite.unwritten() == []
    with pytest.raises(SuiteRefused, match=rf"is closed.*perdure retry {suite.suite}"):
        await suite.pause()


async def test_callbacks_hear_of_the_steps_of_every_run_of_a_trial(
    perdure: Perdure, tmp_path: Path
) -> None:
    go, bad = tmp_path / "go", tmp_path / "mended"
    suite = await perdure.start_suite(waiting_and_bad(go, bad), suite=name())
    heard: list[tuple[str, str]] = []

    def note(kind: str, context: dict[str, Any]) -> None:
        heard.append((kind, context["metadata"]["run_group_id"]))

    following = asyncio.create_task(
        suite.follow(
            on_step_start=lambda i, n, step, context: note("start", context),
            on_step_complete=lambda i, n, step, context, seconds: note("complete", context),
        )
    )

    async def bad_failed() -> bool:
        return (await suite.progress()).failed == 1

    await until(bad_failed)
    bad.touch()
    await suite.requeue("bad")
    go.touch()
    await following
    assert len({run for _, run in heard}) == 3
    assert [kind for kind, _ in heard].count("complete") == 2


async def test_a_suite_of_a_team_whose_workers_do_not_answer_says_so(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_updates, "ANSWER_SECONDS", 0.5)
    suite = await perdure.suite(await start_where_nobody_serves(perdure, "nobody-{}"))
    with pytest.raises(SuiteRefused, match=r"does not answer.*perdure worker"):
        await suite.pause()
    await perdure.client.get_workflow_handle(suite.workflow_id).terminate()


async def test_a_suite_that_a_crash_left_without_a_worker_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = find_program("temporal")
    assert binary
    for variable in [v for v in os.environ if v.startswith(("TEMPORAL_", "PERDURE_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", f"{Path(binary).parent}{os.pathsep}{os.environ['PATH']}")
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path / "state")})
    async with await Perdure.connect(settings) as perdure:
        suite = await perdure.suite(await start_where_nobody_serves(perdure, "perdure.{}"))
        with pytest.raises(SuiteRefused, match=rf"no worker serves.*--suite {suite.suite}"):
            await suite.pause()
        await perdure.client.get_workflow_handle(suite.workflow_id).terminate()
