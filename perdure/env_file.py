"""`--env-file`: values for the variables that documents name by `from_env`."""

from __future__ import annotations

import re
from pathlib import Path

from perdure.errors import PerdureError

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=(?P<value>.*)", re.DOTALL)
LIMIT_BYTES = 1024 * 1024


class EnvFileError(PerdureError):
    """A file of variables that cannot be used."""


def read_env_file(path: Path | None) -> dict[str, str]:
    """The variables of a file with a `NAME=VALUE` on each line; of a repeated one, the last.

    Empty lines and lines that begin with `#` are passed over; quotes around a whole value are
    taken off, and nothing in it is expanded. Raises EnvFileError naming file and line, never a
    value.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT_BYTES + 1)
        if len(content) > LIMIT_BYTES:
            raise EnvFileError(f"--env-file {path}: is larger than {LIMIT_BYTES >> 20} MiB")
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise EnvFileError(f"--env-file {path}: is not UTF-8 text; save it as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnvFileError(f"--env-file {path}: {reason}; check the path") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None or "\0" in text:
            raise EnvFileError(f"--env-file {path}:{number}: is not of the form NAME=VALUE")
        found[match["name"]] = _unquoted(match["value"].strip())
    return found


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
