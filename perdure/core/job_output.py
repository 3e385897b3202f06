"""What a job has printed, as its workflow keeps it, and when its worker hands on more of it.

A stream's first million characters are kept; then one marker stands, and nothing follows. Positions
are counted in characters from the beginning of the stream.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

CAP_CHARACTERS = 1_000_000
"""Of each stream, which are at most 4 MB of UTF-8: no character takes more than four bytes."""

CAP_MARKER = f"\n...(truncated at {CAP_CHARACTERS} characters)"
"""What stands behind the last of them (B6)."""

PAGE_BYTES = 65_536
"""UTF-8 of both streams that a page holds at most: a larger answer is stored, and not sent."""

COMMIT_BYTES = 100_000
"""So much that waits is handed on at once: a megabyte costs 44 events."""

TAIL_BYTES = 16_384
"""What a heartbeat carries of each stream; what waits beyond that is seen only once it is handed
on."""

SHORTEST_PAUSE_SECONDS = 0.2
"""Between what is handed on, unless it is much."""

AGE_PART = 100
"""Of a job's age, the part that the pause has: a job that prints all the time for a day hands on
950 times, and does so within the first seconds without delay."""

MAX_COMMITS = 1_500
"""Of a job, at four events each; its end is handed on in any case."""


class Committed:
    """One stream of a job, as far as its workflow has it."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._begins: list[int] = []
        """Where each of the chunks begins."""
        self.end = 0
        """How many characters of the stream were heard of, kept or not."""
        self.size = 0
        """How many characters are kept, with the marker."""

    @property
    def is_full(self) -> bool:
        """Whether the marker is there."""
        return self.size > CAP_CHARACTERS

    def take(self, begins: int, text: str) -> None:
        """Take what follows; of what is known already nothing is taken twice.

        What was lost on the way, between the end and where `text` `begins`, is told in a line.
        """
        end, self.end = self.end, max(self.end, begins + len(text))
        if text and begins > end:
            self._keep(_missing(begins - end))
        self._keep(text[max(0, end - begins) :])

    def begin_again(self, line: str = "") -> None:
        """Another process prints what follows; `line` stands before it, unless it is empty.

        Its first character has the position at which it is kept.
        """
        if line:
            begun = self._chunks and not self._chunks[-1].endswith("\n")
            self._keep(f"\n{line}\n" if begun else f"{line}\n")
        self.end = self.size

    def page(self, offset: int, limit_bytes: int) -> tuple[str, int]:
        """The text from `offset` on, at most `limit_bytes` of UTF-8, and where the next one begins.

        No character is split. An offset beyond the end is answered with nothing, and as it is.
        """
        if offset >= self.size or limit_bytes <= 0:
            return "", offset
        at, parts, left = max(0, offset), [], limit_bytes
        index = bisect_right(self._begins, at) - 1
        begins = at - self._begins[index]
        while left > 0 and index < len(self._chunks):
            part = _clipped(self._chunks[index][begins : begins + left], left)
            parts.append(part)
            left -= len(part) if part.isascii() else len(part.encode())
            if begins + len(part) < len(self._chunks[index]):
                break
            index, begins = index + 1, 0
        text = "".join(parts)
        return text, at + len(text)

    def text(self) -> str:
        """All of it."""
        return "".join(self._chunks)

    def _keep(self, text: str) -> None:
        room = CAP_CHARACTERS - self.size
        if not text or room < 0:
            return
        if len(text) > room:
            text = text[:room] + CAP_MARKER
        self._begins.append(self.size)
        self._chunks.append(text)
        self.size += len(text)


def _clipped(text: str, limit_bytes: int) -> str:
    """The beginning of the text that takes so many bytes of UTF-8, with no character split."""
    if text.isascii():
        return text[:limit_bytes]
    return text.encode()[:limit_bytes].decode(errors="ignore")


def _missing(count: int) -> str:
    return f"\n[perdure: {count} characters were lost with the worker]\n"


@dataclass(frozen=True)
class CommitRule:
    """When a worker hands on what a job has printed."""

    max_commits: int = MAX_COMMITS

    def due(
        self,
        *,
        age_seconds: float,
        since_last_seconds: float,
        pending_bytes: int,
        commits: int,
        in_flight: bool = False,
    ) -> bool:
        """Whether to hand on now what waits, before the end of the job.

        `age_seconds`: of the job; `since_last_seconds`: since the last time, or since its start;
        `pending_bytes`: UTF-8 that waits, of both streams; `commits`: how often it was done.
        """
        if in_flight or not pending_bytes or commits >= self.max_commits:
            return False
        if pending_bytes >= COMMIT_BYTES:
            return True
        if since_last_seconds < SHORTEST_PAUSE_SECONDS:
            return False
        return pending_bytes > TAIL_BYTES or since_last_seconds >= age_seconds / AGE_PART
