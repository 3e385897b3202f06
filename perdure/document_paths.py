"""Finding the documents behind the paths that people name: files, lists, directories, trees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.reading import Source, Unreadable, read_json, read_text, read_yaml

TASK_FILES = ("task.yaml", "task.yml", "task.json")
"""A directory that holds one of them is a task."""

_DTAP_FILE = "config.yaml"
_SUFFIXES = (".yaml", ".yml", ".json")
_LIST_SUFFIX = ".jsonl"
_NO_TASKS = frozenset(
    {
        *("env.yaml", "env.yml", "mcp.yaml", "mcp.yml"),
        *("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"),
    }
)
"""What a tree may hold beside tasks; passed over there, read when it is named itself."""


@dataclass(frozen=True)
class Found:
    """One task document."""

    file: Path
    """The file that holds it, for errors."""
    source: Source | None
    """The document; None: `problem` says why there is none."""
    default_id: str | None = None
    """The id of a task whose document has none."""
    origin: str = ""
    """`file`, or `list.jsonl:3` for a document that stands in a list."""
    problem: Unreadable | None = None


def find(paths: Sequence[str | Path]) -> Iterator[Found]:
    """Read every document behind the paths, in their order; trees in sorted order."""
    for path in paths:
        yield from _find(Path(path))


def _find(path: Path, *, in_list: bool = False) -> Iterator[Found]:
    # os.path answers no where Path would raise: names too long, folders that may not be entered.
    if os.path.isdir(path):
        yield from _find_in_directory(path)
    elif path.suffix.lower() == _LIST_SUFFIX:
        if in_list:
            yield _refused(path, "a list cannot name another list", "name its tasks")
        else:
            yield from _find_in_list(path)
    else:
        yield _read(path, path.stem)


def _find_in_directory(root: Path) -> Iterator[Found]:
    """A directory that is a task, or a tree of tasks."""
    if (task := _task_directory(root, _own_name(root))) is not None:
        yield task
        return
    found = False
    for path in _walk(root):
        name = ".".join(path.relative_to(root).parts)
        found = True
        if os.path.isdir(path):
            yield _task_directory(path, name) or _refused(
                path, "the directory cannot be read", "check its permissions"
            )
        elif path.suffix.lower() == _LIST_SUFFIX:
            yield from _find_in_list(path)
        else:
            yield _read(path, name.removesuffix(path.suffix))
    if not found:
        yield _refused(
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
    return _DTAP_FILE in files or any(name in files for name in TASK_FILES)


def _task_directory(directory: Path, name: str) -> Found | None:
    """The task of a directory that holds one."""
    files = [directory / name for name in TASK_FILES if os.path.exists(directory / name)]
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        return _refused(directory, f"the directory holds {names}", "keep one of them")
    if files:
        return _read(files[0], name)
    if os.path.exists(directory / _DTAP_FILE):
        return _refused(
            directory / _DTAP_FILE,
            "this is a task in the DTap layout, which this version of perdure does not read",
            f"describe the task in a {TASK_FILES[0]}",
        )
    return None


def _find_in_list(path: Path) -> Iterator[Found]:
    """A `.jsonl` file: on each line a task's path or document, blank lines aside."""
    try:
        lines = read_text(path).split("\n")
    except Unreadable as error:
        yield Found(path, None, problem=error)
        return
    if not any(line.strip() for line in lines):
        yield _refused(path, "the list is empty", "write a path or a document on each line")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield from _find_in_line(path, line, number)


def _find_in_line(path: Path, line: str, number: int) -> Iterator[Found]:
    try:
        source = read_json(line, number)
    except Unreadable as error:
        yield Found(path, None, problem=error)
        return
    value = source.value
    if isinstance(value, str):
        for found in _find(path.parent / value, in_list=True):
            # A path that leads nowhere is the list's mistake: name its line as well.
            yield found if found.source else _named_by(found, path, number)
    elif isinstance(value, dict) and "steps" not in value and {"domain", "task_id"} & set(value):
        yield _refused(
            path,
            "this is a DTap line, which this version of perdure does not read",
            "write a task's path or document",
            number,
        )
    else:
        yield Found(path, source, origin=f"{path}:{number}")


def _named_by(found: Found, path: Path, number: int) -> Found:
    assert found.problem is not None
    finding = found.problem.finding
    if finding.line is not None:
        return found
    return _refused(path, f"{found.file}: {finding.message}", finding.remedy, number)


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


def _refused(path: Path, message: str, remedy: str, line: int | None = None) -> Found:
    return Found(path, None, problem=Unreadable(line, message, remedy))
