"""Secrets in what steps leave: references in place of values, masks in texts.

A value under a redacted key is kept on the run's host, and `{"$secret": name}` stands in the
context; the next step that runs on that host sees the value again. (What documents may hold in a
secret's place is `perdure.core.secret_references`.) A value that is printed becomes `***`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from perdure.core.context import MAX_DEPTH, Op, same
from perdure.core.secret_references import BUILT_IN_REDACTED, is_reference

Json = Any

STORED = "$secret"

MASK = "***"
SHORTEST_MASKED = 4
"""Characters. A shorter secret is not masked: it would take half of every text with it, and tell
by the holes what it is."""


# --- References -------------------------------------------------------------------------------


def _is_stored(value: Json) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(STORED), str)


def redact(
    value: Json,
    keys: Collection[str] = (),
    *,
    known: Mapping[str, Json] | None = None,
    prefix: str = "",
) -> tuple[Json, dict[str, Json]]:
    """A copy in which values under redacted keys are `{"$secret": name}`; and those values by name.

    `keys` are the document's own, beside BUILT_IN_REDACTED. A name is `prefix` and the path,
    nothing derived from the secret; a value among `known` keeps its name, so that what did not
    change gives the reference that it had. Null, "" and what is a reference already stay.
    """
    secrets: dict[str, Json] = {}
    names = _Names(known or {}, secrets, prefix)
    wanted = BUILT_IN_REDACTED.union(keys)

    def copy(item: Json, path: tuple[str, ...]) -> Json:
        if len(path) > MAX_DEPTH:
            return item  # not JSON that anyone would take (`check_json`), perhaps without an end
        if type(item) is list:
            return [copy(child, (*path, str(n))) for n, child in enumerate(item)]
        if type(item) is not dict:
            return item
        made = {}
        for key, child in item.items():
            below = (*path, key)
            nothing = child is None or child == "" or is_reference(child) or _is_stored(child)
            secret = key in wanted and not nothing
            made[key] = {STORED: names.of(below, child)} if secret else copy(child, below)
        return made

    return copy(value, ()), secrets


class _Names:
    """Names for secrets: the one that a value has already, or a new one."""

    def __init__(self, known: Mapping[str, Json], new: dict[str, Json], prefix: str) -> None:
        self._known, self._new, self._prefix = known, new, prefix

    def of(self, path: tuple[str, ...], value: Json) -> str:
        place = ".".join(path)
        holders = [name for name, held in self._known.items() if same(held, value)]
        if holders:
            return next((n for n in reversed(holders) if _place(n) == place), holders[-1])
        wanted = f"{self._prefix}:{place}"
        name, count = wanted, 1
        while name in self._new or name in self._known:
            count += 1
            name = f"{wanted}#{count}"
        self._new[name] = value
        return name


def _place(name: str) -> str:
    return name.partition(":")[2].partition("#")[0]


def restore(value: Json, secrets: Mapping[str, Json]) -> Json:
    """A copy with the secrets put where their references stand; unknown references stay."""
    if type(value) is list:
        return [restore(item, secrets) for item in value]
    if type(value) is not dict:
        return value
    if _is_stored(value) and value[STORED] in secrets:
        return secrets[value[STORED]]
    return {key: restore(item, secrets) for key, item in value.items()}


def texts_of(value: Json) -> list[str]:
    """The texts in a secret value, which may be an object of several tokens."""
    if type(value) is str:
        return [value]
    children = value.values() if type(value) is dict else value if type(value) is list else ()
    return [text for child in children for text in texts_of(child)]


# --- Masks ------------------------------------------------------------------------------------


def mask(text: str, values: Iterable[str]) -> str:
    """The text with every secret in it replaced by `***`.

    Found too: the secret as JSON writes it, in a URL, and in base64 at any offset. A value
    shorter than SHORTEST_MASKED characters is left where it is.
    """
    return _replaced(text, spellings(values))


def mask_ops(ops: Iterable[Op], values: Iterable[str]) -> list[Op]:
    """Operations of a diff with what they write masked; what they take away stays as it is."""
    spelt = spellings(values)
    return [_masked_op(op, spelt) for op in ops] if spelt else list(ops)


def _masked_op(op: Op, spelt: list[str]) -> Op:
    # Not the whole operation: a secret may be spelt like one of its own words.
    made = dict(op)
    path = op["path"]
    # Only the last part of a path can be new; a result's is the step's id, which is no secret.
    if op["op"] != "unset" and len(path) > 1 and path[:-1] != ["results"]:
        made["path"] = [*path[:-1], _replaced(path[-1], spelt)]
    for part in ("value", "append"):
        if part in op:
            made[part] = _masked(op[part], spelt)
    return made


def spellings(values: Iterable[str]) -> list[str]:
    """How the secrets may appear in a text, longest first."""
    found: set[str] = set()
    for value in values:
        if len(value) < SHORTEST_MASKED:
            continue
        found |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        raw = value.encode("utf-8", "surrogatepass")
        found |= {quote(raw, safe=""), quote(raw), quote_plus(raw)}
        found |= _base64_forms(raw)
    return sorted(found, key=lambda text: (-len(text), text))


def _base64_forms(raw: bytes) -> set[str]:
    whole = {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()}
    forms = whole | {form.rstrip("=") for form in whole}
    for offset in range(3):
        # Only the characters that depend on the secret alone, whatever stands around it.
        first = (offset * 8 + 5) // 6
        last = (offset + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            form = encode(b"\0" * offset + raw).decode()[first:last]
            if len(form) >= 2 * SHORTEST_MASKED:
                forms.add(form)
    return forms


def _replaced(text: str, spelt: list[str]) -> str:
    for secret in spelt:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def _masked(value: Json, spelt: list[str]) -> Json:
    if not spelt:
        return value
    if type(value) is str:
        return _replaced(value, spelt)
    if type(value) is list:
        return [_masked(item, spelt) for item in value]
    if type(value) is not dict:
        return value
    made: dict[str, Json] = {}
    for key, item in value.items():
        name = shown = _replaced(key, spelt)
        count = 1
        while name in made:
            count += 1
            name = f"{shown}{count}"
        made[name] = _masked(item, spelt)
    return made
