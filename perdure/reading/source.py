"""A document as it was read: its value, and the line that each part of it stands on.

Both readers feed a `Builder` with what they meet, one event after the other. It keeps a stack of
its own, so depth costs no recursion; it counts what anchors would write out, so that a small file
cannot stand for a huge value; and it sees duplicate keys, which plain parsers drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.core.json_values import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_INTEGER_BITS,
    MAX_PROBLEMS,
    MAX_VALUES,
)
from perdure.core.problems import shown

MAX_INTEGER_DIGITS = 308


@dataclass(frozen=True)
class Finding:
    """Something wrong with a document's text."""

    line: int | None
    """From 1; None: of the document as a whole."""
    message: str
    remedy: str = ""


class Unreadable(Exception):
    """The text cannot be read any further."""

    def __init__(self, line: int | None, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.finding = Finding(line, message, remedy)


_Lines = dict[Any, int] | list[int]


@dataclass
class Source:
    """A document's value and where its parts stand."""

    value: Any
    findings: list[Finding] = field(default_factory=list)
    """What is wrong with a text that could be read: duplicate keys. Of them the first counts, or
    the last, if the reader was told so."""
    first_line: int = 1
    lines: dict[int, _Lines] = field(default_factory=dict, repr=False)
    """By `id` of a list or mapping: the line of each entry. `value` keeps them alive."""

    def line(self, path: Sequence[str | int]) -> int:
        """The line of the value at a path, or of the nearest part above that is there."""
        line, value = self.first_line, self.value
        for part in path:
            lines = self.lines.get(id(value))
            try:
                line = lines[part]  # type: ignore[index]
                value = value[part]
            except (KeyError, IndexError, TypeError):
                break
        return line


@dataclass
class Anchored:
    """A value that can be repeated by its name."""

    value: Any
    values: int
    characters: int


@dataclass(slots=True)
class _Open:
    """A list or mapping of which the end has not been read yet."""

    value: dict[Any, Any] | list[Any]
    line: int
    lines: _Lines
    is_mapping: bool
    anchor: str | None = None
    key: Any = None
    has_key: bool = False
    skip: bool = False
    """True: the entry being read has a duplicate key and is dropped."""
    merging: bool = False
    """True: the entry being read is that of `<<`."""
    merges: list[Any] = field(default_factory=list)
    merge_line: int | None = None
    values: int = 0
    characters: int = 0


class Builder:
    """Makes a `Source` of the values, keys and ends that a reader meets."""

    def __init__(self, *, later_wins: bool = False) -> None:
        """`later_wins`: of duplicate keys the last counts; otherwise the first."""
        self._later_wins = later_wins
        self._open: list[_Open] = []
        self._anchors: dict[str, Anchored] = {}
        self._pending_anchors: set[str] = set()
        self._merged_entries = 0
        self._result: Any = None
        self._first_line = 1
        self._lines: dict[int, _Lines] = {}
        self._findings: list[Finding] = []

    @property
    def expects_key(self) -> bool:
        """True where the next scalar is a mapping's key."""
        if not self._open:
            return False
        top = self._open[-1]
        return top.is_mapping and not top.has_key

    def begin(
        self, value: dict[Any, Any] | list[Any], line: int, anchor: str | None = None
    ) -> None:
        """A list or mapping begins; `value` is the empty one."""
        if self.expects_key:
            name = "a mapping" if isinstance(value, dict) else "a list"
            raise Unreadable(line, f"a key is {name}", "keys are text; quote it, if it is meant so")
        if len(self._open) >= MAX_DEPTH:
            raise Unreadable(line, f"values are nested more than {MAX_DEPTH} deep", "flatten them")
        is_mapping = isinstance(value, dict)
        lines: _Lines = {} if is_mapping else []
        self._lines[id(value)] = lines
        if anchor:
            self._pending_anchors.add(anchor)
            self._anchors.pop(anchor, None)
        self._open.append(_Open(value, line, lines, is_mapping, anchor))

    def end(self) -> None:
        """The list or mapping that was begun last ends."""
        ended = self._open.pop()
        if ended.merges:
            self._merge(ended)
        if ended.anchor:
            self._pending_anchors.discard(ended.anchor)
            self._anchors[ended.anchor] = Anchored(ended.value, ended.values, ended.characters)
        self._add(ended.value, ended.line, ended.values + 1, ended.characters)

    def scalar(self, value: Any, line: int, anchor: str | None = None) -> None:
        """A text, number, true, false or null."""
        if isinstance(value, str):
            characters = len(value)
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise Unreadable(line, "the number is too large", "quote it, to have it as text")
        else:
            characters = 0
        if anchor:
            self._anchors[anchor] = Anchored(value, 1, characters)
        if self.expects_key:
            self.key(value, line)
        else:
            self._add(value, line, 1, characters)

    def alias(self, name: str, line: int) -> None:
        """The value of an anchor is repeated."""
        if name in self._pending_anchors:
            raise Unreadable(line, f"the anchor &{name} contains itself", "write the value out")
        if name not in self._anchors:
            raise Unreadable(line, f"there is no anchor &{name} before this", "correct the name")
        repeated = self._anchors[name]
        if not self.expects_key:
            self._add(repeated.value, line, repeated.values, repeated.characters)
        elif isinstance(repeated.value, dict | list):
            raise Unreadable(line, f"the key *{name} is not text", "keys are text")
        else:
            self.key(repeated.value, line)

    def key(self, key: Any, line: int, *, merge: bool = False) -> None:
        """The key of the next value; `merge`: it is YAML's `<<`."""
        top = self._open[-1]
        assert isinstance(top.lines, dict)
        top.has_key, top.key, top.merging = True, key, merge
        first = top.merge_line if merge else top.lines.get(key)
        top.skip = first is not None and (merge or not self._later_wins)
        if merge and first is None:
            top.merge_line = line
        elif not top.skip:
            top.lines[key] = line
        if first is not None:
            remedy = "list them: <<: [*a, *b]" if merge else "remove or rename one of them"
            if not top.skip:
                remedy = f"the later one counts; {remedy}"
            message = f"the key {shown(key)} is there twice: on line {first} and on line {line}"
            self._findings.append(Finding(line, message, remedy))
            if len(self._findings) >= MAX_PROBLEMS:
                raise Unreadable(line, "there are many more duplicate keys", "correct these first")

    def source(self) -> Source:
        """The document, when everything has been read."""
        return Source(self._result, self._findings, self._first_line, self._lines)

    def _add(self, value: Any, line: int, values: int, characters: int) -> None:
        if not self._open:
            self._result, self._first_line = value, line
            return
        top = self._open[-1]
        top.values += values
        top.characters += characters
        if top.values > MAX_VALUES or top.characters > MAX_CHARACTERS:
            raise Unreadable(
                line,
                f"the document is too large from here on: more than {MAX_VALUES:,} values or "
                f"{MAX_CHARACTERS:,} characters, with what anchors repeat written out",
                "put large data into files",
            )
        if isinstance(top.value, list):
            assert isinstance(top.lines, list)
            top.value.append(value)
            top.lines.append(line)
            return
        if top.merging and not top.skip:
            top.merges.append((value, line))
        elif not top.skip:
            top.value[top.key] = value
            top.characters += len(top.key) if isinstance(top.key, str) else 0
        top.has_key = top.skip = top.merging = False

    def _merge(self, target: _Open) -> None:
        """Add what `<<` brings; keys of the mapping's own win, then those of earlier sources."""
        assert isinstance(target.value, dict)
        assert isinstance(target.lines, dict)
        for merged, line in target.merges:
            for source in merged if isinstance(merged, list) else [merged]:
                if not isinstance(source, dict):
                    raise Unreadable(
                        line, "<< merges something that is not a mapping", "write <<: *ANCHOR"
                    )
                self._merged_entries += len(source) + 1
                if self._merged_entries > MAX_VALUES:
                    raise Unreadable(line, "<< merges too many keys", "put large data into files")
                lines = self._lines[id(source)]
                assert isinstance(lines, dict)
                for key, value in source.items():
                    if key not in target.value:
                        target.value[key] = value
                        target.lines[key] = lines.get(key, line)
