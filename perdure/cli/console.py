"""Where the command line writes: data to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 2000
"""Columns of a table that no person looks at: nothing of it is cut off."""


class ReaderGone(Exception):
    """Who read our stdout has closed it; there is nobody left to write for."""


def emit(text: str) -> None:
    """Write a line of data to stdout.

    Raises ReaderGone if nobody reads it any more.
    """
    with _reader():
        print(text, flush=True)


def emit_text(text: str) -> None:
    """Write text to stdout as it is.

    Raises ReaderGone if nobody reads it any more.
    """
    with _reader():
        sys.stdout.write(text)
        sys.stdout.flush()


def emit_json(value: Any) -> None:
    """Write one JSON document to stdout.

    Raises ReaderGone if nobody reads it any more.
    """
    emit(json.dumps(value, ensure_ascii=False, indent=2))


def emit_table(table: RenderableType) -> None:
    """Write a table to stdout, fitted to the terminal if there is one.

    Raises ReaderGone if nobody reads it any more.
    """
    with _reader():
        console_for(sys.stdout).print(table)
        sys.stdout.flush()


def say(text: str) -> None:
    """Tell people something on stderr; a closed stderr changes nothing."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def console_for(stream: Any) -> Console:
    """A console on `stream`: as wide as the terminal, or wide enough that nothing is cut."""
    from rich.console import Console

    terminal = is_terminal(stream)
    return Console(
        file=stream,
        width=None if terminal else PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def is_terminal(stream: Any) -> bool:
    """Whether a person looks at it; a closed stream is none."""
    try:
        return bool(stream and stream.isatty())
    except ValueError:
        return False


def printable(text: str | None, limit: int | None = None) -> str:
    """Text from outside, safe for a terminal: one line, no control characters.

    Output of steps may hold escape sequences that would move the cursor or retitle the window.
    """
    line = " ".join((text or "").split())
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    if limit is not None and len(line) > limit:
        return line[: limit - 1] + "…"
    return line


def prepare_streams() -> None:
    """Make sure that stdin, stdout and stderr are there, and take any character.

    Of a process that was started with one of them closed (`>&-`), the next file to be opened
    would get its number, and somebody else's output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def abandon_stdout() -> None:
    """Write no more to a closed stdout, at the interpreter's own last flush neither."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _reader() -> Any:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error
