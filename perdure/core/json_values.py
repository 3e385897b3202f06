"""Whether a value is JSON, and small enough to be sent, hashed and shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from perdure.core.problems import Place, shown

MAX_DEPTH = 100
"""Levels of lists and mappings; what reads them later may recurse."""
MAX_VALUES = 250_000
"""Values in one document, with everything that anchors repeat written out."""
MAX_CHARACTERS = 32 * 1024 * 1024
"""Characters of all texts of one document, written out likewise."""
MAX_INTEGER_BITS = 1023
"""Integers of some 300 digits: all that a float can hold, and far from the 4,300 that Python
refuses to print."""
MAX_PROBLEMS = 100
"""Of one document; whoever has that many has one mistake a hundred times."""

_SURROGATE = re.compile("[\ud800-\udfff]")

Complaint = tuple[str, str]
"""What is wrong, and what to do."""


def check_json(document: Any, place: Place) -> bool:
    """Report what in the document is not JSON; False if it had better not be looked at further.

    Values that are shared count each time that they appear, so a document that would be huge when
    written out is refused quickly, and one that contains itself as too deep. Nothing recurses.
    """
    found_before = len(place.problems)
    values = characters = 0
    path: list[str | int] = [""]
    open_containers: list[Iterator[tuple[Any, Any]]] = [iter([("", document)])]
    while open_containers:
        entry = next(open_containers[-1], None)
        if entry is None:
            open_containers.pop()
            path.pop()
            continue
        path[-1], value = entry
        values += 1
        complaints: Iterable[Complaint | None]
        if isinstance(value, dict):
            characters += sum(len(key) for key in value if isinstance(key, str))
            complaints = map(_wrong_key, value)
        elif isinstance(value, list):
            complaints = ()
        else:
            characters += len(value) if isinstance(value, str) else 0
            complaints = (_wrong_scalar(value),)
        for complaint in filter(None, complaints):
            Place(place.problems, (*place.path, *path[1:])).refuse(*complaint)
            if len(place.problems) - found_before >= MAX_PROBLEMS:
                return False
        if values > MAX_VALUES or characters > MAX_CHARACTERS:
            place.refuse(
                f"the document is too large: more than {MAX_VALUES:,} values or "
                f"{MAX_CHARACTERS:,} characters, with what is repeated counted each time",
                "put large data into files",
            )
            return False
        if isinstance(value, dict | list):
            if len(open_containers) > MAX_DEPTH:
                Place(place.problems, (*place.path, *path[1:6])).refuse(
                    f"values are nested more than {MAX_DEPTH} deep, or contain themselves",
                    "flatten them",
                )
                return False
            open_containers.append(
                iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))
            )
            path.append("")
    return True


def _wrong_key(key: Any) -> Complaint | None:
    if isinstance(key, str):
        return _wrong_text(key)
    if key is None or isinstance(key, int | float):
        return f"the key {shown(key)} is not text", f'quote it: "{shown(key)}"'
    return f"a key is {type(key).__name__}, not text", "name it by text"


def _wrong_text(text: str) -> Complaint | None:
    if text.isascii() or not _SURROGATE.search(text):
        return None
    return "the text holds half a character (a lone surrogate)", "write the whole character"


def _wrong_scalar(value: Any) -> Complaint | None:
    if isinstance(value, str):
        return _wrong_text(value)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            return "the number is too large", "quote it, to have it as text"
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"{value} is not a number that JSON knows", "quote it, or leave it out"
        return None
    if hasattr(value, "isoformat"):
        return f"{value.isoformat()} is a date, which JSON does not know", "quote it"
    return f"a value of type {type(value).__name__} is not JSON", "use text, a number or a list"
