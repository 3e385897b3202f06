"""Loading task documents: what people wrote becomes tasks, or a list of everything wrong with it.

The steps of a loaded task are final: seeds are filled in, and the scripts of python steps are
embedded, so that a run does not depend on files that may change beneath it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.fields import meant
from perdure.core.json_values import check_json
from perdure.core.problems import TOO_MANY, Place, Problem, TooManyProblems, one_line, shown, spell
from perdure.core.seeds import SeedTooLarge, fill
from perdure.core.step_types import NOT_YET_RUN
from perdure.core.task import InvalidTask, Task, parse_task
from perdure.document_paths import Found, find
from perdure.errors import PerdureError
from perdure.messages import Json
from perdure.reading import Source, Unreadable, read_text

MAX_SCRIPT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class DocumentProblem:
    """One thing that is wrong with a document, and where."""

    file: str
    line: int | None
    step: str | None
    """The step's id, or `#` and its position if it has none."""
    key: str | None
    """The path of the key, below the step if there is one: `retry.max_attempts`."""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        """All of it on one line of printable characters."""
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [where]
        if self.step is not None:
            parts.append(f"step {shown(self.step)}")
        if self.key:
            parts.append(self.key)
        text = ": ".join([*parts, self.message]) + (f"; {self.remedy}" if self.remedy else "")
        return one_line(text)


class InvalidDocuments(PerdureError):
    """Documents are refused; `problems` holds everything that is wrong with them."""

    def __init__(self, problems: Sequence[DocumentProblem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, problems)))


@dataclass(frozen=True)
class LoadedTask:
    """A task that can be run, and where it comes from."""

    task: Task
    source: str
    """Its file, or `list.jsonl:3` for the third line of a list."""
    digest: str
    """SHA-256, in hex, of the final document, embedded scripts and seeds included."""
    seed: dict[str, Json]
    """The seeds that were filled in: the document's own, and over them those given."""
    line_of: Callable[[Sequence[str | int]], int | None] = field(
        default=lambda path: None, repr=False, compare=False
    )
    """The line of the file on which the value at a path of the document stands."""


@dataclass(frozen=True)
class Documents:
    """What was loaded: run the tasks only if there are no problems."""

    tasks: list[LoadedTask] = field(default_factory=list)
    """In the order of the paths, trees in sorted order; those without problems."""
    problems: list[DocumentProblem] = field(default_factory=list)
    warnings: list[DocumentProblem] = field(default_factory=list)

    def checked(self) -> list[LoadedTask]:
        """The tasks. Raises InvalidDocuments if there is any problem."""
        if self.problems:
            raise InvalidDocuments(self.problems)
        return self.tasks


def load(
    paths: Sequence[str | Path],
    *,
    seed: Mapping[str, Json] | None = None,
    custom_types: Mapping[str, frozenset[str]] | None = None,
    only: Iterable[str] = (),
) -> Documents:
    """Load every task behind the paths, and find everything that is wrong with them.

    A path is a YAML or JSON file, a `.jsonl` list, a task's directory, or a tree of these. `seed`
    goes over each document's own; `custom_types` is `perdure.steps.custom_types()`; `only` keeps
    the tasks with these ids, though problems of the others still count.
    """
    loading = _Loading(dict(seed or {}), custom_types or {})
    if not paths:
        loading.report("perdure", "no task documents are named", "name files or directories")
    for found in find(paths):
        loading.take(found)
    loading.keep_only(list(dict.fromkeys(only)))
    return loading.documents


def load_document(
    document: Any,
    *,
    default_id: str | None = None,
    seed: Mapping[str, Json] | None = None,
    custom_types: Mapping[str, frozenset[str]] | None = None,
    base: str | Path = ".",
    source: str = "document",
) -> Documents:
    """Load one task from a mapping or list of steps, as `load` does from a file.

    The document is not changed. `base` is the folder that a python step's `file` is relative to;
    `source` stands for the file's name in errors.
    """
    loading = _Loading(dict(seed or {}), custom_types or {})
    loading.check(document, default_id, source, source, Path(base), lambda path: None)
    return loading.documents


def unsupported(loaded: LoadedTask) -> list[DocumentProblem]:
    """What the task's document may say but this version cannot run; `validate` lets it pass."""
    task, problems = loaded.task, []
    remedy = "remove it, or only validate the document"
    document = task.to_dict()

    def report(path: tuple[str | int, ...], what: str) -> None:
        message = f"this version of perdure cannot run {what}"
        problems.append(_locate(Problem(path, message, remedy), loaded, document))

    for key in sorted(NOT_YET_RUN.task_keys & document.keys()):
        report((key,), f"tasks with {key}")
    for position, step in enumerate(document["steps"]):
        if step["type"] in NOT_YET_RUN.types:
            report(("steps", position, "type"), f"steps of type {step['type']}")
        not_run = NOT_YET_RUN.step_keys | NOT_YET_RUN.type_keys.get(step["type"], frozenset())
        for key in sorted(not_run & step.keys()):
            report(("steps", position, key), f"{step['type']} steps with {key}")
    return problems


def _locate(problem: Problem, loaded: LoadedTask, document: Any) -> DocumentProblem:
    file = loaded.source.rpartition(":")[0] if _is_list_line(loaded.source) else loaded.source
    return _placed(problem, file, loaded.line_of, document)


def _is_list_line(source: str) -> bool:
    file, _, line = source.rpartition(":")
    return file.lower().endswith(".jsonl") and line.isdigit()


def _placed(
    problem: Problem,
    file: str,
    line_of: Callable[[Sequence[str | int]], int | None],
    document: Any,
) -> DocumentProblem:
    """A problem of a document, as one of its file."""
    path, step = problem.path, None
    match path:
        case ("steps", int(position), *rest):
            path = tuple(rest)
            step = _step_name(document, position)
    return DocumentProblem(
        file, line_of(problem.path), step, spell(path) or None, problem.message, problem.remedy
    )


def _step_name(document: Any, position: int) -> str:
    try:
        id = document["steps"][position]["id"]
    except (KeyError, IndexError, TypeError):
        id = None
    return id if isinstance(id, str) and id else f"#{position}"


class _Loading:
    """Documents on their way in."""

    def __init__(self, seed: dict[str, Json], custom_types: Mapping[str, frozenset[str]]) -> None:
        self.documents = Documents()
        self._seed = seed
        self._custom_types = custom_types
        self._files: set[Path] = set()
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
            self.report(file, finding.message, finding.remedy, finding.line)
            return
        source = found.source
        assert source is not None
        if found.origin == file:
            real = found.file.resolve()
            if real in self._files:
                self.warn(file, "is named twice", "it is taken once")
                return
            self._files.add(real)
        for finding in source.findings:
            self.report(file, finding.message, finding.remedy, finding.line)
        self.check(
            source.value,
            found.default_id,
            file,
            found.origin,
            found.file.parent,
            _line_finder(source),
            already_refused=bool(source.findings),
        )

    def check(
        self,
        value: Any,
        default_id: str | None,
        file: str,
        origin: str,
        base: Path,
        line_of: Callable[[Sequence[str | int]], int | None],
        *,
        already_refused: bool = False,
    ) -> None:
        """Make a task of a document's value, or report what is wrong with it."""
        document, seed = self._with_seed(value)
        document, task, problems = self._parse(document, seed, default_id, base)
        placed = [_placed(problem, file, line_of, document) for problem in problems]
        self.documents.problems.extend(sorted(placed, key=lambda problem: problem.line or 0))
        id = task.id if task else _written_id(document, default_id)
        known = id is not None and not self._is_new(id, file, origin, line_of(("id",)))
        if task and not (problems or known or already_refused):
            digest = _digest(task, seed)
            self.documents.tasks.append(LoadedTask(task, origin, digest, seed, line_of))

    def _parse(
        self, document: Any, seed: Mapping[str, Json], default_id: str | None, base: Path
    ) -> tuple[Any, Task | None, list[Problem]]:
        """The final document, its task if it makes one, and what is wrong with it."""
        problems: list[Problem] = []
        # The first check comes before anything is copied: what is shared many times over, or
        # contains itself, would become huge.
        if not check_json(document, Place(problems)):
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
                _embed_script(step, base, at / "steps" / position)
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

    def keep_only(self, only: Sequence[str]) -> None:
        """Drop the tasks that are not asked for; asking for one that is not there is a problem."""
        if not only:
            return
        for id in only:
            if id not in self._ids:
                remedy = meant(id, self._ids) if self._ids else ""
                self.report("--only", f"there is no task {shown(id)}", remedy)
        kept = [loaded for loaded in self.documents.tasks if loaded.task.id in set(only)]
        self.documents.tasks[:] = kept


def _line_finder(source: Source) -> Callable[[Sequence[str | int]], int | None]:
    def line_of(path: Sequence[str | int]) -> int:
        if isinstance(source.value, list) and path[:1] == ("steps",):
            path = path[1:]  # a bare list stands for a task's steps
        return source.line(path)

    return line_of


def _written_id(document: Any, default_id: str | None) -> str | None:
    id = document.get("id", default_id) if isinstance(document, dict) else default_id
    return id if isinstance(id, str) else None


def _embed_script(step: Any, base: Path, at: Place) -> None:
    """Put a script's text in the place of its `file`, in the step and in its compensation."""
    if not isinstance(step, dict):
        return
    _embed_script(step.get("compensate"), base, at / "compensate")
    file = step.get("file")
    if step.get("type") not in ("python", "background") or "code" in step:
        return
    if not isinstance(file, str) or not file:
        return  # the check of the step says what is wrong
    try:
        code = read_text(base / file, MAX_SCRIPT_BYTES)
    except Unreadable as error:
        finding = error.finding
        line = f" on line {finding.line}" if finding.line else ""
        (at / "file").refuse(f"{shown(file)} {finding.message}{line}", finding.remedy)
        return
    del step["file"]
    step |= {"code": code, "file_name": file}


def _digest(task: Task, seed: Mapping[str, Json]) -> str:
    canonical = json.dumps(
        {"task": task.to_dict(), "seed": seed}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()
