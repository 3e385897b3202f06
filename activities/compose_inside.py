"""Commands inside of an instance's containers, by `docker exec`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from pathlib import Path
from secrets import token_hex

from activities.backend import InnerCommand
from activities.docker_cli import DockerCli, DockerFailed
from activities.docker_containers import Container, labels_of
from activities.marker import MARKER
from activities.secrets import write_private
from perdure.docker_check import ENGINE_VARIABLES, DockerMissing
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall

OUTPUT_CHARACTERS = 65_536

END_MARKED = """\
left=1
tries=0
while [ "$left" = 1 ] && [ "$tries" -lt 20 ]; do
    left=0
    tries=$((tries + 1))
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        [ "$pid" = "$$" ] && continue
        while IFS= read -r line || [ -n "$line" ]; do
            case $line in
                *"$1"*) kill -9 "$pid" && left=1; break;;
            esac
        done <"$folder/environ"
    done 2>/dev/null
done
"""
"""For `/bin/sh -c SCRIPT sh NAME=VALUE`: kills all that carry this variable, until none is left.

It uses what the shell has built in and nothing else: an image may hold no other program.
"""

NUDGE_MARKED = """\
code=1
for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    [ "$pid" = "$$" ] && continue
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            *"$1"*) kill -INT "$pid" && code=0; break;;
        esac
    done <"$folder/environ"
done 2>/dev/null
exit $code
"""
"""For `/bin/sh -c SCRIPT sh NAME=VALUE`: one SIGINT to all that carry this variable; exit code 1
if nobody does."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def argv_inside(
    cli: DockerCli, call: InstanceCall, folder: Path, command: InnerCommand
) -> list[str]:
    """The argv that runs a command in its service's first container. Raises PerdureError."""
    container = await running_container(cli, call, command.service)
    found = await cli.find()
    words = ["exec", "--interactive"]
    if command.user is not None:
        words += ["--user", command.user]
    if command.workdir is not None:
        words += ["--workdir", command.workdir]
    hidden = {name: value for name, value in command.env.items() if not _is_heeded(name)}
    for name, value in command.env.items():
        words += ["--env", name if name in hidden else f"{name}={value}"]
    words += [container.id, *command.argv]
    if not hidden:
        return [*found.docker, *words]
    # Values are read from a file, and gone with it: a command line is for everybody to read.
    path = folder / f"exec-{token_hex(8)}.env"
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in hidden.items())
    write_private(path, "".join(exports).encode("utf-8", "surrogateescape"))
    script = '. "$0"; rm -f "$0"; exec "$@"'
    sudo, program = found.docker[:-1], found.docker[-1]
    return [*sudo, "/bin/sh", "-c", script, str(path), program, *words]


def _is_heeded(name: str) -> bool:
    """Whether docker's own client would heed a variable, or a shell cannot hand it on."""
    return (
        name in ENGINE_VARIABLES
        or name.startswith(("DOCKER_", "LD_", "GO", "BUILD"))
        or not _PLAIN_NAME.fullmatch(name)
    )


async def run_inside(
    cli: DockerCli, call: InstanceCall, service: str | None, command: str, timeout_seconds: float
) -> tuple[int, str]:
    """Run a shell's command line in the service (P44): its exit code and last output.

    What is over its limit, or cancelled, is ended inside, too (C33). Raises TimeoutError,
    PerdureError.
    """
    container = await running_container(cli, call, service)
    variable = f"{MARKER}=exec/{call.project}/{token_hex(8)}"
    words = ("exec", "--env", variable, container.id, "/bin/sh", "-c", command)
    try:
        done = await cli.docker(*words, timeout_seconds=timeout_seconds, wait=False)
    except (TimeoutError, asyncio.CancelledError):
        await asyncio.shield(_end_marked(cli, container.id, variable))
        raise
    return done.code, (done.out + done.err)[-OUTPUT_CHARACTERS:]


async def _end_marked(cli: DockerCli, container: str, variable: str) -> None:
    with contextlib.suppress(DockerMissing, TimeoutError):
        await cli.docker(
            *("exec", "--user", "0", container, "/bin/sh", "-c", END_MARKED, "sh", variable),
            timeout_seconds=10,
            wait=False,
        )


async def running_container(cli: DockerCli, call: InstanceCall, service: str | None) -> Container:
    """The first running container of a service, of the only one if `service` is None.

    Raises PerdureError.
    """
    try:
        own = await cli.containers(*labels_of(call.pool_uuid, call.number), wait=False)
    except (DockerFailed, TimeoutError) as error:
        raise PerdureError(f"environment {call.environment}: {error}") from None
    running = [c for c in own if c.state == "running" and not c.is_one_off]
    wanted = [c for c in running if service in (None, c.service)]
    names = ", ".join(sorted({c.service for c in running})) or "none"
    if service is None and len({c.service for c in wanted}) > 1:
        raise PerdureError(
            f"environment {call.environment} has several services; name one of {names}"
        )
    if not wanted:
        called = "service" if service is None else f"service {service}"
        raise PerdureError(
            f"environment {call.environment} has no {called} that runs; these run: {names}"
        )
    return min(wanted, key=lambda container: container.name)
