"""The task store: numbered versions of task documents.

Any number of processes may use it at once. A version, once given, never changes and never goes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from perdure.core.fields import MAX_ID_CHARACTERS, identifier, meant
from perdure.core.problems import Place, Problem, shown
from perdure.messages import Json
from perdure.store_file import StoreFile, TaskStoreError

__all__ = [
    "PREFIX",
    "StoredTask",
    "TaskStore",
    "TaskStoreError",
    "UnknownStoredTask",
    "is_stored_name",
    "parse_stored_name",
]

PREFIX = "store:"
"""What names of stored tasks begin with where paths may stand as well."""

MAX_VERSION = 2**53

_VERSION = re.compile(r"[1-9][0-9]{0,15}")
_COLUMNS = "id, version, stored_at, digest, document"


class UnknownStoredTask(TaskStoreError):
    """The store has no such task, or not that version of it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class StoredTask:
    """One version of a task's document."""

    id: str
    version: int
    """From 1, without gaps."""
    stored_at: float
    """Seconds since 1970."""
    document: dict[str, Any] = field(repr=False)
    """The whole document, `id` and `version` included; scripts are in it, seeds not filled in."""

    @property
    def name(self) -> str:
        """`store:ID@VERSION`, which can be run like a path."""
        return f"{PREFIX}{self.id}@{self.version}"

    @property
    def metadata(self) -> dict[str, Any]:
        """The document's own; empty if it has none."""
        found = self.document.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def types(self) -> frozenset[str]:
        """What kind of task this is: the document's `type`, and its metadata's."""
        return frozenset(
            value for value in ("task", self.metadata.get("type")) if isinstance(value, str)
        )


def is_stored_name(path: str | Path) -> bool:
    """Whether a path names a stored task; a file of such a name is named by its absolute path."""
    return str(path).startswith(PREFIX)


def parse_stored_name(name: str) -> tuple[str, int | None]:
    """Id and version of `store:ID@VERSION` or `ID@VERSION`; without a version, None: the latest.

    Raises TaskStoreError for what cannot be one.
    """
    id, at, version = name.removeprefix(PREFIX).partition("@")
    _check_id(id)
    if not at:
        return id, None
    if not _VERSION.fullmatch(version):
        raise TaskStoreError(
            f"{shown(version)} is not a version; write {PREFIX}{id}@1, or {PREFIX}{id} for the "
            "latest"
        )
    return id, int(version)


class TaskStore:
    """Versions of task documents.

    Nothing is checked about a document but its id: `perdure.stored_tasks` does that.
    """

    def __init__(self, path: Path) -> None:
        """`path`: the file; it is made by the first `put`."""
        self.path = path
        self._file = StoreFile(path)

    def put(self, *documents: Mapping[str, Json]) -> list[StoredTask]:
        """Store each document as the next version of its id, or none of them.

        A document that is there already is a new version all the same. The documents' own
        `version` is not looked at. Raises TaskStoreError, and StateError for the directory.
        """
        for document in documents:
            _check_id(document.get("id"))
        self._file.create()
        stored = []
        with self._file.open() as database:
            database.execute("BEGIN IMMEDIATE")
            for document in documents:
                stored.append(_insert(database, document))
            database.execute("COMMIT")
        return stored

    def get(self, id: str, version: int | None = None) -> StoredTask:
        """That version of a task, or the latest.

        Raises UnknownStoredTask, with the nearest id or the versions that there are, and
        TaskStoreError.
        """
        _check_id(id)
        if version is not None:
            _check_version(version)
        with self._file.open() as database:
            row = database.execute(
                f"SELECT {_COLUMNS} FROM tasks WHERE id = ? AND version = coalesce(?, "
                "(SELECT max(version) FROM tasks WHERE id = ?))",
                (id, version, id),
            ).fetchone()
            if row is None:
                raise _unknown(database, id, version)
            return self._task(row)

    def query(
        self,
        *,
        id: str | None = None,
        type: str | None = None,
        project_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> list[StoredTask]:
        """The latest version of each task that fits all that is asked, sorted by id.

        `id` is a pattern with `*`, `?` and `[...]`; `type` is that of the document (`task`) or of
        its metadata; `metadata` are keys with the values that they must have.
        Raises TaskStoreError.
        """
        if id is not None and len(id) > 4 * MAX_ID_CHARACTERS:
            raise TaskStoreError(f"the pattern {shown(id)} is longer than any id; shorten it")
        found = []
        with self._file.open() as database:
            rows = database.execute(
                f"SELECT {_COLUMNS} FROM tasks AS task WHERE version = "
                "(SELECT max(version) FROM tasks WHERE id = task.id) ORDER BY id"
            )
            for row in rows:
                if id is not None and not fnmatchcase(str(row[0]), id):
                    continue
                task = self._task(row)
                if _fits(task, type, project_id, metadata or {}):
                    found.append(task)
        return found

    # --- Inside -----------------------------------------------------------------------------

    def _task(self, row: tuple[Any, ...]) -> StoredTask:
        id, version, stored_at, digest, text = row
        try:
            if _digest(id, version, text) != digest:
                raise ValueError("its checksum does not fit")
            document = json.loads(text)
            if not _is_stored(document, id, version) or not isinstance(stored_at, float):
                raise ValueError("it is no task of that name")
        except (TypeError, ValueError, RecursionError) as error:
            name = shown(f"{PREFIX}{id}@{version}", quote=False)
            raise self._file.damaged(f"{name}: {error}") from error
        return StoredTask(id, version, stored_at, document)


def _insert(database: sqlite3.Connection, document: Mapping[str, Json]) -> StoredTask:
    id = str(document["id"])
    (latest,) = database.execute("SELECT max(version) FROM tasks WHERE id = ?", (id,)).fetchone()
    version = (latest or 0) + 1
    whole = {"id": id, "version": version}
    whole |= {key: value for key, value in document.items() if key not in whole}
    # A copy, so that what is given back is what was stored.
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    stored_at = time.time()
    database.execute(
        f"INSERT INTO tasks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
        (id, version, stored_at, _digest(id, version, text), text),
    )
    return StoredTask(id, version, stored_at, json.loads(text))


def _is_stored(document: Any, id: str, version: int) -> bool:
    """Whether a document is what `put` stored under this name; the file may be somebody else's."""
    return isinstance(document, dict) and (document.get("id"), document.get("version")) == (
        id,
        version,
    )


def _digest(id: str, version: int, text: str) -> str:
    """Tells a text that a failing disk has changed within a sound database."""
    return hashlib.sha256(f"{id}@{version} {text}".encode()).hexdigest()


def _fits(
    task: StoredTask, type: str | None, project_id: str | None, metadata: Mapping[str, Json]
) -> bool:
    own = task.metadata
    return (
        (type is None or type in task.types)
        and (project_id is None or task.document.get("project_id") == project_id)
        and all(key in own and own[key] == value for key, value in metadata.items())
    )


def _unknown(database: sqlite3.Connection, id: str, version: int | None) -> UnknownStoredTask:
    (latest,) = database.execute("SELECT max(version) FROM tasks WHERE id = ?", (id,)).fetchone()
    if latest is not None:
        there = "there is version 1 alone" if latest == 1 else f"its versions are 1 to {latest}"
        return UnknownStoredTask(f"the stored task {shown(id)} has no version {version}", there)
    known = [row[0] for row in database.execute("SELECT DISTINCT id FROM tasks ORDER BY id")]
    remedy = meant(id, known) if known else "`perdure tasks put FILE` stores one"
    return UnknownStoredTask(f"the store has no task {shown(id)}", remedy)


def _check_id(id: object) -> None:
    problems: list[Problem] = []
    identifier(id, Place(problems))
    for problem in problems:
        raise TaskStoreError(f"the id of a stored task: {problem}")


def _check_version(version: int) -> None:
    is_whole = isinstance(version, int) and not isinstance(version, bool)
    if not is_whole or not 1 <= version <= MAX_VERSION:
        raise TaskStoreError(f"{shown(version)} is not a version; versions are 1, 2, 3, ...")
