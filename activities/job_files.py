"""What of a job is kept with the results: its output, and how it ended.

```
<results>/<suite>/<task>/<trial>/jobs/<exec_id>/  stdout.log, stderr.log, job.json
```

It is there as soon as the job has ended, whatever becomes of the task and of the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from pathlib import Path

from activities.job_command import numbered
from activities.safe_files import folder_below
from perdure.core.job_output import CAP_CHARACTERS, CAP_MARKER
from perdure.core.job_state import STARTED_AGAIN
from perdure.job_messages import JobEnd
from perdure.payloads import adapter

JOBS = "jobs"
"""The folder of a trial's jobs among its results."""

OUTPUTS = ("stdout.log", "stderr.log")

FILE_LIMIT_BYTES = 4 * CAP_CHARACTERS + 1_000
"""Of one start: what a stream's cap lets through, with its marker."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_log = logging.getLogger("perdure.jobs")


def keep_job(runs: Path, source: Path, jobs: Path, end: JobEnd) -> None:
    """Write a job's files below `jobs`, from those that its starts have left in `source`.

    `runs`: what `source` lies below; no link on the way is followed. The end comes last: whoever
    finds it finds all of it. Raises OSError.
    """
    target = jobs / end.exec_id
    target.mkdir(parents=True, exist_ok=True)
    for name in OUTPUTS:
        _write(target / name, _joined(runs, source, name, end.attempts).encode("utf-8"))
    write_end(jobs, end)


def write_end(jobs: Path, end: JobEnd) -> None:
    """Write how a job has ended, in its folder below `jobs`. Raises OSError."""
    _write(jobs / end.exec_id / "job.json", adapter(JobEnd).dump_json(end))


def _joined(runs: Path, source: Path, name: str, attempts: int) -> str:
    """What all starts on this host have printed, as one stream."""
    parts: list[str] = []
    for attempt in range(1, attempts + 1):
        text = _read(runs, source, numbered(name, attempt))
        if text is None:
            continue  # it ran elsewhere, or never
        if parts and name == "stdout.log":
            begun = parts[-1] and not parts[-1].endswith("\n")
            parts.append(f"\n{STARTED_AGAIN}\n" if begun else f"{STARTED_AGAIN}\n")
        parts.append(text)
    whole = "".join(parts)
    return whole if len(whole) <= CAP_CHARACTERS else whole[:CAP_CHARACTERS] + CAP_MARKER


def _read(runs: Path, source: Path, name: str) -> str | None:
    try:
        with (
            folder_below(runs, source.relative_to(runs).as_posix()) as folder,
            open(os.open(name, _FLAGS, dir_fd=folder), "rb") as file,
        ):
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(FILE_LIMIT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:  # what a job put in the place of its log
        _log.warning("%s of %s is not kept: %s", name, source.name, error)
    return None


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
