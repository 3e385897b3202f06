"""The same project in the DTap layout: its tasks are those of a driver, with servers of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.crash.pool_project import PoolProject, write_compose

ENVIRONMENTS = """\
task_command: "{python} driver.py {{task_dir}}"
environments:
  shop:
    max_instances: 1
    ports: {{SHOP_PORT: {{default: 18081, container_port: 8000}}}}
    reset_endpoints: {{api: {{url: "http://127.0.0.1:${{SHOP_PORT}}/cgi-bin/reset", method: POST}}}}
    memory_gb: 0.05
memory: {{required_gb: 0.05, reserve_gb: 0.1}}
"""

SERVERS = """\
servers:
  - {name: Shop, environment: shop, env: {PORT: "", URL: "http://127.0.0.1:${SHOP_PORT}"}}
"""

TASK = "Agent: {mcp_servers: [{name: shop}]}\n"

VALIDATE = """\
import pathlib

def validate(env_dir):
    pathlib.Path(env_dir, "log", "validated").touch()
    return True, ""
"""

DRIVER = """\
import json, os, pathlib, socket, subprocess, sys, time
from urllib.request import Request, urlopen

task, gates = pathlib.Path(sys.argv[1]).name, pathlib.Path({gates!r})
shop = "http://127.0.0.1:" + os.environ["SHOP_PORT"]
assert os.environ["SHOP_PROJECT_NAME"]

def say(what):
    urlopen(Request(shop + "/cgi-bin/mark", what.encode(), method="POST")).read()

# Its server hides in a session of its own, as those of real drivers do.
(settings,) = json.load(open(os.environ["PERDURE_MCP_CONFIG"]))["servers"]
assert settings["env"]["URL"] == shop
port = settings["env"]["PORT"]
words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port]
server = subprocess.Popen(words, start_new_session=True)
(gates / f"servers.{{task}}").open("a").write(f"{{server.pid}} {{port}}\\n")
while socket.socket().connect_ex(("127.0.0.1", int(port))):
    assert server.poll() is None, "the port is its own"
    time.sleep(0.05)
say(f"begin {{task}}")
(gates / f"at-work.{{task}}").open("a").write("\\n")
while not (gates / f"open.{{task}}").exists():
    time.sleep(0.1)
assert server.poll() is None
say(f"end {{task}}")
"""


class DtapProject(PoolProject):
    """Tasks whose driver starts an MCP server each, and holds the instance until its gate opens."""

    def __init__(self, folder: Path, tasks: Iterable[str]) -> None:
        arena = folder / "dt_arena"
        config, shop = arena / "config", arena / "envs" / "shop"
        dataset = folder / "dataset" / "shop" / "benign"
        self._lay_out(dataset, config / "env.yaml", folder / "gates", shop)
        self.environments.write_text(ENVIRONMENTS.format(python=sys.executable))
        (config / "mcp.yaml").write_text(SERVERS)
        (folder / "driver.py").write_text(DRIVER.format(gates=str(self._gates)))
        write_compose(shop)
        (shop / "validate.py").write_text(VALIDATE)
        for id in tasks:
            (self.tasks / id).mkdir()
            (self.tasks / id / "config.yaml").write_text(TASK)

    def servers(self, task: str) -> list[tuple[int, int]]:
        """Pid and port of the server of each attempt of a task."""
        lines = (self._gates / f"servers.{task}").read_text().splitlines()
        return [(int(pid), int(port)) for pid, port in map(str.split, lines)]

    @property
    def is_validated(self) -> bool:
        """Whether the environment's own hook had its say."""
        return (self._log / "validated").exists()
