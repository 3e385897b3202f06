"""What an instance was when it was ready, and whether it still is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from activities.docker_cli import DockerCli
from activities.docker_containers import POOL_LABEL, Container, Ran

WATCH_SECONDS = 2.0

_FILE = "containers.json"
"""In an instance's folder."""


class Listing:
    """What the engine says of all pools' containers: asked once for all who watch."""

    def __init__(self, cli: DockerCli) -> None:
        self._cli = cli
        self._asking: asyncio.Task[Mapping[tuple[str, str], list[Container]]] | None = None
        self._asked = float("-inf")

    async def of(self, pool_uuid: str, number: int) -> list[Container]:
        """The containers of an instance, at most half a watch's pause ago.

        Raises as `DockerCli.containers` does, without waiting for the engine.
        """
        is_old = time.monotonic() - self._asked > WATCH_SECONDS / 2
        if self._asking is None or (self._asking.done() and is_old):
            self._asked = time.monotonic()
            self._asking = asyncio.create_task(self._ask())
        # Shielded: it is not this one's alone.
        return (await asyncio.shield(self._asking)).get((pool_uuid, str(number)), [])

    async def _ask(self) -> Mapping[tuple[str, str], list[Container]]:
        found: dict[tuple[str, str], list[Container]] = {}
        for container in await self._cli.containers(POOL_LABEL, wait=False):
            found.setdefault((container.pool, container.instance), []).append(container)
        return found


def note_ports(folder: Path, ports: Mapping[str, int]) -> None:
    """Before it comes up: with which ports."""
    _write(folder, {"ports": dict(ports)})


def note_ready(folder: Path, ports: Mapping[str, int], own: Iterable[Container]) -> None:
    """When it is healthy: which containers run."""
    running = {id: [ran.service, ran.serves] for id, ran in running_of(own).items()}
    _write(folder, {"ports": dict(ports), "running": running})


def running_of(own: Iterable[Container]) -> dict[str, Ran]:
    """The containers that run, by id."""
    return {
        c.id: Ran(c.service, c.serves) for c in own if c.state == "running" and not c.is_one_off
    }


def noted_ports(folder: Path) -> dict[str, int] | None:
    """The ports with which it came up last; None: nobody has brought it up."""
    ports = _read(folder).get("ports")
    return ports if isinstance(ports, dict) else None


def noted_running(folder: Path) -> dict[str, Ran]:
    """The containers that ran when it was ready last, by id."""
    running = _read(folder).get("running")
    if not isinstance(running, dict):
        return {}
    # An earlier version noted a service alone.
    return {
        id: Ran(*noted) if isinstance(noted, list) else Ran(noted) for id, noted in running.items()
    }


def _read(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(folder: Path, content: Mapping[str, object]) -> None:
    draft = folder / f"{_FILE}.new"
    draft.write_text(json.dumps(content))
    draft.replace(folder / _FILE)
