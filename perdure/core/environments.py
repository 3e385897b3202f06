"""What env.yaml says: the environments that tasks can use, checked and as plain data.

Other tools write the file, too. So what perdure does not know is a warning, and only what it knows
and cannot use is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from perdure.core.fields import (
    Check,
    anything,
    check_keys,
    duration,
    flag,
    identifier,
    mapping_of,
    number,
    pause,
    read,
    text,
    variable,
    whole,
    word_or_secret,
)
from perdure.core.json_values import check_json
from perdure.core.problems import TOO_MANY, Place, Problem, TooManyProblems, kind, shown
from perdure.core.step_checks import command, method

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_MAX_INSTANCES = 10_000


@dataclass(frozen=True)
class Port:
    """A port of an environment; each instance gets a number of its own for it."""

    default: int | None = None
    container_port: int | None = None

    @property
    def wanted(self) -> int:
        """The number that is tried first (P5)."""
        return self.default or self.container_port or 8000


@dataclass(frozen=True)
class ResetEndpoint:
    """An address that, when called, resets an instance."""

    name: str
    url: str
    """With `${PORT_VARIABLE}` placeholders."""
    method: str = "POST"


@dataclass(frozen=True)
class Ready:
    """How a process shows that it is ready: it answers there."""

    http: str | None = None
    """An address, with `${PORT_VARIABLE}` placeholders."""
    tcp: str | None = None
    """The name of a port variable."""
    timeout_seconds: float = 30.0


@dataclass(frozen=True)
class Process:
    """An environment without Docker: a program that serves on its ports."""

    command: tuple[str, ...] | str
    """An argv, or a text for the shell; with `${PORT_VARIABLE}` placeholders."""
    cwd: str | None = None
    """Relative to the folder of env.yaml; None: that folder."""
    ready: Ready | None = None


@dataclass(frozen=True)
class Environment:
    """One environment: how its instances are started, reset and counted."""

    name: str
    docker_compose: str | None = None
    """Relative to the project's root. Neither this nor `process`: the place of P8."""
    process: Process | None = None
    max_instances: int | None = None
    """None: no limit. `default_max_instances` has been filled in (P3, P4)."""
    ports: dict[str, Port] = field(default_factory=dict)
    """By variable, in the file's order."""
    reset_endpoints: tuple[ResetEndpoint, ...] = ()
    """In the file's order (P42)."""
    reset_scripts: dict[str, str] = field(default_factory=dict)
    """Shell command lines by compose service, in the file's order."""
    reset_retries: int = 1
    reset_retry_delay_seconds: float = 10.0
    reset_script_timeout_seconds: float = 60.0
    health_timeout_seconds: float = 120.0
    disable_reuse: bool = False
    env: dict[str, Any] = field(default_factory=dict)
    """Variables for compose or the process: texts, `{from_env: NAME}`, `{from_file: PATH}`."""
    memory_gb: float | None = None
    """What one instance needs; None: not known."""
    prewarm: int = 0
    """Instances that are started before anyone asks."""
    prepare_timeout_seconds: float = 1800.0
    """For pulling or building."""
    start_timeout_seconds: float = 300.0
    max_idle_seconds: float = 600.0


@dataclass(frozen=True)
class Memory:
    """The guard before each start."""

    required_gb: float = 1.0
    reserve_gb: float | None = None
    """None: a tenth of the machine."""


@dataclass(frozen=True)
class Environments:
    """What an env.yaml says."""

    environments: dict[str, Environment] = field(default_factory=dict)
    """By name, in the file's order."""
    default_max_instances: int | None = None
    memory: Memory = Memory()
    task_command: str | None = None
    """The one step of a task in the DTap layout; `{task_dir}` stands for its directory."""


def is_environments(document: Any) -> bool:
    """Whether a document has the shape of an env.yaml, whatever its name.

    A task lists its environments, and has steps; here they are a mapping.
    """
    if not isinstance(document, dict) or "steps" in document:
        return False
    if "environments" in document:
        return document["environments"] is None or isinstance(document["environments"], dict)
    return "default_max_instances" in document


def parse_environments(
    document: Any, problems: list[Problem], warnings: list[Problem]
) -> Environments:
    """Check an env.yaml's document and make the environments of it.

    Adds to `problems` and `warnings`; what is returned is only good if there are no problems.
    """
    at = Place(problems)
    try:
        if document is None:
            return Environments()
        if not check_json(document, at):
            return Environments()
        return _Reader(warnings).environments(document, at)
    except TooManyProblems:
        problems.append(Problem((), TOO_MANY, "correct these first"))
    return Environments()


class _Reader:
    """Checks whose warnings go to one list."""

    def __init__(self, warnings: list[Problem]) -> None:
        self._warnings = warnings
        record = self.record
        port = whole(1, 65535)
        ready = record({"http": text, "tcp": variable, "timeout": duration}, "ready")
        self._process = record({"command": command, "cwd": text, "ready": ready}, "process")
        self._memory = record({"required_gb": number(0), "reserve_gb": number(0)}, "memory")
        endpoint = record({"url": text, "method": method}, "a reset endpoint")
        ports = mapping_of(
            _null_as({}, record({"default": port, "container_port": port}, "a port")),
            check_key=variable,
        )
        self._checks: dict[str, Check] = {
            "docker_compose": text,
            "process": self._process,
            "max_instances": _instances,
            "ports": ports,
            "reset_endpoints": mapping_of(endpoint),
            "reset_scripts": mapping_of(text),
            "reset_retries": whole(0, 1000),
            "reset_retry_delay": pause,
            "reset_script_timeout": duration,
            "health_timeout": duration,
            "disable_reuse": flag,
            "env": mapping_of(word_or_secret, check_key=variable),
            "memory_gb": number(0),
            "prewarm": whole(0, _MAX_INSTANCES),
            "prepare_timeout": duration,
            "start_timeout": duration,
            "max_idle": pause,
            "vm_profile": anything,  # for tools that run virtual machines; nothing of it is used
        }

    def warn(self, at: Place, message: str, remedy: str = "") -> None:
        with suppress(TooManyProblems):
            Place(self._warnings, at.path).refuse(message, remedy)

    def record(self, fields: Mapping[str, Check], what: str) -> Check:
        """A mapping; keys that are not among `fields` are warnings."""

        def check(value: Any, at: Place) -> Any:
            if not isinstance(value, dict):
                at.refuse(f"is {kind(value)}, not a mapping", f"known keys: {', '.join(fields)}")
                return value
            self._check_keys(value, fields, at, what)
            return read(value, fields, at)

        return check

    def _check_keys(
        self, document: Mapping[str, Any], known: Mapping[str, Check], at: Place, what: str
    ) -> None:
        with suppress(TooManyProblems):
            check_keys(document, known, Place(self._warnings, at.path), what)

    def environments(self, document: Any, at: Place) -> Environments:
        before = len(at.problems)
        top: dict[str, Check] = {
            "default_max_instances": _instances,
            "environments": anything,
            "memory": self._memory,
            "task_command": text,
        }
        found = self.record(top, "an env.yaml")(document, at)
        if not isinstance(found, dict):
            return Environments()
        default = found.get("default_max_instances")
        named = found.get("environments")
        named = {} if named is None else named
        if not isinstance(named, dict):
            (at / "environments").refuse(
                f"is {kind(named)}, not a mapping", "write the environments as NAME: {...}"
            )
            named = {}
        environments = {
            name: entry
            for name, value in named.items()
            if (entry := self._environment(name, value, default, at / "environments")) is not None
        }
        if len(at.problems) > before:
            return Environments()
        memory = Memory(**found.get("memory", {}))
        return Environments(environments, default, memory, found.get("task_command"))

    def _environment(
        self, name: Any, value: Any, default: int | None, at: Place
    ) -> Environment | None:
        if not isinstance(name, str):
            return None  # the check for JSON has said so
        before = len(at.problems)
        at = at / name
        identifier(name, at)
        entry = {} if value is None else self.record(self._checks, "an environment")(value, at)
        if not isinstance(entry, dict):
            return None
        if "docker_compose" in entry and "process" in entry:
            at.refuse("has both docker_compose and process", "keep one of them")
        self._check_process(entry.get("process"), at / "process")
        self._check_endpoints(entry.get("reset_endpoints"), at / "reset_endpoints")
        if len(at.problems) > before:
            return None
        self._check_placeholders(entry, at)
        limited = isinstance(value, dict) and "max_instances" in value  # null is no limit, too (P4)
        return Environment(
            name,
            max_instances=entry.pop("max_instances", None) if limited else default,
            ports={variable: Port(**port) for variable, port in entry.pop("ports", {}).items()},
            reset_endpoints=tuple(
                ResetEndpoint(called, **endpoint)
                for called, endpoint in entry.pop("reset_endpoints", {}).items()
            ),
            process=_process(entry.pop("process", None)),
            **{_FIELDS.get(key, key): found for key, found in entry.items() if key != "vm_profile"},
        )

    def _check_process(self, process: Any, at: Place) -> None:
        if not isinstance(process, dict):
            return
        if "command" not in process:
            at.refuse("has no command", "add command: [PROGRAM, ARGUMENT]")
        ready = process.get("ready")
        if isinstance(ready, dict) and ("http" in ready) == ("tcp" in ready):
            (at / "ready").refuse("has not exactly one of http and tcp", "keep one of them")

    def _check_endpoints(self, endpoints: Any, at: Place) -> None:
        for name, endpoint in endpoints.items() if isinstance(endpoints, dict) else ():
            if isinstance(endpoint, dict) and "url" not in endpoint:
                (at / name).refuse("has no url", "add url: http://...")

    def _check_placeholders(self, entry: Mapping[str, Any], at: Place) -> None:
        """A `${NAME}` that is none of the environment's own ports is most likely a slip."""
        ports = entry.get("ports", {})
        for place, value in _texts_with_ports(entry, at):
            for name in dict.fromkeys(_PLACEHOLDER.findall(value)):
                if name not in ports:
                    self.warn(
                        place,
                        f"${{{shown(name, quote=False)}}} is none of the environment's ports",
                        f"its ports: {', '.join(ports) or 'none'}",
                    )
        ready = (entry.get("process") or {}).get("ready") or {}
        if (tcp := ready.get("tcp")) and tcp not in ports:
            self.warn(at / "process" / "ready" / "tcp", f"{tcp} is none of its ports")


_FIELDS = {
    "reset_retry_delay": "reset_retry_delay_seconds",
    "reset_script_timeout": "reset_script_timeout_seconds",
    "health_timeout": "health_timeout_seconds",
    "prepare_timeout": "prepare_timeout_seconds",
    "start_timeout": "start_timeout_seconds",
    "max_idle": "max_idle_seconds",
}


def _instances(value: Any, at: Place) -> Any:
    return whole(1, _MAX_INSTANCES)(value, at)


def _null_as(instead: Any, check: Check) -> Callable[[Any, Place], Any]:
    return lambda value, at: check(instead if value is None else value, at)


def _texts_with_ports(entry: Mapping[str, Any], at: Place) -> Iterator[tuple[Place, str]]:
    for name, endpoint in entry.get("reset_endpoints", {}).items():
        yield at / "reset_endpoints" / name / "url", endpoint["url"]
    process = entry.get("process") or {}
    ready = process.get("ready") or {}
    if "http" in ready:
        yield at / "process" / "ready" / "http", ready["http"]
    argv = process.get("command")
    for position, word in enumerate(argv if isinstance(argv, list) else ()):
        yield at / "process" / "command" / position, word


def _process(found: Mapping[str, Any] | None) -> Process | None:
    if found is None:
        return None
    argv, ready = found["command"], found.get("ready")
    return Process(
        argv if isinstance(argv, str) else tuple(argv),
        found.get("cwd"),
        ready
        and Ready(ready.get("http"), ready.get("tcp"), ready.get("timeout", Ready.timeout_seconds)),
    )
