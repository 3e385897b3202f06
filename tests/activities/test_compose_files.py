"""Compose files: what is in them, what cannot be there twice, and what perdure puts beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.compose_files import (
    ComposeModel,
    built_image,
    fixed_parts,
    override,
    place_of,
    unset_variables,
)


def model(project: str, port: str, **app: object) -> ComposeModel:
    """What compose prints of a file with one service, for a project and its port."""
    config = {
        "name": project,
        "services": {
            "app": {"image": "x", "ports": [{"target": 80, "published": port}], **app},
            "job": {"build": {"context": "."}, "deploy": {"replicas": 0}},
        },
        "networks": {"default": {"name": f"{project}_default"}, "out": {"external": True}},
        "volumes": {"data": {"name": f"{project}_data"}},
    }
    return ComposeModel.from_config("warning: old\n" + json.dumps(config))


def test_a_file_declares_services_networks_and_volumes_of_its_own() -> None:
    found = model("p", "8000")
    assert found.services["app"].published == ("8000",)
    assert found.services["job"].is_built
    assert found.expected == ["app"]
    assert found.networks == {"default": "p_default"}
    assert found.volumes == {"data": "p_data"}
    with pytest.raises(ValueError):
        ComposeModel.from_config("")


def test_what_follows_the_instance_is_not_fixed() -> None:
    assert fixed_parts(model("p", "1"), model("q", "2")) == []
    assert fixed_parts(model("p", "8000-8010"), model("q", "8000-8010")) == []  # the engine chooses
    own = [
        model(name, port, container_name=f"{name}-app") for name, port in (("p", "1"), ("q", "2"))
    ]
    assert fixed_parts(*own) == []


def test_what_is_equal_for_two_instances_is_fixed_wherever_it_comes_from() -> None:
    found = fixed_parts(
        model("p", "8000", container_name="shop"), model("q", "8000", container_name="shop")
    )
    assert [part.path for part in found] == [
        ("services", "app", "container_name"),
        ("services", "app", "ports"),
    ]
    assert all(part.service == "app" for part in found)
    assert "8000" in found[1].message


def test_networks_and_volumes_with_a_name_of_their_own_are_fixed() -> None:
    one = ComposeModel(networks={"default": "mine"}, volumes={"data": "mine"})
    assert [part.path[0] for part in fixed_parts(one, one)] == ["networks", "volumes"]


def test_a_place_is_the_line_in_the_file_or_the_file(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text("services:\n  app:\n    image: x\n    container_name: y\n")
    assert place_of(file, ("services", "app", "container_name")) == f"{file}:4"
    assert place_of(file, ("services", "included", "ports")) == str(file)
    file.write_text("services: [")
    assert place_of(file, ("services",)) == str(file)


def test_unset_variables_are_read_from_what_compose_says() -> None:
    """C11."""
    printed = (
        'time="x" level=warning msg="The \\"NOT_SET\\" variable is not set. Defaulting to a blank '
        'string."\nThe OTHER variable is not set.\nerror while interpolating services.a: required '
        "variable REQ is missing a value: needs it\n"
    )
    assert unset_variables(printed) == ["NOT_SET", "OTHER", "REQ"]
    assert unset_variables("all is well") == []


def test_all_that_a_project_makes_is_labelled() -> None:
    written = json.loads(override(model("p", "1"), {"perdure.pool": "u$x"}, {"job": "built:1"}))
    labels = {"perdure.pool": "u$$x"}  # compose would fill in a single dollar
    assert written["services"] == {
        "app": {"labels": labels},
        "job": {"labels": labels, "image": "built:1"},
    }
    assert written["networks"] == {"default": {"labels": labels}}
    assert written["volumes"] == {"data": {"labels": labels}}


@given(st.text(max_size=300), st.text(max_size=50))
def test_an_image_is_named_validly_whatever_its_environment_is_called(
    environment: str, service: str
) -> None:
    """C09."""
    name, tag = (
        built_image(environment, service, "ab" * 32).removeprefix("perdure-build/").split(":")
    )
    assert name.isascii()
    assert name.replace("-", "x").isalnum()
    assert "--" not in name
    assert len(tag) == 32
