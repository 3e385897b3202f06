"""What a driver of the DTap layout has of perdure while its task runs: a real one, real servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from perdure.client import Perdure
from tests.dtap_kit import Project

REPOSITORY = Path(__file__).resolve().parents[1]

MAIL = """\
import http.server, os

class Mail(http.server.BaseHTTPRequestHandler):
    mails = 0

    def do_POST(self):
        Mail.mails = 0 if self.path == "/reset" else Mail.mails + 1
        self.do_GET()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % Mail.mails)

    def log_message(self, *words):
        pass

http.server.HTTPServer(("127.0.0.1", int(os.environ["GMAIL_UI_PORT"])), Mail).serve_forever()
"""
"""An environment with a state, and an address that resets it."""

DRIVER = """\
import json, os, pathlib, socket, sys, time
from urllib.request import Request, urlopen

sys.path.append({repository!r})
from perdure.resets import reset_all_environments

task_dir, mail = pathlib.Path(sys.argv[1]), "http://127.0.0.1:" + os.environ["GMAIL_UI_PORT"]

def mails(path="/", method="GET"):
    return int(urlopen(Request(mail + path, method=method)).read())

# Its servers: each listens where mcp.yaml says, until the other task has had a look, too.
config = json.load(open(os.environ["PERDURE_MCP_CONFIG"]))
listening = [socket.create_server(("127.0.0.1", int(s["env"]["PORT"]))) for s in config["servers"]]
(task_dir / "seen.json").write_text(json.dumps(
    {{"config": config, "mcp": {{k: v for k, v in os.environ.items() if k.startswith("MCP_")}},
      "ui": os.environ["GMAIL_UI_PORT"]}}))
for _ in range(600):
    if len(list(task_dir.parent.glob("*/seen.json"))) == 2:
        break
    time.sleep(0.05)
else:
    sys.exit("the other task never came")

# Its environment: as it is given, used, and made new again.
assert mails() == 0, "it is handed out clean"
assert mails("/add", "POST") == 1
assert reset_all_environments({{"GMAIL_UI_PORT": int(os.environ["GMAIL_UI_PORT"])}}) == 1
assert mails() == 0
"""

ENV = """\
environments:
  gmail:
    process:
      command: [{python!r}, mail.py]
      cwd: {root!r}
      ready: {{http: "http://127.0.0.1:${{GMAIL_UI_PORT}}/", timeout: 60}}
    ports: {{GMAIL_UI_PORT: {{default: 18977}}}}
    reset_endpoints: {{mails: {{url: "http://127.0.0.1:${{GMAIL_UI_PORT}}/reset"}}}}
    max_instances: 2
  slack: {{process: {{command: [sleep, "600"]}}}}
"""


async def test_a_driver_has_a_port_for_each_of_its_servers_and_resets_its_environment(
    perdure: Perdure, pool: str, tmp_path: Path
) -> None:
    """P46, P52, P57: two drivers at once, with the mcp.yaml of the field as it is."""
    project = Project(tmp_path / "project")
    root = project.root
    (project.config / "env.yaml").write_text(ENV.format(python=sys.executable, root=str(root)))
    (root / "mail.py").write_text(MAIL)
    (root / "driver.py").write_text(DRIVER.format(repository=str(REPOSITORY)))
    servers = "Agent: {mcp_servers: [{name: Gmail}, {name: slack}, {name: of-nobody}]}\n"
    tasks = [project.task(f"crm/benign/{number}", servers) for number in "12"]
    document = await perdure.run_suite(
        root / "dataset", pool=pool, task_command=f"{sys.executable} driver.py {{task_dir}}"
    )
    assert document["totals"]["succeeded"] == 2, document["tasks"]
    seen = [json.loads((task / "seen.json").read_text()) for task in tasks]
    ports = [port for each in seen for port in _ports(each)]
    assert len({*ports, *(int(each["ui"]) for each in seen)}) == 6, "no port is anybody else's"


def _ports(seen: dict[str, Any]) -> list[int]:
    gmail, slack = seen["config"]["servers"]
    assert (gmail["name"], slack["name"]) == ("gmail", "slack")
    ports = [gmail["port"], slack["port"]]
    assert seen["mcp"] == {"MCP_GMAIL_PORT": str(ports[0]), "MCP_SLACK_PORT": str(ports[1])}
    env = gmail["env"]
    assert env["PORT"] == str(ports[0])
    assert env["MAILPIT_BASE_URL"] == f"http://127.0.0.1:{seen['ui']}"
    assert env["API_PROXY_URL"] == "http://127.0.0.1:${GMAIL_PROXY_PORT}", "it is not set"
    return ports
