"""Which environments a task in the DTap layout needs: those behind the MCP servers it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from perdure.core.fields import check_keys, identifier
from perdure.core.problems import TOO_MANY, Place, Problem, TooManyProblems, kind, shown

_TOP_KEYS = ("global", "servers")
_SERVER_KEYS = (
    *("name", "description", "path", "enabled", "port", "environment", "env"),
    *("transport", "command", "args", "url", "headers", "cwd", "timeout"),
)
_QUOTE_IT = "write its name in quotes"


@dataclass(frozen=True)
class NamedServer:
    """A server that a config.yaml names, in lower case."""

    name: str
    path: tuple[str | int, ...]
    """Where in the file."""


@dataclass(frozen=True)
class McpServers:
    """What an mcp.yaml says: the environments behind each server."""

    environments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By the server's name in lower case; servers that need none are left out."""
    definitions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the file says of each server, by its name in lower case."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What it says under `global`."""

    def behind(self, servers: Iterable[str]) -> tuple[str, ...]:
        """The environments of these servers, each once, in the order of first appearance (P13)."""
        found = (name for server in servers for name in self.environments.get(server, ()))
        return tuple(dict.fromkeys(found))


def is_mcp_servers(document: Any) -> bool:
    """Whether a document has the shape of an mcp.yaml, whatever its name."""
    if not isinstance(document, dict) or "steps" in document:
        return False
    return isinstance(document.get("servers"), list)


def parse_mcp_servers(
    document: Any, problems: list[Problem], warnings: list[Problem]
) -> McpServers:
    """Check an mcp.yaml's document and take from it what tasks need.

    Adds to `problems` and `warnings`; what is returned is only good if there are no problems. A
    server's own `enabled` is not looked at (P13).
    """
    at = Place(problems)
    environments: dict[str, tuple[str, ...]] = {}
    definitions: dict[str, dict[str, Any]] = {}
    settings: dict[str, Any] = {}
    first: dict[str, int] = {}
    with _bounded(problems):
        if document is None:
            return McpServers()
        if not isinstance(document, dict):
            at.refuse(f"is {kind(document)}, not a mapping", "write servers: [{name: ...}]")
            return McpServers()
        _warn_of_keys(document, _TOP_KEYS, "an mcp.yaml", Place(warnings))
        if isinstance(found := document.get("global"), dict):
            settings = found
        for position, server in enumerate(_list(document.get("servers"), at / "servers")):
            here = at / "servers" / position
            name = _name_of(server, here)
            if name is None:
                continue
            _warn_of_keys(server, _SERVER_KEYS, "a server", Place(warnings, here.path))
            if name in first:
                _warn(
                    Place(warnings, (*here.path, "name")),
                    f"the server {shown(name)} is there twice: servers[{first[name]}] is the other",
                    "the later one counts; rename or remove one of them",
                )
            first[name] = position
            environments[name] = _environments_of(server, here / "environment")
            definitions[name] = server
    needed = {name: behind for name, behind in environments.items() if behind}
    return McpServers(needed, definitions, settings)


def servers_named(
    config: Any, problems: list[Problem], warnings: list[Problem]
) -> list[NamedServer]:
    """The MCP servers that a DTap task's config.yaml names, each once, in the file's order.

    Those of the agent and, one level after the other, of its `sub_agents`; if these have no entry
    at all, those of the top level (P11, P12). A server whose `enabled` is false does not count.
    """
    found: dict[str, NamedServer] = {}
    with _bounded(problems):
        at = Place(problems)
        if config is None:
            return []
        if not isinstance(config, dict):
            at.refuse(f"is {kind(config)}, not a mapping", "write Agent: {mcp_servers: [...]}")
            return []
        entries = list(_of_agent(config.get("Agent"), at / "Agent"))
        if not entries:
            entries = list(_entries(config, at))
        for server, place in entries:
            name = _counting(server, place, Place(warnings, place.path))
            if name and name not in found:
                found[name] = NamedServer(name, place.path)
    return list(found.values())


def _of_agent(agent: Any, at: Place) -> Iterator[tuple[Any, Place]]:
    if agent is None:
        return
    if not isinstance(agent, dict):
        at.refuse(f"is {kind(agent)}, not a mapping", "write mcp_servers: [...] below it")
        return
    yield from _entries(agent, at)
    # As deep as documents may be nested at all: some fifty levels.
    for position, sub in enumerate(_list(agent.get("sub_agents"), at / "sub_agents")):
        yield from _of_agent(sub, at / "sub_agents" / position)


def _entries(agent: Mapping[str, Any], at: Place) -> Iterator[tuple[Any, Place]]:
    for position, server in enumerate(_list(agent.get("mcp_servers"), at / "mcp_servers")):
        yield server, at / "mcp_servers" / position


def _counting(server: Any, at: Place, warnings: Place) -> str | None:
    """The server's name in lower case, if it counts and has one."""
    if not isinstance(server, dict):
        at.refuse(f"is {kind(server)}, not a mapping", _write_server(server))
        return None
    enabled, name = server.get("enabled"), server.get("name")
    if enabled is not None and not isinstance(enabled, bool):
        (at / "enabled").refuse(f"{shown(enabled)} is not true or false", "write true or false")
    if name is not None and not isinstance(name, str):
        (at / "name").refuse(f"{shown(name)} is not text", _QUOTE_IT)
        return None
    if enabled is False:
        return None
    if not name or not name.strip():
        _warn(warnings, "the server has no name, and is passed over", "add name: ...")
        return None
    return name.strip().lower()


def _name_of(server: Any, at: Place) -> str | None:
    if not isinstance(server, dict):
        at.refuse(f"is {kind(server)}, not a mapping", _write_server(server))
        return None
    name = server.get("name")
    if not isinstance(name, str) or not name.strip():
        if name is None or isinstance(name, str):
            (at / "name").refuse("has no name", "name the server as the tasks' config.yaml do")
        else:
            (at / "name").refuse(f"{shown(name)} is not text", _QUOTE_IT)
        return None
    return name.strip().lower()


def _environments_of(server: Mapping[str, Any], at: Place) -> tuple[str, ...]:
    value = server.get("environment")
    if value is None or value == "":
        return ()
    names = value if isinstance(value, list) else [value]
    if not isinstance(value, str | list):
        at.refuse(f"is {kind(value)}", "write an environment's name, or a list of names")
        return ()
    for position, name in enumerate(names):
        identifier(name, at / position if isinstance(value, list) else at)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _write_server(server: Any) -> str:
    return f"write - name: {shown(server, quote=False) if isinstance(server, str) else 'NAME'}"


def _list(value: Any, at: Place) -> list[Any]:
    """The list that a value is; null is an empty one (P12)."""
    if value is None or isinstance(value, list):
        return value or []
    at.refuse(f"is {kind(value)}, not a list", "put - before each entry")
    return []


def _warn_of_keys(document: Any, known: Iterable[str], what: str, at: Place) -> None:
    with suppress(TooManyProblems):
        check_keys(document, known, at, what)


def _warn(at: Place, message: str, remedy: str) -> None:
    with suppress(TooManyProblems):
        at.refuse(message, remedy)


@contextmanager
def _bounded(problems: list[Problem]) -> Iterator[None]:
    """Ends a check that finds too many problems, and says so."""
    try:
        yield
    except TooManyProblems:
        problems.append(Problem((), TOO_MANY, "correct these first"))
