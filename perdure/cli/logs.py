"""What a worker logs: one line a record, on stderr, at the level that PERDURE_LOG names.

```
2026-03-01 12:00:00,123 INFO    perdure.steps nightly/refund/2 ask.1: [refund/2] asking
```

A step's lines name its run and attempt; `[refund/2] ` is the mark of one trial of several.
"""

from __future__ import annotations

import copy
import logging
import os
import sys

from perdure.errors import PerdureError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
OURS = ("perdure", "activities", "workflows", "worker")


def set_up_logs() -> None:
    """Log to stderr from now on.

    `PERDURE_LOG` sets one level for everything; without it, perdure's own is `info` and the
    SDK's `warning`. Raises PerdureError for a level that does not exist.
    """
    level = _level(os.environ.get("PERDURE_LOG", ""))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)-7s %(name)s%(of_step)s: %(message)s"))
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if level is None else level)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO if level is None else level)


class _OneLine(logging.Formatter):
    """A record on one line; the traceback of an exception under PERDURE_DEBUG=1 only."""

    def format(self, record: logging.LogRecord) -> str:
        # `step`: of what a step logs, its run and attempt (`suite/task/1 ask.2`).
        record.of_step = f" {record.step}" if hasattr(record, "step") else ""
        if os.environ.get("PERDURE_DEBUG") == "1":
            return super().format(record)
        error = record.exc_info[1] if record.exc_info else None
        record = copy.copy(record)  # other handlers get it as it is
        record.exc_info = record.exc_text = record.stack_info = None
        text = super().format(record)
        if error is not None:
            text += f" ({type(error).__name__}: {error})"
        return " | ".join(line.strip() for line in text.splitlines() if line.strip())


def _is_news(record: logging.LogRecord) -> bool:
    """False for the SDK's word of a failed step: the step's failure is told by its record."""
    return not (
        record.name == "temporalio.activity"
        and getattr(record, "__temporal_error_identifier", "") == "ActivityFailure"
    )


def _level(name: str) -> int | None:
    if not name:
        return None
    if name.lower() not in LEVELS:
        raise PerdureError(f"PERDURE_LOG={name!r} is no level; use one of {', '.join(LEVELS)}")
    return LEVELS[name.lower()]
