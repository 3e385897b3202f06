"""What a job has printed, and how it is, as a terminal may show it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perdure.cli.console import printable
from perdure.cli.tables import state, table
from perdure.cli.times import span

if TYPE_CHECKING:
    from rich.table import Table

    from perdure.peeks import Peek

ERASE = "\r\x1b[K"
"""Back to the beginning of the line, and nothing on it."""

ERROR_CHARACTERS = 300
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
_ASCII_CONTROLS = re.compile(r"[^\n\t\x20-\x7e]")


class Screen:
    """Output of a job, piece by piece, made safe for a terminal.

    Escape sequences in it could move the cursor or retitle the window: colours are left out, all
    else is spelled. A carriage return begins the line anew, as it was meant to.
    """

    def __init__(self) -> None:
        self._held = ""
        self._live = ""

    def shown(self, text: str, live: str = "") -> str:
        """What to write for more `text`; `live` is the line that is being redrawn after it."""
        text = self._held + text
        cut = _UNFINISHED.search(text)
        self._held = text[cut.start() :] if cut else ""
        text = text[: len(text) - len(self._held)]
        if not text and live == self._live:
            return ""
        before = ERASE if self._live else ""
        self._live = live
        return before + harmless(text) + harmless(live)


def harmless(text: str) -> str:
    """Text of several lines without anything that acts on a terminal, but for carriage returns."""
    text = _COLOURS.sub("", text).replace("\r\n", "\n")
    return _ASCII_CONTROLS.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    character = found[0]
    if character == "\r":
        return ERASE
    return character if character.isprintable() else ascii(character)[1:-1]


def state_line(peek: Peek) -> str:
    """`exec-0123456789ab (train) failed after 3.20 s, exit code 1: ZeroDivisionError: ...`."""
    name = f" ({printable(peek.name)})" if peek.name else ""
    seconds = _seconds(peek)
    if not peek.done:
        doing = "waits for a worker" if peek.waiting else "is running"
        time_text = f" for {span(seconds)}" if seconds is not None and not peek.waiting else ""
        return f"{peek.exec_id}{name} {doing}{time_text}{_starts(peek)}"
    took = f" after {span(seconds)}" if seconds is not None else ""
    code = f", exit code {peek.exit_code}" if peek.exit_code not in (None, 0) else ""
    why = f": {printable(peek.error, ERROR_CHARACTERS)}" if peek.error else ""
    line = peek.failing_line
    where = f" (line {line.number}: {printable(line.text, 100)})" if line else ""
    return f"{peek.exec_id}{name} {peek.status}{took}{_starts(peek)}{code}{why}{where}"


def _starts(peek: Peek) -> str:
    return f" in {peek.attempts} starts" if peek.attempts > 1 else ""


def _seconds(peek: Peek) -> float | None:
    if peek.started_at is None:
        return None
    end = time.time() if peek.ended_at is None else peek.ended_at / 1000
    return max(0.0, end - peek.started_at / 1000)


def jobs_table(jobs: Iterable[Peek]) -> Table:
    """Jobs as `perdure jobs` and `perdure show` list them."""
    made = table(
        "JOB", "NAME", "STEP", "STATE", ("TIME", "right"), ("EXIT", "right"), ("STARTS", "right"),
        "ERROR",
    )  # fmt: skip
    for job in jobs:
        made.add_row(
            job.exec_id,
            printable(job.name),
            printable(job.step),
            state("waiting" if job.waiting else job.status),
            span(_seconds(job)),
            "" if job.exit_code is None else str(job.exit_code),
            str(job.attempts) if job.attempts != 1 else "",
            printable(job.error, ERROR_CHARACTERS),
        )
    return made


def job_words(event: Mapping[str, Any]) -> list[str]:
    """What an event of a job says beside its step; empty for any other event."""
    if not str(event["type"]).startswith("job."):
        return []
    name = f" ({event['name']})" if event.get("name") else ""
    return [f"{event.get('exec_id')}{name}", str(event.get("status") or "")]


def recorded_jobs(record: Mapping[str, Any]) -> list[Peek]:
    """The jobs in a run's record, without their output; none of a record that has no jobs.

    Raises ResultsError for what is no such list.
    """
    from perdure.peeks import of_record
    from perdure.results_shapes import ResultsError

    jobs = record.get("jobs") or []
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise ResultsError(
            f"the record of {printable(record['workflow_id'])} has no list of jobs where it should "
            "be; read it with the version that wrote it"
        )
    return [of_record(job, record["workflow_id"]) for job in jobs]
