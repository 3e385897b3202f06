"""Where the processes of steps ask for background jobs: `PERDURE_JOBS`, on this host alone.

    POST <PERDURE_JOBS>/jobs                 launch: a JSON object with the fields of a `JobSpec`
    GET  <PERDURE_JOBS>/jobs                 the task's jobs
    GET  <PERDURE_JOBS>/jobs/<job>           one of them; ?offset=&stderr_offset=
    POST <PERDURE_JOBS>/jobs/<job>/interrupt {"kill_after": SECONDS}

`<job>` is an exec id or a name. An answer is JSON, `{"error": TEXT}` among them. The address holds
a token of the attempt, and is void once that is over. A step's process may be anybody's code, an
agent's above all: it reaches the jobs of its own task, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, fields
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from activities.step_jobs import StepJobs
from perdure.core.fields import meant
from perdure.core.job_checks import is_exec_id
from perdure.core.json_values import check_json
from perdure.core.problems import Place, one_line, shown
from perdure.errors import PerdureError
from perdure.job_messages import JobSpec
from perdure.jobs import UnknownJob
from perdure.steps import StepFailed

T = TypeVar("T")

BODY_LIMIT_BYTES = 1_000_000
READ_SECONDS = 10.0
"""For a whole request: a client that is slower is hung up on."""
ANSWER_SECONDS = 60.0
"""For a whole connection, the answer included."""
CALL_SECONDS = 40.0
"""For what the answer takes from the server."""
MAX_CONNECTIONS = 64
LOOK_SECONDS = 0.5
"""How often it is looked for connections whose time is over."""

_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
_SPEC_KEYS = frozenset(known.name for known in fields(JobSpec))
_STATUS = {"BadJob": 400, "JobRefused": 409, "AttemptOver": 403}

_log = logging.getLogger("perdure.jobs")


class JobsEndpoint:
    """One a worker; listens from when a step first needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, StepJobs] = {}
        self._server: _Server | None = None
        self._closed = False

    def open(self, jobs: StepJobs) -> str:
        """An address for an attempt's processes. Raises OSError."""
        with self._lock:
            if self._closed:
                raise OSError("the worker is stopping")
            if self._server is None:
                self._server = _Server(self)
                self._server.begin()
            token = secrets.token_urlsafe(24)
            self._jobs[token] = jobs
            return f"http://127.0.0.1:{self._server.port}/{token}"

    def shut(self, address: str) -> None:
        """Make an address void."""
        self._jobs.pop(address.rpartition("/")[2], None)

    def of(self, token: str) -> StepJobs | None:
        """The jobs behind a token; None: there is no such attempt, or it is over."""
        return self._jobs.get(token)

    def close(self) -> None:
        """Make all addresses void, and soon stop listening."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
            self._jobs.clear()
        if server is not None:  # which looks for this twice a second; nobody needs to wait
            threading.Thread(target=server.end, daemon=True).start()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, endpoint: JobsEndpoint) -> None:
        self.endpoint = endpoint
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Request)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def begin(self) -> None:
        threading.Thread(
            target=self.serve_forever, args=(LOOK_SECONDS,), name="jobs endpoint", daemon=True
        ).start()

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def allow(self, connection: socket.socket, seconds: float) -> None:
        """Let a connection last so long from now, if it is not over yet."""
        with self._lock:
            if connection in self._deadlines:
                self._deadlines[connection] = time.monotonic() + seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._deadlines) >= MAX_CONNECTIONS
            if not is_full:
                self._deadlines[request] = time.monotonic() + READ_SECONDS
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [open for open, until in self._deadlines.items() if until < now]
            for connection in late:
                try:
                    connection.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes
                except OSError:
                    continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection to PERDURE_JOBS broke off", exc_info=True)


class _Problem(Exception):
    """Answers a request with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Request(BaseHTTPRequestHandler):
    """One request; the connection is closed after it."""

    server: _Server
    timeout = READ_SECONDS
    server_version = "perdure"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library has to complain of, as JSON like all else."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._tell(405, {"error": f"{shown(self.command)} is not served; use GET or POST"})
        else:
            self._tell(code, {"error": message or HTTPStatus(code).phrase})

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the path holds the token."""

    # --- A request to its answer ------------------------------------------------------------

    def _serve(self, method: str) -> None:
        try:
            status, answer = self._answered(method)
        except _Problem as problem:
            status, answer = problem.status, {"error": one_line(str(problem))}
        self._tell(status, answer)

    def _tell(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.server.allow(self.connection, ANSWER_SECONDS)
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answered(self, method: str) -> tuple[int, Any]:
        if not _HOST.fullmatch(self.headers.get("Host") or ""):
            raise _Problem(
                403, "the header Host does not name this host; use PERDURE_JOBS as it is"
            )
        path, _, query = self.path.partition("?")
        token, *route = path.removeprefix("/").split("/")
        jobs = self.server.endpoint.of(token)
        if jobs is None:
            raise _Problem(403, "this address is void: the attempt of the step is over")
        match method, route:
            case "GET", ["jobs"]:
                _only(query)
                return 200, [peek.as_json() for peek in self._result(jobs, jobs.list())]
            case "POST", ["jobs"]:
                _only(query)
                return self._launched(jobs, self._body())
            case "GET", ["jobs", job]:
                return 200, self._result(jobs, _peek(jobs, job, _offsets(query)))
            case "POST", ["jobs", job, "interrupt"]:
                _only(query)
                kill_after = _kill_after(self._body())
                return 200, self._result(jobs, _interrupt(jobs, job, kill_after))
            case _, ["jobs"] | ["jobs", _] | ["jobs", _, "interrupt"]:
                raise _Problem(405, f"{method} does nothing here")
        raise _Problem(404, "there is nothing here; known: jobs, jobs/<job>, jobs/<job>/interrupt")

    def _launched(self, jobs: StepJobs, body: Mapping[str, Any]) -> tuple[int, Any]:
        given = {key: value for key, value in body.items() if value is not None}
        exec_id = given.pop("exec_id", None)
        if exec_id is not None and not is_exec_id(exec_id):
            raise _Problem(400, "exec_id: write exec- and 12 hexadecimal digits, or leave it out")
        for key in given.keys() - _SPEC_KEYS:
            raise _Problem(400, f"a job has no {shown(key)}; {meant(key, _SPEC_KEYS)}")
        return 201, asdict(self._result(jobs, jobs.start(JobSpec(**given), exec_id)))

    def _body(self) -> dict[str, Any]:
        if self.headers.get("Transfer-Encoding"):
            raise _Problem(400, "send the body in one piece, with Content-Length")
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if len(lengths) > 1 or not _NUMBER.fullmatch(lengths[0]):
            raise _Problem(400, "Content-Length is not a number of bytes")
        if (length := int(lengths[0])) > BODY_LIMIT_BYTES:
            raise _Problem(413, f"the body has more than {BODY_LIMIT_BYTES:,} bytes; use a file")
        try:
            body = self.rfile.read(length)
            if len(body) < length:
                raise _Problem(400, "the body is shorter than its Content-Length")
            value = json.loads(body) if body else {}
        except OSError:
            raise _Problem(400, f"the body did not come within {READ_SECONDS:g} s") from None
        except (ValueError, RecursionError) as error:
            raise _Problem(400, f"the body is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise _Problem(400, "the body is not a JSON object")
        place = Place([])
        if not check_json(value, place) or place.problems:
            raise _Problem(400, str(place.problems[0]))
        return value

    def _result(self, jobs: StepJobs, asked: Coroutine[Any, Any, T]) -> T:
        """What a call on the worker's loop comes to. Raises _Problem."""
        self.server.allow(self.connection, ANSWER_SECONDS)
        try:
            call = asyncio.run_coroutine_threadsafe(asked, jobs.loop)
        except RuntimeError:
            asked.close()
            raise _Problem(503, "the worker is stopping") from None
        try:
            return call.result(CALL_SECONDS)
        except TimeoutError:
            call.cancel()
            raise _Problem(503, "Temporal does not answer; ask again") from None
        except UnknownJob as error:
            raise _Problem(404, str(error)) from None
        except StepFailed as error:
            raise _Problem(_STATUS.get(error.type, 500), str(error)) from None
        except PerdureError as error:
            raise _Problem(503, str(error)) from None
        except Exception:
            _log.exception("a request to PERDURE_JOBS failed")
            raise _Problem(500, "an error of perdure; the worker's log tells it") from None


# --- What is asked for ----------------------------------------------------------------------


async def _peek(jobs: StepJobs, job: str, offsets: Mapping[str, int]) -> dict[str, Any]:
    await _check_own(jobs, job)
    return (await jobs.peek(job, **offsets)).as_json()


async def _interrupt(jobs: StepJobs, job: str, kill_after: float | None) -> dict[str, Any]:
    await _check_own(jobs, job)
    return (await jobs.interrupt(job, kill_after=kill_after)).as_json()


async def _check_own(jobs: StepJobs, job: str) -> None:
    if not await jobs.is_own(job):
        raise UnknownJob(f"the task has no job {shown(job)}")


def _only(query: str, *known: str) -> dict[str, str]:
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise _Problem(400, "the address asks for too much") from None
    for key, _ in given:
        if key not in known:
            raise _Problem(400, f"{shown(key)} is not known here; {meant(key, known)}")
    return dict(given)


def _offsets(query: str) -> dict[str, int]:
    given = _only(query, "offset", "stderr_offset")
    for key, value in given.items():
        if not _NUMBER.fullmatch(value):
            raise _Problem(400, f"{key} counts characters from the beginning; write 0 or more")
    return {key: int(value) for key, value in given.items()}


def _kill_after(body: Mapping[str, Any]) -> float | None:
    for key in body.keys() - {"kill_after"}:
        raise _Problem(400, f"an interrupt has no {shown(key)}; {meant(key, ['kill_after'])}")
    seconds = body.get("kill_after")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise _Problem(400, "kill_after: write seconds, 0 or more")
    return float(seconds)
