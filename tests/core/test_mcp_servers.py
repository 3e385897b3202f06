"""From the MCP servers that a DTap task names to the environments that it needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.mcp_servers import (
    McpServers,
    is_mcp_servers,
    parse_mcp_servers,
    servers_named,
)
from perdure.core.problems import Problem


def named(config: Any) -> tuple[list[str], list[str], list[str]]:
    problems: list[Problem] = []
    warnings: list[Problem] = []
    found = servers_named(config, problems, warnings)
    names = [server.name for server in found]
    return names, list(map(str, problems)), list(map(str, warnings))


def names(config: Any) -> list[str]:
    found, problems, warnings = named(config)
    assert (problems, warnings) == ([], [])
    return found


def mcp(document: Any) -> tuple[McpServers, list[str], list[str]]:
    problems: list[Problem] = []
    warnings: list[Problem] = []
    found = parse_mcp_servers(document, problems, warnings)
    return found, list(map(str, problems)), list(map(str, warnings))


def test_the_agents_servers_count_in_lower_case_unless_they_are_not_enabled() -> None:
    """P11"""
    servers = [
        {"name": "Gmail"},
        {"name": "slack", "enabled": True},
        {"name": "zoom", "enabled": False},
        {"name": "calendar", "enabled": None},
    ]
    assert names({"Agent": {"mcp_servers": servers}}) == ["gmail", "slack", "calendar"]


def test_the_top_levels_servers_count_when_the_agent_has_none() -> None:
    """P11"""
    top = [{"name": "gmail"}]
    agents: list[Any] = [None, {}, {"mcp_servers": []}, {"mcp_servers": None, "sub_agents": None}]
    for agent in agents:
        assert names({"Agent": agent, "mcp_servers": top}) == ["gmail"]
    assert names({"mcp_servers": top}) == ["gmail"]
    assert names({"Agent": {"mcp_servers": [{"name": "slack"}]}, "mcp_servers": top}) == ["slack"]
    off = {"mcp_servers": [{"name": "slack", "enabled": False}]}
    assert names({"Agent": off, "mcp_servers": top}) == []


def test_the_servers_of_sub_agents_count_in_the_order_of_first_appearance() -> None:
    """P12"""
    agent = {
        "mcp_servers": [{"name": "b"}],
        "sub_agents": [
            {"mcp_servers": [{"name": "a"}, {"name": "B"}], "sub_agents": None},
            {"sub_agents": [{"mcp_servers": [{"name": "c"}, {"name": "a"}]}]},
            None,
        ],
    }
    assert names({"Agent": agent, "mcp_servers": [{"name": "top"}]}) == ["b", "a", "c"]


@pytest.mark.parametrize("config", [None, {}, {"Agent": None}, {"Agent": {"mcp_servers": None}}])
def test_a_config_that_names_no_server_needs_none(config: Any) -> None:
    """P10, P12, PD29"""
    assert names(config) == []


@pytest.mark.parametrize("server", [{"name": None}, {"name": ""}, {"name": "  "}, {}])
def test_a_server_without_a_name_is_passed_over_with_a_warning(server: dict[str, Any]) -> None:
    """P12, PD29"""
    found, problems, warnings = named({"Agent": {"mcp_servers": [server, {"name": "gmail"}]}})
    assert (found, problems) == (["gmail"], [])
    assert warnings[0].startswith("Agent.mcp_servers[0]: the server has no name")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "is a list, not a mapping"),
        ({"Agent": "gmail"}, "Agent: is text, not a mapping"),
        ({"Agent": {"mcp_servers": {"name": "gmail"}}}, "Agent.mcp_servers: is a mapping"),
        ({"Agent": {"mcp_servers": ["gmail"]}}, "write - name: gmail"),
        ({"Agent": {"mcp_servers": [{"name": 3}]}}, "mcp_servers[0].name: 3 is not text"),
        ({"Agent": {"mcp_servers": [{"name": "a", "enabled": "no"}]}}, "not true or false"),
        ({"Agent": {"sub_agents": [[]]}}, "Agent.sub_agents[0]: is a list"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(config: Any, said: str) -> None:
    """PD29"""
    _, problems, _ = named(config)
    assert said in problems[0]


def test_a_server_leads_to_one_environment_or_to_several() -> None:
    """P13, P15"""
    servers = [
        {"name": "Gmail", "environment": "gmail", "enabled": False},
        {"name": "shop", "environment": ["ecommerce", "custom-website", "ecommerce"]},
        {"name": "plain"},
        {"name": "null", "environment": None},
    ]
    found, problems, warnings = mcp({"global": {}, "servers": servers})
    assert (problems, warnings) == ([], [])
    assert found.behind(["shop", "gmail", "plain", "null", "unknown", "shop"]) == (
        "ecommerce",
        "custom-website",
        "gmail",
    )


def test_of_two_servers_with_one_name_the_later_counts() -> None:
    servers = [{"name": "a", "environment": "x"}, {"name": "A", "environment": "y"}]
    found, problems, warnings = mcp({"servers": servers})
    assert problems == []
    assert "servers[0] is the other" in warnings[0]
    assert found.behind(["a"]) == ("y",)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "is a list"),
        ({"servers": {}}, "servers: is a mapping, not a list"),
        ({"servers": ["gmail"]}, "write - name: gmail"),
        ({"servers": [{"environment": "x"}]}, "servers[0].name: has no name"),
        ({"servers": [{"name": None}]}, "servers[0].name: has no name"),
        ({"servers": [{"name": 3}]}, "3 is not text"),
        ({"servers": [{"name": "a", "environment": {}}]}, "servers[0].environment: is a mapping"),
        ({"servers": [{"name": "a", "environment": "a b"}]}, "nearest legal id"),
        ({"servers": [{"name": "a", "environment": ["x", None]}]}, "servers[0].environment[1]"),
    ],
)
def test_a_wrong_mcp_yaml_is_refused_with_the_place(document: Any, said: str) -> None:
    """PD29"""
    assert said in mcp(document)[1][0]


def test_keys_that_are_not_known_are_warnings() -> None:
    found, problems, warnings = mcp({"servers": [{"name": "a", "enviroment": "x"}], "more": 1})
    assert (found.environments, problems) == ({}, [])
    assert any("'environment'" in warning for warning in warnings)


def test_an_mcp_yaml_is_known_by_its_shape() -> None:
    assert is_mcp_servers({"servers": []})
    assert not is_mcp_servers({"servers": [], "steps": []})
    assert not is_mcp_servers([])


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["Agent", "mcp_servers", "sub_agents", "name", "enabled", "servers", "environment"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(_VALUES)
def test_no_document_makes_the_checks_fall_over(document: Any) -> None:
    """PD29"""
    for value in (document, {"Agent": document}, {"servers": document}):
        named(value)
        mcp(value)
