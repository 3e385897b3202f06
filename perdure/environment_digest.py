"""The digest of an environment's files: an edit of one of them makes another environment of it.

Of a compose file those count that it is brought up from: itself, `.env` beside it, the files that
it names, and its build contexts. Of a process those that its command names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

from perdure.core.environments import Process
from perdure.reading import Unreadable, read_bytes, read_yaml

MAX_CONTENT_BYTES = 32 * 1024 * 1024
"""So much of a build context is read; of what is beyond, size and time of change count."""

MAX_FILES = 20_000
"""So many files of a build context are looked at."""

_IGNORED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv"})


def compose_digest(file: Path) -> str:
    """The digest of a compose file and of what it names, in hex.

    Raises Unreadable if the compose file cannot be read. What it names and is not there, or is
    not for perdure to understand, is left to compose.
    """
    content = read_bytes(file)
    found = _Files(file.parent)
    found.take(file)
    found.take(file.parent / ".env")
    for path in _named_files(_document(content)):
        found.take(file.parent / path)
    for context, dockerfile in _build_contexts(_document(content)):
        found.take_folder(file.parent / context)
        found.take(file.parent / context / dockerfile)
    return found.hexdigest()


def process_digest(process: Process, cwd: Path) -> str:
    """The digest of the files that a process's command names, in hex."""
    command = process.command
    words = command.split() if isinstance(command, str) else command
    found = _Files(cwd)
    for word in words:
        path = cwd / word
        # Programs of the system are not the project's.
        is_own = (
            not (os.path.isabs(word) and os.access(path, os.X_OK)) if "\0" not in word else False
        )
        if is_own and os.path.isfile(path):
            found.take(path)
    return found.hexdigest()


class _Files:
    """Files on their way into one digest, each once."""

    def __init__(self, start: Path) -> None:
        self._start = start
        self._digest = hashlib.sha256()
        self._left_bytes = MAX_CONTENT_BYTES
        self._taken: set[str] = set()

    def take(self, path: Path) -> None:
        """Add a file; one that is not there is another matter than one that is empty."""
        name = os.path.normpath(path)
        if name in self._taken:
            return
        self._taken.add(name)
        shown = os.path.relpath(name, self._start)
        self._digest.update(f"{shown!r}:{self._of(Path(name))}\n".encode(errors="backslashreplace"))

    def take_folder(self, folder: Path) -> None:
        """Add every file below a folder."""
        for path in islice(_walk(folder), MAX_FILES):
            self.take(path)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _of(self, path: Path) -> str:
        try:
            facts = path.stat()
            if facts.st_size <= self._left_bytes:
                content = read_bytes(path)
                self._left_bytes -= len(content)
                return hashlib.sha256(content).hexdigest()
        except (OSError, ValueError):
            return "-"
        except Unreadable:
            pass
        return f"{facts.st_size} bytes of {facts.st_mtime_ns}"


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):  # follows no link
        folders[:] = sorted(set(folders) - _IGNORED_FOLDERS)
        for name in sorted(files):
            yield Path(parent, name)


def _document(content: bytes) -> Mapping[str, Any]:
    """A compose file's document, as far as it is plain YAML; compose itself has the last word."""
    try:
        value = read_yaml(content.decode(errors="replace"), later_wins=True).value
    except Unreadable:
        return {}
    return value if isinstance(value, dict) else {}


def _services(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    services = document.get("services")
    for service in services.values() if isinstance(services, dict) else ():
        if isinstance(service, dict):
            yield service


def _named_files(document: Mapping[str, Any]) -> Iterator[str]:
    """Paths of other files that compose reads: `include`, `extends`, `env_file`, `configs`..."""
    yield from _paths(document.get("include"))
    for kind in ("configs", "secrets"):
        entries = document.get(kind)
        for entry in entries.values() if isinstance(entries, dict) else ():
            if isinstance(entry, dict):
                yield from _paths(entry.get("file"))
    for service in _services(document):
        yield from _paths(service.get("env_file"))
        extends = service.get("extends")
        if isinstance(extends, dict):
            yield from _paths(extends.get("file"))


def _build_contexts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The context of each build, with the path of its Dockerfile below it."""
    for service in _services(document):
        build = service.get("build")
        build = {"context": build} if isinstance(build, str) else build
        if not isinstance(build, dict):
            continue
        dockerfile = build.get("dockerfile", "Dockerfile")
        for context in _paths(build.get("context", ".")):
            yield context, dockerfile if _is_local(dockerfile) else "Dockerfile"


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = value.get("path")
    for entry in value if isinstance(value, list) else [value]:
        path = entry.get("path") if isinstance(entry, dict) else entry
        if _is_local(path):
            yield path


def _is_local(path: Any) -> TypeGuard[str]:
    """Whether it is a path, and not an address or something that is only known when it is used."""
    return isinstance(path, str) and "$" not in path and "://" not in path and "\0" not in path
