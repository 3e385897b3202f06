"""Removal by labels: of what compose does not find any more, or nobody is left to ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from activities import marker
from activities.docker_cli import DockerCli, checked
from activities.docker_containers import INSTANCE_LABEL, POOL_LABEL, Kind

REMOVE_SECONDS = 60.0
_TRIES = 3
_KINDS: tuple[Kind, ...] = ("container", "network", "volume")
_REMOVED = {
    "container": ("rm", "--force", "--volumes"),
    "network": ("network", "rm"),
    "volume": ("volume", "rm", "--force"),
}


async def remove_by_labels(cli: DockerCli, *labels: str) -> list[str]:
    """Remove containers, networks and volumes with all these labels; says how many of which.

    Nothing there is success. Raises DockerFailed if something stays, DockerMissing, TimeoutError.
    """
    removed = []
    for kind in _KINDS:
        names = [thing.name for thing in await cli.things(kind, *labels)]
        if not names:
            continue
        removed.append(f"{len(names)} {kind}{'s' if len(names) > 1 else ''}")
        for number in range(_TRIES):
            done = await cli.docker(*_REMOVED[kind], *names, timeout_seconds=REMOVE_SECONDS)
            names = [thing.name for thing in await cli.things(kind, *labels)]
            if not names:
                break
            if number == _TRIES - 1:
                checked(done)
            await asyncio.sleep(0.5)  # its removal is under way, or its last user's
    return removed


async def sweep_pool(
    cli: DockerCli, pool_uuid: str, keep: Container[int], *, wait: bool
) -> list[str]:
    """Remove all of a pool's but these instances; says what it was, instance by instance.

    Raises DockerMissing (at once, without `wait`, if the engine does not answer), DockerFailed,
    TimeoutError.
    """
    await cli.find(wait=wait)
    projects = await _instances(cli, pool_uuid)
    removed = []
    for instance, names in sorted(projects.items()):
        if instance.isdecimal() and int(instance) in keep:
            continue
        for project in sorted(names):  # no call of a dead worker may make more of it
            await asyncio.to_thread(marker.sweep, f"compose/{project}")
        mine = (f"{POOL_LABEL}={pool_uuid}", f"{INSTANCE_LABEL}={instance}")
        if found := await remove_by_labels(cli, *mine):
            removed.append(f"{' '.join(sorted(names))}: {', '.join(found)}".removeprefix(": "))
    return removed


async def _instances(cli: DockerCli, pool_uuid: str) -> dict[str, set[str]]:
    """The compose projects of a pool's instances, by the instance's number."""
    found: dict[str, set[str]] = {}
    for kind in _KINDS:
        for thing in await cli.things(kind, f"{POOL_LABEL}={pool_uuid}"):
            found.setdefault(thing.instance, set()).update({thing.project} - {""})
    return found
