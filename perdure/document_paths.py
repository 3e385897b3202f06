"""Finding the documents behind the paths that people name: files, lists, directories, trees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perdure.core.problems import listed
from perdure.dtap_layout import CONFIG_FILE, DtapTask, legal_id, task_in
from perdure.lists import ListOptions
from perdure.reading import Source, Unreadable, read_json, read_text, read_yaml
from perdure.result_documents import (
    JUDGEMENT,
    is_own_output,
    result_document,
    result_folder,
    result_list,
)
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

_NAME_TASKS = "name task documents"

_NO_TASKS = frozenset(
    {"docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", JUDGEMENT}
)
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
        yield from _find_in_directory(path, lists, in_list=in_list)
    elif path.suffix.lower() == _LIST_SUFFIX:
        yield from _find_in_list(path, lists, in_list=in_list)
    else:
        yield _read(path, path.stem)


def _find_in_list(path: Path, lists: ListOptions, *, in_list: bool) -> Iterator[Found]:
    from perdure.list_lines import find_in_list  # its lines name paths, which are found here

    if what := result_list(path):
        return iter([refused(path, f"is no list of tasks: it holds {what}", _NAME_TASKS)])
    if in_list:  # it may name itself, by way of the folder that it lies in
        return iter([refused(path, "a list cannot name another list", "name its tasks")])
    return find_in_list(path, lists)


def _find_in_directory(root: Path, lists: ListOptions, *, in_list: bool) -> Iterator[Found]:
    """A directory that is a task, or a tree of tasks."""
    if (task := _task_directory(root, None, lists)) is not None:
        yield task
        return
    # The directory of results may be the tree itself: then its suites are passed over one by one.
    if what := result_folder(root, _files_of(root), None):
        yield refused(root, what, _NAME_TASKS)
        return
    found, passed_over = False, list[str]()
    for parts, path in _walk(root, lists, passed_over):
        if path.name in CONFIGURATION_NAMES and not lists.validating:
            continue
        name = ".".join(parts)
        if os.path.isdir(path):
            found = True
            yield _task_directory(path, name, lists) or refused(
                path, "the directory cannot be read", "check its permissions"
            )
        elif path.suffix.lower() == _LIST_SUFFIX:
            if result_list(path):
                passed_over.append(str(path))
                continue
            found = True
            yield from _find_in_list(path, lists, in_list=in_list)
        else:
            read = _read(path, name.removesuffix(path.suffix))
            if read.source is None and is_own_output(path):
                continue  # `perdure run . --json > result.json` has made it, and it is empty
            if read.source is not None and result_document(read.source.value):
                passed_over.append(str(path))
                continue
            found = True
            yield replace(read, in_tree=True)
    if not found:
        yield refused(
            root,
            "the directory holds no task documents"
            + (f", but results ({listed(passed_over, 3)})" if passed_over else ""),
            f"put a {TASK_FILES[0]} into it, or name files ending in {', '.join(_SUFFIXES)}",
        )


def _own_name(directory: Path) -> str:
    return directory.name or directory.resolve().name


def _files_of(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # whoever reads it says why


def _walk(
    root: Path, lists: ListOptions, passed_over: list[str]
) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Task files and task directories of a tree, sorted; links to directories are not followed.

    Each with the parts of its path below the root. Without recursion: a tree may be as deep as a
    path can be long. Folders with results are added to `passed_over`.
    """
    found: list[tuple[tuple[str, ...], str]] = []
    """Parts of the path below the root, which it is sorted by, and the path."""
    waiting: list[tuple[tuple[str, ...], str]] = [((), str(root))]
    while waiting:
        parts, folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inner = [(entry.name, _is_folder(entry), entry.is_symlink()) for entry in entries]
        except OSError:
            found.append((parts, folder))  # whoever reads it finds out why it cannot be
            continue
        files = [name for name, is_folder, _ in inner if not is_folder]
        if parts and _holds_a_task(files):
            found.append((parts, folder))
            continue  # what else lies there belongs to the task
        if parts and result_folder(Path(folder), files, lists.results):
            passed_over.append(folder)
            continue
        for name, is_folder, is_link in inner:
            place = ((*parts, name), os.path.join(folder, name))
            if is_folder and not is_link and not name.startswith((".", "__")):
                waiting.append(place)
            elif not is_folder and _could_be_a_task(name):
                found.append(place)
    return ((parts, Path(path)) for parts, path in sorted(found))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _could_be_a_task(name: str) -> bool:
    return (
        not name.startswith(".")
        and name not in _NO_TASKS
        and name.lower().endswith((*_SUFFIXES, _LIST_SUFFIX))
    )


def _holds_a_task(files: Sequence[str]) -> bool:
    return CONFIG_FILE in files or any(name in files for name in TASK_FILES)


def _task_directory(directory: Path, name: str | None, lists: ListOptions) -> Found | None:
    """The task of a directory that holds one; `name` is its path below the tree it is found in."""
    folder = str(directory)
    files = [directory / name for name in TASK_FILES if os.path.exists(os.path.join(folder, name))]
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
        if suffix == ".xml":
            raise Unreadable(None, "is no task document, but XML such as --junit's", _NAME_TASKS)
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
