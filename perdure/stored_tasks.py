"""Task documents on their way into the store, checked and made whole, and out of it again.

A stored task does not depend on files: the scripts of its python steps are in it. Its seeds are not
filled in, so `--seed` works on it as on a file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.problems import shown
from perdure.core.secret_references import is_reference
from perdure.document_problems import DocumentProblem, InvalidDocuments
from perdure.documents import Documents, LoadedTask, load, load_document
from perdure.errors import PerdureError
from perdure.lists import ListOptions
from perdure.messages import Json
from perdure.steps import custom_types, load_step_modules
from perdure.suite_input import folder_of
from perdure.task_store import StoredTask, TaskStore


def load_to_store(paths: Sequence[str | Path], store: TaskStore) -> Documents:
    """Load the tasks behind paths for `store_tasks`."""
    # With a command, DTap directories load; then `store_tasks` says why they cannot be stored.
    lists = ListOptions(task_command="true {task_dir}")
    return load(paths, custom_types=custom_types(), lists=lists, store=store)


def store_tasks(store: TaskStore, documents: Documents) -> list[StoredTask]:
    """Put each of the loaded tasks into the store as its next version, or none of them.

    Raises InvalidDocuments with every problem, and TaskStoreError.
    """
    problems = list(documents.problems)
    whole = [_whole(loaded, problems) for loaded in documents.tasks]
    if problems:
        raise InvalidDocuments(problems)
    return store.put(*whole)


class StoredTasks:
    """`Perdure.tasks`: the task store of the state directory."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        """The same without waiting, for code that is not async."""

    async def put(
        self, task: str | Path | Mapping[str, Any] | Sequence[Any], *, steps: Sequence[str] = ()
    ) -> StoredTask:
        """Store a task's document, or that of a file, as the next version of its id.

        What it was before does not matter: an equal document is a new version, too. The
        document's own `version` is replaced. `steps` are modules with step types of its own.

        Raises InvalidDocuments with every problem, and PerdureError.
        """
        load_step_modules(steps)
        return await asyncio.to_thread(self._put, task)

    async def get(self, id: str, version: int | None = None) -> StoredTask:
        """That version of a task, or the latest.

        Raises UnknownStoredTask with the nearest id, or the versions that there are.
        """
        return await asyncio.to_thread(self.store.get, id, version)

    async def query(
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
        """
        return await asyncio.to_thread(
            self.store.query, id=id, type=type, project_id=project_id, metadata=metadata
        )

    def _put(self, task: str | Path | Mapping[str, Any] | Sequence[Any]) -> StoredTask:
        if isinstance(task, str | Path):
            documents = load_to_store([task], self.store)
        else:
            document = dict(task) if isinstance(task, Mapping) else list(task)
            documents = load_document(document, custom_types=custom_types(), source="the document")
        if len(documents.checked()) != 1:
            raise PerdureError(
                f"{task} holds {len(documents.tasks)} tasks, and put stores one: call it with each"
            )
        return store_tasks(self.store, documents)[0]


def _whole(loaded: LoadedTask, problems: list[DocumentProblem]) -> dict[str, Json]:
    """The document as it was written, with all that it takes from files beside it.

    Adds what cannot be taken to `problems`.
    """
    # A copy: anchors may have made one value stand in many places.
    document: dict[str, Any] = json.loads(json.dumps({**loaded.written, "id": loaded.task.id}))
    if loaded.dtap is not None:
        problems.append(_is_a_directory(loaded))
    folder = folder_of(loaded) or os.getcwd()
    for position, final in enumerate(loaded.task.steps):
        step = document["steps"][position]
        for written, body, path in (
            (step, final.body, ("steps", position, "file")),
            (
                step.get("compensate"),
                final.body.get("compensate"),
                ("steps", position, "compensate", "file"),
            ),
        ):
            if written and body and not _embed(written, body):
                problems.append(_depends_on_seed(loaded, final.id, written["file"], path))
        document["steps"][position] = _anchored(step, folder)
    return document


def _is_a_directory(loaded: LoadedTask) -> DocumentProblem:
    return DocumentProblem(
        loaded.source,
        None,
        None,
        None,
        "a task in the DTap layout is its whole directory, and the store keeps documents",
        "run it from there, or describe it in a task.yaml",
    )


def _embed(written: dict[str, Any], final: Mapping[str, Any]) -> bool:
    """Put the script that was loaded into the place of its file; False if a seed names it."""
    if "file" not in written or "file_name" not in final or "file_name" in written:
        return True
    if written["file"] != final["file_name"]:
        return False
    del written["file"]
    written |= {"code": final["code"], "file_name": final["file_name"]}
    return True


def _depends_on_seed(
    loaded: LoadedTask, step: str, file: str, path: tuple[str | int, ...]
) -> DocumentProblem:
    return DocumentProblem(
        loaded.source,
        loaded.line_of(path),
        step,
        ".".join(map(str, path[2:])),
        f"{shown(file)} depends on the seed, and a stored task has its script in it",
        "name one file, or write its text as code",
    )


def _anchored(value: Any, folder: str) -> Any:
    """A copy in which files with secrets are named from the root on: a store has no folder."""
    if is_reference(value) and isinstance(path := value.get("from_file"), str):
        return {"from_file": os.path.join(folder, path)}
    if isinstance(value, dict):
        return {key: _anchored(item, folder) for key, item in value.items()}
    return [_anchored(item, folder) for item in value] if isinstance(value, list) else value
