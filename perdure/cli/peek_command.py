"""`perdure peek`: what a background job has printed; with --follow as it comes."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.console import emit_json, emit_text, is_terminal, printable, say
from perdure.cli.options import (
    JsonOption,
    OptionError,
    ResultsOption,
    flag_option,
    results_dir,
    value_option,
)

if TYPE_CHECKING:
    from perdure.peeks import Peek

ENDED_BADLY = 1
INTERRUPTED = 130

ExecIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXEC_ID", help="A job's id, as `perdure jobs` lists it.", show_default=False
    ),
]
RawOption = Annotated[
    bool, flag_option("--raw", "On a terminal: as it was printed, escape sequences included.")
]


def peek(
    exec_id: ExecIdArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print what comes, until the job ends.")
    ] = False,
    offset: Annotated[
        int, value_option("--offset", "N", "Leave out the first N characters.", min=0)
    ] = 0,
    stderr: Annotated[bool, flag_option("--stderr", "What it wrote to stderr.")] = False,
    raw: RawOption = False,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> int:
    """Print what a background job has printed so far; how it is, is told on stderr.

    Nothing is run, and nothing waits for output. It answers after the job's end, too: from the
    server, or from files of results; with --results DIR from those alone.

    --follow ends with the job: exit status 0 if it is done or was interrupted, 1 if it failed, was
    killed or lost. Ctrl-C ends following alone, and the job runs on (130).
    """
    if follow and json:
        raise OptionError("--follow prints text as it comes; leave out --json, or --follow")
    folder = results_dir(results)
    if not follow:
        found = asyncio.run(_peek(exec_id, folder, offset, stderr=stderr and not json))
        if json:
            emit_json(found.as_json())
        else:
            _print(found, stderr=stderr, raw=raw)
        return 0
    try:
        end = asyncio.run(_follow(exec_id, folder, offset, stderr=stderr, raw=raw))
    except KeyboardInterrupt:
        say(f"\n{exec_id} is left as it is; stop it with: perdure interrupt {exec_id}")
        return INTERRUPTED
    return 0 if end.went_well else ENDED_BADLY


async def _peek(exec_id: str, results: Path | None, offset: int, *, stderr: bool) -> Peek:
    from perdure.cli.reading import to_read

    async with to_read(results) as (perdure, root):
        if perdure is None:
            return await asyncio.to_thread(_on_disk, exec_id, root, offset, stderr)
        if stderr:
            return await perdure.peek(exec_id, stderr_offset=offset)
        return await perdure.peek(exec_id, offset=offset)


def _on_disk(exec_id: str, root: Path, offset: int, stderr: bool) -> Peek:
    from perdure.job_files import find_job
    from perdure.jobs import UnknownJob

    found = find_job(root, exec_id)
    if found is None:
        raise UnknownJob(f"there is no job {exec_id[:256]!r} in {root}")
    return found.peek(0, offset) if stderr else found.peek(offset)


def _print(peek: Peek, *, stderr: bool, raw: bool) -> None:
    from perdure.cli.job_text import Screen, state_line

    text, live, tail = (
        (peek.stderr, peek.live_stderr, peek.tail_stderr)
        if stderr
        else (peek.stdout, peek.live_stdout, peek.tail_stdout)
    )
    if tail:
        text += f"\n[perdure: the newest output; what is between is not here]\n{tail}"
    _write(Screen().shown(text, live) if _is_watched(raw) else text + live)
    if is_terminal(sys.stdout) and (text + live)[-1:] not in ("", "\n"):
        _write("\n")
    say(state_line(peek))
    if peek.interrupt_undelivered and not peek.done:
        say(f"the interrupt reached nobody: {printable(peek.interrupt_undelivered, 300)}")
    if not stderr and not text and peek.stderr:
        say(f"stdout is empty; stderr has {len(peek.stderr)} characters: --stderr")


async def _follow(
    exec_id: str, results: Path | None, offset: int, *, stderr: bool, raw: bool
) -> Peek:
    """Print what comes; returns the end."""
    from perdure.cli.job_text import Screen, state_line
    from perdure.cli.reading import to_read

    screen = Screen() if _is_watched(raw) else None
    attempts, last = 1, ""
    async with to_read(results) as (perdure, root):
        if perdure is None:
            found = await asyncio.to_thread(_on_disk, exec_id, root, offset, stderr)
            _print(found, stderr=stderr, raw=raw)
            return found
        from perdure.jobs import BEYOND

        at, stderr_at = (BEYOND, offset) if stderr else (offset, BEYOND)
        follow = perdure.job(exec_id).peeks(offset=at, stderr_offset=stderr_at)
        async with aclosing(follow) as peeks:
            async for now in peeks:
                text = now.stderr if stderr else now.stdout
                live = now.live_stderr if stderr else now.live_stdout
                _write(screen.shown(text, live) if screen else text)
                last = live or text or last
                if now.attempts != attempts:
                    say(state_line(now))
                attempts = now.attempts
    if is_terminal(sys.stdout) and not last.endswith("\n") and last:
        _write("\n")
    say(state_line(now))
    return now


def _write(text: str) -> None:
    if text:
        emit_text(text)


def _is_watched(raw: bool) -> bool:
    return not raw and is_terminal(sys.stdout)
