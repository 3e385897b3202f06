"""How long the server waits for a worker that took over a task's workflow and is not heard of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

LONGEST = timedelta(seconds=10)
"""Temporal's own; what is shorter makes a loaded worker decide twice now and then."""

_DEFAULT_HEARTBEAT_SECONDS = 10.0
_MARGIN_SECONDS = 1.0


def workflow_task_timeout(task: Mapping[str, Any]) -> timedelta:
    """The workflow task timeout for a task document: by its shortest heartbeat timeout.

    A worker that is killed while it decides what comes next holds up the whole workflow for that
    long, and with it the steps that were running beside: these are to start again within
    their heartbeat timeout and two seconds.
    """
    heartbeats = (
        step.get("heartbeat_timeout", _DEFAULT_HEARTBEAT_SECONDS) for step in task["steps"]
    )
    shortest = min(heartbeats, default=_DEFAULT_HEARTBEAT_SECONDS)
    return min(LONGEST, timedelta(seconds=shortest + _MARGIN_SECONDS))
