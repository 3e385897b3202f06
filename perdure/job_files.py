"""A background job as its files of results tell of it: no server, no worker, any machine.

```
<results>/<suite>/<task>/<trial>/jobs/<exec_id>/  stdout.log, stderr.log, job.json
```
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from perdure.core.job_checks import is_exec_id
from perdure.core.job_output import CAP_CHARACTERS, CAP_MARKER
from perdure.core.problems import one_line
from perdure.job_messages import JobEnd
from perdure.payloads import adapter
from perdure.peeks import Peek, with_end
from perdure.reading import Unreadable, read_bytes
from perdure.results_shapes import ResultsError

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Of one file that is read; perdure's own stay far below."""

_MAX_END_BYTES = 1024 * 1024


@dataclass(frozen=True)
class StoredJob:
    """A job on disk."""

    exec_id: str
    folder: Path
    run_id: str
    """The workflow id of its task."""

    def peek(self, offset: int = 0, stderr_offset: int = 0) -> Peek:
        """The job, with its output from these offsets on.

        Raises ResultsError for files that are not what perdure wrote.
        """
        stdout, stderr = self._text("stdout.log"), self._text("stderr.log")
        return with_end(
            Peek(
                exec_id=self.exec_id,
                status="lost",
                done=True,
                run_id=self.run_id,
                stdout=stdout[offset:],
                offset=offset,
                next_offset=max(offset, len(stdout)),
                stderr=stderr[stderr_offset:],
                stderr_offset=stderr_offset,
                stderr_next_offset=max(stderr_offset, len(stderr)),
            ),
            self._end(),
        )

    def _end(self) -> JobEnd:
        path = self.folder / "job.json"
        try:
            end: JobEnd = adapter(JobEnd).validate_json(_read(path, _MAX_END_BYTES))
        except ValidationError as error:
            what = one_line(str(error.errors()[0]["msg"]))
            raise ResultsError(
                f"{path}: is not what perdure wrote ({what}); move it away"
            ) from error
        if end.exec_id != self.exec_id:
            raise ResultsError(f"{path}: tells of another job ({end.exec_id[:100]!r})")
        return end

    def _text(self, name: str) -> str:
        path = self.folder / name
        if not os.path.lexists(path):
            return ""
        text = _read(path, MAX_OUTPUT_BYTES).decode(errors="replace")
        if len(text) > CAP_CHARACTERS:
            text = text[:CAP_CHARACTERS] + CAP_MARKER
        return text


def find_job(results: Path, exec_id: str) -> StoredJob | None:
    """The files of a job, whichever task has it; None if there are none below `results`."""
    if not is_exec_id(exec_id):
        return None
    for suite in _folders(results):
        for task in _folders(suite):
            for trial in _folders(task):
                folder = trial / "jobs" / exec_id
                if (folder / "job.json").is_file():
                    run_id = f"task/{suite.name}/{task.name}/{trial.name}"
                    return StoredJob(exec_id, folder, run_id)
    return None


def jobs_in(trial: Path, run_id: str) -> list[StoredJob]:
    """The jobs of a task that have left files below its directory of results."""
    return [
        StoredJob(folder.name, folder, run_id)
        for folder in _folders(trial / "jobs")
        if is_exec_id(folder.name) and (folder / "job.json").is_file()
    ]


def _folders(parent: Path) -> Iterator[Path]:
    try:
        with os.scandir(parent) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return  # nothing is known of what cannot be read
    for name in names:
        yield parent / name


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_bytes(path, limit)
    except Unreadable as error:
        raise ResultsError(f"{path}: {error.finding.message}; move it away") from None
