"""The file of the task store: SQLite that several processes use at once, and what can be wrong."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from perdure.errors import PerdureError
from perdure.state import explained

BUSY_SECONDS = 30.0
"""How long a writer waits for the others; each holds the file for milliseconds."""

_APPLICATION_ID = 0x70657264
"""Stands in the file's header and says whose it is: `perd`."""
_LAYOUT = 1
_CREATE = """
CREATE TABLE tasks (
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    stored_at REAL NOT NULL,
    digest TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (id, version)
)
"""


class TaskStoreError(PerdureError):
    """The store cannot be used."""


class StoreFile:
    """The file at a path, its owner's alone; nothing that stands there is ever replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Make the file, unless it is there: whole at once, whoever else does the same.

        Raises StateError for its folder, and TaskStoreError.
        """
        if os.path.lexists(self.path):
            return
        draft = self.path.with_name(f".{self.path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        with explained(self.path.parent):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            try:
                with self._connected(draft) as database:
                    database.execute("PRAGMA journal_mode = WAL")
                    database.execute(_CREATE)
                    database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    database.execute(f"PRAGMA user_version = {_LAYOUT}")
                with contextlib.suppress(FileExistsError):  # another process was first
                    os.link(draft, self.path)
            finally:
                for suffix in ("", "-wal", "-shm", "-journal"):
                    draft.with_name(draft.name + suffix).unlink(missing_ok=True)

    def _check_folder(self) -> None:
        """Refuse a folder that is none and could not be made. Raises TaskStoreError."""
        above = next((folder for folder in self.path.parents if os.path.lexists(folder)), None)
        if above and not os.path.isdir(above):
            raise TaskStoreError(
                f"{above} is not a directory, and the task store lies below it; correct "
                "PERDURE_STATE_DIR"
            )

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """The store; one that is not there yet is empty.

        Raises TaskStoreError: the file is damaged, somebody else's, or cannot be used.
        """
        if not os.path.lexists(self.path):
            self._check_folder()
            with contextlib.closing(sqlite3.connect(":memory:")) as nothing:
                nothing.execute(_CREATE)
                yield nothing
            return
        if not self.path.is_file():
            raise TaskStoreError(f"{self.path} is not a file; move it away")
        with self._connected(self.path) as database:
            self._check_layout(database)
            yield database

    def damaged(self, finding: str) -> TaskStoreError:
        """The error for a file of which something has been lost."""
        return TaskStoreError(
            f"the task store {self.path} is damaged ({finding}); restore a copy, or move it away "
            "to start with an empty one"
        )

    # --- Inside -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self, path: Path) -> Iterator[sqlite3.Connection]:
        try:
            # Opened for writing by readers too: one of them may have to recover the log that a
            # killed process left. isolation_level=None: transactions begin where we say so.
            database = sqlite3.connect(
                f"file:{quote(os.fsencode(path))}?mode=rw",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
            )
            with contextlib.closing(database):
                database.execute("PRAGMA synchronous = FULL")  # what was told is on the disk
                yield database
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _check_layout(self, database: sqlite3.Connection) -> None:
        (owner,) = database.execute("PRAGMA application_id").fetchone()
        if owner != _APPLICATION_ID:
            raise TaskStoreError(
                f"{self.path} is a database, but not one of stored tasks; move it away to start "
                "with an empty store"
            )
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        if layout != _LAYOUT:
            raise TaskStoreError(
                f"the task store {self.path} was written by a newer perdure (layout {layout}); "
                "update perdure"
            )
        row = database.execute("SELECT type FROM sqlite_master WHERE name = 'tasks'").fetchone()
        if row != ("table",):  # a view of somebody else's could compute for ever
            raise self.damaged("it has no table of tasks")

    def _explained(self, error: sqlite3.Error) -> TaskStoreError:
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return TaskStoreError(
                    f"another process has held the task store {self.path} for "
                    f"{BUSY_SECONDS:.0f} s; end it (`fuser {self.path}` names it) and try again"
                )
            case sqlite3.SQLITE_FULL:
                return TaskStoreError(
                    f"{self.path}: the disk or the quota is full, and nothing was stored; make "
                    "room and try again"
                )
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
                return TaskStoreError(
                    f"the task store {self.path} cannot be opened and written by this user "
                    f"({error}); correct the permissions of the file and of its folder, or set "
                    "PERDURE_STATE_DIR to a folder of yours"
                )
            case sqlite3.SQLITE_IOERR:
                return TaskStoreError(
                    f"the task store {self.path} cannot be read or written ({error}); look after "
                    "the disk, or set PERDURE_STATE_DIR to a local one"
                )
        return self.damaged(str(error))
