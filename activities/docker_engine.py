"""The engine's own API, by the `docker` SDK: a look costs 1 ms in place of a command line's 20.

Only an aid: where the SDK is not installed, the engine is not behind a socket of this machine, or
it does not answer, `EngineSilent` is raised and the caller goes through the command line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from activities.commands import run_command
from activities.docker_containers import Container, Kind, Thing, container_of, thing_of
from perdure.docker_check import Docker

if TYPE_CHECKING:
    from docker import APIClient

_T = TypeVar("_T")

ANSWER_SECONDS = 5
"""How long the engine has to answer."""

REST_SECONDS = 30.0
"""So long the socket is left alone after it gave no answer in time."""

_THREADS = 4

_log = logging.getLogger("perdure.instances")


class EngineSilent(Exception):
    """The SDK cannot tell; the command line may."""


class Engine:
    """The engine that `docker` on this host talks to, asked without `docker`."""

    def __init__(
        self,
        docker: Docker,
        variables: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`variables`: the environment of docker's calls, which says where its engine is.

        `clock`: seconds, from any beginning.
        """
        self._clock = clock
        self._docker = docker
        self._variables = dict(variables)
        self._client: APIClient | None = None
        self._connecting = asyncio.Lock()
        self._rests_until = float("-inf")
        # Threads of its own: an engine that hangs must not take those of everybody else.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker-engine")

    async def containers(self, labels: Collection[str]) -> list[Container]:
        """All containers with these labels, ended ones included. Raises EngineSilent."""
        found = await self._ask(
            lambda client: client.containers(all=True, filters={"label": list(labels)})
        )
        return [container_of(each) for each in found]

    async def things(self, kind: Kind, labels: Collection[str]) -> list[Thing]:
        """All of a kind that have these labels. Raises EngineSilent."""
        filters = {"label": list(labels)}

        def ask(client: APIClient) -> list[Thing]:
            match kind:
                case "container":
                    found = client.containers(all=True, filters=filters)
                case "network":
                    found = client.networks(filters=filters)
                case "volume":
                    found = client.volumes(filters=filters)["Volumes"] or []
            name = "Name" if kind == "volume" else "Id"
            return [thing_of(each[name], each.get("Labels") or {}) for each in found]

        return await self._ask(ask)

    async def restarts(self, containers: Sequence[str]) -> dict[str, int]:
        """How often each container was restarted, by id. Raises EngineSilent."""

        def ask(client: APIClient) -> dict[str, int]:
            return {id: int(client.inspect_container(id)["RestartCount"]) for id in containers}

        return await self._ask(ask)

    async def published_ports(self) -> str:
        """The ports that containers have, as `docker ps` would print them. Raises EngineSilent."""
        found = await self._ask(lambda client: client.containers())
        ports = (port for each in found for port in each["Ports"] if port.get("PublicPort"))
        return "\n".join(f"{p.get('IP', '')}:{p['PublicPort']}->{p['PrivatePort']}" for p in ports)

    # --- Inside -----------------------------------------------------------------------------

    async def _ask(self, question: Callable[[APIClient], _T]) -> _T:
        if self._docker.uses_sudo or self._clock() < self._rests_until:
            raise EngineSilent
        began = self._clock()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                client = await self._connected()
                return await self._in_thread(lambda: question(client))
        except EngineSilent:
            raise
        except asyncio.CancelledError:
            # Whoever waits less than the limit cancels a question that hangs.
            if self._clock() - began > ANSWER_SECONDS / 4:
                self._rests_until = self._clock() + REST_SECONDS
            raise
        except TimeoutError:
            self._rests_until = self._clock() + REST_SECONDS
            raise EngineSilent("no answer in time") from None
        except Exception as error:  # of the SDK, of requests, or an answer of another shape
            self._client = None
            _log.debug("docker's engine is asked by the command line: %s", error)
            raise EngineSilent(str(error)) from error

    async def _connected(self) -> APIClient:
        """A client whose engine answered a ping when it was made."""
        async with self._connecting:
            if self._client is None:
                host = await self._host()
                self._client = await self._in_thread(lambda: _connect(host))
            return self._client

    async def _host(self) -> str:
        """The socket that docker's calls go to: contexts and settings are docker's to read."""
        argv = [*self._docker.docker, "context", "inspect"]
        argv += ["--format", "{{.Endpoints.docker.Host}}"]
        host = self._variables.get("DOCKER_HOST", "")
        if not host:
            done = await run_command(argv, self._variables, ANSWER_SECONDS)
            host = done.out.strip() if done.code == 0 else ""
        if not host.startswith("unix://"):
            raise EngineSilent("the engine is not behind a socket of this machine")
        return host

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _connect(host: str) -> APIClient:
    try:
        # Imported here: it costs a worker that has no compose environment nothing.
        from docker import APIClient
    except ImportError as error:
        raise EngineSilent(f"the SDK is not here: {error}") from error
    client = APIClient(base_url=host, version="auto", timeout=ANSWER_SECONDS)
    client.ping()
    return client
