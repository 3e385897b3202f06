"""How a server process shows that it is ready: it answers at an address, or takes connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from perdure.core.environments import Process
from perdure.errors import PerdureError

if TYPE_CHECKING:
    import httpx

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})\b")
_ANSWER_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.1
_SETTLE_SECONDS = 0.2
"""How long a server must live that has no way to show that it is ready."""


class Unready(PerdureError):
    """The server does not get ready; the text says why."""

    def __init__(self, reason: str, taken_ports: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.taken_ports = taken_ports


def filled(text: str, ports: Mapping[str, int]) -> str:
    """The text with the ports in place of their `${VARIABLE}`; others stay as they are."""
    return _PLACEHOLDER.sub(lambda found: str(ports.get(found[1], found[0])), text)


class Probe:
    """Looks whether a server is ready. `str()` of it says where it looks."""

    def __init__(self, url: str | None, port: int | None, timeout_seconds: float) -> None:
        self._url = url
        self._port = port
        self._timeout = timeout_seconds
        self._pause = _FIRST_PAUSE_SECONDS
        self._said = ""

    @classmethod
    def of(cls, process: Process, ports: Mapping[str, int]) -> Probe:
        """The probe that a definition names. Raises Unready: it cannot be looked there."""
        ready = process.ready
        if ready is None:
            return cls(None, None, _SETTLE_SECONDS)
        if ready.http is None:
            if ready.tcp is None or ready.tcp not in ports:
                raise Unready(f"ready.tcp: {ready.tcp} is none of its ports: {_names(ports)}")
            return cls(None, ports[ready.tcp], ready.timeout_seconds)
        url = filled(ready.http, ports)
        if left := _PLACEHOLDER.search(url):
            raise Unready(f"ready.http: {left[0]} is none of its ports: {_names(ports)}")
        if not _is_address(url):
            raise Unready(f"ready.http: {url} is no address; write http://127.0.0.1:${{PORT}}/")
        return cls(url, None, ready.timeout_seconds)

    def __str__(self) -> str:
        return self._url or (f"port {self._port}" if self._port else "the process")

    async def once(self, limit_seconds: float = _ANSWER_SECONDS) -> None:
        """Look once. Raises Unready: no answer within the limit, or not the right one."""
        try:
            async with asyncio.timeout(limit_seconds):
                if self._url is not None:
                    await _answers(self._url)
                elif self._port is not None:
                    await _connects(self._port)
        except TimeoutError:
            raise Unready(f"{self} does not answer within {limit_seconds:g} s") from None

    async def is_ready(self) -> bool:
        """Look once, and remember what was said."""
        if self._url is None and self._port is None:
            return False  # it is when the time is over, see `limit`
        try:
            await self.once()
        except Unready as error:
            self._said = str(error)
            return False
        return True

    async def pause(self) -> None:
        """Wait before the next look: first a moment, then longer."""
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE_SECONDS)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """The time that a server has to get ready. Raises Unready at its end."""
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            if self._url is None and self._port is None:
                return
            said = self._said or f"{self} does not answer"
            raise Unready(
                f"not ready within {self._timeout:g} s: {said}; look at its log, or raise "
                "process.ready.timeout"
            ) from None


def _is_address(url: str) -> bool:
    import httpx  # here: it is a tenth of a worker's start, and few environments need it

    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return False
    is_port = parts.port is None or 0 < parts.port < 65_536
    return parts.scheme in ("http", "https") and bool(parts.host) and is_port


async def _answers(url: str) -> None:
    import httpx

    try:
        status = await _status(httpx.URL(url))
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise Unready(f"{url} does not answer ({error or type(error).__name__})") from None
    if status >= 400:
        raise Unready(f"{url} answers {status}")


async def _status(url: httpx.URL) -> int:
    """The status of the answer to a GET. Raises httpx.HTTPError, OSError, ValueError."""
    if url.scheme == "http" and not url.userinfo:
        return await _plain_status(url)
    import httpx

    # Neither a proxy nor an authority has a say about a server of this machine.
    async with (
        httpx.AsyncClient(verify=False, trust_env=False, timeout=None) as client,
        client.stream("GET", url) as response,
    ):
        return response.status_code


async def _plain_status(url: httpx.URL) -> int:
    """The same, in a tenth of the time: instances are looked at before each lease of theirs."""
    reader, writer = await asyncio.open_connection(url.host, url.port or 80)
    try:
        writer.write(
            b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\nConnection: close\r\n\r\n"
            % (url.raw_path, url.netloc)
        )
        line = await reader.readline()
    finally:
        writer.close()
    if not (said := _STATUS_LINE.match(line)):
        raise ValueError("what it says is not HTTP" if line else "it closes the connection")
    return int(said[1])


async def _connects(port: int) -> None:
    for address in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
    raise Unready(f"nobody takes connections on port {port}")


def _names(ports: Mapping[str, int]) -> str:
    return ", ".join(ports) or "it has none"
