"""Reading files: regular ones of bounded size, and their text in UTF-8."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from perdure.reading.source import Unreadable

MAX_FILE_BYTES = 16 * 1024 * 1024

_CHUNK_BYTES = 1024 * 1024

_UTF_8_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def read_text(path: str | Path, limit_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a file, a byte order mark of UTF-8 taken off.

    Raises Unreadable as `read_bytes` does, and if it is not UTF-8, or holds a NUL.
    """
    return _decode(read_bytes(path, limit_bytes))


def read_bytes(path: str | Path, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """What a file holds.

    Raises Unreadable: it cannot be opened, is no regular file (nothing is read of a pipe or a
    device), or is larger than `limit_bytes`.
    """
    try:
        # Not blocking: to open a pipe that nobody writes to would wait for ever.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable(None, "is not a regular file", "name a file")
            content = b"" if status.st_size > limit_bytes else _rest(file, limit_bytes + 1)
        finally:
            os.close(file)
    except ValueError:
        raise Unreadable(None, "is not a path that can be opened", "correct it") from None
    except OSError as error:
        raise Unreadable(
            None, f"cannot be read: {error.strerror or error}", "check the path and its permissions"
        ) from None
    if status.st_size > limit_bytes or len(content) > limit_bytes:
        raise Unreadable(
            None,
            f"is larger than {limit_bytes // 1024**2} MiB",
            "put large data into files of their own",
        )
    return content


def _rest(file: int, limit_bytes: int) -> bytes:
    """What is left of a file. A file object would ask the system twice as much for it."""
    parts, left = [], limit_bytes
    while left and (part := os.read(file, min(left, _CHUNK_BYTES))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decode(content: bytes) -> str:
    if content.startswith(_WIDE_BOMS):
        raise Unreadable(1, "the file is in UTF-16 or UTF-32", "save it as UTF-8")
    content = content.removeprefix(_UTF_8_BOM)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(
            content.count(b"\n", 0, error.start) + 1,
            f"the byte 0x{content[error.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        ) from None
    if (nul := text.find("\0")) >= 0:
        raise Unreadable(
            text.count("\n", 0, nul) + 1,
            "the file holds a NUL character",
            "remove it; if the file is in UTF-16, save it as UTF-8",
        )
    return text
