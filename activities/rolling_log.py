"""The log of a server that may run for ever: its newest output, masked, in two files.

Standard library only.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Iterable

from activities.capture import Mask


class RollingLog:
    """Keeps the newest `limit_bytes` to twice as much of a stream.

    When `path` is full it becomes `path.1`, and is begun anew. What cannot be written (a full disk)
    is lost; the server never waits for it.
    """

    def __init__(self, path: str, limit_bytes: int, secrets: Iterable[str]) -> None:
        """Begin a new log. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.1")
        self._path = path
        self._limit = limit_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mask = Mask(secrets)
        self._size = 0
        self._file = self._begun()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, cut anywhere."""
        self._keep(self._mask.feed(self._decoder.decode(data)))

    def finish(self) -> None:
        """Take the end of the stream."""
        self._keep(self._mask.feed(self._decoder.decode(b"", final=True)) + self._mask.finish())
        os.close(self._file)

    def _keep(self, text: str) -> None:
        data = text.encode("utf-8")
        try:
            if self._size and self._size + len(data) > self._limit:
                self._roll()
            while data:
                written = os.write(self._file, data)
                self._size += written
                data = data[written:]
        except OSError:
            return

    def _roll(self) -> None:
        os.replace(self._path, f"{self._path}.1")
        new = self._begun()
        os.close(self._file)
        self._file, self._size = new, 0

    def _begun(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)


def last_lines_of(path: str, limit_bytes: int = 1 << 16) -> list[str]:
    """The lines at the end of a log; none if there is none."""
    newest = _end_of(path, limit_bytes)
    if len(newest) < limit_bytes:  # begun anew a moment ago
        newest = _end_of(f"{path}.1", limit_bytes - len(newest)) + newest
    return newest.decode("utf-8", "replace").splitlines()


def _end_of(path: str, limit_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            return file.read(limit_bytes)
    except OSError:
        return b""
