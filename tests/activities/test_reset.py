"""Resets against real HTTP servers, and by scripts of a backend that notes them (P40 to P46)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from activities.backend import Backend
from activities.reset import reset
from perdure.core.environments import Environment, Port, ResetEndpoint
from perdure.core.pool_definitions import Definition
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall, InstanceResult
from perdure.reset_endpoints import Patience
from perdure.resets import reset_environments_by_ports

QUICK = Patience(answer_seconds=5, tries=3, pause_seconds=0.01)


@dataclass
class Server:
    """Answers with the next status each time, the last one for ever; notes what it heard."""

    statuses: list[int]
    headers: str = ""
    port: int = 0
    heard: list[str] = field(default_factory=list)
    delay: Callable[[], float] = lambda: 0.0
    body: str = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heard.append(request)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        await asyncio.sleep(self.delay())
        body = self.body or f"said {status}"
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            f"{self.headers}\r\n{body}".encode()
        )
        writer.close()


@asynccontextmanager
async def serving(*statuses: int, **more: Any) -> AsyncIterator[Server]:
    made = Server(list(statuses), **more)
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@dataclass
class Scripts:
    """The part of a backend that runs scripts."""

    codes: list[int | Exception] = field(default_factory=lambda: [0])
    ran: list[tuple[str | None, str, float]] = field(default_factory=list)

    async def exec(
        self, call: InstanceCall, folder: Path, service: str | None, command: str, limit: float
    ) -> tuple[int, str]:
        self.ran.append((service, command, limit))
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if isinstance(code, Exception):
            raise code
        return code, "first line\nlast line\n"


def call(ports: dict[str, int], **environment: Any) -> InstanceCall:
    environment.setdefault("reset_retry_delay_seconds", 0.01)
    environment.setdefault("reset_retries", 0)
    definition = Definition(
        Environment(
            "shop", ports={name: Port(port) for name, port in ports.items()}, **environment
        ),
        "d",
    )
    return InstanceCall("p", "u", 1, "shop", "pool_shop_1", definition.to_json(), ports)


def endpoint(name: str, method: str = "POST", path: str = "/reset", port: str = "SHOP_PORT") -> Any:
    return ResetEndpoint(name, f"http://127.0.0.1:${{{port}}}{path}", method)


async def run(
    wanted: InstanceCall, scripts: Scripts | None = None, patience: Patience = QUICK
) -> InstanceResult:
    backend = cast(Backend, scripts or Scripts([PerdureError("no scripts here")]))
    return await reset(wanted, Path("/"), backend, lambda note: None, patience)


# --- Endpoints --------------------------------------------------------------------------------


async def test_nothing_to_reset_is_success() -> None:
    """P40."""
    assert (await run(call({}))).ok


async def test_endpoints_are_called_in_order_each_with_its_method_and_no_body() -> None:
    """P42, P43."""
    async with serving(200) as server:
        wanted = call(
            {"SHOP_PORT": server.port},
            reset_endpoints=(endpoint("b"), endpoint("a", "DELETE", "/all")),
        )
        assert (await run(wanted)).ok
    first, second = (request.lower() for request in server.heard)
    assert first.startswith("post /reset ")
    assert second.startswith("delete /all ")
    assert "content-type: application/json" in first
    assert "content-length: 0" in first or "content-length" not in first


async def test_every_failure_of_an_endpoint_is_tried_again_and_204_is_success() -> None:
    async with serving(500, 404, 204) as server:
        wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
        assert (await run(wanted)).ok
    assert len(server.heard) == 3


async def test_the_last_answer_is_told_with_environment_and_address() -> None:
    async with serving(500, 500, 503) as server:
        wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
        result = await run(wanted)
    assert not result.ok
    assert result.reason.startswith("environment shop: reset failed: ")
    assert f"POST http://127.0.0.1:{server.port}/reset: status 503: said 503" in result.reason


async def test_what_an_endpoint_says_is_told_without_the_secrets_of_the_environment() -> None:
    async with serving(500, body="no login with pa55word") as server:
        wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
        backend, notes = cast(Backend, Scripts()), list[str]()
        result = await reset(wanted, Path("/"), backend, notes.append, QUICK, secrets=["pa55word"])
    assert "no login with ***" in result.reason
    assert "pa55word" not in "".join([result.reason, *notes])


async def test_a_redirection_is_no_success() -> None:
    async with serving(302, headers="Location: /elsewhere\r\n") as server:
        wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
        assert "302" in (await run(wanted)).reason


async def test_a_refused_connection_is_tried_again_and_told() -> None:
    async with serving(200) as server:
        pass
    wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
    result = await run(wanted)
    assert not result.ok
    assert str(server.port) in result.reason


async def test_a_read_timeout_is_tried_again() -> None:
    """PD17: it raised what nobody caught."""
    slow = iter([5.0, 0.0])
    async with serving(200, delay=lambda: next(slow, 0.0)) as server:
        wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
        assert (await run(wanted, patience=Patience(0.3, 3, 0.01))).ok
    assert len(server.heard) == 2


async def test_after_read_timeouts_the_scripts_are_run() -> None:
    """PD17: nor was it followed by the scripts."""
    scripts = Scripts()
    async with serving(200, delay=lambda: 5.0) as server:
        wanted = call(
            {"SHOP_PORT": server.port},
            reset_endpoints=(endpoint("api"),),
            reset_scripts={"db": "/reset.sh"},
        )
        assert (await run(wanted, scripts, Patience(0.1, 2, 0.01))).ok
    assert scripts.ran == [("db", "/reset.sh", 60.0)]


async def test_a_placeholder_that_cannot_be_filled_is_an_error_that_names_it() -> None:
    """PD18: the endpoint was skipped, and the reset reported success."""
    result = await run(call({"SHOP_PORT": 1}, reset_endpoints=(endpoint("api", port="NONE"),)))
    assert not result.ok
    assert "${NONE}" in result.reason
    assert "SHOP_PORT" in result.reason


async def test_with_such_a_placeholder_the_scripts_are_run() -> None:
    """PD18."""
    scripts = Scripts()
    wanted = call(
        {}, reset_endpoints=(endpoint("api", port="NONE"),), reset_scripts={"db": "/reset.sh"}
    )
    assert (await run(wanted, scripts)).ok
    assert len(scripts.ran) == 1


async def test_an_endpoint_that_asks_for_patience_gets_it() -> None:
    async with serving(503, 200, headers="Retry-After: 1\r\n") as server:
        wanted = call({"SHOP_PORT": server.port}, reset_endpoints=(endpoint("api"),))
        began = time.monotonic()
        assert (await run(wanted)).ok
    assert time.monotonic() - began >= 1


async def test_resets_run_side_by_side_and_the_loop_goes_on() -> None:
    """PD4, PD5: resets ran one after another, and each stopped the whole event loop."""
    under_way = most = 0
    all_here = asyncio.Event()  # of all four at the same time, or this never ends

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await reader.readuntil(b"\r\n\r\n")
        if most == 4:
            all_here.set()
        await all_here.wait()
        under_way -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wanted = call({"SHOP_PORT": port}, reset_endpoints=(endpoint("api"),))
    results = await asyncio.gather(*(run(wanted, patience=Patience()) for _ in range(4)))
    server.close()
    assert all(result.ok for result in results)
    assert most == 4


# --- Scripts ----------------------------------------------------------------------------------


async def test_scripts_are_left_alone_when_the_endpoints_do_it() -> None:
    """P41."""
    scripts = Scripts()
    async with serving(200) as server:
        wanted = call(
            {"SHOP_PORT": server.port},
            reset_endpoints=(endpoint("api"),),
            reset_scripts={"db": "/reset.sh"},
        )
        assert (await run(wanted, scripts)).ok
    assert scripts.ran == []


async def test_scripts_alone_are_run_in_order_with_their_limit() -> None:
    """P41, P44."""
    scripts = Scripts()
    wanted = call({}, reset_scripts={"web": "a", "db": "b"}, reset_script_timeout_seconds=7.0)
    assert (await run(wanted, scripts)).ok
    assert scripts.ran == [("web", "a", 7.0), ("db", "b", 7.0)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (3, "exit code 3"),
        (TimeoutError(), "did not end within 60 s"),
        (PerdureError("the engine is away"), "the engine is away"),
    ],
)
async def test_a_script_that_fails_is_told_by_its_service(code: int | Exception, told: str) -> None:
    """P44."""
    result = await run(call({}, reset_scripts={"db": "/reset.sh"}), Scripts([code]))
    assert not result.ok
    assert "reset script of db" in result.reason
    assert told in result.reason
    assert result.log == (["first line", "last line"] if code == 3 else [])


async def test_a_script_that_fails_after_endpoints_tells_of_both() -> None:
    wanted = call({}, reset_endpoints=(endpoint("api"),), reset_scripts={"db": "/reset.sh"})
    result = await run(wanted, Scripts([1]))
    assert "reset script of db" in result.reason
    assert "reset endpoint api" in result.reason


# --- Tries ------------------------------------------------------------------------------------


async def test_a_failed_reset_is_tried_again_with_the_environments_retries() -> None:
    """P45, PD15: the one after a fresh start, too, since this is the only way to reset."""
    scripts = Scripts([1, 1, 0])
    assert (await run(call({}, reset_scripts={"db": "x"}, reset_retries=2), scripts)).ok
    assert len(scripts.ran) == 3


async def test_after_its_retries_a_reset_has_failed() -> None:
    scripts = Scripts([1])
    result = await run(call({}, reset_scripts={"db": "x"}, reset_retries=1), scripts)
    assert not result.ok
    assert "(2 times)" in result.reason
    assert len(scripts.ran) == 2


# --- By ports ---------------------------------------------------------------------------------

ENV_YAML = """
environments:
  good: {ports: {GOOD_PORT: }, reset_endpoints: {api: {url: "http://127.0.0.1:${GOOD_PORT}/r"}}}
  bad: {ports: {BAD_PORT: }, reset_endpoints: {api: {url: "http://127.0.0.1:${BAD_PORT}/r"}}}
  other: {ports: {OTHER_PORT: }, reset_endpoints: {api: {url: "http://127.0.0.1:1/r"}}}
  plain: {ports: {GOOD_PORT: }}
"""


async def test_environments_are_reset_by_their_ports_and_a_failure_stops_nobody(
    tmp_path: Path,
) -> None:
    """P46."""
    (tmp_path / "env.yaml").write_text(ENV_YAML)
    async with serving(200) as good, serving(500) as bad:
        count = await reset_environments_by_ports(
            {"GOOD_PORT": good.port, "BAD_PORT": bad.port}, tmp_path / "env.yaml", patience=QUICK
        )
    assert count == 1
    assert (len(good.heard), len(bad.heard)) == (1, 3)
