"""What a step's processes leave in files: `PERDURE_OUTPUT`, artifacts, created paths.

They are made by code that is not ours: a link may stand where a file is expected, a pipe where
nothing would ever come, or ten million files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from activities.safe_files import folder_below, remove_in
from perdure.core.context import LIST_FIELDS, SCALAR_FIELDS, NotJson, check_json
from perdure.core.redaction import mask
from perdure.messages import Artifact, Json
from perdure.steps import Context, StepFailed

OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024

RESERVED_FIELDS = frozenset({"results", "instance_id"})
"""Of the context: written by perdure alone."""
RESERVED_METADATA = frozenset(
    {"failed_steps", "retry_resets", "seed", "run_group_id", "script_results", "verifications"}
)
"""Of the context's metadata: likewise."""

ARTIFACT_LIMIT_BYTES = 256 * 1024 * 1024
"""Of one file."""
ARTIFACTS_LIMIT_BYTES = 1024 * 1024 * 1024
"""Of all files of one attempt."""
ARTIFACTS_LIMIT_COUNT = 1_000
"""Of one attempt; the list rides in the step's outcome."""

_LOG = re.compile(r"(stdout|stderr)(\.\d+)?\.log")


# --- PERDURE_OUTPUT ---------------------------------------------------------------------------


def read_output(path: Path) -> dict[str, Json] | None:
    """The JSON object that a step left; None if it left none.

    Raises StepFailed (type `BadOutput`): not a plain file, too large, not a JSON object.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _bad_output("it is not a plain file")
            content = file.read(OUTPUT_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _bad_output(f"it cannot be read ({error.strerror})") from None
    if len(content) > OUTPUT_LIMIT_BYTES:
        raise _bad_output(f"it is larger than {OUTPUT_LIMIT_BYTES:,} bytes; write large data to a "
                          "file in PERDURE_WORKDIR and its name here")  # fmt: skip
    if not content.strip():
        return None
    try:
        output = json.loads(content)
        check_json(output)
    except NotJson as error:
        raise _bad_output(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _bad_output(f"it is not JSON ({error})") from None
    if not isinstance(output, dict):
        raise _bad_output(f"it holds {_kind(output)}, not an object")
    return output


def merge_output(output: dict[str, Json], context: Context) -> dict[str, float]:
    """Put a step's output where it belongs; return its `usage`.

    Lists of the context get the new items at their end, its texts are replaced, `metadata` is
    joined object by object, and any other key stands in `metadata`. Raises StepFailed (type
    `BadOutput`) before anything is changed.
    """
    output = dict(output)
    usage = _usage(output.pop("usage", None))
    metadata = output.pop("metadata", {})
    if not isinstance(metadata, dict):
        raise _bad_output(f"'metadata' is {_kind(metadata)}, not an object")
    for key, value in output.items():
        if key in RESERVED_FIELDS or key in RESERVED_METADATA:
            raise _bad_output(f"the key {key!r} is reserved for perdure")
        if key in LIST_FIELDS and not isinstance(value, list):
            raise _bad_output(f"{key!r} is {_kind(value)}, not a list")
        if key in SCALAR_FIELDS and not isinstance(value, str | None):
            raise _bad_output(f"{key!r} is {_kind(value)}, not a text")
        if key not in LIST_FIELDS and key not in SCALAR_FIELDS and key in metadata:
            raise _bad_output(f"the key {key!r} stands twice, by itself and in 'metadata'")
    for key in metadata:
        if key in RESERVED_METADATA:
            raise _bad_output(f"the key 'metadata.{key}' is reserved for perdure")
    for key, value in output.items():
        if key in LIST_FIELDS:
            setattr(context, key, [*getattr(context, key), *value])
        elif key in SCALAR_FIELDS:
            setattr(context, key, value)
        else:
            metadata = {**metadata, key: value}
    context.metadata = _joined(context.metadata, metadata)
    return usage


def _usage(usage: Json) -> dict[str, float]:
    if usage is None:
        return {}
    if not isinstance(usage, dict):
        raise _bad_output(f"'usage' is {_kind(usage)}, not an object of numbers")
    for name, value in usage.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or abs(value) > 1e300 or not math.isfinite(value):
            raise _bad_output(f"'usage.{name}' is {_kind(value)}, not a number that can be summed")
        if value < 0:
            raise _bad_output(f"'usage.{name}' is {value:g}, and nothing less than 0 can be used")
    return {name: float(value) for name, value in usage.items()}


def _joined(old: dict[str, Json], new: dict[str, Json]) -> dict[str, Json]:
    """A new object; `check_json` has bounded the depth of both."""
    made = dict(old)
    for key, value in new.items():
        there = made.get(key)
        both = isinstance(there, dict) and isinstance(value, dict)
        made[key] = _joined(there, value) if both else value  # type: ignore[arg-type]
    return made


def _bad_output(reason: str) -> StepFailed:
    return StepFailed(f"PERDURE_OUTPUT: {reason}", type="BadOutput")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "something else")


# --- Artifacts ----------------------------------------------------------------------------------


class Artifacts:
    """Lists a directory of artifacts within its limits."""

    def __init__(
        self,
        file_limit_bytes: int = ARTIFACT_LIMIT_BYTES,
        limit_bytes: int = ARTIFACTS_LIMIT_BYTES,
        limit_count: int = ARTIFACTS_LIMIT_COUNT,
    ) -> None:
        self._file_limit = file_limit_bytes
        self._left = limit_bytes
        self._count = limit_count

    def of(self, directory: Path) -> list[Artifact]:
        """The files below, sorted by path; once. Beyond the count nothing is listed.

        Not kept: links, pipes and the like, names that are not UTF-8, a file over its limit or
        what is left of the limit of all.
        """
        found: list[Artifact] = []
        waiting = [] if directory.is_symlink() else [("", os.fsencode(directory))]
        while waiting and len(found) < self._count:
            prefix, folder = waiting.pop()
            below = []
            for entry in _entries(folder):
                name = prefix + entry.name.decode("utf-8", "replace")
                if entry.is_dir(follow_symlinks=False) and _is_text(entry.name):
                    below.append((name + "/", entry.path))
                elif len(found) < self._count:
                    found.append(self._artifact(name, entry))
            waiting.extend(reversed(below))
        return sorted(found, key=lambda artifact: artifact.path)

    def _artifact(self, name: str, entry: os.DirEntry[bytes]) -> Artifact:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it went away a moment ago
            return Artifact(name, 0, kept=False)
        plain = stat.S_ISREG(status.st_mode) and _is_text(entry.name)
        kept = plain and status.st_size <= min(self._file_limit, self._left)
        if kept:
            self._left -= status.st_size
        return Artifact(name, status.st_size if stat.S_ISREG(status.st_mode) else 0, kept)


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # unreadable, or gone
        return []


def _is_text(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# --- Paths in the working directory -------------------------------------------------------------


def inside(workdir: Path, name: str, what: str) -> Path:
    """The path `name` below the working directory, links in it resolved.

    Raises StepFailed (type `BadPath`, not retried) if it leads out of it.
    """
    base = Path(os.path.realpath(workdir))
    if "\0" not in name:
        path = Path(os.path.realpath(base / name))
        if path.is_relative_to(base):
            return path
    raise _leads_out(what, name)


def _leads_out(what: str, name: str) -> StepFailed:
    return StepFailed(
        f"{what}: {name!r} leads out of the run's working directory; "
        "name a path inside it, without '..' and without links that lead elsewhere",
        type="BadPath",
        kind="bad_input",
        retryable=False,
    )


def created(workdir: Path, name: str) -> bool:
    """Whether something stands at the path `name` of the working directory, a link included.

    Raises StepFailed as `inside` does.
    """
    folder, last = os.path.split(name)
    if last in ("", ".", "..") or "\0" in last:
        return inside(workdir, name, "creates").exists()
    return os.path.lexists(inside(workdir, folder, "creates") / last)


def remove_created(workdir: Path, name: str) -> bool:
    """Remove what stands at the path `name` of the working directory; False if nothing does.

    A link is removed, not what it leads to. Raises StepFailed as `inside` does, and (type
    `NotRemoved`) if something stays.
    """
    *above, last = [part for part in name.split("/") if part not in ("", ".")] or [".."]
    if last == ".." or name.startswith("/") or workdir.is_symlink():
        raise _leads_out("creates", name)
    folder = inside(workdir, "/".join(above), "creates").relative_to(os.path.realpath(workdir))
    try:
        with folder_below(workdir.parent, PurePosixPath(workdir.name, folder)) as opened:
            return remove_in(opened, last)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StepFailed(
            f"creates: {name!r} cannot be removed ({reason})",
            type="NotRemoved",
            kind="infrastructure",
        ) from None


# --- Logs -------------------------------------------------------------------------------------


def mask_logs(step_dir: Path, secrets: Collection[str]) -> None:
    """Mask secrets in the logs of an attempt that were not known when its processes wrote.

    A log that cannot be written anew is removed.
    """
    with contextlib.suppress(OSError), folder_below(step_dir.parent, step_dir.name) as folder:
        for name in filter(_LOG.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):  # a link or a folder in a log's place: none of ours
                _mask_log(folder, name, secrets)


def _mask_log(folder: int, name: str, secrets: Collection[str]) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return
        text = file.read().decode("utf-8", "surrogateescape")
    masked = mask(text, secrets)
    if masked == text:
        return
    draft = f".{name}.draft"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        with open(os.open(draft, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(masked.encode("utf-8", "surrogateescape"))
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(name, dir_fd=folder)
        raise
