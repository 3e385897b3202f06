"""One instance's compose project: its files, its variables, and what goes wrong with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from activities.backend import definition_of, failed
from activities.compose_failures import Failure, failure_of
from activities.compose_files import ComposeModel, unset_variables
from activities.docker_cli import DockerCli
from activities.docker_containers import (
    ENVIRONMENT_LABEL,
    INSTANCE_LABEL,
    POOL_LABEL,
    POOL_NAME_LABEL,
)
from activities.secrets import MissingSecret, WorkerEnvironment, resolve
from perdure.core.environments import Environment
from perdure.core.pool_names import project_variable
from perdure.core.redaction import mask
from perdure.pool_messages import InstanceCall, InstanceResult

TASK_LABEL = "perdure.task"
"""The task that it was started for, if it was for one: labels stay as they are, and who has an
instance later is told by the pool."""

OVERRIDE_FILE = "compose-override.json"
"""In an instance's folder; JSON is YAML, too."""


class Trouble(Exception):
    """Something went wrong with an instance; `reason` is for people."""

    def __init__(
        self,
        reason: str,
        *,
        service: str | None = None,
        log: Sequence[str] = (),
        is_final: bool = False,
        is_crowded: bool = False,
        taken_ports: Sequence[int] = (),
    ) -> None:
        super().__init__(reason)
        self.reason, self.service, self.log = reason, service, list(log)
        self.is_final, self.is_crowded = is_final, is_crowded
        self.taken_ports = list(taken_ports)


@dataclass(frozen=True)
class Project:
    """What compose is told for one instance."""

    call: InstanceCall
    folder: Path
    file: Path
    """The user's compose file."""
    environment: Environment
    digest: str
    variables: dict[str, str]
    """All that compose may fill in: the environment's `env`, its ports, its own name (C11)."""
    secrets: tuple[str, ...]

    @property
    def name(self) -> str:
        """The compose project."""
        return self.call.project

    @property
    def marker(self) -> str:
        """What compose's own processes carry while they work on this project."""
        return f"compose/{self.name}"

    @property
    def override(self) -> Path:
        """The file that perdure puts beside the user's."""
        return self.folder / OVERRIDE_FILE

    @property
    def files(self) -> list[Path]:
        """What compose reads, in order."""
        return [self.file, self.override]

    @cached_property
    def labels(self) -> dict[str, str]:
        """What all that the project makes is known by."""
        labels = {
            POOL_LABEL: self.call.pool_uuid,
            POOL_NAME_LABEL: self.call.pool,
            ENVIRONMENT_LABEL: self.call.environment,
            INSTANCE_LABEL: str(self.call.number),
        }
        return labels | ({TASK_LABEL: self.call.task} if self.call.task else {})

    def masked(self, trouble: Trouble, *, at_start: bool = False) -> InstanceResult:
        """The trouble as a result, without secrets."""
        return failed(
            self.call,
            mask(trouble.reason, self.secrets),
            service=trouble.service,
            log=[mask(line, self.secrets) for line in trouble.log],
            is_final=trouble.is_final,
            is_crowded=trouble.is_crowded,
            taken_ports=trouble.taken_ports,
            at_start=at_start and bool(trouble.taken_ports),
        )


def project_of(call: InstanceCall, folder: Path, worker: WorkerEnvironment) -> Project:
    """Raises Trouble: no compose file, or a secret that is not to be had here."""
    definition = definition_of(call)
    environment = definition.environment
    if not environment.docker_compose:
        raise Trouble("it has no docker_compose", is_final=True)
    file = Path(os.path.abspath(Path(definition.root) / environment.docker_compose))
    variables: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in environment.env.items():
        if not isinstance(value, str):
            try:
                value = resolve(value, worker, Path(definition.root))
            except MissingSecret as error:
                raise Trouble(f"its variable {name}: {error}", is_final=True) from None
            secrets.append(value)
        if "\0" in value:
            raise Trouble(f"its variable {name} holds a NUL, which no variable can", is_final=True)
        variables[name] = value
    variables |= {name: str(port) for name, port in call.ports.items()}
    variables[project_variable(call.environment)] = call.project
    digest = definition.digest
    return Project(call, folder, file, environment, digest, variables, tuple(secrets))


class Models:
    """What compose files declare, each asked for once: a call of compose takes a while."""

    def __init__(self, cli: DockerCli) -> None:
        self._cli = cli
        self._known: dict[tuple[object, ...], ComposeModel] = {}
        self.good_for_many: set[tuple[object, ...]] = set()
        """Those that can be there several times at once, by `key`."""

    async def of(self, project: Project) -> ComposeModel:
        """What the user's file declares for this instance, ports and names of instances aside.

        Raises Trouble: no such file, not for compose to understand, or a variable in it has
        neither a value nor a default.
        """
        key = self.key(project)
        if key not in self._known:
            self._known[key] = await model_of(self._cli, project)
        return self._known[key]

    def key(self, project: Project) -> tuple[object, ...]:
        """What tells versions of a file apart. Raises Trouble: no such file."""
        try:
            facts = project.file.stat()
        except OSError:
            raise Trouble(
                f"there is no compose file {project.file}; put it back, or correct docker_compose",
                is_final=True,
            ) from None
        return (project.digest, project.file, facts.st_mtime_ns, facts.st_size)


async def model_of(cli: DockerCli, project: Project) -> ComposeModel:
    """The same, asked for anew."""
    done = await cli.compose(
        project.name,
        [project.file],
        *("config", "--format", "json"),
        variables=project.variables,
        timeout_seconds=60,
    )
    if unset := unset_variables(done.err):
        raise Trouble(
            f"{project.file} uses {', '.join(unset)}, which nothing sets; add it to `env` or "
            f"`ports` of the environment, or give it a default: ${{{unset[0]}:-...}} "
            "(the worker's own variables are not seen)",
            is_final=True,
        )
    if done.code:
        failure = failure_of(done.lines, project.name)
        raise Trouble(f"{project.file}: {failure.reason}", log=failure.lines, is_final=True)
    try:
        return ComposeModel.from_config(done.out)
    except ValueError:
        raise Trouble(
            f"{project.file}: `compose config` printed no JSON; update compose", is_final=True
        ) from None


def trouble_of(failure: Failure, project: Project, log: Sequence[str]) -> Trouble:
    """What a failed call means for the instance. `log`: of the service that it is about."""
    lines = [*failure.lines, *log]
    own = set(project.call.ports.values())
    taken = [port for port in failure.ports if port in own]
    if failure.is_port_taken and not failure.ports:
        taken = sorted(own)  # the engine does not say which
    reason = failure.reason
    if failure.is_crowded:
        reason += (
            "; the engine has no network left for another instance: remove unused ones (docker "
            "network prune), or widen default-address-pools in its daemon.json"
        )
    elif failure.is_image_missing:
        reason += "; correct the image's name, or build or load it on this host"
    elif "unhealthy" in reason:
        reason += "; look at its health check"
    elif failure.is_port_taken and not taken:
        reason += "; stop what has the port, or give it a variable of `ports` in env.yaml"
    return Trouble(
        reason,
        service=failure.service,
        log=lines,
        is_final=failure.is_final,
        is_crowded=failure.is_crowded,
        taken_ports=taken,
    )
