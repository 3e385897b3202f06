"""An output stream of a process on its way into a file: decoded, masked, capped.

Standard library only.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
from collections.abc import Iterable

from activities.fold import Fold

MASKED = "***"
"""Stands in kept output where a secret stood."""

LIVE_SUFFIX = ".live"
LIVE_CHARS = 4_096
TAIL_BYTES = 16 * 1024


class Mask:
    """Replaces secret values in a text that arrives in pieces, however it is cut."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # As they look after decoding. Longest first: of two that begin alike the longer wins.
        texts = {
            secret.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            for secret in secrets
            if secret
        }
        self._secrets = sorted(texts, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, self._secrets)))
        self._held = ""

    def feed(self, text: str) -> str:
        """The masked text as far as it is certain; what may become a secret is held back."""
        if not self._secrets:
            return text
        text = self._held + text
        certain = self._where_a_secret_may_begin(text)
        pieces: list[str] = []
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() >= certain:
                break
            pieces += text[start : match.start()], MASKED
            start = match.end()
        certain = max(certain, start)
        pieces.append(text[start:certain])
        self._held = text[certain:]
        return "".join(pieces)

    def finish(self) -> str:
        """The rest, when no more text comes."""
        rest, self._held = self._held, ""
        return self._pattern.sub(MASKED, rest) if rest else ""

    def _where_a_secret_may_begin(self, text: str) -> int:
        """Start of the longest end of `text` that a secret begins with; its length if none."""
        earliest = len(text)
        for secret in self._secrets:
            # From left to right, so the first hit is the longest; a whole secret is no hit.
            position = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while 0 <= position < earliest:
                if secret.startswith(text[position:]):
                    earliest = position
                    break
                position = text.find(secret[0], position + 1)
        return earliest


class Capture:
    """Keeps one stream in a file, up to `limit_chars` characters.

    What comes beyond is counted and dropped, with one marker in its place. A file that cannot
    be written (a full disk) costs the rest of the text, never the process.

    With `fold_redraws`, lines that are redrawn are kept in their last state, and what the file
    does not show can be had by `write_live`.
    """

    def __init__(
        self, path: str, limit_chars: int, secrets: Iterable[str], *, fold_redraws: bool = False
    ) -> None:
        """Make the file anew, and follow no link: steps may write where it lies. Raises OSError."""
        self.chars = 0
        """Produced so far, after masking and folding, and before the cap."""
        self.error: str | None = None
        self._path = path
        self._limit_chars = limit_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mask = Mask(secrets)
        self._fold = Fold() if fold_redraws else None
        self._tail = ""
        self._told: tuple[str, str] = ("", "")
        self._file = _made_anew(path)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, cut anywhere."""
        self._keep(self._folded(self._mask.feed(self._decoder.decode(data))))

    def finish(self) -> None:
        """Take the end of the stream and close the file."""
        rest = self._mask.feed(self._decoder.decode(b"", final=True)) + self._mask.finish()
        self._keep(self._folded(rest) + (self._fold.finish() if self._fold else ""))
        os.close(self._file)

    def write_live(self) -> None:
        """Write what the file does not show to `<path>.live`, if that has changed: `live`, the
        state of a line that is being redrawn, and `tail`, the last text beyond the cap.

        A file that cannot be written is left out.
        """
        now = (self._fold.live[:LIVE_CHARS] if self._fold else "", self.tail)
        if now == self._told:
            return
        self._told = now
        draft = f"{self._path}.live.draft"
        with contextlib.suppress(OSError):
            with open(_made_anew(draft), "w", encoding="utf-8") as file:
                json.dump({"live": now[0], "tail": now[1]}, file)
            os.replace(draft, f"{self._path}{LIVE_SUFFIX}")

    @property
    def tail(self) -> str:
        """The last 16 KiB of what is beyond the cap, in whole characters; only when folding."""
        tail = self._tail[-TAIL_BYTES:].encode("utf-8")[-TAIL_BYTES:]
        return tail.decode("utf-8", "ignore")

    def _folded(self, text: str) -> str:
        return self._fold.feed(text) if self._fold else text

    def _keep(self, text: str) -> None:
        room = self._limit_chars - self.chars
        if self._fold and len(text) > room:
            self._tail = (self._tail + text[max(room, 0) :])[-2 * TAIL_BYTES :]
        self.chars += len(text)
        if len(text) <= room:
            self._write(text)
        elif room >= 0:  # below zero: the marker stands already
            self._write(f"{text[:room]}\n...(truncated at {self._limit_chars} characters)")

    def _write(self, text: str) -> None:
        data = text.encode("utf-8")
        try:
            while data and self.error is None:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self.error = error.strerror


def _made_anew(path: str) -> int:
    folder, name = os.path.split(path)
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        place = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | flags)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place)
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o666, dir_fd=place)
        finally:
            os.close(place)
    except OSError as error:
        error.filename = path
        raise
