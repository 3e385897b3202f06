"""The keywords of the Python client: what they stand for, and what is refused."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from perdure.bounds import BadBound
from perdure.client import Perdure, SuiteOpen, SuiteRefused, UnknownSuite
from perdure.errors import PerdureError
from perdure.messages import SuiteInput, SuiteTask, TaskOptions
from perdure.suite_settings import bounded, list_options, rebound
from tests.waiting import until

GATED = "while [ ! -e {go} ]; do sleep 0.05; done; [ ! -e {bad} ]"


def name() -> str:
    return f"s{uuid.uuid4().hex[:8]}"


def task(id: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "steps": [{"id": "s", "type": "command", "command": command}], **more}


def test_lists_and_bounds_are_read_from_the_keywords() -> None:
    lists = list_options(
        {
            "root": "here",
            "domain": "crm",
            "skip_existing": True,
            "options": TaskOptions(agent_model="m"),
        }
    )
    assert (lists.root, lists.domain, lists.skip_existing) == (Path("here"), "crm", True)
    assert (lists.agent_model, lists.env_config) == ("m", None)

    before = TaskOptions(limits={"a": 1, "b": 2}, task_timeout_seconds=5)
    assert bounded(before, {}) == before
    after = bounded(before, {"limits": {"b": 3}, "task_timeout": "10m"})
    assert (after.limits, after.task_timeout_seconds) == ({"a": 1, "b": 3}, 600.0)


def test_a_retry_keeps_what_it_is_not_told_otherwise() -> None:
    document = {"id": "t", "steps": [{"id": "s", "type": "command", "command": "true"}]}
    start = SuiteInput(
        suite="s",
        tasks=[SuiteTask(document, "d", repeats=30)],
        max_parallel=7,
        max_failures=2,
        max_cost=1.0,
        retry_infrastructure=3,
        digest="of-the-documents",
    )

    same = rebound(start, {})
    assert (same.max_parallel, same.max_failures, same.max_cost, same.retry_infrastructure) == (
        7, 2, 1.0, 3,
    )  # fmt: skip
    other = rebound(start, {"max_failures": "10%", "max_cost": 9, "retry_infrastructure": 0})
    assert (other.max_failures, other.max_cost, other.retry_infrastructure) == (3, 9.0, 0)
    assert same.digest == other.digest == "of-the-documents"
    with pytest.raises(BadBound, match="max_cost"):
        rebound(start, {"max_cost": -1})


async def test_a_keyword_that_is_none_is_refused_with_the_nearest(
    perdure: Perdure,
) -> None:
    with pytest.raises(TypeError, match="'max_paralel'; did you mean 'max_parallel'"):
        await perdure.start_suite(task("t", "true"), max_paralel=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'repeats'"):
        await perdure.retry_suite("s", repeats=3)  # type: ignore[call-arg]
    with pytest.raises(BadBound, match="max_failures"):
        await perdure.start_suite(task("t", "true"), max_failures="many")
    limited = {"id": "a", "type": "command", "command": "true", "limit": "openai"}
    with pytest.raises(PerdureError, match="openai"):
        await perdure.start_suite({"id": "t", "steps": [limited]}, limits={"other": 1})


async def test_a_suite_is_controlled_stopped_and_retried(
    perdure: Perdure,
    tmp_path: Path,
) -> None:
    suite, bad = name(), tmp_path / "bad"
    bad.touch()
    documents = [
        task(id, GATED.format(go=tmp_path / id, bad=bad if id == "a" else tmp_path / "none"))
        for id in ("a", "b", "c")
    ]
    run = await perdure.start_suite(documents, suite=suite, max_parallel=1, max_failures="1%")

    assert "paused" in await run.pause()
    again = await perdure.start_suite(documents, suite=suite, max_parallel=2, max_failures=1)
    assert again.how == "attached"
    seen = await run.progress()
    assert (seen.max_parallel, seen.paused) == (2, True)
    with pytest.raises(SuiteRefused, match="no task 'z'"):
        await run.requeue("z")
    with pytest.raises(SuiteOpen, match="is open"):
        await perdure.retry_suite(suite)
    (tmp_path / "a").touch()
    result = await asyncio.wait_for(run.wait(), 60)
    assert (result.failed, result.not_run) == (1, 2), "it stops at its limit, paused or not"
    outcome = await run.outcome()
    assert (outcome["status"], outcome["stopped"]) == (
        "failed",
        "1 failure (max_failures: 1%, here 1)",
    )

    for id in ("b", "c"):
        (tmp_path / id).touch()
    bad.unlink()
    notes: list[str] = []
    retried = await perdure.retry_suite(suite, max_parallel=3, say=notes.append)
    assert retried.definition.max_parallel == 3
    await until(lambda: _closed(retried))
    assert (await retried.outcome())["totals"]["succeeded"] == 3
    assert (await perdure.retry_suite(suite)).how == "finished"
    with pytest.raises(UnknownSuite):
        await perdure.retry_suite(name())


async def _closed(run: Any) -> bool:
    return bool((await run.outcome())["status"] != "running")
