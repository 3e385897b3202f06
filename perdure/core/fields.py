"""Checks of single values in documents: each reports what is wrong and returns the plain form."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perdure.core.problems import Place, kind, listed, nearest, shown
from perdure.core.secret_references import REFERENCES

Check = Callable[[Any, Place], Any]
"""Reports to the place, and returns the value in the form that a task keeps."""

MAX_ID_CHARACTERS = 128
MAX_DURATION_SECONDS = 366 * 24 * 3600.0

_ID = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_NOT_ID = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,12})?(?:ms|[smhd]))+", re.ASCII)
_DURATION_PART = re.compile(r"([0-9.]+)(ms|[smhd])", re.ASCII)
_PLAIN_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STEP_VARIABLES = frozenset(
    f"PERDURE_{name}"
    for name in (
        *("TASK_ID", "STEP_ID", "RUN_ID", "TRIAL", "ATTEMPT"),
        *("WORKDIR", "CONTEXT", "OUTPUT", "ARTIFACTS", "JOBS"),
    )
)


def anything(value: Any, at: Place) -> Any:
    """Any JSON value, null included."""
    return value


def flag(value: Any, at: Place) -> Any:
    if not isinstance(value, bool):
        at.refuse(f"{shown(value)} is not true or false", "write true or false, without quotes")
    return value


def text(value: Any, at: Place) -> Any:
    """Text, not empty."""
    if value == "":
        at.refuse("is empty", "write it out, or leave the key out")
        return value
    return any_text(value, at)


def any_text(value: Any, at: Place) -> Any:
    if not isinstance(value, str):
        at.refuse(f"{shown(value)} is not text", _quote(value))
    elif "\0" in value:
        at.refuse("the text holds a NUL character, which no process can be given", "remove it")
    return value


def word(value: Any, at: Place) -> Any:
    """Text, or a whole number, which is taken as text: what a process is given."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024:
        return str(value)
    return any_text(value, at)


def _quote(value: Any) -> str:
    if isinstance(value, bool):
        # YAML 1.1 has eleven ways to say true or false, and people mean most of them as words.
        return "quote it, if it is a word (YAML reads a bare on, off, yes, no, true, false so)"
    return "quote it" if isinstance(value, int | float) else "write text"


def identifier(value: Any, at: Place) -> Any:
    """An id of a task, a step or an environment."""
    if not isinstance(value, str):
        hint = "" if not isinstance(value, bool) else " (YAML reads a bare on, off, yes, no so)"
        at.refuse(f"{shown(value)} is not text{hint}; ids are text", f'quote it: "{shown(value)}"')
    elif value == "":
        at.refuse("is empty", "name it")
    elif len(value) > MAX_ID_CHARACTERS:
        at.refuse(
            f"has {len(value):,} characters, and an id has at most {MAX_ID_CHARACTERS}",
            f"the nearest legal id is {nearest_id(value)!r}",
        )
    elif value in (".", "..") or not _ID.fullmatch(value):
        at.refuse(
            f"{shown(value)} is not an id: ids are made of ASCII letters, digits, . _ -",
            f"the nearest legal id is {nearest_id(value)!r}",
        )
    return value


def nearest_id(name: str) -> str:
    """A legal id that looks like the name; the same for the same name."""
    plain = unicodedata.normalize("NFKD", name[: 4 * MAX_ID_CHARACTERS])
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    legal = _NOT_ID.sub("-", plain)
    if legal != name or name in (".", ".."):
        legal = legal.strip("-.")
    return legal[:MAX_ID_CHARACTERS] or "unnamed"


def variable(value: Any, at: Place) -> Any:
    """The name of an environment variable."""
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        at.refuse(
            f"{shown(value)} is not the name of a variable",
            "use letters, digits and _, with no digit first",
        )
    return value


def duration(value: Any, at: Place) -> Any:
    """Seconds as a number, or a text such as `10m` or `1h30m`; returned in seconds."""
    if (seconds := pause(value, at)) == 0:
        at.refuse("must be longer than nothing", "leave the key out for the default")
    return seconds


def pause(value: Any, at: Place) -> Any:
    """As `duration`, and may be zero."""
    seconds = _seconds(value)
    if seconds is None:
        at.refuse(
            f"{shown(value)} is not a length of time",
            "write seconds as a number, or a text such as 90s, 10m, 1h30m, 250ms or 1d",
        )
    elif seconds < 0:
        at.refuse(f"{shown(value)} is less than nothing", "write a length of time")
    elif seconds > MAX_DURATION_SECONDS:
        at.refuse(f"{shown(value)} is longer than 366 days", "write a shorter one")
    else:
        return seconds
    return value


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e15 else math.inf
    if not isinstance(value, str):
        return None
    compact = value.strip()
    if _PLAIN_SECONDS.fullmatch(compact):  # a seed's value was filled in
        return float(compact)
    if len(compact) > _LONGEST_DURATION or not _DURATION.fullmatch(compact):
        return None
    return sum(float(n) * _UNIT_SECONDS[unit] for n, unit in _DURATION_PART.findall(compact))


_LONGEST_DURATION = 64


def whole(low: int, high: int = 1_000_000) -> Check:
    """An integer from `low` to `high`; true, false and texts are none (T8)."""

    def check(value: Any, at: Place) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            at.refuse(f"{shown(value)} is not a whole number", "write one, without quotes")
        elif not low <= value <= high:
            at.refuse(f"{shown(value)} is not between {low} and {high:,}", "change it")
        return value

    return check


def number(low: float, high: float = 1e9) -> Check:
    def check(value: Any, at: Place) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            at.refuse(f"{shown(value)} is not a number", "write one, without quotes")
        elif not low <= value <= high:
            at.refuse(f"{shown(value)} is not between {low:g} and {high:,g}", "change it")
        return value

    return check


def choice(*words: str) -> Check:
    def check(value: Any, at: Place) -> Any:
        if not isinstance(value, str) or value not in words:
            at.refuse(f"{shown(value)} is none of {', '.join(words)}", meant(value, words))
        return value

    return check


def list_of(check_entry: Check, *, what: str, empty: bool = True) -> Check:
    """A list; `what` names its entries in errors: `ids`."""

    def check(value: Any, at: Place) -> Any:
        if not isinstance(value, list):
            remedy = f"write a list of {what}"
            if isinstance(value, str) and len(value) <= MAX_ID_CHARACTERS:
                remedy = f"write a list: [{shown(value, quote=False)}]"
            at.refuse(f"is {kind(value)}, not a list", remedy)
            return value
        if not value and not empty:
            at.refuse("is an empty list", f"name at least one of the {what}")
        return [check_entry(entry, at / position) for position, entry in enumerate(value)]

    return check


def one_or_more(check_entry: Check) -> Check:
    """A value, or a list of such values."""
    check_list = list_of(check_entry, what="values", empty=False)

    def check(value: Any, at: Place) -> Any:
        return check_list(value, at) if isinstance(value, list) else check_entry(value, at)

    return check


def mapping_of(check_entry: Check, *, check_key: Check = anything) -> Check:
    def check(value: Any, at: Place) -> Any:
        if not isinstance(value, dict):
            at.refuse(f"is {kind(value)}, not a mapping", "write key: value pairs")
            return value
        for key in value:
            if isinstance(key, str):  # otherwise the check for JSON has said so
                check_key(key, at / key)
        return {key: check_entry(entry, at / key) for key, entry in value.items()}

    return check


def record(fields: Mapping[str, Check], *, what: str) -> Check:
    """A mapping whose keys are known; those that are null count as left out."""

    def check(value: Any, at: Place) -> Any:
        if not isinstance(value, dict):
            at.refuse(f"is {kind(value)}, not a mapping", f"known keys: {', '.join(fields)}")
            return value
        check_keys(value, fields, at, what)
        return read(value, fields, at)

    return check


def read(document: Mapping[str, Any], fields: Mapping[str, Check], at: Place) -> dict[str, Any]:
    """Those keys of the document that are in `fields`, checked, without what is null."""
    return {
        key: fields[key](value, at / key)
        for key, value in document.items()
        if key in fields and (value is not None or fields[key] is anything)
    }


def check_keys(document: Mapping[str, Any], known: Iterable[str], at: Place, what: str) -> None:
    """Report the keys that `what` does not have, with the nearest that it has."""
    known = set(known)
    for key in document:
        # That a key is not text has been said by the check for JSON.
        if isinstance(key, str) and key not in known:
            (at / key).refuse(f"{what} has no key {shown(key)}", meant(key, known))


def meant(word: Any, known: Iterable[str]) -> str:
    """The remedy for a misspelt word."""
    known = sorted(known)
    near = nearest(word, known)
    return f"did you mean {near!r}?" if near else f"known: {listed(known, 30)}"


def check_reference(value: Any, at: Place) -> Any:
    """`{from_env: NAME}` or `{from_file: PATH}`."""
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in REFERENCES:
        at.refuse(
            f"is {kind(value)}, but not exactly one of from_env and from_file",
            "write text, {from_env: NAME} or {from_file: PATH}",
        )
    elif "from_env" in value:
        variable(value["from_env"], at / "from_env")
    else:
        text(value["from_file"], at / "from_file")
    return value


def word_or_secret(value: Any, at: Place) -> Any:
    return check_reference(value, at) if isinstance(value, dict) else word(value, at)


def _step_variable(value: Any, at: Place) -> Any:
    if value in _STEP_VARIABLES:
        at.refuse("perdure itself sets this variable for every step", "use another name")
    return variable(value, at)


env = mapping_of(word_or_secret, check_key=_step_variable)
"""Variables for a process: texts, whole numbers (taken as text), and references to secrets."""


def inner_path(value: Any, at: Place) -> Any:
    """A path below the run's directory."""
    if not isinstance(value, str) or value == "" or "\0" in value:
        return text(value, at)
    parts = value.split("/")
    if value.startswith("/") or ".." in parts or not any(part not in ("", ".") for part in parts):
        at.refuse(
            f"{shown(value)} does not lie below the run's directory",
            "write a path relative to it, without ..",
        )
    return value
