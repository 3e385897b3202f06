"""Calls the addresses by which an environment's instance is reset (P42, P43)."""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.core.environments import ResetEndpoint
from perdure.errors import PerdureError


@dataclass(frozen=True)
class Patience:
    """How patient a reset is with an endpoint (P42)."""

    answer_seconds: float = 30.0
    tries: int = 10
    pause_seconds: float = 2.0
    longest_pause_seconds: float = 30.0
    """Of one that the endpoint asks for by `Retry-After`."""


_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_BODY_CHARACTERS = 300


class ResetFailed(PerdureError):
    """One try failed; the text says which endpoint or script, and how."""

    def __init__(self, message: str, log: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.log = log
        """The last lines of a script's output."""


async def call_endpoint(
    endpoint: ResetEndpoint, ports: Mapping[str, int], patience: Patience
) -> None:
    """Call until it answers with 2xx. Raises ResetFailed with what it said last."""
    import httpx  # here: it is a tenth of a worker's start, and few environments need it

    url = filled(endpoint.url, ports, f"reset endpoint {endpoint.name}")
    method, answer = endpoint.method.upper(), ""
    for number in range(1, patience.tries + 1):
        pause = patience.pause_seconds
        try:
            async with asyncio.timeout(patience.answer_seconds):
                answer, asked = await _ask(method, url)
        except TimeoutError:  # of reading, too
            answer = f"no answer within {patience.answer_seconds:g} s"
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            answer = f"it cannot be called ({error or type(error).__name__})"
            break  # no later try is another one
        except httpx.HTTPError as error:
            answer = str(error) or type(error).__name__
        else:
            if not answer:
                return
            pause = min(max(pause, asked), patience.longest_pause_seconds)
        if number < patience.tries:
            await asyncio.sleep(pause)
    raise ResetFailed(f"{method} {url}: {answer}")


async def _ask(method: str, url: str) -> tuple[str, float]:
    """What is wrong with the answer, nothing for 2xx; and for how many seconds it asks."""
    import httpx

    headers = {"Content-Type": "application/json"}
    verify = _tls() if url.startswith("https:") else False
    async with (
        httpx.AsyncClient(trust_env=False, verify=verify, timeout=None) as client,
        client.stream(method, url, headers=headers, content=b"") as response,
    ):
        if response.is_success:
            return "", 0.0
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) >= _BODY_CHARACTERS:
                break
        said = " ".join(body.decode(errors="replace").split())[:_BODY_CHARACTERS]
        wait = response.headers.get("Retry-After", "")
        asked = float(wait) if wait.isdecimal() and wait.isascii() and len(wait) < 6 else 0.0
        return f"status {response.status_code}{said and ': ' + said}", asked


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once, if ever: reading the certificates takes long."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


def filled(text: str, ports: Mapping[str, int], what: str) -> str:
    """The text with the numbers of ports in the places of `${VARIABLE}` (P43).

    Raises ResetFailed for a variable that is none of the instance's ports.
    """

    def port(found: re.Match[str]) -> str:
        if found[1] not in ports:
            known = ", ".join(sorted(ports)) or "none"
            raise ResetFailed(
                f"{what}: ${{{found[1]}}} is none of the environment's ports (these are: {known})"
            )
        return str(ports[found[1]])

    return _PLACEHOLDER.sub(port, text)
