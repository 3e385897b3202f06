"""Loading task documents: what people wrote becomes tasks, or a list of everything wrong with it.

The steps of a loaded task are final: seeds are filled in, and the scripts of python steps are
embedded, so that a run does not depend on files that may change beneath it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.core.json_values import check_json
from perdure.core.problems import TOO_MANY, Place, Problem, TooManyProblems, shown
from perdure.core.seeds import SeedTooLarge, fill
from perdure.core.task import InvalidTask, Task, parse_task
from perdure.document_paths import CONFIGURATION_NAMES, Found, find
from perdure.document_problems import DocumentProblem, InvalidDocuments, LineOf, placed
from perdure.dtap import DtapProjects
from perdure.dtap_layout import DtapTask
from perdure.environment_definitions import EnvironmentDefinitions
from perdure.environment_files import Configuration, configuration
from perdure.judged import without_judged
from perdure.lists import ListOptions, SkippedTask
from perdure.loaded_tasks import Documents, LoadedTask, unsupported
from perdure.messages import Json
from perdure.reading import Source
from perdure.result_documents import JUDGEMENT, result_document
from perdure.scripts import embed_script, keep_script
from perdure.selection import with_fields, with_ids
from perdure.task_store import TaskStore, is_stored_name

__all__ = [
    "DocumentProblem",
    "Documents",
    "InvalidDocuments",
    "ListOptions",
    "LoadedTask",
    "SkippedTask",
    "load",
    "load_document",
    "unsupported",
]


def load(
    paths: Sequence[str | Path],
    *,
    seed: Mapping[str, Json] | None = None,
    custom_types: Mapping[str, frozenset[str]] | None = None,
    only: Iterable[str] = (),
    lists: ListOptions | None = None,
    store: TaskStore | None = None,
) -> Documents:
    """Load every task behind the paths, and find everything that is wrong with them.

    A path is a YAML or JSON file, a `.jsonl` list, a task's directory, a tree of these, or
    `store:ID@VERSION`; `store` is the task store, by default the environment's. `seed`
    goes over each document's own; `custom_types` is `perdure.steps.custom_types()`; `only` keeps
    the tasks with these ids, though problems of the others still count; `lists` says the rest.
    """
    lists = lists or ListOptions()
    loading = _Loading(dict(seed or {}), custom_types or {}, lists)
    if not paths:
        loading.report("perdure", "no task documents are named", "name files or directories")
    for found in find(paths, lists, store=store):
        loading.take(found)
    loading.pick(list(dict.fromkeys(only)))
    return loading.documents


def load_document(
    document: Any,
    *,
    default_id: str | None = None,
    seed: Mapping[str, Json] | None = None,
    custom_types: Mapping[str, frozenset[str]] | None = None,
    base: str | Path = ".",
    source: str = "document",
    lists: ListOptions | None = None,
) -> Documents:
    """Load one task from a mapping or list of steps, as `load` does from a file.

    The document is not changed. `base` is the folder that a python step's `file` is relative to;
    `source` stands for the file's name in errors; `lists` says where its environments are
    described.
    """
    loading = _Loading(dict(seed or {}), custom_types or {}, lists or ListOptions())
    loading.check(document, default_id, source, source, Path(base), _no_line)
    loading.define_environments()
    return loading.documents


class _Loading:
    """Documents on their way in."""

    def __init__(
        self,
        seed: dict[str, Json],
        custom_types: Mapping[str, frozenset[str]],
        lists: ListOptions,
    ) -> None:
        self.documents = Documents()
        self._seed = seed
        self._custom_types = custom_types
        self._lists = lists
        self._projects = DtapProjects(lists)
        self._files: set[str] = set()
        self._real_folders: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        """Where each id was met, of refused documents too."""
        self._folded: dict[str, str] = {}

    def report(self, file: str, message: str, remedy: str, line: int | None = None) -> None:
        self.documents.problems.append(DocumentProblem(file, line, None, None, message, remedy))

    def warn(self, file: str, message: str, remedy: str) -> None:
        self.documents.warnings.append(DocumentProblem(file, None, None, None, message, remedy))

    def take(self, found: Found) -> None:
        """Take one document in."""
        file = str(found.file)
        if found.problem is not None:
            finding = found.problem.finding
            where = self.documents.warnings if found.passed_over else self.documents.problems
            told = (finding.message, finding.remedy)
            where.append(DocumentProblem(file, finding.line, None, None, *told))
            return
        if (found.dtap or found.origin == file) and self._is_named_twice(found):
            return
        if found.dtap is not None:
            self._take_dtap(found, found.dtap)
            return
        source = found.source
        assert source is not None
        if found.origin == file and (known := configuration(found.file, source.value)):
            self._take_configuration(known, found)
            return
        if found.in_tree and found.file.name in CONFIGURATION_NAMES:
            return
        if found.origin == file and (what := result_document(source.value)):
            self.report(file, f"is no task: it is {what}", "name task documents")
            return
        if found.file.name == JUDGEMENT:
            self.report(file, "is no task: it is a task's judgement", "name task documents")
            return
        for finding in source.findings:
            self.report(file, finding.message, finding.remedy, finding.line)
        self.check(
            source.value,
            found.default_id,
            file,
            found.origin,
            found.file.parent,
            _no_line if is_stored_name(file) else _line_finder(source),
            already_refused=bool(source.findings),
        )

    def _is_named_twice(self, found: Found) -> bool:
        real = self._real_path(os.path.abspath(found.file))
        if real in self._files:
            self.warn(found.origin, "is named twice", "it is taken once")
            return True
        self._files.add(real)
        return False

    def _real_path(self, path: str) -> str:
        """As `os.path.realpath`, which asks the system about each part of each of many paths."""
        folder, name = os.path.split(path)
        above, own = os.path.split(folder)
        if above not in self._real_folders:
            self._real_folders[above] = os.path.realpath(above)
        for part in filter(None, (own, name)):
            above = os.path.join(self._real_folders.get(above, above), part)
            if os.path.islink(above):
                above = os.path.realpath(above)
        return above

    def _take_configuration(self, known: Configuration, found: Found) -> None:
        """A file that is no task: of a tree it is passed over, and `validate` checks it."""
        if self._lists.validating:
            known = known.checked()
            self.documents.problems.extend(known.problems)
            self.documents.warnings.extend(known.warnings)
        elif not found.in_tree:
            message = f"is no task: it has the shape of an {known.name}"
            self.report(known.file, message, f"name it by {known.option}")
        self.documents.configurations.append(known)

    def _take_dtap(self, found: Found, task: DtapTask) -> None:
        made = self._projects.make(task)
        if made is None:
            return
        self.documents.problems.extend(made.problems)
        self.documents.warnings.extend(made.warnings)
        if not made.problems:
            self.check(
                made.document,
                found.default_id,
                str(found.file),
                found.origin,
                found.file.parent,
                _no_line,
                dtap=task,
                files_digest=made.digest,
            )

    def check(
        self,
        value: Any,
        default_id: str | None,
        file: str,
        origin: str,
        base: Path,
        line_of: LineOf,
        *,
        already_refused: bool = False,
        dtap: DtapTask | None = None,
        files_digest: str = "",
    ) -> None:
        """Make a task of a document's value, or report what is wrong with it."""
        written, seed = self._with_seed(value)
        ours = dtap is not None and not seed
        document, task, problems = self._parse(written, seed, default_id, base, ours=ours)
        found = [placed(problem, file, line_of, document) for problem in problems]
        self.documents.problems.extend(sorted(found, key=lambda problem: problem.line or 0))
        id = task.id if task else _written_id(document, default_id)
        known = id is not None and not self._is_new(id, file, origin, line_of(("id",)))
        if task and not (problems or known or already_refused):
            digest = _digest(task, seed, files_digest)
            loaded = LoadedTask(task, origin, digest, seed, line_of, written, dtap)
            self.documents.tasks.append(loaded)

    def _parse(
        self,
        document: Any,
        seed: Mapping[str, Json],
        default_id: str | None,
        base: Path,
        *,
        ours: bool,
    ) -> tuple[Any, Task | None, list[Problem]]:
        """The final document, its task if it makes one, and what is wrong with it."""
        problems: list[Problem] = []
        # The first check comes before anything is copied: what is shared many times over, or
        # contains itself, would become huge.
        if not ours and not check_json(document, Place(problems)):
            return document, None, problems
        # What else it found, `parse_task` finds again; a seed that is no JSON is not filled in.
        fillable, problems = ({} if problems else seed), []
        try:
            document = self._final(document, fillable, base, Place(problems))
            task = parse_task(document, default_id=default_id, custom_types=self._custom_types)
        except InvalidTask as error:
            return document, None, [*problems, *error.problems]
        except TooManyProblems:
            return document, None, [*problems, Problem((), TOO_MANY, "correct these first")]
        return document, task, problems

    def _with_seed(self, value: Any) -> tuple[Any, dict[str, Json]]:
        """The document with the given seeds over its own; a bare list becomes a task's mapping."""
        document = {"steps": value} if isinstance(value, list) else value
        if not isinstance(document, dict):
            return document, {}
        own = document.get("seed")
        if own is not None and not isinstance(own, dict):
            return document, {}
        seed = {**(own or {}), **self._seed}
        return ({**document, "seed": seed} if seed else document), seed

    def _final(self, document: Any, seed: Mapping[str, Json], base: Path, at: Place) -> Any:
        """A copy of the document with its seed filled in and its scripts embedded."""
        if not isinstance(document, dict):
            return document
        final: dict[str, Any] = fill({**document, "steps": None}, {})
        try:
            final["steps"] = fill(document.get("steps"), seed)
        except SeedTooLarge as error:
            (at / "seed").refuse(str(error), "shorten the seed's values")
            final["steps"] = fill(document.get("steps"), {})
        if isinstance(final["steps"], list):
            for position, step in enumerate(final["steps"]):
                keep_script(step, document["steps"][position])
                embed_script(step, base, at / "steps" / position)
        return final

    def _is_new(self, id: str, file: str, origin: str, line: int | None) -> bool:
        """True, and remembered, if no other document has the id; reported otherwise."""
        if id in self._ids:
            message = f"the task id {shown(id)} is also that of {self._ids[id]}"
            self.report(file, message, "give each task an id of its own", line)
            return False
        self._ids[id] = origin
        twin = self._folded.setdefault(id.casefold(), id)
        if twin != id:
            self.warn(
                origin,
                f"the task ids {shown(id)} and {shown(twin)} (of {self._ids[twin]}) differ only in "
                "upper and lower case",
                "some file systems take their results for the same",
            )
        return True

    def pick(self, only: Sequence[str]) -> None:
        """Keep the tasks that are asked for, and say what else there is to say of them all."""
        documents, lists = self.documents, self._lists
        documents.problems[:0] = self._projects.problems
        documents.warnings[:0] = self._projects.warnings
        tasks, problems = with_ids(documents.tasks, only, self._ids)
        tasks, more = with_fields(tasks, lists)
        problems += more
        if lists.skip_existing:
            judged = without_judged(tasks, lists, self._projects.commands, os.environ)
            tasks, skipped, more = judged
            documents.skipped.extend(skipped)
            problems += more
        documents.tasks[:] = tasks
        documents.problems.extend(problems)
        self.define_environments()
        if not lists.validating:
            self._report_configurations_alone()

    def define_environments(self) -> None:
        """Have the definitions of all environments that the tasks name."""
        documents, lists = self.documents, self._lists
        definitions = EnvironmentDefinitions(lists, self._projects.environments)
        unready: list[DocumentProblem] = []
        for position, loaded in enumerate(documents.tasks):
            if lists.validating and not definitions.are_described(loaded):
                continue  # the env.yaml that it is to run with was not named
            defined = definitions.of(loaded)
            unready += [problem for problem in defined.problems if problem not in unready]
            documents.tasks[position] = replace(
                loaded, definitions=defined.definitions, environments_digest=defined.digest
            )
        if not lists.validating:
            documents.unready.extend(unready)
        elif lists.env_config:
            documents.problems.extend(unready)
        else:
            documents.warnings.extend(unready)

    def _report_configurations_alone(self) -> None:
        documents = self.documents
        if documents.configurations and not (
            documents.tasks or documents.problems or documents.skipped
        ):
            known = documents.configurations[0]
            message = f"is an {known.name}, and beside it there is no task"
            self.report(known.file, message, "name files or folders with tasks")


def _no_line(path: Sequence[str | int]) -> None:
    return None


def _line_finder(source: Source) -> LineOf:
    def line_of(path: Sequence[str | int]) -> int:
        if isinstance(source.value, list) and path[:1] == ("steps",):
            path = path[1:]  # a bare list stands for a task's steps
        return source.line(path)

    return line_of


def _written_id(document: Any, default_id: str | None) -> str | None:
    id = document.get("id", default_id) if isinstance(document, dict) else default_id
    return id if isinstance(id, str) else None


def _digest(task: Task, seed: Mapping[str, Json], files_digest: str) -> str:
    """`files_digest`: of files that the task's process reads itself; empty: none."""
    whole: dict[str, Json] = {"task": task.to_dict(), "seed": seed}
    if files_digest:
        whole["files"] = files_digest
    canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
