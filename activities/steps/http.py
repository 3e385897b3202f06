"""Step type `http`: one request, and what is expected of its answer."""

from __future__ import annotations

import functools
import json
import ssl
from typing import TYPE_CHECKING, Any

from activities.host import StepHost
from activities.steps.streams import clipped
from perdure.core.context import NotJson, check_json
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.core.verify import equal
from perdure.messages import FailureKind, Json
from perdure.steps import Context, StepFailed, step

if TYPE_CHECKING:
    import httpx

BODY_LIMIT_BYTES = 4 * 1024 * 1024
"""Of an answer; what comes after is not read."""
CONNECT_TIMEOUT_SECONDS = 10.0

_JSON_LIKE = ("json", "+json")


@step("http", keys=BUILT_IN_TYPES["http"].keys, on_loop=True)
async def request(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Send one request; the result is `status`, `headers`, and `json` or `text`.

    The address is `url`, or `path` at the port variable `port` of `environment` on this host.
    `headers` and `json` may hold references to secrets. The method is GET, or POST with a body.
    Redirections are not followed: the answer that redirects is the result. Proxies and
    certificates named by the worker's environment are not used. A text longer than 128 KiB is
    clipped in its middle.

    Without `expect.status` a status below 400 is expected. `expect.json`: an object may have more
    keys than are named, everything else is equal. `expect.contains`: a text in the body, or each
    of several.

    Raises StepFailed:
        ExpectationFailed: with the result kept.
        ConnectionFailed: no answer; kind `environment` if the step names one, else
            `infrastructure`.
        Timeout: the step's timeout passed. BadRequest: it cannot be sent.
        NoEnvironment: the task has no such environment.
    """
    import httpx  # here: it is a tenth of a worker's start, and few tasks have such a step

    url = _address(document, host)
    content = _content(document, host)
    headers = {name: str(value) for name, value in _headers(document, host).items()}
    if "json" in document and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    method = document.get("method") or ("GET" if content is None else "POST")
    timeout = httpx.Timeout(float(document.get("timeout", 3600.0)), connect=CONNECT_TIMEOUT_SECONDS)
    kind: FailureKind = "environment" if document.get("environment") else "infrastructure"
    try:
        async with (
            httpx.AsyncClient(trust_env=False, verify=_tls(), timeout=timeout) as client,
            client.stream(method, url, headers=headers, content=content) as response,
        ):
            body, whole = await _body(response, host)
    except httpx.ConnectTimeout:
        raise StepFailed(
            f"{method} {url}: no connection within {CONNECT_TIMEOUT_SECONDS:g} s",
            type="ConnectionFailed",
            kind=kind,
        ) from None
    except httpx.TimeoutException:
        raise StepFailed(
            f"{method} {url}: no answer within the step's timeout", type="Timeout", kind="timeout"
        ) from None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise _bad_request(f"{method} {url}: cannot be sent ({error})") from None
    except httpx.HTTPError as error:
        raise StepFailed(
            f"{method} {url}: {error or type(error).__name__}", type="ConnectionFailed", kind=kind
        ) from None
    result = _result(response, body, whole)
    if problem := _unexpected(document.get("expect") or {}, response.status_code, body, result):
        raise StepFailed(f"{method} {url}: {problem}", type="ExpectationFailed", result=result)
    return result


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than most requests."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


# --- The request --------------------------------------------------------------------------------


def _address(document: dict[str, Any], host: StepHost) -> str:
    if "url" in document:
        return str(document["url"])
    environment, variable = str(document["environment"]), str(document["port"])
    ports = host.instances.named(environment).ports
    if variable not in ports:
        known = ", ".join(sorted(ports)) or "none"
        raise _bad_request(
            f"the environment {environment!r} has no port variable {variable!r}; it has: {known}"
        )
    path = str(document.get("path", "/"))
    return f"http://127.0.0.1:{ports[variable]}{path if path.startswith('/') else '/' + path}"


def _headers(document: dict[str, Any], host: StepHost) -> dict[str, str]:
    headers: dict[str, str] = host.resolved(document.get("headers") or {})
    for name, value in headers.items():
        # The client takes ASCII only, and would show the value in its error.
        if not str(value).isascii() or any(c in str(value) for c in "\r\n\0"):
            raise _bad_request(f"the header {name!r} holds a character that no header can carry")
    return headers


def _content(document: dict[str, Any], host: StepHost) -> bytes | None:
    if "json" in document:
        return json.dumps(host.resolved(document["json"])).encode()
    body = document.get("body")
    return None if body is None else str(body).encode()


def _bad_request(message: str) -> StepFailed:
    return StepFailed(message, type="BadRequest", kind="bad_input", retryable=False)


# --- The answer ---------------------------------------------------------------------------------


async def _body(response: httpx.Response, host: StepHost) -> tuple[bytes, bool]:
    """The body up to its limit, and whether that is all of it."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        host.heartbeat()
        body += chunk
        if len(body) > BODY_LIMIT_BYTES:
            return bytes(body[:BODY_LIMIT_BYTES]), False
    return bytes(body), True


def _result(response: httpx.Response, body: bytes, whole: bool) -> dict[str, Json]:
    result: dict[str, Json] = {
        "status": response.status_code,
        "headers": dict(response.headers),
    }
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if whole and media_type.endswith(_JSON_LIKE):
        try:
            value = json.loads(body)
            check_json(value)
            return {**result, "json": value}
        except (NotJson, ValueError, RecursionError):
            pass  # it says that it is JSON, and is none: its text is the better witness
    try:
        "".encode(encoding := response.encoding or "utf-8")
    except LookupError:
        encoding = "utf-8"
    text = clipped(body, encoding)
    if not whole:
        text += f"\n...(an answer of more than {BODY_LIMIT_BYTES} bytes was not read to its end)"
    return {**result, "text": text}


def _unexpected(expect: dict[str, Any], status: int, body: bytes, result: Json) -> str | None:
    """What of the answer is not as expected; None if all is."""
    wanted = expect.get("status")
    if wanted is None:
        if status >= 400:
            return f"status {status}; without `expect.status`, one below 400 is expected"
    elif status not in (wanted if isinstance(wanted, list) else [wanted]):
        return f"status {status}; expected {wanted}"
    if "json" in expect:
        if "json" not in result:
            return "the answer is not JSON"
        if (place := _missing(expect["json"], result["json"], "json")) is not None:
            return f"{place} is not as expected"
    contains = expect.get("contains")
    for text in contains if isinstance(contains, list) else [contains]:
        if text is not None and str(text) not in body.decode("utf-8", "replace"):
            return f"the answer does not contain {str(text)[:200]!r}"
    return None


def _missing(wanted: Json, found: Json, place: str) -> str | None:
    """Where `found` lacks something of `wanted`; None if it lacks nothing."""
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return None if equal(wanted, found) else place
    for key, value in wanted.items():
        if key not in found:
            return f"{place}.{key}"
        if (lacking := _missing(value, found[key], f"{place}.{key}")) is not None:
            return lacking
    return None
