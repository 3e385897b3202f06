"""What a process printed, as it stands in the context, and what its end means for the step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.messages import Json
from perdure.steps import ProcessResult, StepFailed

KEPT_BYTES = 64 * 1024
"""Of each end of a stream in the context."""
MESSAGE_LINES = 5
MESSAGE_CHARS = 1_000


def result_of(ended: ProcessResult, document: Mapping[str, Any]) -> dict[str, Json]:
    """The result of a step that ran a process: `exit_code`, `stdout`, `stderr`, `json`, `duration`.

    The step's `document` says how much of the output is kept, and which exit codes are good; `json`
    is null. Raises StepFailed with the result: ExitCode, Timeout, IdleTimeout, Cancelled.
    """
    keep = document.get("keep_output", True)
    result: dict[str, Json] = {
        "exit_code": ended.exit_code,
        "stdout": kept(ended.stdout_path, keep),
        "stderr": kept(ended.stderr_path, keep),
        "json": None,
        "duration": round(ended.duration_seconds, 3),
    }
    if failure := failed_by_limit(ended, result):
        raise failure
    if ended.exit_code not in document.get("ok_exit_codes", [0]):
        raise StepFailed(exit_words(ended), type="ExitCode", result=result)
    return result


def kept(path: Path, keep: bool | int = True) -> str:
    """The stream as the context keeps it: both its ends, with a mark where something is left out.

    `keep`: True for 64 KiB of each end, a number for that many bytes of each, False for none.
    """
    end = KEPT_BYTES if keep is True else int(keep)
    if end == 0 or not path.exists():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= 2 * end:
            return file.read().decode("utf-8", "replace")
        head = file.read(end)
        file.seek(size - end)
        tail = file.read(end)
    return joined(head, tail, size)


def clipped(content: bytes, encoding: str = "utf-8") -> str:
    """A text that is already in memory, clipped in the same way."""
    if len(content) <= 2 * KEPT_BYTES:
        return content.decode(encoding, "replace")
    return joined(content[:KEPT_BYTES], content[-KEPT_BYTES:], len(content), encoding)


def joined(head: bytes, tail: bytes, size: int, encoding: str = "utf-8") -> str:
    """Both ends with the mark between them; characters cut in two are left out."""
    before = head.decode(encoding, "ignore")
    after = tail.decode(encoding, "ignore")
    return f"{before}\n...({size - len(head) - len(tail)} bytes left out)...\n{after}"


def last_lines(path: Path) -> str:
    """The last lines of a stream, short enough for a message; empty if there are none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * MESSAGE_CHARS))
        text = file.read().decode("utf-8", "replace").rstrip()
    lines = "\n".join(text.splitlines()[-MESSAGE_LINES:])
    return lines if len(lines) <= MESSAGE_CHARS else "..." + lines[-MESSAGE_CHARS:]


def failed_by_limit(ended: ProcessResult, result: Json = None) -> StepFailed | None:
    """The failure of a process that was ended; None if it ended by itself."""
    seconds = f"{ended.duration_seconds:.1f} s"
    if ended.ended_by == "timeout":
        message = f"ended after {seconds}: the step's timeout passed"
        return StepFailed(message, type="Timeout", kind="timeout", result=result)
    if ended.ended_by == "idle_timeout":
        message = f"ended after {seconds}: no output and no heartbeat for the step's idle_timeout"
        return StepFailed(message, type="IdleTimeout", kind="timeout", result=result)
    if ended.ended_by == "cancelled":
        message = f"ended after {seconds}: it was told to"
        return StepFailed(message, type="Cancelled", retryable=False, result=result)
    return None


def exit_words(ended: ProcessResult) -> str:
    """How the process ended, with the last lines that it wrote to its error stream."""
    code = ended.exit_code
    words = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
    lines = last_lines(ended.stderr_path)
    return f"{words}; stderr ends with:\n{lines}" if lines else words
