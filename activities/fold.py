"""Lines that a program draws again and again, folded to their last state. Standard library only.

A progress bar writes a bare carriage return and then the line anew, ten times a second; kept as it
comes, an hour of it is a million characters of which a person at a terminal sees the last eighty.
"""

from __future__ import annotations

HELD_CHARS = 65_536
"""Of a redrawn line. What is longer is no progress bar, and is let through."""


class Fold:
    """Folds redrawn lines in a text that arrives in pieces; how it is cut makes no difference.

    What stands before the first bare carriage return of a line goes through at once, so that a
    question without a line's end can be read. After that the line is held back until it ends, and
    then its last state follows, behind one carriage return if something stood before it. CR LF is
    a line's end and stays as it is.
    """

    def __init__(self) -> None:
        self._is_begun = False
        """Something of the current line has gone through."""
        self._is_redrawn = False
        self._now = ""
        """What came after the line's last carriage return."""
        self._before = ""
        """The last state before that which was not empty."""
        self._return = ""
        """A carriage return of which nobody can tell yet whether a line feed follows."""

    @property
    def live(self) -> str:
        """The present state of the line that is held back; empty if none is."""
        return self._now or self._before

    def feed(self, text: str) -> str:
        """The folded text as far as it is certain."""
        if not text:
            return ""
        text = self._return + text
        self._return = ""
        if text[-1] == "\r":
            text, self._return = text[:-1], "\r"
        if not self._is_redrawn and "\r" not in text:
            self._is_begun = self._is_begun_after(text)
            return text
        *lines, rest = text.split("\n")
        pieces: list[str] = []
        for line in lines:
            end = "\n"
            if line.endswith("\r"):
                line, end = line[:-1], "\r\n"
            self._take(line, pieces)
            pieces += self._last_state(), end
            self._is_begun = False
        self._take(rest, pieces)
        return "".join(pieces)

    def finish(self) -> str:
        """The rest, when no more text comes."""
        self._return = ""
        return self._last_state()

    def _take(self, part: str, pieces: list[str]) -> None:
        """Go on with the current line by a part in which every carriage return is a bare one."""
        if not self._is_redrawn:
            part = self._pass(part, pieces)
            if not self._is_redrawn:
                return
        states = part.split("\r")
        for number, state in enumerate(states):
            if number:
                self._before, self._now = self.live, ""
            room = HELD_CHARS - len(self._now)
            self._now += state[:room]
            if len(state) > room:
                pieces.append(self._last_state())
                self._is_begun = True
                self._take("\r".join([state[room:], *states[number + 1 :]]), pieces)
                return

    def _pass(self, part: str, pieces: list[str]) -> str:
        """Let through what stands before the first carriage return; what is after it."""
        shown, is_redrawn, rest = part.partition("\r")
        pieces.append(shown)
        self._is_begun = self._is_begun or bool(shown)
        self._is_redrawn = bool(is_redrawn)
        return rest

    def _last_state(self) -> str:
        state = self.live
        self._is_redrawn, self._now, self._before = False, "", ""
        return f"\r{state}" if state and self._is_begun else state

    def _is_begun_after(self, text: str) -> bool:
        last = text.rpartition("\n")
        return bool(last[2]) or (self._is_begun and not last[1])
