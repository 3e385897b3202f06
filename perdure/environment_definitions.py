"""The environments that tasks name: looked up, their files found, made definitions of.

What a definition says holds on every host: its paths are absolute, and its digest covers the
files that an instance is made of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure.core.environments import Environment, Environments, Memory
from perdure.core.pool_definitions import Definition
from perdure.core.pool_names import ambiguous_variables
from perdure.core.problems import Problem, listed, nearest, shown
from perdure.core.secret_references import is_reference
from perdure.document_problems import DocumentProblem, placed
from perdure.dtap_layout import DtapTask, config_file
from perdure.environment_digest import compose_digest, process_digest
from perdure.environment_files import Checked
from perdure.lists import ListOptions
from perdure.loaded_tasks import LoadedTask, located
from perdure.reading import Unreadable

_FALLBACKS = ("docker-compose.yml", "docker-compose.yaml")
"""Below `dt_arena/envs/<environment>` of the project (P8)."""

_LEVELS_ABOVE = 2

_NUMBERS = (
    *("max_instances", "prewarm", "max_idle_seconds", "memory_gb", "health_timeout_seconds"),
    *("prepare_timeout_seconds", "start_timeout_seconds", "reset_retries"),
    *("reset_retry_delay_seconds", "reset_script_timeout_seconds"),
)
"""How instances are kept, not what they are: a task that succeeded need not run again for them."""


@dataclass
class Defined:
    """The definitions of one task's environments, and what is wrong with them."""

    definitions: tuple[Definition, ...] = ()
    """In the task's order; all of them if there is no problem."""
    digest: str = ""
    """Of what the environments are, in hex; empty if there is none."""
    problems: list[DocumentProblem] = field(default_factory=list)


@dataclass(frozen=True)
class _Project:
    """Where a task's environments are described, and where their files lie."""

    file: Path | None
    """Its env.yaml; None: there is none."""
    root: Path | None
    """Its folder, as `--root` or the place of a DTap task says; None: nobody said."""


@dataclass(frozen=True)
class _Made:
    definition: Definition
    work: str
    """The digest of what matters to a task that uses it."""


class EnvironmentDefinitions:
    """Makes the definitions of tasks' environments; looks at the files of each once."""

    def __init__(self, lists: ListOptions, read: Callable[[Path], Checked[Environments]]) -> None:
        """`read` reads an env.yaml; whose problems it has, it tells by itself."""
        self._lists = lists
        self._read = read
        self._made: dict[tuple[_Project, str], _Made | list[DocumentProblem]] = {}

    def are_described(self, loaded: LoadedTask) -> bool:
        """Whether there is an env.yaml for the task."""
        return self._project(loaded.dtap).file is not None

    def of(self, loaded: LoadedTask) -> Defined:
        """The definitions of the task's environments."""
        defined = Defined()
        names = loaded.task.environments
        if not names:
            return defined
        project = self._project(loaded.dtap)
        checked = self._read(project.file) if project.file else None
        if checked and checked.problems:
            return defined  # they are told, and nothing more can be said
        made: list[_Made] = []
        for position, name in enumerate(names):
            found = self._environment(project, name, checked)
            if isinstance(found, _Made):
                made.append(found)
            elif found:
                defined.problems += [told for told in found if told not in defined.problems]
            else:
                problem = self._unknown(name, project, checked, _beside(loaded))
                path = ("environments", position)
                defined.problems.append(located(replace(problem, path=path), loaded))
        if not defined.problems:
            defined.definitions = tuple(found.definition for found in made)
            defined.digest = _sha256([found.work for found in made])
            defined.problems += _misused(loaded, defined.definitions)
        return defined

    def described(self, only: str | None = None) -> Defined:
        """Those of the env.yaml that the options name: all of them, or `only` one."""
        project, defined = self._project(None), Defined()
        checked = self._read(project.file) if project.file else None
        if checked and checked.problems:
            defined.problems += checked.problems
            return defined
        names = [only] if only else list(checked.value.environments) if checked else []
        for name in names:
            found = self._environment(project, name, checked)
            if isinstance(found, _Made):
                defined.definitions += (found.definition,)
            elif found:
                defined.problems += found
            else:
                unknown = self._unknown(name, project, checked)
                file = str(project.file or project.root or name)
                defined.problems.append(placed(unknown, file, _no_line, None))
        return defined

    def _project(self, dtap: DtapTask | None) -> _Project:
        lists = self._lists
        root = lists.root.absolute() if lists.root else dtap.root if dtap else None
        file = lists.env_config or (config_file(root, "env.yaml") if root else None)
        return _Project(Path(os.path.abspath(file)) if file else None, root)

    def _environment(
        self, project: _Project, name: str, checked: Checked[Environments] | None
    ) -> _Made | list[DocumentProblem]:
        """One environment, or what is wrong with it; an empty list if there is none."""
        key = project, name
        if key not in self._made:
            self._made[key] = self._make(project, name, checked)
        return self._made[key]

    def _make(
        self, project: _Project, name: str, checked: Checked[Environments] | None
    ) -> _Made | list[DocumentProblem]:
        whole = checked.value if checked else Environments()
        environment = whole.environments.get(name)
        try:
            if environment is None:
                compose = self._fallback(project, name)
                if compose is None:
                    return []
                limit = whole.default_max_instances
                return _of_compose(Environment(name, max_instances=limit), *compose, whole.memory)
            assert checked, "it is described there"
            assert project.file
            environment = _with_absolute_secrets(environment, project.file.parent)
            if environment.process:
                return _of_process(environment, project.file.parent, whole.memory)
            compose = self._compose_file(project, environment)
            if compose is None:
                return [self._missing(project, environment, checked)]
            return _of_compose(environment, *compose, whole.memory)
        except _Wrong as wrong:
            path = ("environments", name, *wrong.path)
            file = str(project.file) if checked else name
            line_of = checked.line_of if checked else _no_line
            return [placed(Problem(path, str(wrong), wrong.remedy), file, line_of, None)]

    def _compose_file(
        self, project: _Project, environment: Environment
    ) -> tuple[Path, Path] | None:
        """The project's folder, and below it the compose file, if it is there."""
        if environment.docker_compose is None:
            return self._fallback(project, environment.name)
        return _first_with(environment.docker_compose, self._roots(project))

    def _fallback(self, project: _Project, name: str) -> tuple[Path, Path] | None:
        for file in _FALLBACKS:
            path = os.path.join("dt_arena", "envs", name, file)
            if found := _first_with(path, self._roots(project)):
                return found
        return None

    def _roots(self, project: _Project) -> Iterator[Path]:
        """Where paths may start: the folder that was named, else the nearest that has the file."""
        if self._lists.root or project.file is None:
            yield project.root or Path.cwd()
            return
        yield project.file.parent
        yield from project.file.parent.parents
        if project.root:  # of a DTap task whose env.yaml lies elsewhere
            yield project.root

    # --- What is wrong ------------------------------------------------------------------------

    def _unknown(
        self,
        name: str,
        project: _Project,
        checked: Checked[Environments] | None,
        nearby: str = "FILE",
    ) -> Problem:
        if checked is None:
            message = f"no env.yaml describes the environment {shown(name)}"
            return Problem((), message, f"name one by --env-config {nearby}")
        known = checked.value.environments
        near = nearest(name, known)
        message = f"there is no environment {shown(name)} in {project.file}"
        has = f"it has {listed(known)}" if known else "it has none"
        return Problem((), message, f"did you mean {near!r}?" if near else has)

    def _missing(
        self, project: _Project, environment: Environment, checked: Checked[Environments]
    ) -> DocumentProblem:
        path: tuple[str | int, ...] = ("environments", environment.name)
        where = f"in {project.root}" if self._lists.root else f"in {_folder(project)} or above it"
        remedy = "correct the path, or name the project's folder by --root"
        if environment.docker_compose is None:
            expected = os.path.join("dt_arena", "envs", environment.name, _FALLBACKS[0])
            message = f"has neither docker_compose nor process, and no {expected} is {where}"
            remedy = "add docker_compose: FILE, or process: {command: [...]}"
        else:
            path = (*path, "docker_compose")
            message = f"there is no file {shown(environment.docker_compose)} {where}"
        return placed(Problem(path, message, remedy), str(project.file), checked.line_of, None)


class _Wrong(Exception):
    """Something is wrong with an environment of an env.yaml; the text says what."""

    def __init__(self, path: Sequence[str | int], message: str, remedy: str) -> None:
        self.path, self.remedy = tuple(path), remedy
        super().__init__(message)


def _of_compose(environment: Environment, root: Path, file: Path, memory: Memory) -> _Made:
    environment = replace(environment, docker_compose=os.path.relpath(file, root))
    try:
        files = compose_digest(file)
    except Unreadable as error:
        found = error.finding
        raise _Wrong(("docker_compose",), f"{file}: {found.message}", found.remedy) from None
    return _made(environment, root, files, memory)


def _of_process(environment: Environment, folder: Path, memory: Memory) -> _Made:
    process = environment.process
    assert process is not None
    cwd = Path(os.path.abspath(folder / (process.cwd or ".")))
    if not cwd.is_dir():
        raise _Wrong(("process", "cwd"), f"there is no folder {cwd}", "correct the path")
    environment = replace(environment, process=replace(process, cwd=str(cwd)))
    return _made(environment, folder, process_digest(process, cwd), memory)


def _made(environment: Environment, root: Path, files: str, memory: Memory) -> _Made:
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise _Wrong((), f"lies in {root!a}, which is not UTF-8 text", "rename it") from None
    definition = Definition(environment, "", str(root), memory)
    whole = definition.to_json()
    work = {key: value for key, value in whole["environment"].items() if key not in _NUMBERS}
    return _Made(
        replace(definition, digest=_sha256([whole, files])), _sha256([work, str(root), files])
    )


def _with_absolute_secrets(environment: Environment, folder: Path) -> Environment:
    """Relative paths of `{from_file: PATH}` start at the folder of env.yaml, on any host."""
    env: dict[str, Any] = {}
    for name, value in environment.env.items():
        if is_reference(value) and "from_file" in value:
            value = {"from_file": os.path.join(folder, value["from_file"])}
        env[name] = value
    return replace(environment, env=env)


def _misused(loaded: LoadedTask, definitions: Sequence[Definition]) -> Iterator[DocumentProblem]:
    """What the task cannot do with its environments."""
    by_name = {definition.name: definition.environment for definition in definitions}
    for variable, names in ambiguous_variables(by_name.values()).items():
        message = f"{' and '.join(names)} would both set the variable {variable}"
        remedy = "a task cannot use both; rename it in one of them"
        yield located(Problem(("environments",), message, remedy), loaded)
    for position, step in enumerate(loaded.task.steps):
        environment = by_name.get(step.body.get("environment", ""))
        if step.type != "http" or environment is None:
            continue
        port = step.body.get("port")
        if port not in environment.ports:
            near = nearest(port, environment.ports)
            has = f"its ports: {listed(environment.ports)}" if environment.ports else "it has none"
            message = f"{shown(port)} is no port of the environment {environment.name!r}"
            remedy = f"did you mean {near!r}?" if near else has
            yield located(Problem(("steps", position, "port"), message, remedy), loaded)


def _beside(loaded: LoadedTask) -> str:
    """The env.yaml beside a task's file, or a little above it; `FILE` if there is none."""
    folder = Path(os.path.abspath(loaded.source)).parent
    for near in (folder, *folder.parents[:_LEVELS_ABOVE]):
        if (near / "env.yaml").is_file():
            return os.path.relpath(near / "env.yaml")
    return "FILE"


def _first_with(path: str, roots: Iterator[Path]) -> tuple[Path, Path] | None:
    for root in roots:
        file = Path(os.path.abspath(root / path))
        if "\0" not in path and file.is_file():
            return root, file
    return None


def _folder(project: _Project) -> Path:
    return project.file.parent if project.file else Path.cwd()


def _no_line(path: Sequence[str | int]) -> None:
    return None


def _sha256(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
