"""Twenty SIGKILLs over a suite of twenty tasks: it goes on each time, and nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure.client import Perdure
from perdure.config import Settings
from tests.cli.support import CommandLine
from tests.crash.driver import KINDS, SUITE, Aim, Driver, Kill, Kind, Sight
from tests.crash.suite_of_twenty import HEARTBEAT_SECONDS, SuiteOfTwenty, Work
from tests.crash.work import FAILS, Line

KILLS = 20
AT_WORK_WANTED, WINDOWS_WANTED = 5, 2

PROMISED_SECONDS = 2.0
"""Beyond its heartbeat timeout, until a step that was hit is at work again."""
NOISE_SECONDS = 4.0
"""What a machine with ten times more work than processors adds: from the server's timer to the
step's first line, a new worker replays the task and a new interpreter starts. Less than the 10 s
that the server would by itself wait for a worker that died while it decided what comes next."""

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor's promises hold on Linux"),
]


@pytest.fixture
def seed() -> int:
    """Of everything that is drawn; `PERDURE_CRASH_SEED` repeats a run's choices."""
    given = os.environ.get("PERDURE_CRASH_SEED")
    return int(given) if given else secrets.randbelow(1_000_000)


@pytest.fixture
def perdure(tmp_path: Path) -> CommandLine:
    """`perdure` with a state directory of the test's own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return CommandLine(tmp_path / "state", folder)


@pytest.fixture
def driver(perdure: CommandLine, seed: int) -> Iterator[Driver]:
    chance = random.Random(seed)
    driver = Driver(perdure, SuiteOfTwenty(perdure.folder, chance), chance)
    began = time.monotonic()
    try:
        yield driver
    finally:
        # Shown beside a failed test.
        print(f"PERDURE_CRASH_SEED={seed}, {time.monotonic() - began:.0f} s\n{driver.report()}")
        print(driver.log.read_text())
        driver.end()


def test_a_suite_that_is_killed_twenty_times_ends_as_it_would_have(
    perdure: CommandLine, driver: Driver, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _run_and_kill(perdure, driver, random.Random(f"kills {seed}"))

    assert driver.finish() == 0
    totals = json.loads(driver.answer.read_text())["totals"]
    assert (totals["total"], totals["succeeded"]) == (20, 20)
    assert driver.left() == []
    for work in driver.suite.works:
        results = perdure.state / "results" / SUITE / work.task / "1"
        record = json.loads((results / "record.json").read_text())
        _assert_ended_as_it_would_have(record, work, results)
        _assert_each_attempt_stands_alone(driver, work, _step(record, work))
        for kill in driver.kills:
            _assert_not_run_again(work, kill.seen, driver.suite.lines(work.name))
    with capsys.disabled():
        print(f"\nPERDURE_CRASH_SEED={seed}: {_figures(driver.kills)}")
    _assert_the_kills_met_what_they_should(driver.kills)


def _run_and_kill(perdure: CommandLine, driver: Driver, chance: random.Random) -> None:
    """Kill what runs the suite again and again, until `KILLS` are done and it is under way."""
    suite, shown, holding = driver.suite, False, True
    driver.start(hold_reports=holding)
    for number, kind in enumerate(_kinds(chance)):
        wanted = _met_window(driver.kills) <= WINDOWS_WANTED
        # So many steps may end before the next kill that the last one still finds some.
        most = max(0, len(suite.works) - suite.ends()) // (KILLS + 4 - number)
        aim = _aim(chance, kind, window=holding and wanted)
        kill = driver.kill(kind, aim, after_ends=chance.randint(0, most))
        if kind == "whole run":
            if not shown and number > KILLS // 2:
                _assert_showing_runs_nothing(perdure, driver)
                shown = True
            holding = wanted
            driver.start(hold_reports=holding)
        driver.go_on(kill)
    assert shown
    suite.let_it_end()


# --- Choosing -----------------------------------------------------------------------------------


def _kinds(chance: random.Random) -> Iterator[Kind]:
    """Each kind as often as the others, in blocks: `perdure run` itself gives up on a worker that
    is lost five times within half a minute, and a block has two such kills."""
    for _ in range(KILLS // len(KINDS)):
        yield from chance.sample(KINDS, len(KINDS))


def _aim(chance: random.Random, kind: Kind, *, window: bool) -> Aim:
    if kind == "server":
        return "any moment"
    return "window" if window else chance.choice(("running", "any moment"))


# --- What must hold -----------------------------------------------------------------------------


def _ways_back(kills: list[Kill]) -> list[float]:
    """Seconds from a worker's return to the new start of each step that was hit."""
    return [seconds for kill in kills for seconds in kill.hit.values() if seconds is not None]


def _met_work(kills: list[Kill]) -> int:
    return sum(any(seconds is not None for seconds in kill.hit.values()) for kill in kills)


def _met_window(kills: list[Kill]) -> int:
    return sum(bool(kill.in_window) for kill in kills)


def _figures(kills: list[Kill]) -> str:
    return (
        f"{len(kills)} kills, {_met_work(kills)} of them met a step at work, "
        f"{_met_window(kills)} the window between the end of a process and its report; a step that "
        f"was hit began again at most {max(_ways_back(kills)):.2f} s after its worker's return "
        f"(heartbeat timeout {HEARTBEAT_SECONDS:g} s)"
    )


def _assert_the_kills_met_what_they_should(kills: list[Kill]) -> None:
    assert len(kills) == KILLS
    assert _met_work(kills) >= AT_WORK_WANTED
    assert _met_window(kills) >= WINDOWS_WANTED
    assert max(_ways_back(kills)) < HEARTBEAT_SECONDS + PROMISED_SECONDS + NOISE_SECONDS


def _assert_ended_as_it_would_have(record: dict[str, Any], work: Work, results: Path) -> None:
    step = _step(record, work)
    assert step["status"] == ("failed" if work.manner == FAILS else "succeeded"), work.name
    result = record["context"]["results"][work.step]
    assert (result["stdout"].strip() if work.type == "command" else result) == work.name
    if work.type == "crash_work":
        assert record["context"]["metadata"][f"done_{work.step}"] is True
    else:
        assert (results / "artifacts" / work.name).read_text() == work.name


def _assert_each_attempt_stands_alone(driver: Driver, work: Work, step: dict[str, Any]) -> None:
    """No two at once, none twice, and one that counts."""
    lines = driver.suite.lines(work.name)
    assert "beside" not in [line.what for line in lines], work.name
    starts = [line.attempt for line in lines if line.what == "start"]
    assert starts == sorted(set(starts)), work.name
    attempts = {attempt["number"]: attempt["status"] for attempt in step["attempts"]}
    for number, status in attempts.items():
        # One without a start was lost before it got that far, or takes over what a lost one left.
        began = number in starts
        assert began or "lost" in (status, attempts.get(number - 1)), work.name
    assert set(starts) <= set(attempts), work.name
    # A process that is killed after its last line and before its exit has not ended.
    counted = [line for line in lines if line.what == "end" and driver.has_end(work, line.attempt)]
    assert len(counted) == work.ends, work.name


def _assert_not_run_again(work: Work, seen: Sight, lines: list[Line]) -> None:
    """What had come to its last end before a kill was not begun after it."""
    if work.name in seen.ended:
        starts = sum(line.what == "start" for line in lines)
        assert starts == seen.starts[work.name], work.name


def _assert_showing_runs_nothing(perdure: CommandLine, driver: Driver) -> None:
    """With everything dead, `perdure show` reads, and no more."""
    with perdure.served():
        before = asyncio.run(_activities(perdure)), driver.suite.all_lines()
        task = max(driver.suite.works, key=lambda work: len(driver.suite.lines(work.name))).task
        for run in (SUITE, f"{SUITE}/{task}"):
            shown = replace(perdure, within=True)("show", run, "--json")
            assert shown.returncode == 0, shown.stderr
        assert (asyncio.run(_activities(perdure)), driver.suite.all_lines()) == before


async def _activities(perdure: CommandLine) -> int:
    """How many activities the server's histories know."""
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(perdure.state)})
    scheduled = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    async with await Perdure.connect(settings, role="reader") as connection:
        return sum(
            [
                event.event_type == scheduled
                async for run in connection.client.list_workflows()
                async for event in connection.client.get_workflow_handle(
                    run.id, run_id=run.run_id
                ).fetch_history_events()
            ]
        )


def _step(record: dict[str, Any], work: Work) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in record["steps"] if s["id"] == work.step)
    return found
