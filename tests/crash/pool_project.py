"""A project whose instances tell what happens to them, and stop where the test wants them to.

Every instance writes into one file, so what is asserted is what the containers saw, and not what
perdure says.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Phase = Literal["up", "reset", "down"]

COMPOSE = """\
services:
  shop:
    image: perdure-example/shop:1
    pull_policy: never
    command: ["sh", "/inside/start"]
    stop_signal: SIGTERM
    stop_grace_period: 20s
    volumes: ["./inside:/inside:ro", "./log:/log"]
    ports: ["${SHOP_PORT}:8000"]
    healthcheck:
      test: ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/"]
      interval: 2s
      timeout: 2s
      retries: 300
"""

ENVIRONMENTS = """\
environments:
  shop:
    docker_compose: shop/docker-compose.yml
    max_instances: {max_instances}
    ports: {{SHOP_PORT: {{default: 18081, container_port: 8000}}}}
    reset_endpoints: {{api: {{url: "http://127.0.0.1:${{SHOP_PORT}}/cgi-bin/reset", method: POST}}}}
    memory_gb: 0.05
memory: {{required_gb: 0.05, reserve_gb: 0.1}}
"""

PROCESS_ENVIRONMENTS = """\
environments:
  shop:
    process:
      command: ["{python}", "-IS", "server.py", "${{SHOP_PORT}}"]
      cwd: shop
      ready: {{http: "http://127.0.0.1:${{SHOP_PORT}}/", timeout: 60}}
    max_instances: {max_instances}
    ports: {{SHOP_PORT: {{default: 18081}}}}
    reset_endpoints: {{api: {{url: "http://127.0.0.1:${{SHOP_PORT}}/cgi-bin/reset", method: POST}}}}
memory: {{required_gb: 0.05, reserve_gb: 0.1}}
"""

SERVER = """\
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

def say(what):
    with open("log/events", "a") as log:
        log.write(f"{sys.argv[1]}-{os.getpid()} {what}\\n")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        said = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.command == "POST":
            say("clean" if self.path.endswith("/reset") else said)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *words):
        pass

say("up")
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

SAY = 'say() { echo "$(hostname) $*" >> /log/events; }\n'

START = f"""\
{SAY}
trap 'say down; while [ -e /log/hold-down ]; do sleep 0.1; done; say gone; exit 0' TERM
say up
while [ -e /log/hold-up ] && ! rmdir /log/pass-up 2> /dev/null; do sleep 0.1; done
httpd -f -p 8000 -h /inside &
wait
"""

RESET = f"""\
#!/bin/sh
{SAY}
say resets
while [ -e /log/hold-reset ]; do sleep 0.1; done
say clean
printf 'Content-Type: text/plain\\r\\n\\r\\n'
"""

MARK = f"""\
#!/bin/sh
{SAY}
say "$(head -c "$CONTENT_LENGTH")"
printf 'Content-Type: text/plain\\r\\n\\r\\n'
"""

TASK = """\
id: {id}
environments: [shop]
steps:
  - id: begin
    type: http
    environment: shop
    port: SHOP_PORT
    path: /cgi-bin/mark
    method: POST
    body: begin {id}
  - id: work
    type: command
    command: 'echo >> "$GATES/at-work.{id}"; until [ -e "$GATES/open.{id}" ]; do sleep 0.1; done'
    env: {{GATES: {gates}}}
    heartbeat_timeout: 2
  - id: end
    type: http
    environment: shop
    port: SHOP_PORT
    path: /cgi-bin/mark
    method: POST
    body: end {id}
"""


@dataclass(frozen=True)
class Event:
    """What an instance said; `instance` is the container's own name for itself."""

    instance: str
    what: str


class PoolProject:
    """Tasks that each hold one instance of `shop` until the test opens their gate."""

    def __init__(
        self, folder: Path, tasks: Iterable[str], *, max_instances: int, in_docker: bool = True
    ) -> None:
        """Without docker an instance is a process, which is called by its port and its pid."""
        shop = folder / "shop"
        self._lay_out(folder / "tasks", folder / "env.yaml", folder / "gates", shop)
        text = ENVIRONMENTS if in_docker else PROCESS_ENVIRONMENTS
        self.environments.write_text(
            text.format(max_instances=max_instances, python=sys.executable)
        )
        write = write_compose if in_docker else _write_server
        write(shop)
        for id in tasks:
            text = textwrap.dedent(TASK).format(id=id, gates=self._gates)
            (self.tasks / f"{id}.yaml").write_text(text)

    def _lay_out(self, tasks: Path, environments: Path, gates: Path, shop: Path) -> None:
        """Make the folders; `shop` is that of the environment."""
        self.tasks, self.environments = tasks, environments
        self._gates, self._log = gates, shop / "log"
        for made in (self.tasks, self.environments.parent, self._gates, self._log):
            made.mkdir(parents=True, exist_ok=True)

    # --- What the test does -------------------------------------------------------------------

    def hold(self, phase: Phase) -> None:
        """Let no instance get beyond this, until it is let go."""
        (self._log / f"hold-{phase}").touch()

    def let_one_come_up(self) -> None:
        """Let one of them get beyond `hold("up")`."""
        (self._log / "pass-up").mkdir()

    def let_go(self, phase: Phase) -> None:
        """Let them get beyond this."""
        (self._log / f"hold-{phase}").unlink()

    def open(self, *tasks: str) -> None:
        """Let these tasks end their work, whenever they come to it."""
        for task in tasks:
            (self._gates / f"open.{task}").touch()

    # --- What the test sees -------------------------------------------------------------------

    def starts_of_work(self, task: str) -> int:
        """How often a task's own work was begun."""
        file = self._gates / f"at-work.{task}"
        return len(file.read_text()) if file.exists() else 0

    def events(self) -> list[Event]:
        """What all instances said, in order."""
        file = self._log / "events"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Event(*line.split(" ", 1)) for line in lines]

    def said(self, what: str) -> list[str]:
        """The instances that said this, one entry for each time."""
        return [event.instance for event in self.events() if event.what == what]

    def two_on_one(self) -> list[str]:
        """Tasks that got an instance that was not clean, each with what was before them."""
        found, before = [], dict[str, str]()
        for event in self.events():
            task = event.what.removeprefix("begin ")
            if task != event.what and before.get(event.instance) not in ("clean", f"begin {task}"):
                found.append(f"{task} on {event.instance} after {before.get(event.instance)}")
            last = before.get(event.instance, "")
            # Whoever ends must be the one who began.
            if event.what.startswith("end ") and last != f"begin {event.what[4:]}":
                found.append(f"{event.what} on {event.instance} after {last}")
            before[event.instance] = event.what
        return found

    def most_alive(self) -> int:
        """The greatest number of instances at a time; only of those that were stopped in peace."""
        alive, most = set[str](), 0
        for event in self.events():
            if event.what == "up":
                alive.add(event.instance)
            elif event.what == "gone":
                alive.discard(event.instance)
            most = max(most, len(alive))
        return most


def write_compose(folder: Path) -> None:
    """The compose file of the environment, and what runs inside of its container."""
    inside = folder / "inside"
    (inside / "cgi-bin").mkdir(parents=True)
    (folder / "docker-compose.yml").write_text(COMPOSE)
    (inside / "start").write_text(START)
    (inside / "index.html").write_text("open")
    for name, script in (("reset", RESET), ("mark", MARK)):
        (inside / "cgi-bin" / name).write_text(script)
        (inside / "cgi-bin" / name).chmod(0o755)


def _write_server(folder: Path) -> None:
    (folder / "server.py").write_text(SERVER)
