"""Signals for a job that another worker of this host runs: its processes carry its marker."""

from __future__ import annotations

import signal

from activities import marker, procfs
from activities.inside import nudge_contained
from activities.job_command import job_key
from perdure.job_messages import InterruptOrder

NOBODY = "no process of it runs on this host"


def signal_elsewhere(order: InterruptOrder) -> str | None:
    """Do what is ordered; None, or why it reached nobody. Reads every process's environment."""
    key = job_key(order.exec_id, order.attempt)
    inside = f"{key}/"
    if order.kill:
        killed = [*marker.sweep(key), *marker.sweep(inside, prefix=True)]
        return None if killed else NOBODY
    if nudge_contained(inside):
        return None
    found = _first_group(marker.find(key))
    reached = sum(procfs.send_signal(process, signal.SIGINT) for process in found)
    return None if reached else NOBODY


def _first_group(found: list[procfs.Seen]) -> list[procfs.Seen]:
    """Those in the process group of the first one: the job's own."""
    first = min(found, key=lambda process: process.start_ticks, default=None)
    return [process for process in found if first and process.group == first.group]
