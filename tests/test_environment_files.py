"""env.yaml, mcp.yaml and config.yaml as files: what ships elsewhere loads, mistakes are placed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.documents import load
from perdure.environment_files import (
    read_environments,
    read_mcp_servers,
    read_servers_named,
)

DATA = Path(__file__).resolve().parent / "data"


@pytest.mark.parametrize(("version", "count", "line"), [("0.1.0", 33, 425), ("0.2.12", 43, 444)])
def test_a_shipped_env_yaml_loads_as_it_is(version: str, count: int, line: int) -> None:
    """P1, P2, PD26"""
    found = read_environments(DATA / "dtap" / version / "env.yaml")
    assert found.problems == []
    (warning,) = found.warnings
    assert warning.line == line
    assert "'customer_service' is there twice: on line 8" in warning.message
    assert "the later one counts" in warning.remedy
    environments = found.value.environments
    assert len(environments) == count
    assert environments["customer_service"].max_instances == 10
    assert environments["gmail"].max_instances is None
    assert environments["gmail"].ports["GMAIL_FRONTEND_PORT"].container_port == 80
    (endpoint,) = environments["gmail"].reset_endpoints
    assert (endpoint.name, endpoint.method) == ("auth", "POST")
    assert environments["windows"].health_timeout_seconds in (300, 600)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.12"])
def test_a_shipped_mcp_yaml_loads_as_it_is(version: str) -> None:
    """P13"""
    found = read_mcp_servers(DATA / "dtap" / version / "mcp.yaml")
    assert (found.problems, found.warnings) == ([], [])
    assert len(found.value.environments) == 44
    assert found.value.behind(["gmail", "salesforce", "gmail"]) == ("gmail", "salesforce")
    assert any(len(names) == 2 for names in found.value.environments.values())


def test_the_example_of_another_framework_is_refused_with_every_type_that_it_lacks() -> None:
    text = "\n".join(map(str, load([DATA / "agentenv" / "hello.json"]).problems))
    for name in ("deploy_sandbox", "load_artifact", "verify_sandbox"):
        assert f"there is no step type '{name}'" in text


def test_problems_and_warnings_have_file_line_key_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text(
        "environments:\n  shop:\n    max_instances: many\n    colour: red\n  mail: {}\n"
    )
    found = read_environments(file)
    (problem,), (warning,) = found.problems, found.warnings
    assert str(problem) == (
        f"{file}:3: environments.shop.max_instances: 'many' is not a whole number; "
        "write one, without quotes"
    )
    assert str(warning).startswith(f"{file}:4: environments.shop.colour: an environment has no key")


@pytest.mark.parametrize("text", ["", "# nothing\n\n  # yet\n", "---\n", "null\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str) -> None:
    """P1, P10"""
    file = tmp_path / "a.yaml"
    file.write_text(text)
    for found in (read_environments(file), read_mcp_servers(file), read_servers_named(file)):
        assert found.problems == []
        assert not found.warnings
    assert read_environments(file).value.environments == {}
    assert read_servers_named(file).value == []


def test_of_duplicate_keys_the_later_counts_with_its_line(tmp_path: Path) -> None:
    """PD26"""
    file = tmp_path / "env.yaml"
    file.write_text("environments:\n  a: {prewarm: 1}\n  a:\n    prewarm: -1\n")
    found = read_environments(file)
    assert found.problems[0].line == 4
    assert found.warnings[0].line == 3


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"a: [",
        b"a: \x00",
        b"a: &x [*x]",
        b"? {a: b}\n: c\n",
        b"[" * 5000,
        b"a: !!python/object:os.system x",
        b"a: 1\n---\nb: 2\n",
        b"<<: 3\n",
        b"x: 99999-99-99\n",
    ],
)
def test_a_hostile_file_is_a_problem_that_names_it(tmp_path: Path, content: bytes) -> None:
    """P10"""
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    for found in (read_environments(file), read_mcp_servers(file), read_servers_named(file)):
        for problem in found.problems:
            assert problem.file == str(file)
            assert str(problem).isprintable()
    assert read_environments(file).problems or read_environments(file).warnings


def test_what_is_no_regular_file_or_too_large_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "huge.yaml", "loop", "nowhere", "."):
        assert read_environments(tmp_path / name).problems[0].remedy
