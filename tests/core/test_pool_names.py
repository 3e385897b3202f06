"""Names that the pool gives are valid, bounded and nobody else's."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.environments import Environment, Port
from perdure.core.pool_names import (
    PROJECT_NAME_LENGTH,
    ambiguous_variables,
    instance_workflow_id,
    project_name,
    project_variable,
)

ODD = ["Django__django-11099", "suite-2026.8.0-rc1", "-lead", "_lead", "ünïcode", "a" * 200]
TRIO = ["a.b", "ab", "A.B"]
names = st.one_of(st.sampled_from([*ODD, *TRIO]), st.text(max_size=300))


@given(names, st.integers(1, 10**12), names, names)
def test_every_project_name_is_one_that_compose_takes(
    environment: str, number: int, uuid: str, prefix: str
) -> None:
    """C09."""
    name = project_name(environment, number, uuid, prefix)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name)
    assert len(name) <= PROJECT_NAME_LENGTH
    assert name == project_name(environment, number, uuid, prefix)


@given(names, names, st.integers(1, 10**6), st.integers(1, 10**6))
def test_two_instances_of_a_pool_never_share_a_project(
    one: str, other: str, first: int, second: int
) -> None:
    """C09: whatever becomes of the environments' names."""
    uuid = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"
    same = project_name(one, first, uuid) == project_name(other, second, uuid)
    assert not same or first == second


def test_two_pools_on_one_engine_never_share_a_project() -> None:
    assert project_name("a", 1, "1b9d6bcd-bbfd") != project_name("a", 1, "2b9d6bcd-bbfd")


def test_a_project_name_tells_prefix_environment_and_number() -> None:
    """P19."""
    assert project_name("shop", 7, "1b9d6bcd-bbfd") == "pool_shop_7_1b9d6bcd"
    assert project_name("Shop.EU", 7, "1b9d6bcd", "dt") == "dt_shop-eu_7_1b9d6bcd"


def test_an_instance_has_a_readable_workflow_id() -> None:
    assert instance_workflow_id("default", "shop", 3) == "instance/default/shop/3"


def test_the_variable_of_a_project_is_one_that_a_shell_takes() -> None:
    assert project_variable("customer-service") == "CUSTOMER_SERVICE_PROJECT_NAME"
    assert project_variable("shop.v2") == "SHOP_V2_PROJECT_NAME"


def test_variables_of_two_environments_of_a_task_are_told_apart_or_told() -> None:
    """PD26: nothing is overwritten without a word."""
    windows = Environment("windows", ports={"WEB_PORT": Port(8005), "RDP": Port(3389)})
    macos = Environment("macos", ports={"WEB_PORT": Port(8006)})
    assert ambiguous_variables([windows, macos]) == {"WEB_PORT": ["windows", "macos"]}
    twins = [Environment("a-b"), Environment("a.b")]
    assert ambiguous_variables(twins) == {"A_B_PROJECT_NAME": ["a-b", "a.b"]}
    assert ambiguous_variables([windows]) == {}
