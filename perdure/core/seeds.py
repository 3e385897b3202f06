"""Filling a task's seed values into its steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_FILLED_CHARACTERS = 32 * 1024 * 1024
"""What the values filled into one document may come to."""

_PLACEHOLDER = re.compile("<([^<>]+)>")


class SeedTooLarge(ValueError):
    """The document with the seed filled in would be larger than `MAX_FILLED_CHARACTERS`."""


def fill(document: Any, seed: Mapping[str, Any]) -> Any:
    """A copy of the document with each `<key>` replaced by `str(value)`, in every text (T13).

    Texts are the leaves: ids, dependencies and retry targets too, but not the keys of mappings.
    There is one pass, and a value is never searched for placeholders itself; so the order of the
    seed does not matter, and filling again changes nothing unless a value brings angle brackets
    of its own. What stands between brackets and is no key of the seed stays as it is.

    The document must not contain itself. Raises SeedTooLarge.
    """
    texts = _Texts(seed)
    top = [document]
    result: list[Any] = [None]
    # A loop and a stack in place of recursion: documents may be nested deeply.
    waiting: list[tuple[Any, Any]] = [(top, result)]
    while waiting:
        source, target = waiting.pop()
        for key, value in source.items() if isinstance(source, dict) else enumerate(source):
            if isinstance(value, str):
                target[key] = _PLACEHOLDER.sub(texts.replacement, value)
            elif isinstance(value, dict):
                target[key] = dict.fromkeys(value)  # keeps the order of the keys
                waiting.append((value, target[key]))
            elif isinstance(value, list):
                target[key] = [None] * len(value)
                waiting.append((value, target[key]))
            else:
                target[key] = value
    return result[0]


class _Texts:
    """The seed's values as text, made when they are first needed and counted as they are used."""

    def __init__(self, seed: Mapping[str, Any]) -> None:
        self._seed = seed
        self._texts: dict[str, str] = {}
        self._characters = 0

    def replacement(self, match: re.Match[str]) -> str:
        key = match.group(1)
        if key not in self._seed:
            return match.group()
        if key not in self._texts:
            self._texts[key] = str(self._seed[key])
        self._characters += len(self._texts[key])
        if self._characters > MAX_FILLED_CHARACTERS:
            raise SeedTooLarge(
                f"the seed's values come to more than {MAX_FILLED_CHARACTERS:,} characters "
                "when they are filled in"
            )
        return self._texts[key]
