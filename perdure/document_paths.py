"""Finding the documents behind the paths that people name: files, lists, directories, trees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perdure.dtap_layout import CONFIG_FILE, DtapTask, legal_id, task_in
from perdure.lists import ListOptions
from perdure.reading import Source, Unreadable, read_json, read_text, read_yaml
from perdure.task_store import (
    TaskStore,
    TaskStoreError,
    UnknownStoredTask,
    is_stored_name,
    parse_stored_name,
)

TASK_FILES = ("task.yaml", "task.yml", "task.json")
"""A directory that holds one of them is a task."""

_SUFFIXES = (".yaml", ".yml", ".json")
_LIST_SUFFIX = ".jsonl"
CONFIGURATION_NAMES = frozenset({"env.yaml", "env.yml", "mcp.yaml", "mcp.yml"})
"""What a tree may hold beside tasks, and only `validate` looks at."""

_NO_TASKS = frozenset({"docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"})
"""What a tree may hold beside tasks; passed over there, read when it is named itself."""


@dataclass(frozen=True)
class Found:
    """One task document."""

    file: Path
    """The file that holds it, for errors."""
    source: Source | None
    """The document; None: `problem` says why there is none, or `dtap` what to make it of."""
    default_id: str | None = None
    """The id of a task whose document has none."""
    origin: str = ""
    """`file`, or `list.jsonl:3` for a document that stands in a list."""
    problem: Unreadable | None = None
    passed_over: bool = False
    """True: the problem is a warning, and the document is left out."""
    dtap: DtapTask | None = None
    """A directory in the DTap layout, of which the document is to be made."""
    in_tree: bool = False
    """True: nobody named the file; it was found below a folder."""


def find(
    paths: Sequence[str | Path],
    lists: ListOptions | None = None,
    *,
    store: TaskStore | None = None,
) -> Iterator[Found]:
    """Read every document behind the paths, in their order; trees in sorted order.

    `store` is where `store:ID@VERSION` is looked up; None: that of the environment's settings.
    Raises TaskStoreError if it cannot be used.
    """
    for path in paths:
        if is_stored_name(path):
            yield _find_stored(str(path), store or _default_store())
        else:
            yield from find_behind(Path(path), lists or ListOptions())


def _find_stored(name: str, store: TaskStore) -> Found:
    """A task of the store, under the name of the version that it has now."""
    try:
        id, version = parse_stored_name(name)
    except TaskStoreError as error:
        return refused(Path(name), str(error), "")
    try:
        stored = store.get(id, version)
    except UnknownStoredTask as error:
        return refused(Path(name), error.what, error.remedy)
    return Found(Path(stored.name), Source(stored.document), origin=stored.name)


def _default_store() -> TaskStore:
    from perdure.config import Settings  # here: it loads Temporal's SDK, for names like these only

    return TaskStore(Settings.from_env().state.tasks)


def find_behind(path: Path, lists: ListOptions, *, in_list: bool = False) -> Iterator[Found]:
    """Read every document behind one path, which a list may have named."""
    # os.path answers no where Path would raise: names too long, folders that may not be entered.
    if os.path.isdir(path):
        yield from _find_in_directory(path, lists)
    elif path.suffix.lower() == _LIST_SUFFIX:
        if in_list:
            yield refused(path, "a list cannot name another list", "name its tasks")
        else:
            yield from _find_in_list(path, lists)
    else:
        yield _read(path, path.stem)


def _find_in_list(path: Path, lists: ListOptions) -> Iterator[Found]:
    from perdure.list_lines import find_in_list  # its lines name paths, which are found here

    return find_in_list(path, lists)


def _find_in_directory(root: Path, lists: ListOptions) -> Iterator[Found]:
    """A directory that is a task, or a tree of tasks."""
    if (task := _task_directory(root, None, lists)) is not None:
        yield task
        return
    found = False
    for path in _walk(root):
        if path.name in CONFIGURATION_NAMES and not lists.validating:
            continue
        name = ".".join(path.relative_to(root).parts)
        found = True
        if os.path.isdir(path):
            yield _task_directory(path, name, lists) or refused(
                path, "the directory cannot be read", "check its permissions"
            )
        elif path.suffix.lower() == _LIST_SUFFIX:
            yield from _find_in_list(path, lists)
        else:
            yield replace(_read(path, name.removesuffix(path.suffix)), in_tree=True)
    if not found:
        yield refused(
            root,
            "the directory holds no task documents",
            f"put a {TASK_FILES[0]} into it, or name files ending in {', '.join(_SUFFIXES)}",
        )


def _own_name(directory: Path) -> str:
    return directory.name or directory.resolve().name


def _walk(root: Path) -> Iterator[Path]:
    """Task files and task directories of a tree, sorted; links to directories are not followed."""
    unreadable: list[OSError] = []
    found: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=unreadable.append):
        directory = Path(folder)
        if directory != root and _holds_a_task(files):
            found.append(directory)
            folders.clear()  # what else lies there belongs to the task
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found.extend(
            directory / name
            for name in files
            if not name.startswith(".")
            and name not in _NO_TASKS
            and name.lower().endswith((*_SUFFIXES, _LIST_SUFFIX))
        )
    found.extend(Path(error.filename) for error in unreadable)
    return iter(sorted(found, key=lambda path: path.relative_to(root).parts))


def _holds_a_task(files: Sequence[str]) -> bool:
    return CONFIG_FILE in files or any(name in files for name in TASK_FILES)


def _task_directory(directory: Path, name: str | None, lists: ListOptions) -> Found | None:
    """The task of a directory that holds one; `name` is its path below the tree it is found in."""
    files = [directory / name for name in TASK_FILES if os.path.exists(directory / name)]
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        return refused(directory, f"the directory holds {names}", "keep one of them")
    if files:
        return _read(files[0], name or _own_name(directory))
    file = directory / CONFIG_FILE
    if os.path.exists(file):
        task = task_in(directory, lists)
        id = legal_id(name) if name else task.default_id
        return Found(file, None, id, origin=str(file), dtap=task)
    return None


def _read(path: Path, default_id: str) -> Found:
    suffix = path.suffix.lower()
    try:
        if suffix in _SUFFIXES or not os.path.exists(path):
            text = read_text(path)
            source = read_json(text) if suffix == ".json" else read_yaml(text)
            return Found(path, source, default_id, origin=str(path))
        raise Unreadable(
            None,
            "the file's name does not say what it is",
            f"name it with one of {', '.join((*_SUFFIXES, _LIST_SUFFIX))}",
        )
    except Unreadable as error:
        return Found(path, None, default_id, problem=error)


def refused(path: Path, message: str, remedy: str, line: int | None = None) -> Found:
    """What stands for a document that cannot be read."""
    return Found(path, None, problem=Unreadable(line, message, remedy))
