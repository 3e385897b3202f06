"""What `perdure run` shows while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from perdure.cli.console import console_for, is_terminal, printable, say
from perdure.cli.environment_failures import reason_and_log
from perdure.cli.instances import Seen
from perdure.cli.rollbacks import counted
from perdure.cli.tables import kind_name
from perdure.cli.times import clock, number, span, time_of_day
from perdure.messages import SuiteProgress, TrialSummary
from perdure.names import SUITE_CANCELLED

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

REFRESH_PER_SECOND = 4
SHOWN_TASKS = 10
"""Running tasks that have a line of their own."""
SHOWN_WAITS = 3
"""What tasks wait for, that has one."""
MIN_ENDED_FOR_ESTIMATE = 2


@dataclass(frozen=True)
class RunningTask:
    """A task under way, as its line shows it."""

    name: str
    steps: str = ""
    """What it is at: `2/5 build, test`; empty if that is not known yet."""


@dataclass
class Picture:
    """How far a suite is."""

    progress: SuiteProgress | None = None
    running: Sequence[RunningTask] = ()
    """Without those that wait for environments."""
    pool: Seen = field(default_factory=Seen)
    ended_before: int = 0
    """Trials that had ended when this command began to look."""
    since: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> int:
        """Trials that have ended."""
        seen = self.progress
        return seen.succeeded + seen.failed + seen.cancelled if seen else 0

    def seconds_left(self, now: float) -> float | None:
        """How long the rest will take at the pace so far; None while nobody can know."""
        done = self.ended - self.ended_before
        if self.progress is None or done < MIN_ENDED_FOR_ESTIMATE:
            return None
        if self.progress.paused or self.progress.stopped:
            return None
        return (now - self.since) / done * (self.progress.total - self.ended)


class Display(Protocol):
    """Shows a suite on its way."""

    is_live: bool
    """Whether `show` is looked at: then it is worth asking what running tasks are at."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def ended(self, name: str, trial: TrialSummary, number: int, total: int) -> None:
        """The trial that people call `name` has ended, as number `number` of `total`."""

    def show(self, picture: Picture) -> None:
        """The state as of now."""

    def close(self) -> None:
        """Leave the terminal as it was; harmless when repeated."""


def display() -> Display:
    """The display that fits stderr."""
    if is_terminal(sys.stderr) and os.environ.get("TERM", "") not in ("dumb", "unknown"):
        return LiveDisplay(console_for(sys.stderr))
    return PlainDisplay()


def ended_line(name: str, trial: TrialSummary, number: int, total: int) -> str:
    """One ended trial on one line: its end, how long it took, from when to when, and why."""
    line = (
        f"[{number:{len(str(total))}}/{total}] {trial.status:<9} {printable(name)}"
        f"  {span(trial.duration_seconds)}"
    )
    if trial.started_at:
        ended_at = trial.started_at + trial.duration_seconds
        line += f" ({time_of_day(trial.started_at)} to {time_of_day(ended_at)})"
    reason = reason_of(trial) if trial.status != "succeeded" else ""
    rollbacks = trial.rollbacks and f"after {counted(trial.rollbacks)}"
    notes = [reason, rollbacks, "(its record is not written yet)" if trial.unwritten else ""]
    return "  ".join([line, *(note for note in notes if note)])


def reason_of(trial: TrialSummary, limit: int = 300) -> str:
    """The failing step and why, on one line; and the kind of failure, unless it is the task's."""
    step = f"step {trial.failure_step}: " if trial.failure_step else ""
    usual = trial.status != "failed" or trial.failure_kind in (None, "task")
    kind = "" if usual else f" ({kind_name(trial.failure_kind)})"
    reason, _ = reason_and_log(trial.failure_reason)
    if trial.status == "cancelled" and reason == SUITE_CANCELLED:
        reason = ""  # it is told already
    return printable(f"{step}{reason}", limit) + kind


class PlainDisplay:
    """A line per ended trial, and nothing that repeats itself."""

    is_live = False

    def say(self, line: str) -> None:
        say(line)

    def ended(self, name: str, trial: TrialSummary, number: int, total: int) -> None:
        say(ended_line(name, trial, number, total))

    def show(self, picture: Picture) -> None:
        pass

    def close(self) -> None:
        pass


class LiveDisplay:
    """A picture that is redrawn in place; lines that stay scroll by above it."""

    is_live = True

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._picture: Picture | None = None
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # stdout is for data, never for the picture
            redirect_stderr=False,
        )
        self._live.start()

    def say(self, line: str) -> None:
        self._quietly(lambda: self._console.print(line))

    def ended(self, name: str, trial: TrialSummary, number: int, total: int) -> None:
        if trial.status != "succeeded":  # the bar tells of the others
            style = "red" if trial.status == "failed" else "yellow"
            reason = reason_of(trial)
            line = f"{trial.status} {printable(name)}" + (f": {reason}" if reason else "")
            self._quietly(lambda: self._console.print(line, style=style))

    def show(self, picture: Picture) -> None:
        self._picture = picture

    def close(self) -> None:
        self._quietly(self._live.stop)

    def _render(self) -> Group:
        return render(self._picture, self._console.height, time.monotonic())

    @staticmethod
    def _quietly(write: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone; the run is not
            write()


def render(picture: Picture | None, height: int, now: float) -> Group:
    """The picture for a terminal of `height` lines; every line fits any width."""
    from rich.console import Group
    from rich.text import Text

    if picture is None or picture.progress is None:
        return Group(Text("starting…", style="dim"))
    progress = picture.progress
    standing = _standing(progress)
    pool = _pool(picture.pool)
    room = max(1, min(SHOWN_TASKS, height - 5 - len(standing) - len(pool)))
    running = list(picture.running)
    hidden = len(progress.running) - _waiting(picture) - min(len(running), room)
    lines: list[RenderableType] = [_bar(picture, now), _counts(picture, progress), *standing]
    lines += pool
    if running:
        lines.append(_tasks(running[:room]))
    if hidden > 0 and running:
        lines.append(Text(f"  and {hidden} more", style="dim"))
    return Group(*lines)


def _standing(progress: SuiteProgress) -> list[Text]:
    """Why nothing more is started, if that is so."""
    from rich.text import Text

    if progress.stopped and progress.pending:
        told = f"stopping: {printable(progress.stopped)}"
    elif progress.paused:
        told = f"paused: go on with perdure suite {printable(progress.suite)} resume"
    else:
        return []
    return [Text(told, style="yellow", no_wrap=True, overflow="ellipsis")]


def _pool(seen: Seen) -> list[Text]:
    """The instances, and what tasks wait for, the most common first."""
    from rich.text import Text

    told = Counter(seen.waits.values()).most_common(SHOWN_WAITS)
    lines = [seen.line] if seen.line else []
    lines += [f"  {count} wait: {printable(reason, 200)}" for reason, count in told]
    return [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]


def _waiting(picture: Picture) -> int:
    """The tasks that are started, and wait for environments."""
    started = picture.progress.running if picture.progress else []
    return len(picture.pool.waits.keys() & {*started})


def _bar(picture: Picture, now: float) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    assert picture.progress
    total, left = picture.progress.total, picture.seconds_left(now)
    row = Table.grid(padding=(0, 1), expand=True)
    counts = f"{picture.ended}/{total}"
    time_left = "" if left is None else f"{clock(left)} left"
    row.add_column(ratio=1, min_width=6)
    row.add_column(min_width=len(counts))
    # The same width with and without an estimate, so that the bar does not jump.
    row.add_column(min_width=max(len(time_left), len("0:00 left")), justify="right")
    row.add_row(
        ProgressBar(total=max(1, total), completed=picture.ended),
        counts,
        time_left,
    )
    return row


def _counts(picture: Picture, progress: SuiteProgress) -> Text:
    from rich.text import Text

    waiting = _waiting(picture)
    parts = [
        (progress.succeeded, "succeeded", "green"),
        (progress.failed, "failed", "red"),
        (progress.cancelled, "cancelled", "yellow"),
        (len(progress.running) - waiting, "running", ""),
        (progress.pending + waiting, "waiting", "dim"),
    ]
    line = Text(no_wrap=True, overflow="ellipsis")
    for count, name, style in parts:
        if count or name == "succeeded":
            line.append(" · " if line else "")
            line.append(f"{count} {name}", style=style)
    if "cost" in progress.usage:
        line.append(f" · cost {number(progress.usage['cost'])}")
    return line


def _tasks(running: Sequence[RunningTask]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", style="cyan", max_width=48)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for task in running:
        table.add_row(f"  {printable(task.name, 80)}", printable(task.steps, 120))
    return table
