"""Names that may stand in a path as one harmless part."""

from __future__ import annotations

import re

from perdure.errors import PerdureError

_PART = re.compile(r"[A-Za-z0-9._-]{1,200}")


class UnsafeName(PerdureError):
    """A name that may not be part of a path."""


def safe_part(name: str) -> str:
    """`name`, if it can stand in a path as one harmless part.

    Documents are checked when they are loaded; this also stops what reached the server, or a file
    of results, by another way. Raises UnsafeName.
    """
    if name in (".", "..") or not _PART.fullmatch(name):
        raise UnsafeName(
            f"{name!r} cannot be part of a path: use ASCII letters, digits, '.', '_' and '-'"
        )
    return name
