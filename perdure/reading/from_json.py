"""The JSON reader: strict JSON, with lines and duplicate keys, no recursion."""

from __future__ import annotations

import re
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any

from perdure.core.problems import shown
from perdure.reading.source import MAX_INTEGER_DIGITS, Builder, Source, Unreadable

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"-?[A-Za-z_0-9.+-]+")
_WORDS = {"true": True, "false": False, "null": None}


def read_json(text: str, first_line: int = 1) -> Source:
    """Read one JSON document, whose text begins on line `first_line` of its file.

    Raises Unreadable at the first place that cannot be read.
    """
    return _Reader(text, first_line).read()


class _Reader:
    def __init__(self, text: str, first_line: int) -> None:
        self._text = text
        self._at = 0
        self._line = first_line
        self._builder = Builder()
        self._open: list[str] = []
        """What closes each open list and mapping."""
        self._is_first = False
        """True right after an opening bracket."""

    def read(self) -> Source:
        self._skip_space()
        if self._at == len(self._text):
            raise self._error("the file is empty", "write a task into it")
        self._value()
        while self._open:
            self._entry()
        self._skip_space()
        if self._at < len(self._text):
            raise self._error("something follows the end of the document", "remove it")
        return self._builder.source()

    def _entry(self) -> None:
        """What comes next in the open list or mapping: an entry, or the end."""
        closing, first = self._open[-1], self._is_first
        self._skip_space()
        if self._peek() == closing:
            self._at += 1
            self._open.pop()
            self._is_first = False
            self._builder.end()
            return
        if not first:
            self._expect(",", f", or {closing}")
            if self._peek() == closing:
                raise self._error(f"a comma stands before {closing}", "remove the comma")
        if closing == "}":
            if self._peek() != '"':
                raise self._unexpected('a key in "quotes"')
            line = self._line
            self._builder.key(self._string(), line)
            self._skip_space()
            self._expect(":", "a colon after the key")
        self._value()

    def _value(self) -> None:
        self._is_first = False
        character, line = self._peek(), self._line
        if character in ("{", "["):
            self._at += 1
            self._is_first = True
            self._open.append("}" if character == "{" else "]")
            self._builder.begin({} if character == "{" else [], line)
        elif character == '"':
            self._builder.scalar(self._string(), line)
        elif number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            self._builder.scalar(self._number(number), line)
        else:
            found = _WORD.match(self._text, self._at)
            if found is None or found.group() not in _WORDS:
                raise self._unexpected("a value")
            self._at = found.end()
            self._builder.scalar(_WORDS[found.group()], line)

    def _number(self, match: re.Match[str]) -> int | float:
        if match.group(1) or match.group(2):
            return float(match.group())
        if len(match.group()) > MAX_INTEGER_DIGITS:
            raise self._error("the number has too many digits", "quote it, to have it as text")
        return int(match.group())

    def _string(self) -> str:
        try:
            value, end = scanstring(self._text, self._at + 1, True)
        except JSONDecodeError as error:
            self._line += self._text.count("\n", self._at, error.pos)
            raise self._error(
                f"this is not JSON: {error.msg.removesuffix(' at')}",
                'end texts with ", and write line breaks as \\n',
            ) from None
        self._at = end
        text: Any = value
        return str(text)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _expect(self, character: str, what: str) -> None:
        if self._peek() != character:
            raise self._unexpected(what)
        self._at += 1
        self._skip_space()

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._line += self._text.count("\n", self._at, match.end())
        self._at = match.end()

    def _unexpected(self, wanted: str) -> Unreadable:
        found = _WORD.match(self._text, self._at)
        there = shown(found.group() if found else self._peek()) if self._peek() else "the end"
        return self._error(f"this is not JSON: {wanted} is missing before {there}", "correct it")

    def _error(self, message: str, remedy: str) -> Unreadable:
        return Unreadable(self._line, message, remedy)
