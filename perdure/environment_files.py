"""Reading env.yaml, mcp.yaml and a DTap task's config.yaml, which other tools write, too.

Duplicate and unknown keys are warnings, and of duplicates the later one counts (PD26).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from perdure.core.environments import Environments, is_environments, parse_environments
from perdure.core.mcp_servers import (
    McpServers,
    NamedServer,
    is_mcp_servers,
    parse_mcp_servers,
    servers_named,
)
from perdure.core.problems import Problem
from perdure.document_problems import DocumentProblem, placed
from perdure.reading import Finding, Source, Unreadable, read_json, read_text, read_yaml

T = TypeVar("T")


@dataclass(frozen=True)
class Checked(Generic[T]):
    """What a file says, and what is wrong with it."""

    file: str
    value: T
    """Only good if there are no problems."""
    problems: list[DocumentProblem] = field(default_factory=list)
    warnings: list[DocumentProblem] = field(default_factory=list)
    digest: str = ""
    """SHA-256 of the file's text, in hex; empty if it could not be read."""
    line_of: Callable[[Sequence[str | int]], int | None] = field(
        default=lambda path: None, repr=False, compare=False
    )


def read_environments(path: Path) -> Checked[Environments]:
    """Read an env.yaml and check all of it."""
    return _read(path, parse_environments, Environments())


def read_mcp_servers(path: Path) -> Checked[McpServers]:
    """Read an mcp.yaml and check what perdure takes from it."""
    return _read(path, parse_mcp_servers, McpServers())


def read_servers_named(path: Path) -> Checked[list[NamedServer]]:
    """Read which servers a DTap task's config.yaml names."""
    return _read(path, servers_named, [])


@dataclass(frozen=True)
class Configuration:
    """A file among the tasks that describes environments or servers."""

    file: str
    name: str
    """What it is: `env.yaml` or `mcp.yaml`, whatever its own name."""
    option: str
    """The option of `run` that takes it."""
    holds: str = ""
    """What it holds, in a few words, once it was checked."""
    problems: list[DocumentProblem] = field(default_factory=list)
    warnings: list[DocumentProblem] = field(default_factory=list)

    def checked(self) -> Configuration:
        """The same with all that is to be said of it."""
        if self.name == "env.yaml":
            found = read_environments(Path(self.file))
            holds = _count(len(found.value.environments), "environment")
            return replace(self, holds=holds, problems=found.problems, warnings=found.warnings)
        servers = read_mcp_servers(Path(self.file))
        holds = f"{_count(len(servers.value.environments), 'server')} with environments"
        return replace(self, holds=holds, problems=servers.problems, warnings=servers.warnings)


def configuration(file: Path, document: Any) -> Configuration | None:
    """The configuration that a document is by its shape, if it is one and no task."""
    if is_environments(document):
        return Configuration(str(file), "env.yaml", "--env-config")
    if is_mcp_servers(document):
        return Configuration(str(file), "mcp.yaml", "--mcp-config")
    return None


def _read(
    path: Path, parse: Callable[[Any, list[Problem], list[Problem]], T], nothing: T
) -> Checked[T]:
    file = str(path)
    try:
        text = read_text(path)
        source = _source(path, text)
    except Unreadable as error:
        return Checked(file, nothing, [_of_text(file, error.finding)])
    problems: list[Problem] = []
    warnings: list[Problem] = []
    value = parse(source.value, problems, warnings)

    def in_file(found: list[Problem]) -> list[DocumentProblem]:
        return sorted(
            (placed(problem, file, source.line, source.value) for problem in found),
            key=lambda problem: problem.line or 0,
        )

    duplicates = [_of_text(file, finding) for finding in source.findings]
    digest = hashlib.sha256(text.encode()).hexdigest()
    said = duplicates + in_file(warnings)
    return Checked(file, value, in_file(problems), said, digest, source.line)


def _source(path: Path, text: str) -> Source:
    if path.suffix.lower() == ".json":
        return read_json(text)
    if all(line.lstrip().startswith("#") for line in text.split("\n") if line.strip()):
        return Source(None)  # an empty file says nothing, and that is no mistake
    return read_yaml(text, later_wins=True)


def _of_text(file: str, finding: Finding) -> DocumentProblem:
    return DocumentProblem(file, finding.line, None, None, finding.message, finding.remedy)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
