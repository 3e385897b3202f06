"""Step type `http`: against a real server on this machine."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from activities.steps.http import BODY_LIMIT_BYTES
from activities.steps.streams import KEPT_BYTES
from tests.activities.steps_kit import Kit


class Answers(BaseHTTPRequestHandler):
    """What is answered depends on the path alone; `/echo` tells what was asked."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length).decode()
        path = self.path.partition("?")[0]
        status, kind, content = 200, "application/json", b'{"orders": [{"id": 7}], "n": 1.0}'
        if path == "/echo":
            told = {
                "method": self.command,
                "path": self.path,
                "headers": dict(self.headers.items()),
            }
            content = json.dumps(told | {"body": body}).encode()
        elif path == "/latin":
            kind, content = "text/plain; charset=latin-1", "café".encode("latin-1")
        elif path == "/odd":
            kind, content = "text/plain; charset=no-such", b"a\xffb"
        elif path == "/lies":
            content = b"{not json"
        elif path == "/big":
            kind, content = "text/plain", b"A" + b"x" * (200 * 1024) + b"Z"
        elif path == "/huge":
            content = b'"' + b"x" * (BODY_LIMIT_BYTES + 10) + b'"'
        elif path == "/moved":
            status = 302
        elif path == "/slow":
            time.sleep(1.5)
        elif path != "/orders":
            status, kind, content = 404, "text/plain", b"nothing here"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status == 302:
            self.send_header("Location", "/orders")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def base(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def test_a_json_answer_is_the_result(kit: Kit, base: str) -> None:
    result = await kit.run("http", url=f"{base}/orders")
    assert result["status"] == 200
    assert result["json"] == {"orders": [{"id": 7}], "n": 1.0}
    assert result["headers"]["content-type"] == "application/json"
    assert "text" not in result


async def test_a_request_goes_to_the_environment_s_port(kit: Kit, port: int) -> None:
    kit.have("shop", SHOP_PORT=port)
    where = {"environment": "shop", "port": "SHOP_PORT", "path": "/echo?a=1"}
    result = await kit.run("http", **where, method="DELETE")
    assert (result["json"]["method"], result["json"]["path"]) == ("DELETE", "/echo?a=1")


async def test_an_unknown_port_variable_is_named_with_the_known_ones(kit: Kit) -> None:
    kit.have("shop", SHOP_PORT=1)
    failed = await kit.fail("http", environment="shop", port="SHOP_PROT", path="/")
    assert (failed.kind, failed.retryable) == ("bad_input", False)
    assert "'SHOP_PROT'; it has: SHOP_PORT" in str(failed)
    failed = await kit.fail("http", environment="mail", port="SHOP_PORT", path="/")
    assert (failed.type, failed.kind) == ("NoEnvironment", "bad_input")
    assert "'mail'; it has: shop" in str(failed)


async def test_json_and_body_make_it_a_post(kit: Kit, base: str) -> None:
    told = (await kit.run("http", url=f"{base}/echo", json={"é": [1]}))["json"]
    assert (told["method"], json.loads(told["body"])) == ("POST", {"é": [1]})
    assert told["headers"]["Content-Type"] == "application/json"
    told = (await kit.run("http", url=f"{base}/echo", body="raw", method="PUT"))["json"]
    assert (told["method"], told["body"]) == ("PUT", "raw")


async def test_c49_headers_and_json_may_name_secrets(kit: Kit, base: str) -> None:
    kit.environment.variables["KEY"] = "s3cr3t-CANARY"  # type: ignore[index]
    host = kit.host({"id": "s", "type": "http"})
    secret = {"from_env": "KEY"}
    result = await kit.run(
        "http", host, url=f"{base}/echo", headers={"Authorization": secret}, json={"k": [secret]}
    )
    assert result["json"]["headers"]["Authorization"] == "s3cr3t-CANARY"
    assert json.loads(result["json"]["body"]) == {"k": ["s3cr3t-CANARY"]}
    assert host.secret_values == ["s3cr3t-CANARY"]


@pytest.mark.parametrize("value", ["line\nX-Other: 1", "grüße", "a\0b"])
async def test_a_header_that_cannot_be_sent_is_refused_without_its_value(
    kit: Kit, base: str, value: str
) -> None:
    failed = await kit.fail("http", url=f"{base}/echo", headers={"X-Key": value})
    assert (failed.type, failed.retryable) == ("BadRequest", False)
    assert "X-Key" in str(failed)
    assert value not in str(failed)


@pytest.mark.parametrize(
    ("path", "expect", "reason"),
    [
        ("/none", None, "status 404; without `expect.status`"),
        ("/none", {"status": 200}, "status 404; expected 200"),
        ("/orders", {"status": [201, 202]}, "status 200; expected [201, 202]"),
        ("/orders", {"json": {"n": 2}}, "json.n is not as expected"),
        ("/orders", {"json": {"orders": []}}, "json.orders is not"),
        ("/orders", {"json": {"m": None}}, "json.m is not"),
        ("/orders", {"json": [1]}, "json is not as expected"),
        ("/latin", {"json": {}}, "the answer is not JSON"),
        ("/orders", {"contains": "refund"}, "does not contain 'refund'"),
        ("/orders", {"contains": ["orders", "refund"]}, "does not contain 'refund'"),
    ],
)
async def test_what_is_not_as_expected_fails_the_step_and_keeps_the_result(
    kit: Kit, base: str, path: str, expect: Any, reason: str
) -> None:
    more = {} if expect is None else {"expect": expect}
    failed = await kit.fail("http", url=base + path, **more)
    assert (failed.type, failed.kind) == ("ExpectationFailed", "task")
    assert reason in str(failed)
    assert failed.result["status"] in (200, 404)


@pytest.mark.parametrize(
    ("path", "expect"),
    [
        ("/orders", {"status": 200, "json": {"n": 1}, "contains": "orders"}),
        ("/orders", {"json": {"orders": [{"id": 7}]}}),
        ("/none", {"status": 404, "contains": ["nothing", "here"]}),
        ("/none", {"status": [200, 404]}),
    ],
)
async def test_what_is_as_expected_passes(kit: Kit, base: str, path: str, expect: Any) -> None:
    await kit.run("http", url=base + path, expect=expect)


async def test_a_redirection_is_the_result_not_followed(kit: Kit, base: str) -> None:
    result = await kit.run("http", url=f"{base}/moved", expect={"status": 302})
    assert result["headers"]["location"] == "/orders"


async def test_texts_are_decoded_whatever_they_are(kit: Kit, base: str) -> None:
    assert (await kit.run("http", url=f"{base}/latin"))["text"] == "café"
    assert (await kit.run("http", url=f"{base}/odd"))["text"] == "a�b"
    assert (await kit.run("http", url=f"{base}/lies"))["text"] == "{not json"


async def test_a_large_answer_is_clipped_with_a_mark(kit: Kit, base: str) -> None:
    text = (await kit.run("http", url=f"{base}/big"))["text"]
    assert text.startswith("Ax")
    assert text.endswith("xZ")
    assert "bytes left out" in text
    assert len(text) < 2 * KEPT_BYTES + 100
    result = await kit.run("http", url=f"{base}/huge")
    assert "json" not in result
    assert "was not read to its end" in result["text"]


async def test_a_server_that_is_not_there_is_no_fault_of_the_task(kit: Kit) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free = taken.getsockname()[1]
        failed = await kit.fail("http", url=f"http://127.0.0.1:{free}/")
        assert (failed.type, failed.kind) == ("ConnectionFailed", "infrastructure")
        kit.have("e", P=free)
        failed = await kit.fail("http", environment="e", port="P", path="/")
        assert (failed.type, failed.kind) == ("ConnectionFailed", "environment")
        assert f"http://127.0.0.1:{free}/: " in str(failed)


async def test_an_answer_that_does_not_come_is_a_timeout(kit: Kit, base: str) -> None:
    failed = await kit.fail("http", url=f"{base}/slow", timeout=0.3)
    assert (failed.type, failed.kind) == ("Timeout", "timeout")


@pytest.mark.parametrize("url", ["ftp://x/", "no scheme", "http://a:b:c/", "http:///x"])
async def test_an_address_that_is_none_is_refused(kit: Kit, url: str) -> None:
    failed = await kit.fail("http", url=url)
    assert (failed.type, failed.retryable) == ("BadRequest", False)


async def test_credentials_in_the_address_are_sent_as_a_header(kit: Kit, base: str) -> None:
    told = await kit.run("http", url=base.replace("//", "//user:word@") + "/echo")
    wanted = "Basic " + base64.b64encode(b"user:word").decode()
    assert told["json"]["headers"]["Authorization"] == wanted
