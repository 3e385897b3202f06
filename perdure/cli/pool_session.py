"""What `perdure pool` asks of a pool, each to its end: until what was asked for is done."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.clearing import going, left_lines, until_gone
from perdure.cli.console import say
from perdure.cli.instances import Seen, Teller, View, reason_of
from perdure.cli.reading import ROLE, server_to_act, server_to_read
from perdure.config import Settings

if TYPE_CHECKING:
    from perdure.client import PoolHandle
    from perdure.core.pool_definitions import Definition

LOOK_SECONDS = 0.5
RESET_PATIENCE_SECONDS = 600.0
STALLED_SECONDS = 30.0
"""A pool that has not started an instance by then has no room for it."""

_READY = ("clean", "checking", "leased")
_NO_ROOM = (
    "the pool starts none: its hosts have no room (memory, ports, --max-instances), or none is "
    "there; look with `perdure pool`"
)


@dataclass(frozen=True)
class PoolAnswer:
    """What a pool answered, and what is not as it was asked for."""

    pool: str
    told: str
    left: list[str] = field(default_factory=list)
    """Lines for people; empty if all is done."""


async def view_of(name: str) -> dict[str, Any] | None:
    """A pool as it is now; None if it is not open."""
    async with server_to_read(Settings.from_env()) as perdure:
        return await perdure.pool(name).view() if perdure else None


def closed_view(name: str) -> dict[str, Any]:
    """The document of a pool that is not open."""
    lists = ("hosts", "instances", "failures", "leases", "waiting")
    nothing: dict[str, Any] = {name: [] for name in lists}
    return {"pool": name, "open": False, "closing": None, **nothing}


async def reset(name: str, environment: str) -> PoolAnswer:
    """Reset the idle instances of an environment."""
    async with _pool(name) as pool:
        told = await pool.reset(environment)
        deadline = time.monotonic() + RESET_PATIENCE_SECONDS
        while resetting := [
            instance
            for instance in await _instances(pool, environment)
            if instance["doing"] == "resetting" and not instance["wanted_by"]
        ]:
            if time.monotonic() > deadline:
                return PoolAnswer(name, told, [f"{len(resetting)} are still being reset"])
            await asyncio.sleep(LOOK_SECONDS)
        failed = [
            f"environment {environment}: {i['project_name']} is stopped: {i['reason']}"
            for i in await _instances(pool, environment)
            if i["state"] == "stopping"
        ]
        return PoolAnswer(name, told, failed)


async def stop(name: str, environment: str) -> PoolAnswer:
    """Stop the instances of an environment."""
    async with _pool(name) as pool:
        return await _until_gone(pool, await pool.stop(environment), environment)


async def shutdown(name: str) -> PoolAnswer:
    """Stop everything of a pool."""
    async with _pool(name) as pool:
        return await _until_gone(pool, await pool.shutdown())


async def sweep(name: str) -> PoolAnswer:
    """Remove what a pool left on its hosts."""
    async with _pool(name) as pool:
        return PoolAnswer(name, await pool.sweep())


async def prepare(
    name: str, definitions: Sequence[Definition], count: int | None, env_file: Path | None = None
) -> PoolAnswer:
    """Have instances ready: of each definition `count`, by default its `prewarm`, or one.

    Ends when all are up, or when one of them fails.
    """
    from perdure.client import Perdure, WorkerConfig

    settings = Settings.from_env()
    async with await Perdure.connect(settings, role=ROLE) as perdure:
        pool = perdure.pool(name, worker=WorkerConfig(env_file=env_file))
        wanted = {d.name: max(1, d.environment.prewarm) if count is None else count
                  for d in definitions}  # fmt: skip
        told = [await pool.prepare(d, wanted[d.name]) for d in definitions]
        lacking = await _until_ready(pool, definitions, wanted)
        for definition in definitions:
            if definition.name in lacking:  # else it would be tried again for ever
                told.append(await pool.prepare(definition, 0))
                await _until_gone(pool, "", definition.name)
        return PoolAnswer(name, "; ".join(told), [*lacking.values()])


@asynccontextmanager
async def _pool(name: str) -> AsyncIterator[PoolHandle]:
    """A pool that there may be something to ask of."""
    async with server_to_act(Settings.from_env(), "pool") as perdure:
        yield perdure.pool(name)


async def _instances(pool: PoolHandle, environment: str) -> list[View]:
    view = await pool.view()
    return [i for i in view["instances"] if i["env_name"] == environment] if view else []


async def _until_gone(pool: PoolHandle, told: str, environment: str | None = None) -> PoolAnswer:
    async def look() -> dict[str, Any] | None:
        view = await pool.view()
        if view:
            await pool.have_hosts(view)
        return view

    left = await until_gone(look, going(environment=environment), say)
    return PoolAnswer(pool.name, told, left_lines(left, pool.name))


async def _until_ready(
    pool: PoolHandle, definitions: Sequence[Definition], wanted: dict[str, int]
) -> dict[str, str]:
    """Wait for the instances; returns by environment why they are not ready."""
    teller = Teller()
    began = time.monotonic()
    seen = dict.fromkeys(wanted, began)
    """When there was an instance last."""
    keys = {definition.key for definition in definitions}
    patience = _patience_seconds(definitions)
    while True:
        view = await pool.view()
        if view is None:
            return dict.fromkeys(wanted, "the pool was closed meanwhile")
        own = [i for i in view["instances"] if i["key"] in keys]
        for line in teller.lines(Seen(own)):
            say(line)
        ready = Counter(i["env_name"] for i in own if i["doing"] in _READY)
        missing = [name for name, count in wanted.items() if ready[name] < count]
        if not missing:
            return {}
        failed = [failure for failure in view["failures"] if failure["key"] in keys]
        if failed:
            return {f["env_name"]: f"environment {f['env_name']}: {reason_of(f)}" for f in failed}
        now = time.monotonic()
        seen |= {i["env_name"]: now for i in own}
        if stalled := [name for name in missing if now - seen[name] > STALLED_SECONDS]:
            return {name: f"environment {name}: {_NO_ROOM}" for name in stalled}
        if now - began > patience:
            return {name: f"environment {name}: not ready in {patience:.0f} s" for name in missing}
        await asyncio.sleep(LOOK_SECONDS)


def _patience_seconds(definitions: Sequence[Definition]) -> float:
    """How long the slowest of them may take, images and a second try included."""
    return max(
        d.environment.prepare_timeout_seconds
        + 2 * (d.environment.start_timeout_seconds + d.environment.health_timeout_seconds)
        for d in definitions
    )
