"""Free ports: what this machine says, and the range to choose from (P35, P37)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest

from activities import ports
from activities.ports import PortProbe, port_range, published
from perdure.core.ports import PortRange


@contextlib.contextmanager
def held(address: str, *, family: int = socket.AF_INET, listen: bool = True) -> Iterator[int]:
    """A port that somebody has."""
    with socket.socket(family, socket.SOCK_STREAM) as owner:
        if family == socket.AF_INET6:
            owner.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            owner.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        if listen:
            owner.listen()
        yield owner.getsockname()[1]


# --- What is taken ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        ("0.0.0.0", socket.AF_INET),
        ("127.0.0.2", socket.AF_INET),
        ("::1", socket.AF_INET6),
        ("::", socket.AF_INET6),
    ],
)
async def test_a_port_that_somebody_listens_on_is_taken(address: str, family: int) -> None:
    with held(address, family=family) as port:
        assert await PortProbe().taken([port]) == [port]
    assert await PortProbe().taken([port]) == []


async def test_a_port_that_is_bound_and_not_listened_on_is_taken() -> None:
    with held("127.0.0.1", listen=False) as port:
        assert await PortProbe().taken([port]) == [port]


async def test_connections_that_linger_keep_nobody_from_a_port() -> None:
    with held("127.0.0.1") as port:
        pass
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read()  # the server closed first: its end waits for stragglers
    writer.close()
    server.close()
    await server.wait_closed()
    assert await PortProbe().taken([port]) == []


async def test_a_host_without_ipv6_has_free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """PD13: there, every port counted as taken."""
    whole = socket.socket

    def without(family: int = -1, *rest: int, **more: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return whole(family, *rest, **more)

    with held("127.0.0.1") as port:
        pass
    monkeypatch.setattr(socket, "socket", without)
    assert await PortProbe().taken([port]) == []


async def test_many_ports_are_told_in_order_and_each_once() -> None:
    with held("127.0.0.1") as one, held("127.0.0.1") as two:
        free = next(p for p in range(20_000, 65_000) if p not in (one, two))
        told = await PortProbe().taken([two, free, one, two])
        assert [port for port in told if port != free] == sorted([one, two])


async def test_a_port_that_a_container_publishes_is_taken() -> None:
    with held("127.0.0.1") as free:
        pass
    first, last = free + 1, free + 3

    async def look() -> str:
        return f"0.0.0.0:{first}-{last}->80-82/tcp, [::]:{first}-{last}->80-82/tcp\n5432/tcp\n"

    assert await PortProbe(look).taken(range(free, last + 1)) == [first, first + 1, last]


async def test_a_burst_of_questions_asks_the_engine_once_and_blocks_nobody() -> None:
    """PD13: each look at one port ran two commands on the event loop."""
    asked, ticks = 0, 0

    async def look() -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2)
        return ""

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    probe = PortProbe(look)
    await asyncio.gather(*(probe.taken([41_000 + n]) for n in range(40)))
    ticking.cancel()
    assert asked == 1
    assert ticks > 3


async def test_a_later_question_asks_the_engine_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["", "0.0.0.0:7042->80/tcp"]

    async def look() -> str:
        return answers.pop(0)

    probe = PortProbe(look)
    assert await probe.taken([7_042]) == []
    monkeypatch.setattr(ports, "CACHED_SECONDS", -1.0)  # as if that were long ago
    assert await probe.taken([7_042]) == [7_042]


# --- What docker prints -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("", []),
        ("80/tcp, 443/tcp", []),
        ("0.0.0.0:8080->80/tcp", [8080]),
        ("0.0.0.0:8080->80/tcp, :::8080->80/tcp", [8080]),
        ("[::]:8080->80/udp", [8080]),
        ("127.0.0.1:9000->9000/tcp\n0.0.0.0:9001->1/tcp", [9000, 9001]),
        ("0.0.0.0:8000-8003->8000-8003/tcp", [8000, 8001, 8002, 8003]),
        ("8000-8001->80-81/tcp", [8000, 8001]),
        ("0.0.0.0:99999->80/tcp, nonsense->x, 0.0.0.0:5-4->1/tcp", []),
    ],
)
def test_published_ports_are_read_with_their_ranges(printed: str, expected: list[int]) -> None:
    """PD13: ranges were not understood."""
    assert sorted(published(printed)) == expected


# --- The range --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, PortRange(8000, 20000)),
        ({"DT_PORT_RANGE": "9000-9100"}, PortRange(9000, 9100)),
        ({"DT_PORT_RANGE": " 9000 - 9000 "}, PortRange(9000, 9000)),
        ({"DT_PORT_RANGE": "9000"}, PortRange(8000, 20000)),
        ({"DT_PORT_RANGE": "9100-9000"}, PortRange(8000, 20000)),
        ({"DT_PORT_RANGE": "1-99999"}, PortRange(8000, 20000)),
        ({"DT_PORT_RANGE": "x", "DT_PORT_RANGE_START": "9000"}, PortRange(9000, 20000)),
        (
            {"DT_PORT_RANGE_START": "7000", "DT_PORT_RANGE_END": "7010"},
            PortRange(7000, 7010),
        ),
        ({"DT_PORT_RANGE_START": "-3", "DT_PORT_RANGE_END": "²"}, PortRange(8000, 20000)),
    ],
)
def test_the_range_is_read_from_the_environment(
    variables: dict[str, str], expected: PortRange
) -> None:
    """P35."""
    assert port_range(variables.get) == expected
