"""What keeps a job from being started: said at once, with what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure.core.job_checks import MAX_CODE_CHARACTERS, is_exec_id, problems_of
from perdure.job_messages import JobSpec

CELL = JobSpec(code="print(1)")
COMMAND = JobSpec(argv=["sleep", "1"])


@pytest.mark.parametrize("spec", [CELL, COMMAND, replace(CELL, code="x" * MAX_CODE_CHARACTERS)])
def test_a_cell_or_a_command_is_enough(spec: JobSpec) -> None:
    assert problems_of(spec) == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (JobSpec(), "neither code nor argv; give one of them"),
        (replace(CELL, argv=["x"]), "both code and argv"),
        (replace(CELL, code=""), "code: is empty"),
        (replace(CELL, code="x" * (MAX_CODE_CHARACTERS + 1)), "200,001 characters, and a cell"),
        (replace(CELL, code="a\0b"), "NUL"),
        (replace(COMMAND, argv=[]), "empty list"),
        (replace(COMMAND, argv=[""]), "program's name is empty"),
        (replace(COMMAND, argv=["a", "b\0"]), "argv[1]: the text holds a NUL"),
        (replace(COMMAND, argv=["x" * 40_000]), "a word of it 32,000"),
        (replace(COMMAND, argv=["x" * 30_000] * 7), "at most 200,000"),
        (replace(COMMAND, entrypoint="main"), "a command has no functions"),
        (replace(CELL, args=[1]), "nobody takes them"),
        (replace(CELL, entrypoint="not a name"), "entrypoint"),
        (replace(CELL, name="two words"), "the nearest legal id is 'two-words'"),
        (replace(CELL, name="exec-0123456789ab"), "would be taken for the id of a job"),
        (replace(CELL, time_limit_seconds=0), "longer than nothing"),
        (replace(CELL, time_limit_seconds=-1.0), "less than nothing"),
        (replace(CELL, time_limit_seconds=float("nan")), "not a number that JSON knows"),
        (replace(CELL, kill_after_seconds=-0.5), "less than nothing"),
        (replace(CELL, service="web"), "a job beside the worker has none"),
        (replace(CELL, user="root"), "name the environment"),
        (replace(CELL, env={"A=B": "x"}), "not the name of a variable"),
        (replace(CELL, env={"A": {"from_env": "B", "from_file": "C"}}), "env.A"),
        (replace(CELL, env={"A": "\ud800"}), "half a character"),
        (replace(CELL, stdin="x" * 1_000_001), "let it read a file"),
        (replace(CELL, ok_exit_codes=[]), "empty list"),
        (replace(CELL, max_worker_losses=-1), "not between 0"),
        (replace(CELL, cwd=""), "cwd: is empty"),
    ],
)
def test_everything_else_is_refused_with_the_place_and_what_to_do(spec: JobSpec, told: str) -> None:
    problems = problems_of(spec)
    assert any(told in problem for problem in problems), problems
    assert all("\n" not in problem and len(problem) < 500 for problem in problems)


def test_all_that_is_wrong_is_said_at_once() -> None:
    spec = JobSpec(argv=["a\0"], name="a b", time_limit_seconds=0, kill_after_seconds=-1)
    assert len(problems_of(spec)) == 4


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("exec-0123456789ab", True),
        ("exec-0123456789AB", False),
        ("exec-0123456789abc", False),
        ("exec-0123456789ab\n", False),
        ("exec-٠١٢٣٤٥٦٧٨٩ab", False),
        (None, False),
    ],
)
def test_b1_an_id_is_exec_and_twelve_hexadecimal_digits(value: Any, is_one: bool) -> None:
    assert is_exec_id(value) is is_one
