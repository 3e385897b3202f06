"""Waiting until what a suite leaves in its pool is gone: its worker may go only then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from perdure.cli.console import printable
from perdure.cli.instances import View, named, reason_of
from perdure.errors import PerdureError

PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.5
FIRST_WORD_SECONDS = 1.0
"""What is gone by then is not spoken of."""
DEAF_SECONDS = 15.0
"""A pool that does not answer for so long is not waited for."""

SHOWN = 5

Look = Callable[[], Awaitable[dict[str, Any] | None]]
"""Asks a pool for its view; None: it is closed, and has nothing."""


@dataclass(frozen=True)
class Leftovers:
    """What of a suite is still in its pool."""

    instances: Collection[View] = ()
    """On their way out, or held by a task that is closed."""
    waiting: int = 0
    """Requests of tasks that are closed."""

    def __bool__(self) -> bool:
        return bool(self.instances or self.waiting)


def of_suite(suite: str, environments: Collection[str]) -> Callable[[View], Leftovers]:
    """What is left of a suite that is closed.

    An instance that others need, or that is kept, is no leftover: the pool stops at once what
    nobody needs.
    """

    def find(view: View) -> Leftovers:
        held = {lease["request_id"] for lease in view["leases"] if lease["suite"] == suite}
        return Leftovers(
            [
                instance
                for instance in view["instances"]
                if instance["request_id"] in held
                or (instance["state"] == "stopping" and instance["env_name"] in environments)
            ],
            sum(waiter["suite"] == suite for waiter in view["waiting"]),
        )

    return find


def going(host: str | None = None, environment: str | None = None) -> Callable[[View], Leftovers]:
    """The instances on their way out: of a pool, of one host, or of one environment."""

    def find(view: View) -> Leftovers:
        return Leftovers(
            [
                instance
                for instance in view["instances"]
                if instance["state"] == "stopping"
                and host in (None, instance["host"])
                and environment in (None, instance["env_name"])
            ]
        )

    return find


async def until_gone(
    look: Look,
    find: Callable[[View], Leftovers],
    tell: Callable[[str], None],
    *,
    leave: asyncio.Event | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Leftovers:
    """Wait until nothing is left; returns what still is when patience or `leave` ends the wait."""
    leave = leave or asyncio.Event()
    began = heard = time.monotonic()
    left, told = Leftovers(), ""
    while True:
        try:
            async with asyncio.timeout(DEAF_SECONDS):
                view = await look()
            left, heard = find(view) if view else Leftovers(), time.monotonic()
        except (PerdureError, TimeoutError):  # its worker has just died: another one answers
            if time.monotonic() - heard >= DEAF_SECONDS:
                tell("the pool does not answer; see with `perdure pool` what of it is not gone yet")
                return left
        else:
            if not left:
                return left
        now = time.monotonic()
        if now - began >= patience_seconds or await _set_within(leave, LOOK_SECONDS):
            return left
        if now - began >= FIRST_WORD_SECONDS and not told:
            told = f"waiting until {text_of(left)} (Ctrl-C leaves)"
            tell(told)


def text_of(left: Leftovers) -> str:
    """`2 instances are gone: shop (pool_shop_1), shop (pool_shop_2)`."""
    instances = list(left.instances)
    if not instances:
        return "the pool has forgotten the suite"
    names = ", ".join(named(instance) for instance in instances[:SHOWN])
    more = f" and {len(instances) - SHOWN} more" if len(instances) > SHOWN else ""
    count = "1 instance is" if len(instances) == 1 else f"{len(instances)} instances are"
    return f"{count} gone: {names}{more}"


def left_lines(left: Leftovers, pool: str) -> list[str]:
    """What is said of instances that nobody saw end."""
    if not left.instances:
        return []
    lines = [
        f"not gone yet: environment {named(i)} on {printable(i['host'])}"
        + (f": {reason_of(i)}" if i["reason"] else "")
        for i in list(left.instances)[:SHOWN]
    ]
    if len(left.instances) > SHOWN:
        lines.append(f"and {len(left.instances) - SHOWN} more")
    more = "" if pool == "default" else f" --pool {pool}"
    return [
        *lines,
        f"the next run on the pool ends them; so does: perdure pool shutdown{more}",
    ]


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
