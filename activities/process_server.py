"""What an instance's server is: its command line, directory, variables, and what tells it apart."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from activities.marker import MARKER
from activities.process_ready import filled
from activities.secrets import MissingSecret, WorkerEnvironment, resolve
from perdure.core.environments import Process
from perdure.core.pool_definitions import Definition
from perdure.core.pool_names import project_variable
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall

OWN_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
"""All that a server sees of the worker's environment, unless `--pass-env` lets more through."""

PREFIX = "instance/"
"""What the markers of all pools' instances begin with."""


@dataclass(frozen=True)
class Server:
    """A server as it is started."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    """All of it, the marker included."""
    secrets: list[str]
    """Values in `env` that nobody may read in a log."""


def server_of(call: InstanceCall, definition: Definition, environment: WorkerEnvironment) -> Server:
    """The server of a call's instance. Raises MissingSecret for what is not to be had here."""
    process = process_of(definition)
    secrets: list[str] = []
    env = _let_through(environment) | {name: str(port) for name, port in call.ports.items()}
    for name, value in definition.environment.env.items():
        if isinstance(value, str):
            env[name] = value
            continue
        try:
            secret = resolve(value, environment, Path(definition.root))
        except MissingSecret as error:
            raise MissingSecret(f"its variable {name}: {error}") from None
        env[name] = secret
        secrets.append(secret)
    env[project_variable(call.environment)] = call.project
    env[MARKER] = key_of(call)
    if isinstance(process.command, str):
        argv = ["/bin/sh", "-c", process.command]
    else:
        argv = [filled(word, call.ports) for word in process.command]
    return Server(argv, directory_of(definition), env, secrets)


def process_of(definition: Definition) -> Process:
    """Raises PerdureError: the environment is no process."""
    if definition.environment.process is None:
        raise PerdureError(f"environment {definition.name} is no process")
    return definition.environment.process


def directory_of(definition: Definition) -> str:
    """Where the server runs."""
    return os.path.join(definition.root, process_of(definition).cwd or "")


def key_of(call: InstanceCall) -> str:
    """The marker of all processes of an instance."""
    return f"{PREFIX}{call.pool_uuid}/{call.number}"


def identity_of(call: InstanceCall) -> str:
    """Tells whether a server that runs is the one that a call means."""
    content = json.dumps([call.definition, call.project, call.ports], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _let_through(worker: WorkerEnvironment) -> dict[str, str]:
    """What a server sees of the worker's environment."""
    passed = {**worker.variables, **worker.env_file} if worker.inherit_env else {}
    names = (*OWN_VARIABLES, *worker.pass_env)
    passed |= {name: value for name in names if (value := worker.get(name)) is not None}
    return {name: value for name, value in passed.items() if not name.startswith("PERDURE_")}
