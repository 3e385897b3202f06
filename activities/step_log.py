"""The log that a step writes to."""

from __future__ import annotations

import logging
from typing import Any

from perdure.core.problems import one_line

TRIAL_MARK = "pass_at_k_execution_id"
"""The key of a context's metadata that names a trial of several."""
_MARK_CHARACTERS = 300

_log = logging.getLogger("perdure.steps")


class StepLog(logging.LoggerAdapter[logging.Logger]):
    """A step's log: its lines begin with `[<mark>] `, if there is one (T19)."""

    def __init__(self, step: str, mark: Any = None) -> None:
        """`step` is the attempt's name, an attribute of each record."""
        super().__init__(_log, {"step": step})
        # A document's metadata may hold anything; a line stays a line.
        self._prefix = "" if mark is None else f"[{one_line(str(mark)[:_MARK_CHARACTERS])}] "

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """As every logger; all the other methods come through here."""
        # What stands before a message with arguments is formatted together with it.
        prefix = self._prefix.replace("%", "%%") if args else self._prefix
        more["stacklevel"] = more.get("stacklevel", 1) + 1  # the caller, not this method
        super().log(level, f"{prefix}{msg}" if prefix else msg, *args, **more)
