"""An environment whose starts, resets, uses and stops are sleeps, and which keeps a log of them.

    python -IS slow_server.py PORT ENVIRONMENT START_SECONDS RESET_SECONDS STOP_SECONDS LOG

It answers requests when it was started for so long: `POST /reset`, `GET /use/TASK/SECONDS`, and
`GET /` at once. Each line of the log is a JSON object: `at` (seconds of the clock that all
processes share), `environment`, `instance` (its port), `what` and `task`. Standard library only.
"""

import time

STARTED = time.monotonic()  # what is imported next is a part of the start

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


class SlowServer:
    """One instance."""

    def __init__(self, port: int, environment: str, reset: float, stop: float, log: Path) -> None:
        self._port = port
        self._environment = environment
        self._reset_seconds = reset
        self._stop_seconds = stop
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        signal.signal(signal.SIGTERM, self._stop)
        self.note("start")

    def note(self, what: str, task: str = "") -> None:
        """Write a line of the log, whole, whoever else writes."""
        line = {
            "at": time.monotonic(),
            "environment": self._environment,
            "instance": self._port,
            "what": what,
            "task": task,
        }
        os.write(self._log, json.dumps(line).encode() + b"\n")

    def serve(self) -> None:
        """Answer until it is stopped."""
        try:
            server = socket.create_server(("127.0.0.1", self._port), backlog=128)
        except OSError:  # somebody else was quicker; the pool tries another port
            self.note("gone")
            raise
        with server:
            self.note("ready")
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            request = connection.recv(4096).decode("latin-1").split(" ")
            _, what, *rest = (request[1] if len(request) > 1 else "/").split("/")
            if what == "reset":
                self._take("reset", self._reset_seconds)
            elif what == "use":
                self._take("use", float(rest[1]), rest[0])
            if len(request) > 1:
                connection.sendall(_ANSWER)

    def _take(self, what: str, seconds: float, task: str = "") -> None:
        self.note(f"{what} begins", task)
        time.sleep(seconds)
        self.note(f"{what} ends", task)

    def _stop(self, *_: object) -> None:
        time.sleep(self._stop_seconds)
        self.note("gone")
        os._exit(0)


def main(port: str, environment: str, start: str, reset: str, stop: str, log: str) -> None:
    """Be one instance."""
    server = SlowServer(int(port), environment, float(reset), float(stop), Path(log))
    time.sleep(max(0.0, STARTED + float(start) - time.monotonic()))
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
