"""Names that the pool gives: compose projects, instances' ids, variables for a task's processes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perdure.core.environments import Environment

PROJECT_NAME_LENGTH = 63
"""Compose makes names of containers and networks from it, and hosts' names end at 63."""

_PREFIX_LENGTH, _TAG_LENGTH = 16, 8


def project_name(environment: str, number: int, pool_uuid: str, prefix: str = "pool") -> str:
    """The compose project of an instance: valid, at most 63 characters, and its alone.

    `number` tells the instances of a pool apart, whatever their environments are called, and the
    pool's uuid those of two pools on one engine. `prefix` is what `DT_POOL_PREFIX` says (P19).
    """
    end = f"_{number}_{_slug(pool_uuid.replace('-', ''), _TAG_LENGTH) or '0'}"
    start = _slug(prefix, _PREFIX_LENGTH) or "pool"
    return f"{start}_{_slug(environment, PROJECT_NAME_LENGTH - len(start) - 1 - len(end))}{end}"


def instance_workflow_id(pool: str, environment: str, number: int) -> str:
    """The workflow id of an instance."""
    return f"instance/{pool}/{environment}/{number}"


def project_variable(environment: str) -> str:
    """The variable that tells a task's processes the project of an environment (P52)."""
    return re.sub(r"[^A-Z0-9_]", "_", environment.upper()) + "_PROJECT_NAME"


def ambiguous_variables(environments: Iterable[Environment]) -> dict[str, list[str]]:
    """Variables that several of a task's environments would set, each with their names (PD26)."""
    setters: dict[str, list[str]] = {}
    for environment in environments:
        for variable in [*environment.ports, project_variable(environment.name)]:
            setters.setdefault(variable, []).append(environment.name)
    return {variable: names for variable, names in setters.items() if len(names) > 1}


def _slug(text: str, length: int) -> str:
    """`text` in the letters that compose takes, beginning with one that may stand first."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower()).lstrip("_-")[:length]
