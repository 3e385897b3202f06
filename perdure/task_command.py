"""The task command: what stands for a task's directory in it, quoted for the shell."""

from __future__ import annotations

import re
import shlex

PLACEHOLDER = "{task_dir}"

_PARTS = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\\'"]+|.""", re.DOTALL)
"""Of a command line: an escaped character, a text in quotes, text without any."""

_IS_COMMAND = re.compile(r"[\s;&|<>()]")
"""Of a text in quotes: a whole command line for another shell, more likely than one word."""

_OTHER_QUOTING = re.compile(r"`|\$\(|<<")
"""What begins a text with quoting of its own."""


class CannotQuote(ValueError):
    """The directory's name has characters that mean something where the command has it."""


def filled(command: str, directory: str) -> str:
    """The command with the directory for each `{task_dir}`, as one word or part of one.

    Quotes around it, or around a word that it is part of, may be there or not. Raises CannotQuote
    where the name has to be quoted and would be read by more than one shell.
    """
    quoted = shlex.quote(directory)
    if quoted == directory:
        return command.replace(PLACEHOLDER, directory)
    if PLACEHOLDER in command and _OTHER_QUOTING.search(command):
        raise CannotQuote
    return "".join(_filled(part, quoted) for part in _PARTS.findall(command))


def _filled(part: str, quoted: str) -> str:
    if PLACEHOLDER not in part or part[0] not in "'\"":
        return part.replace(PLACEHOLDER, quoted)
    mark, inner = part[0], part[1:-1]
    if inner == PLACEHOLDER:
        return quoted
    if _IS_COMMAND.search(inner):
        raise CannotQuote
    return part.replace(PLACEHOLDER, f"{mark}{quoted}{mark}")  # the quotes end, and begin again
