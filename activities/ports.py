"""Whether ports are free on this machine (P35, P37), and from which range they come.

Which instance gets which port is the pool's to decide (`perdure.core.ports`); a machine only says
what somebody else has. Ports for servers that a step starts itself are chosen here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Container, Iterable

from activities.held_ports import Holds
from perdure.core.ports import PortRange
from perdure.errors import PerdureError

Look = Callable[[], Awaitable[str]]
"""What `docker ps --format '{{.Ports}}'` prints; nothing where there is no engine."""

CACHED_SECONDS = 1.0
"""How long an answer of the engine is good for: a burst of starts asks once."""

ANSWER_SECONDS = 0.1
"""How long somebody on a port has to answer (P37); on the own machine that is long."""

_LAST_PORT = 65_535
_RANGE = re.compile(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*")
_PUBLISHED = re.compile(r"(?:^|[\s,])(?:\S*:)?(\d{1,5})(?:-(\d{1,5}))?->")


def port_range(variable: Callable[[str], str | None]) -> PortRange:
    """The range of `DT_PORT_RANGE`, else of its START and END, else 8000 to 20000 (P35).

    What cannot be read counts as not said.
    """
    whole = _RANGE.fullmatch(variable("DT_PORT_RANGE") or "")
    if whole and (found := _checked(int(whole[1]), int(whole[2]))):
        return found
    ends = [variable("DT_PORT_RANGE_START"), variable("DT_PORT_RANGE_END")]
    usual = PortRange()
    low, high = (
        int(said) if (said := (text or "").strip()).isdecimal() and said.isascii() else default
        for text, default in zip(ends, (usual.low, usual.high), strict=True)
    )
    return _checked(low, high) or usual


def published(printed: str) -> set[int]:
    """The host's ports in the column `Ports` of `docker ps`, ranges included.

    >>> sorted(published("0.0.0.0:8000-8002->80-82/tcp, [::]:9000->90/tcp, 5432/tcp"))
    [8000, 8001, 8002, 9000]
    """
    ports: set[int] = set()
    for low, high in _PUBLISHED.findall(printed):
        first, last = int(low), int(high or low)
        if first <= last <= _LAST_PORT:
            ports.update(range(first, last + 1))
    return ports


class PortProbe:
    """Tells which of some ports are taken."""

    def __init__(self, look: Look | None = None) -> None:
        """`look` asks the engine; None: there is none on this host."""
        self._look = look
        self._published: set[int] = set()
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def taken(self, ports: Iterable[int], holds: Holds | None = None) -> list[int]:
        """Those that somebody has, in order. Blocks the loop at no time.

        The others are held by `holds` from then on, so that nobody else finds them free; None:
        who holds what is not asked.
        """
        wanted = sorted(set(ports))
        if not wanted:
            return []
        ours = [port for port in wanted if holds is None or holds.take(port)]
        by_engine = await self._by_engine()
        free = [port for port in ours if port not in by_engine]
        is_taken = await asyncio.gather(*map(_is_taken, free))
        left = {port for port, taken in zip(free, is_taken, strict=True) if not taken}
        return [port for port in wanted if port not in left]

    async def _by_engine(self) -> set[int]:
        if self._look is None:
            return set()
        async with self._looking:  # those who come meanwhile get the same answer
            if time.monotonic() - self._looked > CACHED_SECONDS:
                self._published = published(await self._look())
                self._looked = time.monotonic()
        return self._published


class NoPortLeft(PerdureError):
    """The range is used up; the text says which."""


class FreePorts:
    """Chooses ports of this machine for servers of which no pool knows (P57)."""

    def __init__(
        self,
        probe: PortProbe,
        within: PortRange,
        spoken_for: Callable[[], Container[int]] = frozenset,
    ) -> None:
        """`spoken_for` tells which ports are somebody's although nobody may listen there."""
        self._probe = probe
        self._within = within
        self._spoken_for = spoken_for

    async def choose(self, count: int, holds: Holds) -> list[int]:
        """Free ports, different ones, which `holds` holds. Raises NoPortLeft."""
        within, spoken_for = self._within, await asyncio.to_thread(self._spoken_for)
        first = random.randrange(len(within))  # others who choose begin elsewhere (P36)
        numbers = (within.low + (first + step) % len(within) for step in range(len(within)))
        rest = (port for port in numbers if port not in spoken_for and port not in holds)
        chosen: list[int] = []
        while len(chosen) < count:
            tried = list(itertools.islice(rest, count - len(chosen)))
            if not tried:
                raise NoPortLeft(
                    f"of the ports {within.low}-{within.high} {len(chosen)} are free, and {count} "
                    "are needed; widen DT_PORT_RANGE"
                )
            taken = await self._probe.taken(tried, holds)
            chosen += [port for port in tried if port not in taken]
        return chosen


async def _is_taken(port: int) -> bool:
    if not all(_can_bind(family, address, port) for family, address in _PLACES):
        return True
    # Whoever answers has the port, though he may have it in another network namespace.
    return any(await asyncio.gather(*(_answers(address, port) for address in _OWN)))


_PLACES = (
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET, "0.0.0.0"),
    (socket.AF_INET6, "::"),
)
_OWN = ("127.0.0.1", "::1")


def _can_bind(family: socket.AddressFamily, address: str, port: int) -> bool:
    """Whether a server could listen there; where IPv6 is not to be had, nobody is in the way."""
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return True
    with probe:
        # As servers do: connections that are over and linger are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(OSError):
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return family == socket.AF_INET6 and not _is_in_use(error)
    return True


def _is_in_use(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


async def _answers(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _checked(low: int, high: int) -> PortRange | None:
    return PortRange(low, high) if 0 < low <= high <= _LAST_PORT else None
