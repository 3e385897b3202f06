"""env.yaml's document: defaults, every key, what is a warning, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.environments import (
    Environment,
    Environments,
    Memory,
    Port,
    Process,
    Ready,
    ResetEndpoint,
    is_environments,
    parse_environments,
)
from perdure.core.problems import Problem


def parse(document: Any) -> tuple[Environments, list[str], list[str]]:
    problems: list[Problem] = []
    warnings: list[Problem] = []
    found = parse_environments(document, problems, warnings)
    return found, list(map(str, problems)), list(map(str, warnings))


def good(document: Any) -> Environments:
    found, problems, warnings = parse(document)
    assert (problems, warnings) == ([], [])
    return found


def one(entry: Any, **top: Any) -> Environment:
    return good({"environments": {"shop": entry}, **top}).environments["shop"]


def refused(entry: Any) -> str:
    _, problems, _ = parse({"environments": {"shop": entry}})
    (problem,) = problems
    return problem


def test_all_keys_of_an_environment_are_optional() -> None:
    """P2, P3"""
    entries: list[Any] = [{}, None]
    for entry in entries:
        shop = one(entry)
        assert shop == Environment("shop")
        assert (shop.health_timeout_seconds, shop.reset_retries) == (120, 1)
        assert (shop.reset_retry_delay_seconds, shop.reset_script_timeout_seconds) == (10, 60)
        assert (shop.disable_reuse, shop.max_instances) == (False, None)


def test_every_key_is_read() -> None:
    """P2, P6, P7, and perdure's own keys"""
    shop = one(
        {
            "docker_compose": "envs/shop/docker-compose.yml",
            "max_instances": 2,
            "health_timeout": 300,
            "ports": {"SHOP_PORT": {"default": 18080, "container_port": 8000}},
            "reset_endpoints": {
                "b": {"url": "http://127.0.0.1:${SHOP_PORT}/b", "method": "delete"},
                "a": {"url": "http://127.0.0.1:${SHOP_PORT}/a"},
            },
            "reset_scripts": {"shop": "/reset.sh"},
            "reset_retries": 0,
            "reset_retry_delay": 0,
            "reset_script_timeout": "2m",
            "disable_reuse": True,
            "env": {"DB_PASS": {"from_env": "SHOP_DB_PASS"}, "LEVEL": 3},
            "memory_gb": 0.5,
            "prewarm": 1,
            "prepare_timeout": "30m",
            "start_timeout": "5m",
            "max_idle": "10m",
            "vm_profile": "of other tools",
        }
    )
    assert shop == Environment(
        "shop",
        docker_compose="envs/shop/docker-compose.yml",
        max_instances=2,
        ports={"SHOP_PORT": Port(18080, 8000)},
        reset_endpoints=(
            ResetEndpoint("b", "http://127.0.0.1:${SHOP_PORT}/b", "DELETE"),
            ResetEndpoint("a", "http://127.0.0.1:${SHOP_PORT}/a", "POST"),
        ),
        reset_scripts={"shop": "/reset.sh"},
        reset_retries=0,
        reset_retry_delay_seconds=0,
        reset_script_timeout_seconds=120,
        health_timeout_seconds=300,
        disable_reuse=True,
        env={"DB_PASS": {"from_env": "SHOP_DB_PASS"}, "LEVEL": "3"},
        memory_gb=0.5,
        prewarm=1,
        prepare_timeout_seconds=1800,
        start_timeout_seconds=300,
        max_idle_seconds=600,
    )


def test_a_process_is_read() -> None:
    mail = one(
        {
            "process": {
                "command": ["python3", "-m", "http.server", "${MAIL_PORT}"],
                "ready": {"http": "http://127.0.0.1:${MAIL_PORT}/"},
            },
            "ports": {"MAIL_PORT": {"default": 18025}},
        }
    )
    assert mail.process == Process(
        ("python3", "-m", "http.server", "${MAIL_PORT}"),
        ready=Ready("http://127.0.0.1:${MAIL_PORT}/", timeout_seconds=30),
    )
    tcp = {"command": "serve", "cwd": "srv", "ready": {"tcp": "P", "timeout": 5}}
    assert one({"process": tcp, "ports": {"P": None}}).process == Process(
        "serve", "srv", Ready(tcp="P", timeout_seconds=5)
    )


@pytest.mark.parametrize(
    ("entry", "default", "limit"),
    [
        ({"max_instances": 3}, 5, 3),
        ({"max_instances": None}, 5, None),
        ({}, 5, 5),
        (None, 5, 5),
        ({}, None, None),
    ],
)
def test_max_instances_of_an_entry_wins_even_when_it_is_null(
    entry: Any, default: int | None, limit: int | None
) -> None:
    """P3, P4"""
    assert one(entry, default_max_instances=default).max_instances == limit


@pytest.mark.parametrize(
    ("port", "wanted"),
    [(Port(18080, 80), 18080), (Port(None, 80), 80), (Port(), 8000)],
)
def test_the_wanted_port_is_the_default_else_that_of_the_container(port: Port, wanted: int) -> None:
    """P5"""
    assert port.wanted == wanted


def test_top_level_keys_are_read() -> None:
    """P1"""
    found = good(
        {
            "default_max_instances": 4,
            "environments": None,
            "memory": {"required_gb": 4, "reserve_gb": 2},
            "task_command": "run {task_dir}",
        }
    )
    assert found == Environments({}, 4, Memory(4, 2), "run {task_dir}")
    assert good(None) == good({}) == Environments()
    assert good({"memory": {}}).memory == Memory(1.0, None)


def test_what_perdure_does_not_know_is_a_warning() -> None:
    """PD26"""
    found, problems, warnings = parse(
        {
            "environments": {
                "shop": {"helth_timeout": 3, "ports": {"P": {"default": 1, "host": 2}}},
            },
            "extra": 1,
        }
    )
    assert problems == []
    assert found.environments["shop"].ports == {"P": Port(1)}
    assert [warning.split(":")[0] for warning in warnings] == [
        "extra",
        "environments.shop.helth_timeout",
        "environments.shop.ports.P.host",
    ]
    assert "'health_timeout'" in warnings[1]


def test_a_placeholder_that_is_no_port_of_the_environment_is_a_warning() -> None:
    """P6"""
    entry = {
        "ports": {"A_PORT": {}},
        "reset_endpoints": {"api": {"url": "http://127.0.0.1:${B_PORT}/${A_PORT}"}},
    }
    found, problems, warnings = parse({"environments": {"shop": entry}})
    assert problems == []
    assert "shop" in found.environments
    (warning,) = warnings
    assert "environments.shop.reset_endpoints.api.url" in warning
    assert "B_PORT" in warning


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ([], "is a list, not a mapping"),
        ({"max_instances": 0}, "0 is not between 1"),
        ({"max_instances": "4"}, "not a whole number"),
        ({"ports": {"8080": {}}}, "not the name of a variable"),
        ({"ports": {"P": {"default": 70000}}}, "not between 1 and 65,535"),
        ({"ports": {"P": 8080}}, "not a mapping"),
        ({"ports": ["P"]}, "not a mapping"),
        ({"reset_endpoints": {"api": {"method": "POST"}}}, "has no url"),
        ({"reset_endpoints": {"api": {"url": "http://x", "method": "P T"}}}, "not an HTTP method"),
        ({"reset_scripts": {"db": ["sh"]}}, "not text"),
        ({"reset_retries": -1}, "not between"),
        ({"health_timeout": "soon"}, "not a length of time"),
        ({"disable_reuse": "yes"}, "not true or false"),
        (
            {"docker_compose": "a.yml", "process": {"command": "x"}},
            "both docker_compose and process",
        ),
        ({"process": {}}, "has no command"),
        ({"process": {"command": "x", "ready": {}}}, "exactly one of http and tcp"),
        ({"process": {"command": "x", "ready": {"http": "u", "tcp": "P"}}}, "exactly one"),
        ({"env": {"A": {"from_nowhere": 1}}}, "not exactly one of from_env and from_file"),
        ({"memory_gb": -1}, "not between"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_a_remedy(entry: Any, said: str) -> None:
    problem = refused(entry)
    assert problem.startswith("environments.shop")
    assert said in problem
    assert ";" in problem


@pytest.mark.parametrize("document", [[], "text", 3, {"environments": []}, {"memory": 4}])
def test_what_is_no_env_yaml_is_refused(document: Any) -> None:
    assert parse(document)[1]


def test_a_name_that_is_no_id_is_refused() -> None:
    assert "nearest legal id" in parse({"environments": {"a b": {}}})[1][0]


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        ({"environments": {}}, True),
        ({"environments": None}, True),
        ({"default_max_instances": None}, True),
        ({"environments": ["shop"]}, False),
        ({"environments": {}, "steps": []}, False),
        ({"servers": []}, False),
        ([], False),
        (None, False),
    ],
)
def test_an_env_yaml_is_known_by_its_shape(document: Any, answer: bool) -> None:
    assert is_environments(document) is answer


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "process",
                    "ports",
                    "reset_endpoints",
                    "url",
                    "command",
                    "ready",
                    "http",
                    "tcp",
                    "env",
                ]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_no_document_makes_the_check_fall_over(entry: Any) -> None:
    for document in (entry, {"environments": entry}, {"environments": {"shop": entry}}):
        found, problems, warnings = parse(document)
        assert problems or isinstance(found, Environments)
        assert all(text.isprintable() for text in [*problems, *warnings])
