"""The state directory: its layout, its locks, and what can be wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

from perdure.errors import PerdureError

MIN_FREE_BYTES = 64 * 1024 * 1024
"""Below it nothing starts: SQLite and the runs' files would fail halfway instead."""

MAX_PATH_BYTES = 440
"""SQLite takes paths of at most 512 bytes; runs' own paths need some of the rest."""

_SQLITE_HEADER = b"SQLite format 3\0"
_LOCK_POLL_SECONDS = 0.02


class StateError(PerdureError):
    """The state directory cannot be used."""


class StateLocked(StateError):
    """Another process holds a lock of the state directory for too long."""


@dataclass(frozen=True)
class StateDir:
    """Where the embedded server and the runs of one user keep what must outlive them."""

    path: Path

    @property
    def database(self) -> Path:
        """The embedded server's SQLite file."""
        return self.path / "temporal.db"

    @property
    def server_file(self) -> Path:
        """Pid, start time and addresses of the embedded server, as JSON."""
        return self.path / "server.json"

    @property
    def server_log(self) -> Path:
        """What the embedded server prints."""
        return self.path / "server.log"

    @property
    def start_lock(self) -> Path:
        """Held while a user joins or leaves: one transition at a time."""
        return self.path / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server process itself, so it lives exactly as long."""
        return self.path / "server.lock"

    @property
    def users_lock(self) -> Path:
        """Held shared by each user; who gets it alone was the last."""
        return self.path / "users.lock"

    @property
    def users(self) -> Path:
        """A file for each process that uses the server."""
        return self.path / "users"

    @property
    def blobs(self) -> Path:
        """Large values, by content."""
        return self.path / "blobs"

    @property
    def results(self) -> Path:
        """Files of results."""
        return self.path / "results"

    @property
    def runs(self) -> Path:
        """Working directories of runs."""
        return self.path / "runs"

    @property
    def tasks(self) -> Path:
        """The task store's SQLite file."""
        return self.path / "tasks.sqlite"

    @property
    def downloads(self) -> Path:
        """A server binary that the SDK fetched."""
        return self.path / "bin"

    def prepare(self) -> None:
        """Make the directory and its parts (mode 0700) unless they are there.

        Raises StateError: it cannot be made or written, is not a directory, its path is too
        long, or its disk is full.
        """
        if os.name != "posix":
            raise StateError(
                "the embedded server needs Linux or macOS; name a Temporal service by "
                "TEMPORAL_ADDRESS to use perdure as its client here"
            )
        length = len(os.fsencode(self.path))
        if length > MAX_PATH_BYTES:
            raise StateError(
                f"the state directory's path has {length} bytes, more than the {MAX_PATH_BYTES} "
                f"that its database can take: {str(self.path)[:60]}...; "
                "set PERDURE_STATE_DIR to a shorter one"
            )
        with explained(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (self.users, self.blobs, self.results, self.runs):
                part.mkdir(mode=0o700, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"perdure")
            probe.unlink()
            free = shutil.disk_usage(self.path).free
        if free < MIN_FREE_BYTES:
            raise StateError(
                f"the disk of the state directory {self.path} is full ({free >> 20} MiB free, "
                f"{MIN_FREE_BYTES >> 20} needed); make room, try `perdure gc`, or set "
                "PERDURE_STATE_DIR to another disk"
            )

    def check_database(self) -> None:
        """Refuse a database file that is none, before the server meets it.

        Raises StateError naming the file. Reads the header and the schema only: a whole check
        would take seconds for each gigabyte at every start.
        """
        if not self.database.exists():
            return
        with explained(self.database):
            if not self.database.is_file():
                raise StateError(f"{self.database} is not a file; move it away")
            with self.database.open("rb+") as file:  # "+": a read-only one is refused here
                header = file.read(len(_SQLITE_HEADER))
        if header and header != _SQLITE_HEADER:
            raise StateError(
                f"{self.database} is not a SQLite database; move it away to start with an empty "
                "one (its runs are gone then, the files of results stay)"
            )
        self._first_value("SELECT count(*) FROM sqlite_master")

    def check_whole_database(self) -> None:
        """Look for damage anywhere in the database; seconds for each gigabyte.

        Raises StateError if there is some.
        """
        if self.database.exists():
            found = self._first_value("PRAGMA quick_check(1)")
            if found not in ("ok", ""):
                raise self._corrupt(found)

    def _first_value(self, query: str) -> str:
        """First value that a reading query finds.

        Raises StateError if the database is corrupt.
        """
        # mode=rw: a read-only connection cannot recover the log that a killed server left.
        uri = f"file:{quote(str(self.database))}?mode=rw"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
                row = database.execute(query).fetchone()
        except sqlite3.DatabaseError as error:
            if "locked" in str(error) or "busy" in str(error):
                return ""  # another program reads it; the server will tell
            raise self._corrupt(str(error)) from error
        return str(row[0]) if row else ""

    def _corrupt(self, finding: str) -> StateError:
        return StateError(
            f"the database {self.database} is corrupt ({finding}); restore a copy, or move it "
            "away to start with an empty one (its runs are gone then, the files of results stay)"
        )


class FileLock:
    """An advisory lock (`flock`) on a file; gone with the last process that holds the handle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock if that needs no waiting; says whether it is held now.

        Raises StateError if the lock file cannot be opened.
        """
        import fcntl  # here: Windows has none, and a client there needs the rest of this module

        if self._fd is None:
            with explained(self.path):
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            self.drop()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise StateError(
                f"{self.path} cannot be locked ({error.strerror}); its file system has no file "
                "locks: set PERDURE_STATE_DIR to a local disk"
            ) from error
        return True

    def fileno(self) -> int:
        """The open file, to be inherited by a process that is to hold the lock too."""
        if self._fd is None:
            raise ValueError(f"{self.path} is not held")
        return self._fd

    def drop(self) -> None:
        """Close this process's handle; a process that inherited it goes on holding the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @contextlib.asynccontextmanager
    async def held(self, *, within_seconds: float) -> AsyncIterator[None]:
        """Wait for the lock and hold it.

        Raises StateLocked if it cannot be had in that time.
        """
        deadline = time.monotonic() + within_seconds
        while not self.take():
            # Polled: a thread in a blocking flock could not be cancelled by Ctrl-C.
            if time.monotonic() > deadline:
                raise StateLocked(
                    f"another process has held {self.path} for {within_seconds:.0f} s; "
                    f"end it (`fuser {self.path}` names it) and try again"
                )
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            self.drop()


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError on `path` into a StateError that says what to do."""
    try:
        yield
    except OSError as error:
        raise StateError(_explain(path, error)) from error


def _explain(path: Path, error: OSError) -> str:
    other = "set PERDURE_STATE_DIR to a folder of yours"
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return f"{path} cannot be written by this user{_owner(path)}; {other}"
        case errno.EROFS:
            return f"{path} lies on a read-only disk; {other}"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} is not a directory, or lies below a file; {other}"
        case errno.EISDIR:
            return f"{path} is a directory where a file is needed; move it away"
        case errno.ENOSPC | errno.EDQUOT:
            return (
                f"{path}: the disk or the quota is full; make room, or set PERDURE_STATE_DIR "
                "to another disk"
            )
        case errno.ENAMETOOLONG:
            return (
                f"the path {str(path)[:60]}... is too long; set PERDURE_STATE_DIR to a shorter one"
            )
        case _:
            return f"{path} cannot be used ({error.strerror or error}); {other}"


def _owner(path: Path) -> str:
    """Who owns the nearest existing part of `path`, to be read after "this user"."""
    import pwd  # as with fcntl

    for part in (path, *path.parents):
        with contextlib.suppress(OSError):
            uid = part.stat().st_uid
            if uid == os.geteuid():
                return ""
            try:
                name = pwd.getpwuid(uid).pw_name
            except KeyError:
                name = f"uid {uid}"
            return f" ({part} belongs to {name})"
    return ""


def start_ticks(pid: int) -> int | None:
    """When the process started, in a unit of the machine's own; None if it has ended.

    With the pid it names one process: pids are used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_ticks_elsewhere(pid)
    # The command's name, in parentheses, may hold anything; state and start time follow it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _start_ticks_elsewhere(pid: int) -> int | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return round(process.create_time() * 1000)
    except psutil.Error:
        return None
