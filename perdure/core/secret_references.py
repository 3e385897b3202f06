"""Which keys hold secrets, and what may stand in a document in a secret's place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from perdure.core.problems import Path

BUILT_IN_REDACTED = frozenset(
    {
        "litellm_api_key",
        "judge_litellm_api_key",
        "usersim_api_key",
        "remote_tokens",
        "cf_access_client_secret",
    }
)
"""Keys whose values are never stored, wherever they appear (T42)."""

REFERENCES = ("from_env", "from_file")

_PLACEHOLDER = re.compile("<[^<>]+>")


def is_reference(value: Any) -> bool:
    """True for `{from_env: NAME}` and `{from_file: PATH}`: it names a secret and holds none."""
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in REFERENCES


def literal_secrets(value: Any, redact: Iterable[str]) -> Iterator[Path]:
    """The paths in a JSON value at which a redacted key holds something other than references
    and placeholders."""
    names = BUILT_IN_REDACTED.union(redact)
    waiting: list[tuple[Any, Path]] = [(value, ())]
    while waiting:
        container, path = waiting.pop()
        if isinstance(container, list):
            entries: Iterable[tuple[Any, Any]] = enumerate(container)
        elif isinstance(container, dict):
            entries = container.items()
        else:
            continue
        for key, entry in entries:
            if key in names:
                if _holds_a_literal(entry):
                    yield (*path, key)
            elif isinstance(entry, dict | list):
                waiting.append((entry, (*path, key)))


def _holds_a_literal(value: Any) -> bool:
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if is_reference(entry) or entry is None or entry == "":
            continue
        if isinstance(entry, str) and _PLACEHOLDER.fullmatch(entry):
            continue  # one that no seed fills: it names a value and holds none
        if isinstance(entry, dict):
            waiting.extend(entry.values())
        elif isinstance(entry, list):
            waiting.extend(entry)
        else:
            return True
    return False
