"""How a process that waits on descriptors hears that a child of it has ended.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal


def wake_up_on_sigchld() -> int:
    """A descriptor that becomes readable whenever a child of this process ends."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return ours


def drain(descriptor: int) -> None:
    """Empty a non-blocking pipe."""
    with contextlib.suppress(BlockingIOError):
        while len(os.read(descriptor, 4096)) == 4096:
            pass
