"""What undoes an attempt, seen as a step: its document, its limits, its retries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.core.task import Retry, Step

DECLARED = "declared"
"""The kind of compensation that runs the step under `compensate`."""

TIMEOUT_SECONDS = 600.0

RETRY = Retry(max_attempts=5, initial_interval=1.0, backoff=2.0)

LONGEST_PAUSE_SECONDS = 30.0
"""Between two tries, unless `compensate` begins with longer ones."""

_OF_THE_STEP = ("timeout", "idle_timeout", "retry", "retry_config")
"""Keys that limit what is undone, and not what undoes it."""


def undo_step(step: dict[str, Any], kind: str) -> Step:
    """The step that undoes an attempt of `step` (its document).

    No step of a document has its id, since those hold no space.
    """
    if kind == DECLARED:
        document = dict(step["compensate"])
    else:
        document = {key: value for key, value in step.items() if key not in _OF_THE_STEP}
    made = Step.from_dict({"timeout": TIMEOUT_SECONDS, **document, "id": f"undo {step['id']}"})
    return made if document.get("retry") else replace(made, retry=RETRY)


def longest_pause_seconds(how: Step) -> float:
    """At most so long is waited between two tries of what `undo_step` made."""
    return max(LONGEST_PAUSE_SECONDS, how.retry.initial_interval)
