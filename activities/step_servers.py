"""The MCP servers that a step's process starts by itself: a port for each, and their settings."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from activities.held_ports import Holds
from activities.host import StepHost
from activities.ports import NoPortLeft
from perdure.core.mcp_servers import McpServers
from perdure.core.mcp_start import port_variable, ready_to_start
from perdure.environment_files import read_mcp_servers
from perdure.messages import Json
from perdure.steps import StepFailed

CONFIG_VARIABLE = "PERDURE_MCP_CONFIG"
"""Where the process finds the mcp.yaml of its servers alone, ports and placeholders filled in."""

CONFIG_FILE = "mcp.yaml"
"""In the attempt's directory; one of its private files, since placeholders may hold secrets."""


@asynccontextmanager
async def own_servers(host: StepHost, mcp: Json) -> AsyncIterator[dict[str, str]]:
    """The variables that tell a step's process of its servers; their ports are its until the end
    of the block, as far as other instances and tasks of this machine go (P57).

    `mcp` is what the step's document says under that key; None: it starts no servers. An attempt
    that comes after another one has other ports: where the earlier one's servers still linger,
    nothing waits for them.

    Raises StepFailed:
        BadMcpConfig: the mcp.yaml is not to be had, or lacks a server; not retried.
        NoPort: the range is used up; kind `environment`.
    """
    if not mcp:
        yield {}
        return
    names = list(dict.fromkeys(name.lower() for name in mcp["servers"]))
    servers = await asyncio.to_thread(_servers, Path(mcp["config"]), names)
    with Holds() as holds:
        try:
            chosen = await host.free_ports.choose(len(names), holds)
        except NoPortLeft as error:
            raise StepFailed(
                f"no ports for the MCP servers: {error}", type="NoPort", kind="environment"
            ) from None
        ports = dict(zip(names, chosen, strict=True))
        variables = {port_variable(name): str(port) for name, port in ports.items()}
        document, unset = ready_to_start(servers, ports, host.environ(variables))
        for words in unset:
            host.log.warning("%s: %s, and stays as it is", mcp["config"], words)
        content = json.dumps(document, default=str).encode()  # which is YAML, too
        yield {**variables, CONFIG_VARIABLE: str(host.private_file(CONFIG_FILE, content))}


def _servers(config: Path, names: list[str]) -> McpServers:
    """What the file says, paths that are relative to its folder made absolute."""
    checked = read_mcp_servers(config)
    problems = list(map(str, checked.problems))
    servers = checked.value
    problems += [
        f"{config}: there is no server {n!r}" for n in names if n not in servers.definitions
    ]
    if problems:
        raise StepFailed(problems[0], type="BadMcpConfig", kind="bad_input", retryable=False)
    folder = os.path.abspath(config.parent)
    settings = dict(servers.settings)
    for key, default in (("base_dir", "."), ("log_dir", "logs")):
        settings[key] = os.path.normpath(os.path.join(folder, str(settings.get(key) or default)))
    return McpServers(definitions=servers.definitions, settings=settings)
