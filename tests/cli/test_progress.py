"""What a run shows: a picture that fits any terminal, lines that appear once elsewhere."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from perdure.cli.following import at_steps, changes
from perdure.cli.instances import Seen
from perdure.cli.progress import (
    LiveDisplay,
    Picture,
    PlainDisplay,
    RunningTask,
    ended_line,
    render,
)
from perdure.cli.summary import pass_at_k_text
from perdure.cli.tables import steps_table
from perdure.cli.times import clock, moment, number, span, time_of_day
from perdure.messages import SuiteProgress, TrialSummary
from perdure.names import SUITE_CANCELLED


def progress(succeeded: int, failed: int, running: int, total: int) -> SuiteProgress:
    pending = total - succeeded - failed - running
    names = [f"task/suite/task-{n}/1" for n in range(running)]
    return SuiteProgress("suite", "", total, succeeded, failed, 0, names, pending, [], 0)


def picture(**changes: object) -> Picture:
    shown = Picture(since=0.0)
    shown.progress = progress(50, 7, 12, 164)
    shown.running = [RunningTask(f"task-{n}-{'x' * 60}", "2/5 build, test") for n in range(12)]
    for name, value in changes.items():
        setattr(shown, name, value)
    return shown


def drawn(shown: Picture, width: int, *, height: int = 24, now: float = 60.0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    with console.capture() as captured:
        console.print(render(shown, height, now))
    return captured.get().rstrip("\n").split("\n")


def test_the_picture_tells_of_instances_and_of_what_tasks_wait_for() -> None:
    states = ["in_use", "in_use", "starting", "available"]
    waits = {f"task/suite/task-{n}/1": "no room for shop" for n in range(2, 12)}
    waits["task/suite/task-1/1"] = "getting ready: shop"
    seen = Seen([{"state": state} for state in states], waits)

    shown = drawn(picture(pool=seen, running=[RunningTask("task-0", "1/3 agent")]), 80)

    assert shown[1].rstrip() == "50 succeeded · 7 failed · 1 running · 106 waiting"
    assert [line.strip() for line in shown[2:]] == [
        "instances: 2 in use, 1 starting, 1 idle",
        "10 wait: no room for shop",
        "1 wait: getting ready: shop",
        "task-0  1/3 agent",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_picture_has_the_same_lines_at_any_width(width: int) -> None:
    lines = drawn(picture(), width)

    assert len(lines) == 13, lines
    assert all(len(line) <= width for line in lines)
    assert "57/164" in lines[0]
    assert "left" in lines[0]
    assert "50 succeeded" in lines[1]
    assert "task-0-" in lines[2]
    assert "and 2 more" in lines[-1]


def test_the_picture_leaves_room_on_a_low_terminal() -> None:
    assert len(drawn(picture(), 80, height=8)) <= 8


@pytest.mark.parametrize(
    ("standing", "told"),
    [
        ({"paused": True}, "paused: go on with perdure suite suite resume"),
        ({"stopped": "3 failures (max_failures: 3)"}, "stopping: 3 failures (max_failures: 3)"),
        ({"paused": True, "stopped": "cost 5 (max_cost: 5)"}, "stopping: cost 5 (max_cost: 5)"),
    ],
)
def test_while_nothing_more_is_started_the_picture_says_why(
    standing: dict[str, object], told: str
) -> None:
    shown = picture()
    assert shown.progress
    shown.progress = replace(shown.progress, usage={"cost": 1.25}, **standing)

    lines = drawn(shown, 80)

    assert lines[1].rstrip().endswith("waiting · cost 1.25")
    assert lines[2].rstrip() == told
    assert "left" not in lines[0], "nobody knows when it goes on"
    assert len(drawn(shown, 40, height=8)) <= 8


def test_what_changes_with_a_suite_is_told_once() -> None:
    start = replace(progress(0, 0, 1, 9), max_parallel=5)
    paused = replace(start, paused=True)
    stopping = replace(start, stopped="1 failure (max_failures: 1)")

    assert changes(None, start) == []
    assert changes(start, replace(start, max_parallel=8)) == ["max_parallel is 8 (was 5)"]
    assert [line[:7] for line in changes(start, paused)] == ["paused:"]
    assert [line[:7] for line in changes(None, paused)] == ["paused:"], "also when one joins late"
    assert changes(paused, paused) == []
    assert changes(paused, start) == ["resumed"]
    assert changes(start, stopping) == [
        "stopping: 1 failure (max_failures: 1); nothing more is started, running tasks end by "
        "themselves"
    ]
    assert changes(stopping, stopping) == []
    assert changes(start, replace(stopping, pending=0)) == [], "nothing is left that could start"


def test_a_running_task_shows_its_steps_and_what_they_wait_for() -> None:
    told = {
        "completed": 2, "total": 5, "running": ["build"], "waiting": ["again", "ask"],
        "waiting_for": {"ask": "openai"},
    }  # fmt: skip
    assert at_steps(told) == "2/5 build, again, ask (waiting for openai)"
    del told["waiting_for"]  # of a worker that knows no limits
    assert at_steps(told) == "2/5 build, again, ask"


def test_before_anything_is_known_the_picture_says_so() -> None:
    assert drawn(Picture(), 60) == ["starting…"]


def test_the_time_left_goes_by_the_pace_since_this_command_began_to_look() -> None:
    assert picture().seconds_left(57.0) == pytest.approx(107.0)
    assert picture(ended_before=50).seconds_left(7.0) == pytest.approx(107.0)
    assert picture(ended_before=56).seconds_left(7.0) is None


def test_elsewhere_each_ended_trial_is_one_line_and_the_picture_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """P58."""
    failed = TrialSummary(
        "refund", 2, "r", "failed", "task", "check", "exit code 3\n\x1b[2Jx", duration_seconds=1.5
    )
    shown = PlainDisplay()
    shown.ended("order", TrialSummary("order", 1, "r", "succeeded", duration_seconds=0.5), 9, 10)
    shown.ended("refund/2", failed, 10, 10)
    shown.show(picture())
    shown.close()

    assert capsys.readouterr().err.splitlines() == [
        "[ 9/10] succeeded order  0.50 s",
        "[10/10] failed    refund/2  1.50 s  step check: exit code 3 \\x1b[2Jx",
    ]


def test_a_line_tells_from_when_to_when_a_trial_ran() -> None:
    trial = TrialSummary("t", 1, "r", "succeeded", started_at=1e9, duration_seconds=75.0)
    begun, ended = time_of_day(1e9), time_of_day(1e9 + 75)
    line = f"[1/1] succeeded t  1:15 ({begun} to {ended})"
    assert ended_line("t", trial, 1, 1) == line
    again = replace(trial, rollbacks=2)
    assert ended_line("t", again, 1, 1) == f"{line}  after 2 rollbacks"


def test_that_a_suite_was_cancelled_is_not_told_with_each_of_its_trials() -> None:
    trial = TrialSummary(
        "t", 1, "r", "cancelled", failure_reason=SUITE_CANCELLED, duration_seconds=1.0
    )
    assert ended_line("t", trial, 1, 1) == "[1/1] cancelled t  1.00 s"


def test_a_long_reason_is_cut() -> None:
    failed = TrialSummary("t", 1, "r", "failed", failure_reason="x" * 10_000)
    assert len(ended_line("t", failed, 1, 1)) < 400


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=60, height=20)
    shown = LiveDisplay(console)
    shown.show(picture())
    shown.ended("t", TrialSummary("t", 1, "r", "failed", failure_reason="why"), 1, 1)
    shown.close()

    written = stream.getvalue()
    assert "failed t: why" in written
    assert "\x1b[31m" not in written
    assert "\x1b[32m" not in written


def test_a_terminal_that_went_away_ends_no_run() -> None:
    stream = io.StringIO()
    shown = LiveDisplay(Console(file=stream, force_terminal=True, width=60))
    shown.close()
    stream.close()
    shown.say("unheard")
    shown.ended("t", TrialSummary("t", 1, "r", "failed"), 1, 1)
    shown.close()


def test_times_are_short_and_exact() -> None:
    assert [clock(s) for s in (0, 7.9, 750, 11_100, -1)] == [
        "0:00", "0:07", "12:30", "3:05:00", "0:00",
    ]  # fmt: skip
    assert [span(s) for s in (None, 0.314, 12.44, 125)] == ["", "0.31 s", "12.4 s", "2:05"]
    assert moment(None) == ""


def test_sums_are_told_without_noise() -> None:
    assert [number(n) for n in (0, 0.1 + 0.2, 1200, 2.5, 1e-7, 1e20)] == [
        "0", "0.3", "1,200", "2.5", "0", "1e+20",
    ]  # fmt: skip


def test_estimates_are_told_for_round_numbers_of_trials_and_the_largest() -> None:
    estimates = {str(k): k / 1000 for k in range(1, 131)}
    told = pass_at_k_text({"pass_at_k": estimates})
    assert [part.split()[0] for part in told.split(", ")] == [
        f"pass@{k}" for k in (1, 2, 5, 10, 25, 50, 100, 130)
    ]


def test_a_step_that_runs_shows_how_long_it_has_been_running() -> None:
    attempt = {"number": 1, "started_at": time.time() - 500, "ended_at": None, "failure": None}
    step = {"id": "a", "type": "command", "status": "running", "duration": 0.0}
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as captured:
        console.print(steps_table({"steps": [{**step, "attempts": [attempt]}]}))
    assert "8:2" in captured.get()
