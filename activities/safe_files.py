"""Files in places where steps write: opened part by part, so that no link leads elsewhere.

A step runs as the worker's own user and may put a link in the place of any file or folder of its
run, at any moment. What a path named when it was looked at says nothing of what it names when it
is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe holds nobody up
_PIECE_BYTES = 1024 * 1024


def own_folder(path: Path) -> None:
    """Make a directory, unless it is there; a link in its place is removed, not followed."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def folder_below(base: Path, path: str | PurePosixPath = "") -> Iterator[int]:
    """A descriptor of the folder `path` below `base`, to be used as `dir_fd`.

    `base` itself is trusted. Raises OSError: it is not there, a part of it is a link or no
    folder, or the path is not one that leads downwards.
    """
    number = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts_of(path):
            below = os.open(part, _FOLDER, dir_fd=number)
            os.close(number)
            number = below
        yield number
    finally:
        os.close(number)


def copy_below(folder: int, path: str, target: Path, limit_bytes: int) -> int:
    """Copy the file `path` below an open folder to `target`, which is new; return its bytes.

    Raises OSError as `folder_below` does, and for what is not a plain file or holds more than
    `limit_bytes`; then there is no `target`.
    """
    parts = parts_of(path)
    if not parts:
        raise OSError(errno.EISDIR, "names no file", path)
    with contextlib.ExitStack() as opened:
        for part in parts[:-1]:
            folder = os.open(part, _FOLDER, dir_fd=folder)
            opened.callback(os.close, folder)
        source = opened.enter_context(open(os.open(parts[-1], _PLAIN, dir_fd=folder), "rb"))
        mode = os.fstat(source.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a plain file", path)
        made = opened.enter_context(target.open("xb"))
        size = 0
        try:
            # Not by the size that it had a moment ago: it may grow while it is copied.
            while piece := source.read(_PIECE_BYTES):
                size += len(piece)
                if size > limit_bytes:
                    raise OSError(errno.EFBIG, f"is larger than {limit_bytes:,} bytes", path)
                made.write(piece)
            made.flush()
            os.fchmod(made.fileno(), mode & 0o777 | 0o600)
        except OSError:
            target.unlink(missing_ok=True)
            raise
    return size


def remove_in(folder: int, name: str) -> bool:
    """Remove what stands at a name in an open folder: a file, a link, a tree with all below it.

    No link is followed. False if nothing stands there. Raises OSError if something stays.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            return True
        try:
            shutil.rmtree(name, dir_fd=folder)
        except PermissionError:  # a folder of it that its owner may not change, for now
            for _, _, _, below in os.fwalk(name, dir_fd=folder):
                os.fchmod(below, 0o700)
            shutil.rmtree(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def parts_of(path: str | PurePosixPath) -> tuple[str, ...]:
    """The parts of a path that leads downwards. Raises OSError for any other."""
    parts = PurePosixPath(path).parts
    if ".." in parts or "/" in parts or any("\0" in part for part in parts):
        raise OSError(errno.EINVAL, "leads out of its folder", str(path))
    return parts
