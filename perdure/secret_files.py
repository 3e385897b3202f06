"""The value of a secret that a document names by `{from_file: PATH}`."""

from __future__ import annotations

import os
from pathlib import Path

from perdure.errors import PerdureError

FILE_LIMIT_BYTES = 1024 * 1024
"""Of a file that a secret is read from; keys and certificates are far smaller."""


class UnreadableSecret(PerdureError):
    """A file that gives no value; the text says why, in few words."""


def read_secret_file(name: str, folder: str | Path | None) -> str:
    """The text of the file, without one line's end at its end.

    A relative path starts at `folder`, where the document lies; None: at the current directory.
    Raises UnreadableSecret.
    """
    try:
        # Not blocking: a fifo in the file's place would hold the worker for ever.
        number = os.open(Path(folder or "", name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1) or b""
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableSecret("not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise UnreadableSecret(getattr(error, "strerror", None) or str(error)) from None
    if len(content) > FILE_LIMIT_BYTES:
        raise UnreadableSecret(f"larger than {FILE_LIMIT_BYTES:,} bytes")
    return text.removesuffix("\n").removesuffix("\r")
