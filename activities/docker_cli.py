"""Calls of docker and compose on this host, which wait for an engine that is being restarted.

What only looks asks the engine itself first (`activities.docker_engine`), and goes through the
command line where that cannot tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.commands import Finished, run_command
from activities.docker_containers import (
    FORMAT,
    INSTANCE_LABEL,
    PROJECT_LABEL,
    Container,
    Kind,
    Thing,
    parse_containers,
)
from activities.docker_engine import Engine, EngineSilent
from activities.marker import MARKER
from perdure.docker_check import Docker, DockerMissing, EngineAway, engine_environment, find_docker

SHORT_SECONDS = 30.0
"""For calls that only ask: long enough for a busy engine."""

AWAY_SECONDS = 90.0
"""So long a call waits for an engine that does not answer: it may be restarting."""

_LISTED = {
    "container": ("ps", "--all", "--no-trunc", "--format", "{{.ID}}"),
    "network": ("network", "ls", "--no-trunc", "--format", "{{.ID}}"),
    "volume": ("volume", "ls", "--format", "{{.Name}}"),
}
_OF_THINGS = "".join(f'\t{{{{.Label "{label}"}}}}' for label in (INSTANCE_LABEL, PROJECT_LABEL))

_AWAY = re.compile(
    r"cannot connect to the docker daemon|failed to connect to the docker api"
    r"|error during connect|is the docker daemon running|\bEOF\s*$",
    re.IGNORECASE | re.MULTILINE,
)


class DockerCli:
    """The docker of this host."""

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        *,
        away_seconds: float = AWAY_SECONDS,
        asks_engine: bool = True,
    ) -> None:
        """`variables`: the environment in which docker is looked for; None: this process's own.

        Without `asks_engine` all goes through the command line.
        """
        self._base = engine_environment(variables)
        self._away_seconds = away_seconds
        self._asks_engine = asks_engine
        self._found: Docker | None = None
        self._known_engine: Engine | None = None

    def seen_by(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a call with these variables."""
        return {**self._base, **variables}

    async def find(self, *, wait: bool = True) -> Docker:
        """How docker is called here; looked for until it is found once.

        Raises DockerMissing, and EngineAway if its engine stays away (at once, without `wait`).
        """
        until = time.monotonic() + self._away_seconds
        while self._found is None:
            try:
                self._found = await asyncio.to_thread(find_docker, self._base)
            except EngineAway:
                if not wait or time.monotonic() > until:
                    raise
                await asyncio.sleep(1)
        return self._found

    async def docker(
        self, *words: str, timeout_seconds: float = SHORT_SECONDS, wait: bool = True
    ) -> Finished:
        """Call docker. Raises TimeoutError, and EngineAway as `find` does."""
        found = await self.find(wait=wait)
        return await self._call([*found.docker, *words], {}, timeout_seconds, None, wait=wait)

    async def compose(
        self,
        project: str,
        files: Sequence[Path],
        *words: str,
        variables: Mapping[str, str],
        timeout_seconds: float = SHORT_SECONDS,
        marker: str | None = None,
    ) -> Finished:
        """Call compose for a project; of the environment it sees `variables` alone.

        A call with a `marker` can be found and ended (`activities.marker`) after this worker's
        death. Raises TimeoutError and EngineAway.
        """
        found = await self.find()
        argv = [*found.compose, "--project-name", project]
        for file in files:
            argv += ["--file", str(file)]
        known = {**variables, **({MARKER: marker} if marker else {})}
        folder = files[0].parent if files else None
        return await self._call([*argv, *words], known, timeout_seconds, folder)

    async def containers(self, *labels: str, wait: bool = True) -> list[Container]:
        """All containers with these labels (`name` or `name=value`), ended ones included.

        Raises DockerMissing, EngineAway, TimeoutError; DockerFailed for what docker refuses.
        """
        with contextlib.suppress(EngineSilent):
            return await (await self._engine(wait=wait)).containers(labels)
        words = ["ps", "--all", "--no-trunc", "--format", FORMAT, *_filters(labels)]
        return parse_containers(checked(await self.docker(*words, wait=wait)).out)

    async def things(self, kind: Kind, *labels: str) -> list[Thing]:
        """All of a kind with these labels. Raises as `containers` does."""
        with contextlib.suppress(EngineSilent):
            return await (await self._engine()).things(kind, labels)
        *words, shown = _LISTED[kind]
        done = checked(await self.docker(*words, shown + _OF_THINGS, *_filters(labels)))
        lines = (line.replace("<no value>", "").split("\t") for line in done.out.splitlines())
        return [Thing(*line) for line in lines if len(line) == 3]

    async def restarts(self, containers: Sequence[str]) -> dict[str, int]:
        """How often each container was restarted, by id. Raises as `containers` does."""
        with contextlib.suppress(EngineSilent):
            return await (await self._engine()).restarts(containers)
        words = ("inspect", "--format", "{{.Id}} {{.RestartCount}}", *containers)
        lines = checked(await self.docker(*words)).out.split()
        return {id: int(count) for id, count in zip(lines[::2], lines[1::2], strict=False)}

    async def published_ports(self) -> str:
        """What docker prints of the ports that containers have; nothing if it does not answer."""
        words = ("ps", "--format", "{{.Ports}}")
        try:
            async with asyncio.timeout(2):  # P37
                with contextlib.suppress(EngineSilent):
                    return await (await self._engine(wait=False)).published_ports()
                return (await self.docker(*words, wait=False)).out
        except (DockerMissing, TimeoutError):
            return ""

    async def logs(self, container: str, lines: int) -> list[str]:
        """The last lines that a container printed; none if they cannot be had."""
        try:
            done = await self.docker("logs", "--tail", str(lines), container, timeout_seconds=10)
        except (DockerMissing, TimeoutError):
            return []
        return done.lines if done.code == 0 else []

    # --- Inside -----------------------------------------------------------------------------

    async def _engine(self, *, wait: bool = True) -> Engine:
        """Raises EngineSilent, and as `find` does."""
        found = await self.find(wait=wait)
        if not self._asks_engine:
            raise EngineSilent("it is not to be asked")
        if self._known_engine is None:
            self._known_engine = Engine(found, self._base)
        return self._known_engine

    async def _call(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        timeout_seconds: float,
        folder: Path | None,
        *,
        wait: bool = True,
    ) -> Finished:
        until = time.monotonic() + self._away_seconds
        while True:
            done = await self._run(argv, variables, timeout_seconds, folder)
            if done.code == 0 or not _AWAY.search(done.err):
                return done
            if not wait or time.monotonic() > until:
                said = done.err.strip().splitlines()[-1]
                raise EngineAway(f"docker's engine does not answer: {said}; start it")
            await asyncio.sleep(1)

    async def _run(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        timeout_seconds: float,
        folder: Path | None,
    ) -> Finished:
        stdin: bytes | None = None
        if self._found and self._found.uses_sudo:
            argv, stdin = _through_sudo(argv, variables)
        return await run_command(
            argv,
            self.seen_by(variables),
            timeout_seconds,
            cwd=folder if folder and folder.is_dir() else None,
            stdin=stdin,
        )


def _filters(labels: Sequence[str]) -> list[str]:
    return [word for label in labels for word in ("--filter", f"label={label}")]


class DockerFailed(Exception):
    """Docker refused something; the text is what it said last."""


def checked(done: Finished) -> Finished:
    """The same, if it went well. Raises DockerFailed."""
    if done.code:
        said = [line for line in done.lines if line.strip()]
        raise DockerFailed(said[-1].strip() if said else f"docker exited with {done.code}")
    return done


def _through_sudo(
    argv: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[str], bytes | None]:
    """Variables on the standard input: on the command line everybody could read them."""
    if not variables:
        return list(argv), None
    exports = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
    reading = ["sh", "-c", 'eval "$(cat)"; exec "$@"', "sh"]
    return [*argv[:2], *reading, *argv[2:]], exports.encode()
