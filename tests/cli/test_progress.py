"""What a run shows: a picture that fits any terminal, lines that appear once elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from perdure.cli.progress import (
    LiveDisplay,
    Picture,
    PlainDisplay,
    RunningTask,
    ended_line,
    render,
)
from perdure.cli.times import clock, moment, span
from perdure.messages import SuiteProgress, TrialSummary


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


def test_before_anything_is_known_the_picture_says_so() -> None:
    assert drawn(Picture(), 60) == ["starting…"]


def test_the_time_left_goes_by_the_pace_since_this_command_began_to_look() -> None:
    assert picture().seconds_left(57.0) == pytest.approx(107.0)
    assert picture(ended_before=50).seconds_left(7.0) == pytest.approx(107.0)
    assert picture(ended_before=56).seconds_left(7.0) is None


def test_elsewhere_each_ended_trial_is_one_line_and_the_picture_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = TrialSummary(
        "refund", 2, "r", "failed", "task", "check", "exit code 3\n\x1b[2Jx", duration_seconds=1.5
    )
    shown = PlainDisplay()
    shown.ended(TrialSummary("order", 1, "r", "succeeded", duration_seconds=0.5), 9, 10)
    shown.ended(failed, 10, 10)
    shown.show(picture())
    shown.close()

    assert capsys.readouterr().err.splitlines() == [
        "[ 9/10] succeeded order  0.50 s",
        "[10/10] failed    refund/2  1.50 s  step check: exit code 3 \\x1b[2Jx",
    ]


def test_a_long_reason_is_cut() -> None:
    failed = TrialSummary("t", 1, "r", "failed", failure_reason="x" * 10_000)
    assert len(ended_line(failed, 1, 1)) < 400


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=60, height=20)
    shown = LiveDisplay(console)
    shown.show(picture())
    shown.ended(TrialSummary("t", 1, "r", "failed", failure_reason="why"), 1, 1)
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
    shown.ended(TrialSummary("t", 1, "r", "failed"), 1, 1)
    shown.close()


def test_times_are_short_and_exact() -> None:
    assert [clock(s) for s in (0, 7.9, 750, 11_100, -1)] == [
        "0:00", "0:07", "12:30", "3:05:00", "0:00",
    ]  # fmt: skip
    assert [span(s) for s in (None, 0.314, 12.44, 125)] == ["", "0.31 s", "12.4 s", "2:05"]
    assert moment(None) == ""
