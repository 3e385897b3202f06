"""What environments need and this machine does not have, found before anything starts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.core.pool_definitions import Definition
from perdure.core.problems import listed, one_line
from perdure.core.secret_references import is_reference
from perdure.docker_check import Docker, DockerMissing, find_docker
from perdure.documents import LoadedTask
from perdure.messages import SuiteTask
from perdure.secret_checks import why_missing


def missing_for(tasks: Iterable[LoadedTask], env_file: Mapping[str, str]) -> list[str]:
    """A line for each thing that the tasks' environments lack: docker, or secrets.

    For the embedded server alone: its worker brings them up here, a team's workers where they are.
    """
    return missing({d.key: d for loaded in tasks for d in loaded.definitions}.values(), env_file)


def missing_in(
    tasks: Sequence[SuiteTask],
    environments: Mapping[str, dict[str, Any]],
    env_file: Mapping[str, str],
) -> list[str]:
    """As `missing_for`, of tasks and definitions that a suite was started with."""
    names = dict.fromkeys(name for task in tasks for name in task.task.get("environments", ()))
    found = (Definition.from_json(environments[name]) for name in names if name in environments)
    return missing(found, env_file)


def missing(definitions: Iterable[Definition], env_file: Mapping[str, str]) -> list[str]:
    """A line for each thing that these environments lack."""
    known = list(definitions)
    lines = _without_docker([d.name for d in known if not d.environment.process])
    for definition in known:
        for variable, value in definition.environment.env.items():
            if is_reference(value) and (reason := why_missing(value, env_file, definition.root)):
                lines.append(one_line(f"environment {definition.name!r}: env.{variable}: {reason}"))
    return lines


def _without_docker(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    try:
        _docker()
    except DockerMissing as error:
        needs = "environment" if len(names) == 1 else "environments"
        return [one_line(f"{needs} {listed(names)}: {error}")]
    return []


@functools.cache  # it remembers answers, and no failures
def _docker() -> Docker:
    return find_docker()
