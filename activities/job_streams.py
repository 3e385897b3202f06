"""What a job has printed, read from its files while they grow.

Nothing of it is kept in memory: what waits to be handed on is told by positions, in bytes of the
file and in characters of the job's stream.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from activities.capture import LIVE_CHARS, LIVE_SUFFIX, TAIL_BYTES
from perdure.core.job_output import CAP_CHARACTERS

LOOK_BYTES = 512 * 1024
"""At most so much is read at a look; the next one comes soon."""

_LIVE_LIMIT_BYTES = 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Piece(NamedTuple):
    """Some of what waits."""

    text: str
    size: int
    """In bytes of the file."""


class Stream:
    """One stream of one start of a job: how far it was seen, and how far it was handed on."""

    def __init__(self, path: Path, begins: int) -> None:
        """`begins`: how many characters of the job's stream earlier starts have handed on."""
        self.handed_on = begins
        """In characters of the job's stream."""
        self.live = ""
        """The state of a line that is being redrawn."""
        self.tail = ""
        """The last of what is beyond the cap."""
        self._path = path
        self._file = -1
        self._seen = begins
        self._seen_bytes = 0
        self._handed_on_bytes = 0
        self._live_seen: tuple[int, int] | None = None

    @property
    def waiting_bytes(self) -> int:
        """UTF-8 that was seen and is not handed on; nothing more is, once the cap is passed."""
        is_full = self.handed_on > CAP_CHARACTERS
        return 0 if is_full else max(0, self._seen_bytes - self._handed_on_bytes)

    def look(self) -> bool:
        """See what has come since the last look; whether that is anything."""
        changed = self._look_at_live()
        data = self._read(self._seen_bytes, LOOK_BYTES)
        text, size = codecs.utf_8_decode(data, "replace", False)
        self._seen += len(text)
        self._seen_bytes += size
        return bool(text) or changed

    def waiting(self, limit_bytes: int) -> Piece:
        """The oldest of what waits, in whole characters."""
        size = min(self.waiting_bytes, limit_bytes)
        data = self._read(self._handed_on_bytes, size)
        if size and not data:  # the job has cut its file off
            return Piece("", self.waiting_bytes)
        return Piece(*codecs.utf_8_decode(data, "replace", False))

    def hand_on(self, piece: Piece) -> None:
        """The oldest of what waits has arrived."""
        self.handed_on += len(piece.text)
        self._handed_on_bytes += piece.size

    def newest(self) -> tuple[int, str]:
        """The newest of what waits, at most 16 KiB in whole characters, and where it begins."""
        size = min(self.waiting_bytes, TAIL_BYTES)
        data = self._read(self._seen_bytes - size, size)
        while data and data[0] & 0xC0 == 0x80:  # the rest of a character that was cut
            data = data[1:]
        text = data.decode("utf-8", "replace")
        return self._seen - len(text), text

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, begin: int, size: int) -> bytes:
        if self._file < 0 and not self._open():
            return b""
        try:
            return os.pread(self._file, size, begin) if size else b""
        except OSError:
            return b""

    def _open(self) -> bool:
        try:
            self._file = os.open(self._path, _FLAGS)
        except OSError:  # not there yet
            return False
        if not stat.S_ISREG(os.fstat(self._file).st_mode):  # the job put it there
            self.close()
        return self._file >= 0

    def _look_at_live(self) -> bool:
        path = f"{self._path}{LIVE_SUFFIX}"
        try:
            status = os.stat(path, follow_symlinks=False)
            now = (status.st_ino, status.st_mtime_ns)
            if now == self._live_seen:
                return False
            self._live_seen = now
            with open(os.open(path, _FLAGS), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return False
                content: Any = json.loads(file.read(_LIVE_LIMIT_BYTES))
            self.live = _text(content["live"])[:LIVE_CHARS]
            self.tail = _text(content["tail"])[-TAIL_BYTES:]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):  # not what we wrote
            return False
        return True


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()
