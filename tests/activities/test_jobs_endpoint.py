"""PERDURE_JOBS: what a step's process may ask for, and what hostile ones get."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from activities import jobs_endpoint
from activities.jobs_endpoint import BODY_LIMIT_BYTES, MAX_CONNECTIONS, JobsEndpoint
from activities.step_jobs import StepJobs
from perdure.job_messages import JobSpec
from tests.activities.step_jobs_kit import JobsInMemory, jobs_of
from tests.activities.steps_kit import Kit

UNKNOWN = "exec-ffffffffffff"


class Client:
    """Asks as a step's process does."""

    def __init__(self, address: str) -> None:
        self.address = address
        parts = urlsplit(address)
        assert parts.hostname == "127.0.0.1"
        assert parts.port
        self.port, self.path = parts.port, parts.path

    async def ask(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, self.path + path, body, headers or {})

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.headers["Content-Type"] == "application/json"
            return answer.status, json.loads(content) if content else None

    async def raw(self, sent: bytes) -> bytes:
        """What comes back for these bytes, to the end."""

        def exchange() -> bytes:
            with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
                connection.sendall(sent)
                received = b""
                with contextlib.suppress(ConnectionError):
                    while part := connection.recv(65536):
                        received += part
                return received

        return await asyncio.to_thread(exchange)


@pytest.fixture
async def endpoint() -> AsyncIterator[JobsEndpoint]:
    made = JobsEndpoint()
    yield made
    made.close()


@pytest.fixture
def api() -> JobsInMemory:
    return JobsInMemory()


@pytest.fixture
async def jobs(api: JobsInMemory, endpoint: JobsEndpoint) -> StepJobs:
    return jobs_of(api, endpoint)


@pytest.fixture
async def client(jobs: StepJobs) -> Client:
    assert jobs.address
    return Client(jobs.address)


# --- What is asked for ---------------------------------------------------------------------


async def test_a_process_launches_sees_and_interrupts_jobs(
    client: Client, api: JobsInMemory
) -> None:
    spec = {"argv": ["sleep", 9], "name": "nap", "env": {"K": {"from_env": "K"}}, "stdin": None,
            "time_limit_seconds": "5m"}  # fmt: skip
    status, launched = await client.ask("POST", "/jobs", spec)
    exec_id = launched["exec_id"]
    assert (status, launched) == (201, {"exec_id": exec_id, "status": "running"})
    assert api.specs == [
        JobSpec(
            argv=["sleep", "9"], name="nap", env={"K": {"from_env": "K"}}, time_limit_seconds=300.0
        )
    ]
    assert (api.launches[0].origin.kind, api.launches[0].origin.step) == ("step", "s")
    api.have(exec_id, stdout="zzz")
    status, peek = await client.ask("GET", f"/jobs/{exec_id}?offset=1")
    assert (status, peek["stdout"], peek["status"], peek["offset"]) == (200, "zz", "running", 1)
    assert (await client.ask("GET", "/jobs/nap"))[1]["stdout"] == "zzz"
    status, listed = await client.ask("GET", "/jobs")
    assert (status, [job["exec_id"] for job in listed]) == (200, [exec_id])
    status, peek = await client.ask("POST", "/jobs/nap/interrupt", {"kill_after": 2})
    assert (status, peek["status"]) == (200, "interrupted")
    assert (await client.ask("POST", f"/jobs/{exec_id}/interrupt"))[0] == 200
    assert api.interrupts == [(exec_id, 2.0), (exec_id, None)]


async def test_who_repeats_a_launch_with_an_id_of_its_own_launches_one_job(
    client: Client, api: JobsInMemory
) -> None:
    body = {"code": "1", "exec_id": UNKNOWN}
    answers = [await client.ask("POST", "/jobs", body) for _ in range(2)]
    assert answers == [(201, {"exec_id": UNKNOWN, "status": "running"})] * 2
    assert list(api.jobs) == [UNKNOWN]


async def test_a_refusal_is_told_in_its_own_words(client: Client, api: JobsInMemory) -> None:
    api.refusal = "16 jobs of the task run, and at most 16 may; wait for the end of one"
    assert await client.ask("POST", "/jobs", {"code": "1"}) == (409, {"error": api.refusal})


@pytest.mark.parametrize("job", [UNKNOWN, "nap", "exec-0123456789ab", "..", "%2e%2e", "a b"])
async def test_jobs_of_other_tasks_do_not_exist_here(
    client: Client, api: JobsInMemory, job: str
) -> None:
    api.have("exec-0123456789ab", "task/s/other/1", name="nap", stdout="theirs")
    for method, path in (("GET", f"/jobs/{job}"), ("POST", f"/jobs/{job}/interrupt")):
        path = path.replace(" ", "%20")
        status, answer = await client.ask(method, path)
        assert status == 404, answer
        assert "no job" in answer["error"]
    assert await client.ask("GET", "/jobs") == (200, [])
    assert api.interrupts == []


async def test_a_real_process_of_a_step_finds_it(
    kit: Kit, jobs: StepJobs, api: JobsInMemory
) -> None:
    ask = (
        "import json, os, urllib.request as r; base = os.environ['PERDURE_JOBS']; "
        "made = r.urlopen(base + '/jobs', json.dumps({'code': 'print(1)'}).encode()); "
        "id = json.load(made)['exec_id']; "
        "print(json.load(r.urlopen(f'{base}/jobs/{id}'))['status'])"
    )
    host = kit.host({"id": "s", "type": "command"})
    host.give_jobs(jobs)
    ended = await host.run_process([sys.executable, "-c", ask])
    assert ended.stdout_path.read_text() == "running\n", ended.stderr_path.read_text()
    assert api.specs == [JobSpec(code="print(1)")]


# --- Who may ask ---------------------------------------------------------------------------


async def test_an_address_is_void_once_the_attempt_is_over(
    client: Client, jobs: StepJobs, api: JobsInMemory, endpoint: JobsEndpoint
) -> None:
    beside = jobs_of(api, endpoint, step="other")
    assert beside.address
    assert beside.address != jobs.address
    jobs.end()
    status, answer = await client.ask("POST", "/jobs", {"code": "1"})
    assert (status, answer) == (
        403,
        {"error": "this address is void: the attempt of the step is over"},
    )
    assert api.launches == []
    assert (await Client(beside.address).ask("GET", "/jobs"))[0] == 200


async def test_nothing_listens_before_a_process_needs_it_nor_after_the_worker(
    api: JobsInMemory,
) -> None:
    endpoint = JobsEndpoint()
    jobs = jobs_of(api, endpoint)
    assert endpoint._server is None
    address = jobs.address
    assert address
    endpoint.close()
    assert endpoint.of(address.rpartition("/")[2]) is None
    assert jobs_of(api, endpoint).address is None


@pytest.mark.parametrize("token", ["", "x", "..", "jobs", "a" * 32, "%00"])
async def test_without_the_token_there_is_nothing(client: Client, token: str) -> None:
    client.path = f"/{token}"
    for path in ("/jobs", "", "/", "/jobs/x", "/etc/passwd"):
        status, answer = await client.ask("GET", path)
        assert status == 403
        assert "void" in answer["error"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "",
                                  "127.0.0.1:1:2", "localhost@evil.example"])  # fmt: skip
async def test_a_name_that_leads_here_from_elsewhere_is_refused(client: Client, host: str) -> None:
    status, answer = await client.ask("GET", "/jobs", headers={"Host": host})
    assert (status, "Host" in answer["error"]) == (403, True)


async def test_this_host_may_be_named_in_both_ways(client: Client) -> None:
    for host in ("localhost", f"LOCALHOST:{client.port}", f"127.0.0.1:{client.port}"):
        assert (await client.ask("GET", "/jobs", headers={"Host": host}))[0] == 200


# --- What is no proper request -------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"code": NaN}', "not a number that JSON knows"),
        (b'{"args": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", ""),
        (b'{"args": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than"),
        ({"code": "\ud800"}, "half a character"),
        ({}, "neither code nor argv"),
        ({"code": "1", "argv": ["x"]}, "both code and argv"),
        ({"codes": "1"}, "did you mean 'code'?"),
        ({"code": 7}, "code: 7 is not text"),
        ({"argv": "ls -l"}, "argv: "),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"argv": []}, "empty list"),
        ({"code": "1", "env": ["x"]}, "not a mapping"),
        ({"code": "1", "env": {"A": {"from_env": "X", "b": 1}}}, "exactly one"),
        ({"code": "1", "name": "../x"}, "nearest legal id"),
        ({"code": "1", "time_limit_seconds": -1}, "less than nothing"),
        ({"code": "1", "time_limit_seconds": 1e300}, "longer than 366 days"),
        ({"code": "1", "exec_id": "exec-1"}, "exec_id: "),
        ({"code": "1", "exec_id": ["x"]}, "exec_id: "),
        ({"code": "x" * 200_001}, "at most 200,000"),
    ],
)
async def test_what_cannot_be_a_job_is_refused(
    client: Client, api: JobsInMemory, body: Any, words: str
) -> None:
    status, answer = await client.ask("POST", "/jobs", body)
    assert status == 400, answer
    assert words in answer["error"]
    assert api.launches == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/jobs", None, 405),
        ("DELETE", "/jobs/x", None, 405),
        ("OPTIONS", "/jobs", None, 405),
        ("PATCH", "/jobs", {}, 405),
        ("POST", "/jobs/x", {}, 405),
        ("GET", "/jobs/x/interrupt", None, 405),
        ("GET", "", None, 404),
        ("GET", "/", None, 404),
        ("GET", "/other", None, 404),
        ("GET", "/jobs/a/b/c", None, 404),
        ("GET", "/jobs?a=1", None, 400),
        ("GET", "/jobs/x?offset=-1", None, 400),
        ("GET", "/jobs/x?offset=1e9", None, 400),
        ("GET", "/jobs/x?offset=" + "9" * 400, None, 400),
        ("GET", "/jobs/x?offest=1", None, 400),
        ("GET", "/jobs/x?" + "&".join(["offset=1"] * 50), None, 400),
        ("GET", "/jobs/" + "x" * 70_000, None, 414),
        ("POST", "/jobs/x/interrupt", {"kill_after": -1}, 400),
        ("POST", "/jobs/x/interrupt", {"kill_after": "soon"}, 400),
        ("POST", "/jobs/x/interrupt", {"kill_after": True}, 400),
        ("POST", "/jobs/x/interrupt", {"kill_after": 1e300}, 400),
        ("POST", "/jobs/x/interrupt", {"kill": True}, 400),
    ],
)
async def test_what_is_not_served_is_told_so(
    client: Client, method: str, path: str, body: Any, status: int
) -> None:
    found, answer = await client.ask(method, path, body)
    assert (found, list(answer)) == (status, ["error"])
    assert answer["error"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"Content-Length: {BODY_LIMIT_BYTES + 1}", b"413"),
        ("Content-Length: 999999999999999", b"400"),
        ("Content-Length: -1", b"400"),
        ("Content-Length: 0x10", b"400"),
        ("Content-Length: 1\r\nContent-Length: 2", b"400"),
        ("Transfer-Encoding: chunked", b"400"),
        ("\r\n".join(f"X-{n}: 1" for n in range(200)), b"431"),
        ("X: " + "x" * 70_000, b"431"),
    ],
)
async def test_bodies_and_heads_have_limits(client: Client, head: str, status: bytes) -> None:
    sent = f"POST {client.path}/jobs HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n"
    answer = await client.raw(sent.encode())
    assert answer.split(b" ", 2)[1] == status, answer[:200]
    assert b'{"error": "' in answer


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n\r\n", b"GET\r\n\r\n", b"\0" * 5000,
     b"GET / HTTP/9.9\r\n\r\n", b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n"],
)  # fmt: skip
async def test_noise_is_answered_by_an_error_or_nothing(client: Client, sent: bytes) -> None:
    answer = await client.raw(sent + b"\n")
    assert not answer or b'"error"' in answer
    assert (await client.ask("GET", "/jobs"))[0] == 200


# --- Clients that take their time ----------------------------------------------------------


async def test_who_is_slow_is_hung_up_on(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_endpoint, "READ_SECONDS", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    begin = f"POST {client.path}/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    writer.write(begin.encode())

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            while True:  # each byte alone would start a socket's own clock again
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.2)

    writer.write(b"{")
    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert b" 400 " in answer or not answer
    dripping.cancel()
    writer.close()
    assert (await client.ask("GET", "/jobs"))[0] == 200


async def test_a_crowd_of_silent_clients_does_not_last(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_endpoint, "READ_SECONDS", 1.0)
    crowd = [
        await asyncio.open_connection("127.0.0.1", client.port) for _ in range(MAX_CONNECTIONS + 20)
    ]
    async with asyncio.timeout(30):
        for reader, writer in crowd:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    assert (await client.ask("GET", "/jobs"))[0] == 200


async def test_a_client_that_leaves_in_the_middle_harms_nobody(client: Client) -> None:
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"POST {client.path}/jobs HTTP/1.1\r\nHost: localhost\r\n".encode())
        writer.transport.abort()
    assert (await client.ask("GET", "/jobs"))[0] == 200
