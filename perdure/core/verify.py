"""Checks over the context: what a `verify` step asks, and what it finds.

A check names a `path` and one operator. Paths are dotted (`results.agent.json.orders.0.id`); a
part that is a number counts in a list, from its end if negative. Where keys hold dots themselves,
the longest key that leads to the end wins. The empty path is the whole context.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Json = Any
Search = Callable[[str, str], bool]
"""Whether a pattern is found in a text; raises BadPattern."""

OPERATORS = ("equals", "not_equals", "contains", "matches", "exists", "schema")

PATTERN_LIMIT_CHARS = 1_000
TEXT_LIMIT_CHARS = 200_000
"""Of a text that a pattern is searched in: what both ends of a stream in the context can hold."""
SHOWN_CHARS = 300

_MISSING = object()


class BadPattern(ValueError):
    """A pattern that cannot be searched for."""


@dataclass(frozen=True)
class Verification:
    """What the checks found."""

    verdict: str
    """`passed` if the score reaches the pass score, else `failed`."""
    score: float
    """Share of the checks that passed, 0 to 1."""
    failed: list[dict[str, Json]]
    """Per failed check: `check` as written, `reason`, and `actual`, long values clipped."""


def verify(
    checks: list[dict[str, Json]],
    context: Json,
    *,
    pass_score: float = 1.0,
    search: Search | None = None,
) -> Verification:
    """Put every check to the context.

    A value that is not there fails every check but `exists: false`, `not_equals` included: a
    mistyped path must not pass. No checks at all is a failure. `search` replaces the regular
    expressions of this process.
    """
    if not checks:
        nothing = {"check": None, "reason": "there are no checks", "actual": None}
        return Verification("failed", 0.0, [nothing])
    failed = []
    for check in checks:
        actual = resolve(context, str(check.get("path", "")))
        reason = _objection(check, actual, search or search_text)
        if reason is not None:
            shown = None if actual is _MISSING else _shortened(actual)
            failed.append({"check": check, "reason": reason, "actual": shown})
    score = (len(checks) - len(failed)) / len(checks)
    # 0.1 * 3 of ten checks is a hair above 0.3; that must not decide.
    verdict = "passed" if score >= pass_score - 1e-9 else "failed"
    return Verification(verdict, score, failed)


def found(context: Json, path: str) -> bool:
    """Whether the path leads anywhere; null counts as something."""
    return resolve(context, path) is not _MISSING


def resolve(context: Json, path: str) -> Json:
    """The value at the path, or a mark that `found` knows when there is none."""
    return next(_walk(context, path.split(".") if path else []), _MISSING)


def _walk(value: Json, parts: list[str]) -> Iterator[Json]:
    """Every reading of the path that leads to a value, longest keys first."""
    if not parts:
        yield value
    elif isinstance(value, dict):
        for length in range(len(parts), 0, -1):
            key = ".".join(parts[:length])
            if key in value:
                yield from _walk(value[key], parts[length:])
    elif isinstance(value, list) and re.fullmatch(r"-?[0-9]{1,9}", parts[0]):
        index = int(parts[0])
        if -len(value) <= index < len(value):
            yield from _walk(value[index], parts[1:])


# --- Operators --------------------------------------------------------------------------------


def _objection(check: dict[str, Json], actual: Json, search: Search) -> str | None:
    """Why the check fails; None if it passes."""
    asked = [name for name in OPERATORS if name in check]
    if len(asked) != 1:
        return f"the check needs exactly one of {', '.join(OPERATORS)}"
    operator, wanted = asked[0], check[asked[0]]
    path = check.get("path", "")
    if operator == "exists":
        there = actual is not _MISSING
        return None if there is bool(wanted) else f"{path} {'exists' if there else 'is not there'}"
    if actual is _MISSING:
        return f"{path} is not there"
    return _OPERATIONS[operator](str(path), wanted, actual, search)


def _equals(path: str, wanted: Json, actual: Json, _: Search) -> str | None:
    return None if equal(actual, wanted) else f"{path} is not {_shown(wanted)}"


def _not_equals(path: str, wanted: Json, actual: Json, _: Search) -> str | None:
    return f"{path} is {_shown(wanted)}" if equal(actual, wanted) else None


def _contains(path: str, wanted: Json, actual: Json, _: Search) -> str | None:
    if isinstance(actual, str):
        inside = _text(wanted) in actual
    elif isinstance(actual, list):
        inside = any(equal(item, wanted) for item in actual)
    elif isinstance(actual, dict) and isinstance(wanted, dict):
        inside = all(k in actual and equal(actual[k], value) for k, value in wanted.items())
    elif isinstance(actual, dict):
        inside = _text(wanted) in actual
    else:
        return f"{path} is {_shown(actual)}, which can contain nothing"
    return None if inside else f"{path} does not contain {_shown(wanted)}"


def _matches(path: str, wanted: Json, actual: Json, search: Search) -> str | None:
    text = _text(actual)
    if len(text) > TEXT_LIMIT_CHARS:
        return f"{path} has {len(text):,} characters; patterns search {TEXT_LIMIT_CHARS:,} at most"
    try:
        hit = search(str(wanted), text)
    except BadPattern as error:
        return f"the pattern {_shown(wanted)} is refused: {error}"
    return None if hit else f"{path} does not match {_shown(wanted)}"


def _schema(path: str, wanted: Json, actual: Json, _: Search) -> str | None:
    problem = schema_problem(wanted, actual)
    return None if problem is None else f"{path} does not fit the schema: {problem}"


_OPERATIONS: dict[str, Callable[[str, Json, Json, Search], str | None]] = {
    "equals": _equals,
    "not_equals": _not_equals,
    "contains": _contains,
    "matches": _matches,
    "schema": _schema,
}


def equal(a: Json, b: Json) -> bool:
    """Equality as people mean it: 1 equals 1.0 but not true, at every depth."""
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True


def search_text(pattern: str, text: str) -> bool:
    """Whether the regular expression is found anywhere in the text.

    Raises BadPattern: it is no regular expression, or longer than PATTERN_LIMIT_CHARS.
    """
    if len(pattern) > PATTERN_LIMIT_CHARS:
        raise BadPattern(f"it is longer than {PATTERN_LIMIT_CHARS:,} characters")
    try:
        with warnings.catch_warnings():  # "possible nested set": no concern of who runs it
            warnings.simplefilter("ignore", FutureWarning)
            return re.search(pattern, text) is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise BadPattern(str(error) or type(error).__name__) from None


def schema_problem(schema: Json, value: Json) -> str | None:
    """What of the value does not fit the JSON schema, in one line; None if it fits.

    References to other documents are refused: nothing is fetched.
    """
    # Here: they take 30 ms of a worker's start, and few checks are schemas.
    import jsonschema
    import referencing
    from jsonschema.validators import validator_for

    try:
        kind = validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        # An empty registry: the default one would open what a `$ref` names.
        validator = kind(schema, registry=referencing.Registry())
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except jsonschema.SchemaError as problem:
        return f"it is no JSON schema ({_clip(problem.message)})"
    except referencing.exceptions.Unresolvable as problem:
        return f"it refers to {_shown(problem.ref)}, which is not in it"
    except (RecursionError, re.error, TypeError, ValueError, AttributeError) as problem:
        return f"it cannot be used ({type(problem).__name__}: {_clip(str(problem))})"
    if error is None:
        return None
    place = error.json_path.removeprefix("$").lstrip(".")
    return f"{place}: {_clip(error.message)}" if place else _clip(error.message)


# --- Words ------------------------------------------------------------------------------------


def _shortened(value: Json) -> Json:
    """The value if it is short, else the beginning of its JSON with a mark at its end."""
    text = _text(value)
    return value if len(text) <= SHOWN_CHARS else _clip(text)


def _clip(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}...({len(text):,} characters in all)"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(value: Json) -> str:
    text = _clip(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 120 else f"{text[:117]}..."
