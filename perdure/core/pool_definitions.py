"""An environment as the pool knows it: its definition, and the digest that tells versions apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perdure.core.environments import Environment, Memory, Port, Process, Ready, ResetEndpoint

PROCESS_GB = 0.1
"""What a process without `memory_gb` counts while it starts: there is no container around it."""


@dataclass(frozen=True)
class Definition:
    """What the instances of an environment are made of.

    Two suites may know different things by one name. Instances are shared by those who mean the
    same: whose `key` is the same.
    """

    environment: Environment
    digest: str
    """Of the definition and of the compose file."""
    root: str = ""
    """The folder at which the definition's relative paths start."""
    memory: Memory = field(default_factory=Memory)

    @property
    def name(self) -> str:
        """The environment's name; `max_instances` counts by it."""
        return self.environment.name

    @property
    def key(self) -> str:
        """Name and digest: instances with one key are as good as each other."""
        return f"{self.name}@{self.digest}"

    @property
    def is_resettable(self) -> bool:
        """Whether a reset does anything (P40)."""
        return bool(self.environment.reset_endpoints or self.environment.reset_scripts)

    @property
    def needed_gb(self) -> float:
        """What one instance uses, as far as is known."""
        if self.environment.memory_gb is not None:
            return self.environment.memory_gb
        return PROCESS_GB if self.environment.process else self.memory.required_gb

    @property
    def demanded_gb(self) -> float:
        """What must be free beside the reserve before a start (P29)."""
        return max(self.needed_gb, self.memory.required_gb)

    def reserve_gb(self, total_gb: float) -> float:
        """What must stay free on a machine with so much memory."""
        return total_gb / 10 if self.memory.reserve_gb is None else self.memory.reserve_gb

    def to_json(self) -> dict[str, Any]:
        """As JSON; the inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Definition:
        """The inverse of `to_json`."""
        plain = Environment(**value["environment"])
        environment = replace(
            plain,
            ports={name: Port(**port) for name, port in value["environment"]["ports"].items()},
            reset_endpoints=tuple(
                ResetEndpoint(**endpoint) for endpoint in value["environment"]["reset_endpoints"]
            ),
            process=_process(value["environment"]["process"]),
        )
        return cls(environment, value["digest"], value["root"], Memory(**value["memory"]))


def _process(value: dict[str, Any] | None) -> Process | None:
    if value is None:
        return None
    command, ready = value["command"], value["ready"]
    return Process(
        command if isinstance(command, str) else tuple(command),
        value["cwd"],
        ready and Ready(**ready),
    )
