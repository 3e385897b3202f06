"""Whether docker and compose are here, and how they are called: found before anything starts."""

from __future__ import annotations

import contextlib
import getpass
import grp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import PerdureError

OLDEST_COMPOSE = (2, 0)
"""Version 1 (`docker-compose` in Python) has neither `ps --format json` nor the same names."""

ANSWER_SECONDS = 5.0
"""How long docker has to answer (P32)."""

ENGINE_VARIABLES = (
    "PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK",
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_API_VERSION", "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH", "DOCKER_BUILDKIT", "BUILDX_BUILDER",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What docker itself needs of the worker's environment; it sees nothing else of it (C11)."""

_VERSION = re.compile(r"(\d+)\.(\d+)")


class DockerMissing(PerdureError):
    """Docker or compose is not here, too old, or does not answer."""


class EngineAway(DockerMissing):
    """Docker is here, but its engine does not answer: that can pass."""


@dataclass(frozen=True)
class Docker:
    """How docker and compose are called on this machine."""

    docker: tuple[str, ...]
    """An argv's beginning."""
    compose: tuple[str, ...]
    compose_version: str
    uses_sudo: bool = False


def engine_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """What docker gets of an environment, by default this process's own."""
    variables = os.environ if variables is None else variables
    return {name: variables[name] for name in ENGINE_VARIABLES if name in variables}


def find_docker(variables: Mapping[str, str] | None = None) -> Docker:
    """Find docker and compose, and look whether the engine answers; takes up to 20 s.

    `variables` is the environment to look in; default: this process's own. The compose plugin is
    taken before a `docker-compose` program, one on PATH before one beside this Python. sudo is
    used where the engine lets only root in (P32). Raises DockerMissing, or EngineAway.
    """
    environment = engine_environment(variables)
    path = environment.get("PATH", os.defpath)
    docker = shutil.which("docker", path=path)
    if docker is None:
        raise DockerMissing(
            "no docker on PATH; install Docker with its compose plugin "
            "(https://docs.docker.com/engine/install), or use environments of the kind `process`"
        )
    compose, version = _find_compose(docker, path, environment)
    sudo = _sudo(docker, path, environment)
    return Docker((*sudo, docker), (*sudo, *compose), version, bool(sudo))


def _find_compose(
    docker: str, path: str, environment: Mapping[str, str]
) -> tuple[Sequence[str], str]:
    folders = (path, str(Path(sys.executable).parent))
    found_programs = (shutil.which("docker-compose", path=folder) for folder in folders)
    programs = [[docker, "compose"], *([program] for program in found_programs if program)]
    old: list[str] = []
    for program in programs:
        answered, said = _ask([*program, "version", "--short"], environment)
        found = _VERSION.search(said.splitlines()[-1] if said.strip() else "")
        if not answered or not found:
            continue
        if (int(found[1]), int(found[2])) >= OLDEST_COMPOSE:
            return program, said.split()[-1].lstrip("v")
        old.append(f"{' '.join(program)} is version {found[0]}")
    needed = ".".join(map(str, OLDEST_COMPOSE))
    raise DockerMissing(
        f"docker compose {needed} or newer is needed: "
        + (f"{'; '.join(old)}" if old else "there is no compose plugin and no docker-compose")
        + "; install the plugin (https://docs.docker.com/compose/install/linux)"
    )


def _sudo(docker: str, path: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What docker's calls begin with. Raises EngineAway."""
    answered, said = _ask([docker, "ps", "--quiet"], environment)
    if answered:
        return ()
    sudo = shutil.which("sudo", path=path)
    if sudo and os.geteuid() != 0 and not _is_in_docker_group():
        # Without a terminal nobody could answer a question for a password.
        prefix = (sudo, "-n")
        answered, said_by_root = _ask([*prefix, docker, "ps", "--quiet"], environment)
        if answered:
            return prefix
        said = said or said_by_root
    reason = said.strip().splitlines()[-1] if said.strip() else "no answer"
    raise EngineAway(
        f"docker's engine does not answer: {reason}; start it (systemctl start docker), or let "
        "this user in (usermod -aG docker USER)"
    )


def _is_in_docker_group() -> bool:
    try:
        group = grp.getgrnam("docker")
    except KeyError:
        return False
    with contextlib.suppress(OSError, KeyError):
        if getpass.getuser() in group.gr_mem:
            return True
    return group.gr_gid in (os.getegid(), *os.getgroups())


def _ask(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Whether a short command went well, and what it said."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer from `{' '.join(argv)}` within {ANSWER_SECONDS:g} s"
    except OSError as error:
        return False, f"{argv[0]} cannot be run: {error.strerror}"
    if done.returncode:
        return False, done.stderr or done.stdout
    return True, done.stdout
