"""Tasks in the DTap layout: the document that perdure makes of a directory.

The task has one step, `run`: the task command, for the shell, with `{task_dir}` replaced by the
directory's absolute path, quoted where it has to be. It runs in the project's folder, which is on
its `PYTHONPATH` (P52); `PERDURE_TASK_DIR` names the directory as well, and `EVAL_RESULTS_ROOT` and
`DT_PORT_RANGE` are handed on if they are set. `mcp` has those of the task's MCP servers that
mcp.yaml describes, so that each gets a port (P57). `metadata` has what is known of domain, type,
threat_model, risk_category and task_id, and `task_dir`. `environments` are those behind the MCP
servers that config.yaml names (P10-P15).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from perdure.core.environments import Environments
from perdure.core.fields import identifier
from perdure.core.mcp_servers import McpServers, NamedServer
from perdure.core.problems import Place, Problem, shown
from perdure.document_problems import DocumentProblem, placed
from perdure.dtap_layout import CONFIG_FILE, DtapTask, config_file
from perdure.environment_files import (
    Checked,
    read_environments,
    read_mcp_servers,
    read_servers_named,
)
from perdure.judged import RESULTS_VARIABLE, results_root
from perdure.lists import ListOptions
from perdure.reading import Unreadable, read_bytes
from perdure.task_command import PLACEHOLDER, CannotQuote, filled

T = TypeVar("T")

STEP_ID = "run"
DIRECTORY_VARIABLE = "PERDURE_TASK_DIR"

_PORT_RANGE = ("DT_PORT_RANGE", "DT_PORT_RANGE_START", "DT_PORT_RANGE_END")
"""Where a task's own servers look for their ports (P52)."""

_DEFINING_FILES = ("judge.py", "setup.sh")
"""Beside its config.yaml: an edit of one of them makes another task of a directory."""

_CANNOT_QUOTE = (
    "the directory's name has characters that a shell takes for its own, and the task command has "
    "{task_dir} where another shell reads it again",
    f'write "${DIRECTORY_VARIABLE}" there, or rename the directory',
)
_GIVE_ONE = "give one by --task-command, or as task_command in env.yaml"


@dataclass
class Made:
    """The document of one directory, and what is wrong with it."""

    document: dict[str, Any]
    digest: str
    """Of the files that define the task, in hex."""
    problems: list[DocumentProblem] = field(default_factory=list)
    warnings: list[DocumentProblem] = field(default_factory=list)


@dataclass(frozen=True)
class _Project:
    """What the tasks below one root have in common."""

    command: str
    servers: McpServers | None
    """None: there is no mcp.yaml."""
    mcp_file: str
    complete: bool
    """False: its files have problems, so that no task of it can be made."""


class DtapProjects:
    """Makes documents of directories; reads the files of each project once."""

    def __init__(self, lists: ListOptions, environ: Mapping[str, str] | None = None) -> None:
        self.problems: list[DocumentProblem] = []
        """Of the options, and of the projects' files."""
        self.warnings: list[DocumentProblem] = []
        self.commands: dict[Path, str] = {}
        """The task command of each project, by its folder."""
        self._lists = lists
        self._environ = os.environ if environ is None else environ
        self._projects: dict[Path, _Project] = {}
        self._environments: dict[Path, Checked[Environments]] = {}
        self._servers: dict[Path, Checked[McpServers]] = {}
        self._check_options()

    def environments(self, file: Path) -> Checked[Environments]:
        """What an env.yaml says; its problems and warnings are among these projects', once."""
        if file not in self._environments:
            self._environments[file] = self._taken(read_environments(file))
        return self._environments[file]

    def make(self, task: DtapTask) -> Made | None:
        """The document of a directory; None: its project's problems are to be put right first."""
        project = self._project(task)
        if not project.complete:
            return None
        named = read_servers_named(task.directory / CONFIG_FILE)
        digest = _digest(task.directory, named.digest)
        made = Made({}, digest, list(named.problems), list(named.warnings))
        if not named.problems:
            environments = self._environments_behind(named, project, made)
            try:
                command = filled(project.command, str(task.directory))
            except CannotQuote:
                self._say(made.problems, str(task.directory), *_CANNOT_QUOTE)
            else:
                made.document = self._document(task, command, environments)
                if mcp := _described(named.value, project):
                    made.document["steps"][0]["mcp"] = mcp
        return made

    def _document(
        self, task: DtapTask, command: str, environments: tuple[str, ...]
    ) -> dict[str, Any]:
        directory, root = str(task.directory), str(task.root)
        env = {"PYTHONPATH": root, DIRECTORY_VARIABLE: directory}
        if results := results_root(self._environ):
            env[RESULTS_VARIABLE] = results
        env |= {name: self._environ[name] for name in _PORT_RANGE if self._environ.get(name)}
        step = {
            "id": STEP_ID,
            "type": "command",
            "command": command,
            "cwd": root,
            "env": env,
        }
        document: dict[str, Any] = {"metadata": {**task.fields, "task_dir": directory}}
        if environments:
            document["environments"] = list(environments)
        return {**document, "steps": [step]}

    def _environments_behind(
        self, named: Checked[list[NamedServer]], project: _Project, made: Made
    ) -> tuple[str, ...]:
        """The environments of a task, each once, in the order of first appearance."""
        if project.servers is not None:
            return project.servers.behind(server.name for server in named.value)
        found: list[Problem] = []
        for server in named.value:  # without mcp.yaml, servers are environments (P14)
            identifier(server.name, Place(found, (*server.path, "name")))
        for problem in found:
            remedy = f"name its environment in an mcp.yaml (--mcp-config); {problem.remedy}"
            whole = Problem(problem.path, problem.message, remedy)
            made.problems.append(placed(whole, named.file, named.line_of, None))
        return tuple(server.name for server in named.value)

    def _project(self, task: DtapTask) -> _Project:
        if task.root not in self._projects:
            before = len(self.problems)
            servers, mcp_file = self._servers_of(task.root)
            command = self._command_of(task)
            complete = len(self.problems) == before
            self._projects[task.root] = _Project(command, servers, mcp_file, complete)
            self.commands[task.root] = command
        return self._projects[task.root]

    def _servers_of(self, root: Path) -> tuple[McpServers | None, str]:
        file = self._lists.mcp_config or config_file(root, "mcp.yaml")
        if file is None:
            return None, ""
        if file not in self._servers:
            self._servers[file] = self._taken(read_mcp_servers(file))
        return self._servers[file].value, str(file)

    def _command_of(self, task: DtapTask) -> str:
        file = self._lists.env_config or config_file(task.root, "env.yaml")
        environments = Environments()
        if file is not None:
            environments = self.environments(file).value
        command = self._lists.task_command or environments.task_command
        config = str(task.directory / CONFIG_FILE)
        if command is None or not command.strip():
            what = "this task, and each in the DTap layout, needs a command, and none is given"
            if not self._lists.validating:
                self._say(self.problems, config, what, _GIVE_ONE)
            return ":"
        if PLACEHOLDER not in command and DIRECTORY_VARIABLE not in command:
            self._say(
                self.warnings,
                "--task-command" if self._lists.task_command else str(file),
                f"the task command {shown(command)} is the same for every task",
                f"write {{task_dir}} for the task's directory, or read it from "
                f"{DIRECTORY_VARIABLE}",
            )
        return command

    def _check_options(self) -> None:
        """What the options name is checked even if no task needs it."""
        lists = self._lists
        if lists.root is not None and not os.path.isdir(lists.root):
            self._say(
                self.problems,
                "--root",
                f"{lists.root} is not a folder",
                "name the project's folder",
            )
        if lists.env_config is not None:
            self.environments(lists.env_config)
        if lists.mcp_config is not None:
            self._servers[lists.mcp_config] = self._taken(read_mcp_servers(lists.mcp_config))

    def _taken(self, checked: Checked[T]) -> Checked[T]:
        self.problems += checked.problems
        self.warnings += checked.warnings
        return checked

    @staticmethod
    def _say(where: list[DocumentProblem], file: str, message: str, remedy: str) -> None:
        where.append(DocumentProblem(file, None, None, None, message, remedy))


def _described(named: list[NamedServer], project: _Project) -> dict[str, Any] | None:
    """What the step says of the task's servers, if mcp.yaml describes any."""
    known = project.servers.definitions if project.servers else {}
    servers = [server.name for server in named if server.name in known]
    return {"config": os.path.abspath(project.mcp_file), "servers": servers} if servers else None


def _digest(directory: Path, config: str) -> str:
    """`config`: the digest of its config.yaml."""
    found, folder = hashlib.sha256(f"{CONFIG_FILE}:{config}\n".encode()), str(directory)
    for name in _DEFINING_FILES:
        try:
            content = hashlib.sha256(read_bytes(os.path.join(folder, name))).hexdigest()
        except Unreadable:
            content = "-"  # most tasks have not all of them; the task itself will miss one
        found.update(f"{name}:{content}\n".encode())
    return found.hexdigest()
