"""The ports of this host's instances, as they stand in the instances' folders."""

from __future__ import annotations

import json
from pathlib import Path

_FILE = "ports.json"
"""In an instance's folder: the ports that were free, and are its own from then on."""


def noted(folder: Path) -> dict[str, int] | None:
    """The ports that an instance has, by variable; None: none are noted yet."""
    return _read(folder / _FILE)


def note(folder: Path, ports: dict[str, int]) -> None:
    """The instance has these from now on."""
    draft = folder / f"{_FILE}.new"
    draft.write_text(json.dumps(ports))
    draft.replace(folder / _FILE)


def forget(folder: Path) -> None:
    """Somebody else had one of them."""
    (folder / _FILE).unlink(missing_ok=True)


def noted_below(root: Path) -> set[int]:
    """The ports of all instances; `root` holds the folders of their pools.

    Of those, too, where nobody listens yet, or not all the time.
    """
    found = (_read(file) or {} for file in root.glob(f"*/*/{_FILE}"))
    return {port for ports in found for port in ports.values()}


def _read(file: Path) -> dict[str, int] | None:
    try:
        found: dict[str, int] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found
