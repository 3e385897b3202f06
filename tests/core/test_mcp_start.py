"""What MCP servers are started with: ports, and placeholders filled in (P57)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.mcp_servers import McpServers
from perdure.core.mcp_start import port_variable, ready_to_start
from perdure.environment_files import read_mcp_servers
from tests.dtap_kit import DATA


def started(env: Any, variables: dict[str, str] | None = None) -> tuple[Any, list[str]]:
    """The `env` of one server on port 9000, and what is said."""
    servers = McpServers(definitions={"a": {"name": "A", "env": env}})
    document, said = ready_to_start(servers, {"a": 9000}, variables or {})
    (server,) = document["servers"]
    assert (server["name"], server["port"]) == ("A", 9000)
    return server["env"], said


def test_a_placeholder_gets_the_value_of_its_variable_and_one_that_is_not_set_stays() -> None:
    env, said = started({"X": "${A}:${B}/${A}", "Y": "$A", "Z": 7}, {"A": "1"})
    assert env == {"X": "1:${B}/1", "Y": "$A", "Z": 7, "PORT": "9000"}
    assert said == ["B, for X of MCP server a, is not set"]


def test_a_value_that_looks_like_a_placeholder_is_not_filled_again() -> None:
    assert started({"X": "${A}"}, {"A": "${A}${B}"}) == ({"X": "${A}${B}", "PORT": "9000"}, [])


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PORT": ""}, {"PORT": "9000"}),
        ({"PORT": "8002"}, {"PORT": "9000"}),
        ({"TELECOM_MCP_PORT": ""}, {"TELECOM_MCP_PORT": "9000"}),
        ({"MCP_PORT": None}, {"MCP_PORT": "9000"}),
        ({"HOSPITAL_MCP_PORT": "${PORT}"}, {"HOSPITAL_MCP_PORT": "9000"}),
        ({"MCP_TRANSPORT": "", "SMTP_PORT": ""}, {"MCP_TRANSPORT": "", "SMTP_PORT": ""}),
        (None, {}),
        ("PORT", {}),
    ],
)
def test_a_server_is_told_its_port_as_it_asks_for_it(env: Any, expected: dict[str, str]) -> None:
    assert started(env) == ({"PORT": "9000", **expected}, [])


@pytest.mark.parametrize("version", ["0.1.0", "0.2.12"])
def test_all_servers_of_the_field_are_filled_in_when_their_environments_are_there(
    version: str,
) -> None:
    servers = read_mcp_servers(DATA / version / "mcp.yaml").value
    ports = {name: 9000 + number for number, name in enumerate(servers.definitions)}
    text = str(servers.definitions)
    names = {part.split("}")[0] for part in text.split("${")[1:]} - {"PORT"}
    document, said = ready_to_start(servers, ports, dict.fromkeys(names, "18000"))
    assert said == []
    assert len(document["servers"]) == len(ports) > 30
    for server, port in zip(document["servers"], ports.values(), strict=True):
        assert "${" not in str(server["env"])
        assert server["env"]["PORT"] == str(port)
    assert text == str(servers.definitions), "what was read is left as it was"
    nothing, said = ready_to_start(servers, ports, {})
    assert {words.split(",")[0] for words in said} == names
    assert sum(str(server["env"]).count("${") for server in nothing["servers"]) == len(said)


def test_the_variable_of_a_server_is_one_that_every_shell_takes() -> None:
    assert port_variable("gmail") == "MCP_GMAIL_PORT"
    assert port_variable("os-filesystem 2") == "MCP_OS_FILESYSTEM_2_PORT"
