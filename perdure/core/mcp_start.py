"""What a task's MCP servers start with: a port for each, and placeholders filled in (P57)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.core.mcp_servers import McpServers

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
_OWN_PORT = re.compile(r"MCP_(.*_)?PORT$")


def port_variable(server: str) -> str:
    """The variable that tells a step's process the port of a server: `MCP_<SERVER>_PORT`."""
    return f"MCP_{re.sub(r'[^A-Z0-9]', '_', server.upper())}_PORT"


def ready_to_start(
    servers: McpServers, ports: Mapping[str, int], variables: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The mcp.yaml for a task that starts the servers in `ports`, by their names in lower case.

    Each has its port as `port` and as `PORT` of its `env`, and under every key there that is empty
    and named like TELECOM_MCP_PORT. `${NAME}` in `env` becomes the variable's value; one that is
    not set stays as it is, and a few words about it are in the list.
    """
    found, unset = [], []
    for name, port in ports.items():
        server = servers.definitions[name]
        env = server.get("env")
        env = dict(env) if isinstance(env, dict) else {}
        own = [key for key, value in env.items() if not value and _OWN_PORT.search(str(key))]
        env |= dict.fromkeys(["PORT", *own], str(port))
        seen = {**variables, "PORT": str(port)}
        for key, value in env.items():
            if isinstance(value, str):
                env[key], missing = _filled(value, seen)
                unset += [f"{to}, for {key} of MCP server {name}, is not set" for to in missing]
        found.append({**server, "port": port, "env": env})
    return {"global": dict(servers.settings), "servers": found}, unset


def _filled(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with the values of its variables, and those that are not set."""
    missing = [name for name in _PLACEHOLDER.findall(text) if name not in variables]
    return _PLACEHOLDER.sub(lambda place: variables.get(place[1], place[0]), text), missing
