"""Ports of the MCP servers that a step's process starts by itself (P57)."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.backend import Backends
from activities.compose import ComposeBackend
from activities.held_ports import Holds
from activities.instances import Instances
from activities.noted_ports import note, noted_below
from activities.ports import FreePorts, NoPortLeft, PortProbe
from activities.secrets import WorkerEnvironment
from perdure.core.ports import PortRange
from tests.activities.process_kit import Pool
from tests.activities.steps_kit import Kit
from tests.workflows.test_pool_instances import free_range

LOW, _ = free_range(8)

MCP = """\
global: {base_dir: ../servers}
servers:
  - {name: Mail, env: {PORT: "", URL: "http://127.0.0.1:${MAIL_PORT}", KEY: "${NOT_SET}"}}
  - {name: os-files}
"""
SHOW = 'cat "$PERDURE_MCP_CONFIG"; echo; echo $MCP_MAIL_PORT $MCP_OS_FILES_PORT'


def ports(size: int, **more: Any) -> FreePorts:
    return FreePorts(PortProbe(), PortRange(LOW, LOW + size - 1), **more)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "project" / "config" / "mcp.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(MCP)
    return file


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.end()


def document(config: Path, command: str = SHOW, servers: Any = ("Mail", "os-files", "mail")) -> Any:
    mcp = {"config": str(config), "servers": [*servers]}
    return {"id": "s", "type": "command", "command": command, "mcp": mcp}


async def test_a_process_sees_the_ports_of_its_servers_and_their_mcp_yaml(
    kit: Kit, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kit.have("mail", MAIL_PORT=18025)
    step = document(config)
    host = kit.host(step)
    shown, numbers = (await kit.run("command", host, **step))["stdout"].splitlines()
    found = json.loads(shown)
    mail, files = (server["port"] for server in found["servers"])
    assert numbers == f"{mail} {files}"
    assert found["servers"][0]["env"] == {
        "PORT": str(mail),
        "URL": "http://127.0.0.1:18025",
        "KEY": "${NOT_SET}",
    }
    assert found["global"]["base_dir"] == str(config.parents[1] / "servers")
    assert "NOT_SET, for KEY of MCP server mail, is not set" in caplog.text
    host.close()
    assert not (host.step_dir / "mcp.yaml").exists(), "it may hold secrets"


async def test_steps_at_the_same_time_share_no_port_and_give_theirs_back(
    kit: Kit, config: Path
) -> None:
    step = document(config, "echo $MCP_MAIL_PORT $MCP_OS_FILES_PORT; sleep 0.2")
    four = ports(8)
    for _ in range(2):  # the second burst finds the ports of the first one
        hosts = [kit.host(step, free_ports=four) for _ in range(4)]
        results = await asyncio.gather(*(kit.run("command", host, **step) for host in hosts))
        told = [port for result in results for port in result["stdout"].split()]
        assert sorted(map(int, told)) == list(range(LOW, LOW + 8))


async def test_a_range_that_is_used_up_fails_the_step_as_its_environment(
    kit: Kit, config: Path
) -> None:
    step = document(config)
    failed = await kit.fail("command", kit.host(step, free_ports=ports(1)), **step)
    assert (failed.type, failed.kind) == ("NoPort", "environment")
    assert f"of the ports {LOW}-{LOW} 1 are free, and 2 are needed" in str(failed)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "mcp.yaml"),
        ("servers: [{name: mail}]", "there is no server 'os-files'"),
        ("servers: {mail: 1}", "servers"),
    ],
)
async def test_an_mcp_yaml_that_is_of_no_use_is_said(
    kit: Kit, config: Path, content: str | None, says: str
) -> None:
    if content is None:
        config.unlink()
    else:
        config.write_text(content)
    failed = await kit.fail("command", **document(config))
    assert (failed.type, failed.kind, failed.retryable) == ("BadMcpConfig", "bad_input", False)
    assert says in str(failed)


async def test_an_attempt_draws_no_port_on_which_an_earlier_ones_server_lingers(
    kit: Kit, config: Path
) -> None:
    step = document(config, "echo $MCP_MAIL_PORT $MCP_OS_FILES_PORT")
    three = ports(3)
    with socket.create_server(("127.0.0.1", LOW + 1)):
        result = await kit.run("command", kit.host(step, free_ports=three), **step)
    assert sorted(map(int, result["stdout"].split())) == [LOW, LOW + 2]


# --- Who has which ------------------------------------------------------------------------------


async def test_an_instance_that_a_pool_starts_gets_no_port_of_a_tasks_servers(
    temporal: WorkflowEnvironment, pool: Pool
) -> None:
    app = pool.app()
    backends = Backends(ComposeBackend(WorkerEnvironment()), app.backend, pool.root.parent)
    instances = Instances(temporal.client, backends, PortProbe())
    start = functools.partial(ActivityEnvironment().run, instances.start_instance, app.call)
    with Holds() as holds:
        assert holds.take(app.port)
        refused = await start()
    assert (refused.ok, refused.taken_ports) == (False, [app.port])
    assert not refused.at_start, "nothing was tried: it gets another port at once"
    assert (await start()).ok
    assert (await app.stop()).ok


async def test_what_one_process_holds_is_taken_for_all_others_until_it_dies() -> None:
    """A worker that is killed frees what its steps had, as they die with it."""
    program = "import sys; from activities.held_ports import Holds; h = Holds()\n"
    program += f"print(h.take({LOW}), flush=True); sys.stdin.read()"
    other = subprocess.Popen(  # noqa: ASYNC220  (nothing else runs meanwhile)
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with Holds() as holds:
            # As an instance's start asks, and as a step does.
            assert await PortProbe().taken([LOW, LOW + 1], holds) == [LOW]
        with Holds() as holds:
            assert await ports(2).choose(1, holds) == [LOW + 1]
        other.kill()
    with Holds() as holds:
        assert await PortProbe().taken([LOW, LOW + 1], holds) == []
        assert await PortProbe().taken([LOW], holds) == [], "one's own is not taken"


async def test_ports_of_instances_are_left_alone_even_where_nobody_listens(tmp_path: Path) -> None:
    folder = tmp_path / "pool" / "7"
    folder.mkdir(parents=True)
    note(folder, {"A": LOW, "B": LOW + 1})
    (tmp_path / "pool" / "8").mkdir()
    (tmp_path / "pool" / "8" / "ports.json").write_text("{")
    assert noted_below(tmp_path) == {LOW, LOW + 1}
    with Holds() as holds:
        chooser = ports(3, spoken_for=lambda: noted_below(tmp_path))
        assert await chooser.choose(1, holds) == [LOW + 2]
        with pytest.raises(NoPortLeft):
            await chooser.choose(1, holds)
