"""`perdure interrupt`: have a background job stop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

from perdure.cli.console import emit, emit_json, printable, say
from perdure.cli.options import JsonOption, OptionError, flag_option, value_option
from perdure.cli.peek_command import ExecIdArgument

if TYPE_CHECKING:
    from perdure.peeks import Peek

REACHED_NOBODY = 1

ANSWER_SECONDS = 1.0
"""Where a worker lives, it is known within milliseconds whether a signal reached a process."""

_LOOK_SECONDS = 0.05


def interrupt(
    exec_id: ExecIdArgument,
    kill: Annotated[bool, flag_option("--kill", "Kill it at once, with all it started.")] = False,
    kill_after: Annotated[
        str | None,
        value_option("--kill-after", "T", "Kill it if it still runs then: seconds, or 2m."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Have a background job sent one SIGINT, as Ctrl-C would; does not wait for its end.

    What it does then is its own affair, unless --kill-after says otherwise. Harmless when
    repeated, and for a job that has ended.

    --json prints a peek record. Exit status 1 if the interrupt reached nobody, which the record
    has under interrupt_undelivered.
    """
    from perdure.bounds import pause

    if kill and kill_after is not None:
        raise OptionError("--kill is --kill-after 0; give one of the two")
    seconds = 0.0 if kill else pause("--kill-after", kill_after)
    found = asyncio.run(_interrupt(exec_id, seconds))
    undelivered = None if found.done else found.interrupt_undelivered
    if json:
        emit_json(found.as_json())
    elif undelivered:
        say(f"perdure: the interrupt reached nobody: {printable(undelivered, 300)}")
    else:
        from perdure.cli.job_text import state_line

        emit(state_line(found) if found.done else _told(found))
    return REACHED_NOBODY if undelivered else 0


def _told(peek: Peek) -> str:
    what = "is interrupted" if peek.interrupted else "is asked to stop"
    return f"{peek.exec_id} {what}; see it end with: perdure peek {peek.exec_id} --follow"


async def _interrupt(exec_id: str, kill_after: float | None) -> Peek:
    from perdure.cli.reading import server_to_act
    from perdure.config import Settings

    async with server_to_act(Settings.from_env(), "interrupt") as perdure:
        job = perdure.job(exec_id)
        peek = await job.interrupt(kill_after=kill_after)
        deadline = time.monotonic() + ANSWER_SECONDS
        while not _is_known(peek) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
            peek = await job.peek()
        return peek


def _is_known(peek: Peek) -> bool:
    """Whether the interrupt has reached somebody, or nobody."""
    return peek.done or peek.interrupted or peek.interrupt_undelivered is not None
