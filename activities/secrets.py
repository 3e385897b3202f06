"""Secrets on the worker: where references lead, and the file of those that a run's steps wrote."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.secret_references import is_reference
from perdure.errors import PerdureError
from perdure.messages import Json
from perdure.secret_files import UnreadableSecret, read_secret_file


class MissingSecret(PerdureError):
    """A reference that leads to no value here; the text names the reference, never a value."""


@dataclass(frozen=True)
class WorkerEnvironment:
    """What of the worker's environment steps may have."""

    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The worker's own; a step sees next to nothing of them."""
    pass_env: tuple[str, ...] = ()
    """Names that every step sees (`--pass-env`)."""
    inherit_env: bool = False
    """Every step sees all of it (`--inherit-env`)."""
    env_file: Mapping[str, str] = field(default_factory=dict)
    """Values of `--env-file`; they stand before the worker's own of the same name."""

    def get(self, name: str) -> str | None:
        """The value of a variable, whether steps see it or not."""
        value = self.env_file.get(name)
        return self.variables.get(name) if value is None else value


def resolve(reference: Json, environment: WorkerEnvironment, folder: Path | None = None) -> str:
    """The value behind `{from_env: NAME}` or `{from_file: PATH}`.

    A relative path starts at `folder`, by default the worker's current one. One line's end at
    the end of a file is not part of the value. Raises MissingSecret.
    """
    if not is_reference(reference):
        raise MissingSecret(
            "a secret is named by {from_env: NAME} or {from_file: PATH}; this is something else"
        )
    if "from_env" in reference:
        return _from_env(str(reference["from_env"]), environment)
    return _from_file(str(reference["from_file"]), folder)


def _from_env(name: str, environment: WorkerEnvironment) -> str:
    value = environment.get(name)
    if value is None:
        raise MissingSecret(
            f"{{from_env: {name}}}: the worker's environment has no variable {name}; "
            "set it where the worker starts, or put it into --env-file"
        )
    return value


def _from_file(name: str, folder: Path | None) -> str:
    try:
        return read_secret_file(name, folder)
    except UnreadableSecret as error:
        raise MissingSecret(
            f"{{from_file: {name}}}: cannot be read ({error}); correct the path, which is "
            "taken on the worker's host"
        ) from None


class SecretFile:
    """The values that a run's steps wrote under redacted keys, by the name of their reference.

    A JSON object of mode 0600 on the run's host. Several processes may use it at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Json]:
        """What was written so far; empty if nothing was.

        Raises PerdureError if the file is not what `merge` wrote.
        """
        if not os.path.exists(self._path):  # nearly always; asked twice in each step
            return {}
        try:
            content: Any = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error
        if not isinstance(content, dict):
            raise self._unusable("not a JSON object")
        return content

    def merge(self, secrets: Mapping[str, Json]) -> None:
        """Add to what is there; the file is whole at any moment."""
        if not secrets:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            content = json.dumps(self.load() | dict(secrets)).encode()
            draft = self._path.with_name(f".{self._path.name}.draft")
            draft.unlink(missing_ok=True)
            write_private(draft, content)
            draft.replace(self._path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # The folder is locked, not the file: `replace` gives the file's name to another file.
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _unusable(self, reason: object) -> PerdureError:
        return PerdureError(
            f"{self._path}: the run's secrets cannot be read ({reason}); "
            "start the task anew with --fresh"
        )


def write_private(path: Path, content: bytes) -> None:
    """Make a file that only its owner can read. Raises FileExistsError; follows no link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)
