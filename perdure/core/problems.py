"""What is wrong with a document, where in it, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.errors import PerdureError

Path = tuple[str | int, ...]
"""Keys and positions from the top of a document to a value in it."""

_SHOWN_CHARACTERS = 60
_COMPARED_WORDS = 300


MAX_PROBLEMS = 200
"""Of one document. Nobody reads more, and a hostile document could have half a million."""

TOO_MANY = "there are more problems than these"


class TooManyProblems(Exception):
    """Ends the check of a document."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a document."""

    path: Path
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{spell(self.path)}: {self.message}" if self.path else self.message
        return one_line(f"{text}; {self.remedy}" if self.remedy else text)


class InvalidTask(PerdureError):
    """A task's document is refused; `problems` holds everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(slots=True)  # not frozen, which would make it slower: each value has one
class Place:
    """A place in a document that is being checked; collects what is wrong there."""

    problems: list[Problem]
    path: Path = ()

    def __truediv__(self, part: str | int) -> Place:
        return Place(self.problems, (*self.path, part))

    def refuse(self, message: str, remedy: str = "") -> None:
        """Add a problem. Raises TooManyProblems once there are `MAX_PROBLEMS`."""
        if len(self.problems) >= MAX_PROBLEMS:
            raise TooManyProblems
        self.problems.append(Problem(self.path, message, remedy))


def one_line(text: str) -> str:
    """The text without line breaks and with what is not printable escaped."""
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def spell(path: Path) -> str:
    """A path as people write it: `steps[0].retry.max_attempts`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{shown(part, quote=False)}" if text else shown(part, quote=False)
    return text


def shown(value: object, *, quote: bool = True) -> str:
    """A value for an error message: on one line, printable, and short."""
    if isinstance(value, str):
        clipped = value[:_SHOWN_CHARACTERS] + ("..." if len(value) > _SHOWN_CHARACTERS else "")
        text = ascii(clipped) if quote or not clipped.isprintable() else clipped
        # ascii() keeps lone surrogates and control characters off the terminal, but it also
        # spells out letters that people would rather read.
        return repr(clipped) if quote and clipped.isprintable() else text
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very large number"
    if isinstance(value, int | float):
        return str(value)
    return kind(value)


def kind(value: object) -> str:
    """What a value is, in the words of a document."""
    if value is None:
        return "nothing"
    names = {bool: "true or false", str: "text", dict: "a mapping", list: "a list"}
    for known, name in names.items():
        if isinstance(value, known):
            return name
    return "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely meant to be, if any is near."""
    words = sorted(known)
    if not isinstance(word, str) or len(words) > _COMPARED_WORDS:
        return None
    found = difflib.get_close_matches(word[:_SHOWN_CHARACTERS], words, n=1, cutoff=0.6)
    return found[0] if found else None


def listed(words: Iterable[str], limit: int = 12) -> str:
    """Words with commas between; of many, the last ones."""
    all_words = list(words)
    text = ", ".join(all_words[-limit:])
    return f"... {text}" if len(all_words) > limit else text
