"""Where things lie in a project of the DTap layout: `dataset/<domain>/benign/<id>/config.yaml`.

A malicious task lies in `dataset/<domain>/malicious/<threat model>/<risk category>/<id>`; a benign
one may have its risk category above its id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.fields import MAX_ID_CHARACTERS, nearest_id
from perdure.core.problems import kind, shown
from perdure.lists import ListOptions

CONFIG_FILE = "config.yaml"
"""A directory that holds it, and no task file, is a DTap task."""

_DATASET = "dataset"
_ARENA = "dt_arena"
_CONFIG_FOLDER = Path(_ARENA, "config")
_TYPES = ("benign", "malicious")
_HASH_CHARACTERS = 8
_MAX_NAME_BYTES = 255


class BadLine(Exception):
    """A line of a list leads to no task; the text says why."""


@dataclass(frozen=True)
class DtapTask:
    """A directory in the DTap layout."""

    directory: Path
    """Absolute."""
    root: Path
    """The project's folder: the working directory of the task. Absolute."""
    in_project: bool = False
    """False: `root` is only where the command was typed, or where env.yaml lies."""
    fields: dict[str, str] = field(default_factory=dict)
    """domain, type, threat_model, risk_category, task_id: those that are known."""

    @property
    def dataset_path(self) -> Path | None:
        """The directory relative to the project's dataset folder; None: it does not lie there."""
        return _below(self.directory, self.root / _DATASET)

    @property
    def default_id(self) -> str:
        """The id of a task that no tree gave a name: its path below the root."""
        below = _below(self.directory, self.root) if self.in_project else None
        return legal_id(".".join(below.parts) if below else self.directory.name)


def legal_id(name: str) -> str:
    """An id for a task whose config.yaml has no place for one; different names stay different."""
    legal = nearest_id(name)
    if legal == name:
        return name
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{legal[: MAX_ID_CHARACTERS - _HASH_CHARACTERS - 1]}-{mark}"


def task_in(directory: Path, lists: ListOptions) -> DtapTask:
    """The DTap task of a directory that was found by its path."""
    directory = _absolute(directory)
    root, in_project = _root_above(directory, lists)
    task = DtapTask(directory, root, in_project)
    below = task.dataset_path or _behind_dataset(directory)
    fields = _fields_of(below.parts) if below else {}
    return DtapTask(directory, root, in_project, fields)


def task_of_line(value: Mapping[str, Any], root: Path) -> DtapTask:
    """The DTap task that a line of a list names (P54); it lies in the dataset, or is refused.

    Raises BadLine.
    """
    fields = _fields_of_line(value)
    dataset = root / _DATASET
    directories = [dataset.joinpath(*parts) for parts in _places(fields)]
    found = next((path for path in directories if os.path.isfile(path / CONFIG_FILE)), None)
    if found is None:
        raise BadLine(f"there is no {directories[0] / CONFIG_FILE}")
    if _leads_out(found / CONFIG_FILE, dataset):
        raise BadLine(f"{found} leads out of {dataset}")
    return DtapTask(found, root, in_project=True, fields=fields)


def _leads_out(file: Path, dataset: Path) -> bool:
    """Whether links below the dataset, which may itself be one, lead to somewhere else."""
    path = str(dataset)
    for part in file.relative_to(dataset).parts:
        path = os.path.join(path, part)
        if os.path.islink(path):
            inside = os.path.realpath(dataset)
            return os.path.commonpath([os.path.realpath(file), inside]) != inside
    return False


def root_of_list(file: Path, lists: ListOptions) -> Path | None:
    """The project's folder for a list with DTap lines; None: none is named, and none found.

    It is the nearest folder above the list that holds a dataset, or the current one if it does.
    """
    if lists.root is not None:
        return _absolute(lists.root)
    here = _absolute(file).parent
    folders = [here, *here.parents, Path.cwd()]
    return next((folder for folder in folders if os.path.isdir(folder / _DATASET)), None)


def config_file(root: Path, name: str) -> Path | None:
    """A project's own env.yaml or mcp.yaml, if it has one."""
    file = root / _CONFIG_FOLDER / name
    return file if os.path.exists(file) else None


def _root_above(directory: Path, lists: ListOptions) -> tuple[Path, bool]:
    if lists.root is not None:
        return _absolute(lists.root), True
    parts = directory.parts
    for length in range(len(parts) - 1, 0, -1):  # as texts: a path costs more than the look
        folder = os.path.join(*parts[:length])
        is_above_dataset = parts[length] == _DATASET and length + 1 < len(parts)
        if is_above_dataset or os.path.isdir(os.path.join(folder, _ARENA)):
            return Path(folder), True
    if lists.env_config is not None:
        file = _absolute(lists.env_config)
        if file.parts[-3:-1] == _CONFIG_FOLDER.parts:
            return file.parents[2], True
        return file.parent, False
    return Path.cwd(), False


def _behind_dataset(directory: Path) -> Path | None:
    """What comes after the last `dataset` of a path that does not lie in the project's own."""
    parts = directory.parts
    for position in range(len(parts) - 2, -1, -1):
        if parts[position] == _DATASET:
            return Path(*parts[position + 1 :])
    return None


def _fields_of(parts: tuple[str, ...]) -> dict[str, str]:
    match parts:
        case (domain, "benign", id):
            return {"domain": domain, "type": "benign", "task_id": id}
        case (domain, "benign", risk, id):
            return {"domain": domain, "type": "benign", "risk_category": risk, "task_id": id}
        case (domain, "malicious", threat, risk, id):
            fields = {"domain": domain, "type": "malicious", "threat_model": threat}
            return {**fields, "risk_category": risk, "task_id": id}
        case (domain, type, *_, id) if type in _TYPES:
            return {"domain": domain, "type": type, "task_id": id}
    return {}


def _fields_of_line(value: Mapping[str, Any]) -> dict[str, str]:
    fields = {
        key: _part(key, value[key])
        for key in ("domain", "type", "threat_model", "risk_category", "task_id")
        if value.get(key) not in (None, "")
    }
    needed = ["domain", "type", "task_id"]
    if fields.get("type") == "malicious":
        needed += ["threat_model", "risk_category"]
    if missing := [key for key in needed if key not in fields]:
        raise BadLine(f"it has no {' and no '.join(missing)}")
    if fields["type"] not in _TYPES:
        raise BadLine(f"its type {shown(fields['type'])} is none of {', '.join(_TYPES)}")
    return fields


def _part(key: str, value: Any) -> str:
    """A field's value, which becomes one part of a path."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if value.bit_length() < 256 else ""
    if not isinstance(value, str):
        raise BadLine(f"its {key} is {kind(value)}, not text")
    length = len(value.encode(errors="replace"))
    if value in ("", ".", "..") or "/" in value or "\0" in value or length > _MAX_NAME_BYTES:
        raise BadLine(f"its {key} {shown(value)} is not the name of a folder")
    return value


def _places(fields: Mapping[str, str]) -> list[tuple[str, ...]]:
    domain, type, id = fields["domain"], fields["type"], fields["task_id"]
    if type == "malicious":
        return [(domain, type, fields["threat_model"], fields["risk_category"], id)]
    nested = [(domain, type, fields["risk_category"], id)] if "risk_category" in fields else []
    return [*nested, (domain, type, id)]


def _below(path: Path, folder: Path) -> Path | None:
    return path.relative_to(folder) if path != folder and path.is_relative_to(folder) else None


def _absolute(path: Path) -> Path:
    """Without `..`, links left as they are: people see the names that they know."""
    return Path(os.path.abspath(path))
