"""Times and sums as people read them."""

from __future__ import annotations

import time


def clock(seconds: float) -> str:
    """A span on a clock: `0:07`, `12:30`, `3:05:00`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float | None) -> str:
    """How long something took: `0.31 s`, `12.4 s`, `2:05`; empty if that is not known."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def moment(seconds: float | None) -> str:
    """A point in time, in the reader's own zone: `2025-03-01 14:05:09`."""
    return _local("%Y-%m-%d %H:%M:%S", seconds) if seconds else ""


def time_of_day(seconds: float) -> str:
    """A point in time as a clock shows it, in the reader's own zone: `14:05:09`."""
    return _local("%H:%M:%S", seconds)


def number(value: float) -> str:
    """A sum without the noise of binary fractions: `1.25`, `4,100`."""
    text = f"{value:,.4f}" if abs(value) < 1e15 else f"{value:.6g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _local(form: str, seconds: float) -> str:
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # no time of any calendar
        return "?"
