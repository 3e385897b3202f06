"""Whether a job can be what somebody asks for: the same answer for documents, clients and tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from perdure.core.fields import (
    Check,
    any_text,
    anything,
    duration,
    env,
    flag,
    identifier,
    list_of,
    pause,
    read,
    text,
    variable,
    whole,
    word,
)
from perdure.core.json_values import check_json
from perdure.core.problems import Place, Problem, TooManyProblems, one_line
from perdure.job_messages import JobSpec

MAX_CODE_CHARACTERS = 200_000
"""Of a cell (B19); what is longer is better kept in a file."""

MAX_WORD_CHARACTERS = 32_000
"""Of one word of a command: Linux takes 128 KiB of UTF-8."""

MAX_COMMAND_CHARACTERS = 200_000
"""Of all words of a command together."""

MAX_STDIN_CHARACTERS = 1_000_000
"""Of a job's input: it lies in the history."""

EXEC_ID = re.compile(r"exec-[0-9a-f]{12}", re.ASCII)
"""The id of a job (B1)."""


def is_exec_id(value: object) -> bool:
    """Whether this can be the id of a job: `exec-` and 12 hexadecimal digits."""
    return isinstance(value, str) and EXEC_ID.fullmatch(value) is not None


def problems_of(spec: JobSpec) -> list[str]:
    """Everything that keeps a job from being started, each with what to do; empty: nothing.

    Whether its environment is one of its task is not known here.
    """
    return as_checked(spec)[1]


def as_checked(spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """The job in its plain form (a length of time in seconds, the words of a command as texts), and
    `problems_of` it."""
    problems: list[Problem] = []
    with suppress(TooManyProblems):
        plain = check_spec(asdict(spec), Place(problems))
        spec = spec if problems else replace(spec, **plain)
    return spec, [one_line(str(problem)) for problem in problems]


def check_spec(spec: Mapping[str, Any], at: Place) -> dict[str, Any]:
    """As `problems_of`, for the fields of a `JobSpec`, each problem at the place of its field.

    Returns those that are not null, in their plain form. Raises TooManyProblems.
    """
    if not check_json(dict(spec), at):
        return {}
    plain = read(spec, _FIELDS, at)
    if (spec["code"] is None) == (spec["argv"] is None):
        what = "neither code nor argv" if spec["code"] is None else "both code and argv"
        at.refuse(f"a job with {what}", "give one of them: a python cell, or a command's words")
    if spec["entrypoint"] is not None and spec["code"] is None:
        (at / "entrypoint").refuse("a command has no functions", "leave it out, or give code")
    if spec["args"] is not None and spec["entrypoint"] is None:
        (at / "args").refuse("nobody takes them", "name the function under entrypoint")
    if spec["environment"] is None:
        for key in ("service", "user", "workdir"):
            if spec[key] is not None:
                (at / key).refuse("a job beside the worker has none", "name the environment")
    return plain


def _code(value: Any, at: Place) -> Any:
    if text(value, at) and isinstance(value, str) and len(value) > MAX_CODE_CHARACTERS:
        at.refuse(
            f"has {len(value):,} characters, and a cell has at most {MAX_CODE_CHARACTERS:,}",
            "keep the rest in files that it imports",
        )
    return value


def _argv(value: Any, at: Place) -> Any:
    if not isinstance(value, list):
        return _words(value, at)
    if value and value[0] == "":
        (at / 0).refuse("the program's name is empty", "name the program")
    sizes = [len(entry) for entry in value if isinstance(entry, str)]
    if max(sizes, default=0) > MAX_WORD_CHARACTERS or sum(sizes) > MAX_COMMAND_CHARACTERS:
        at.refuse(
            f"has {sum(sizes):,} characters, and a command has at most "
            f"{MAX_COMMAND_CHARACTERS:,}, and a word of it {MAX_WORD_CHARACTERS:,}",
            "give long texts as stdin, or in files",
        )
        return value
    return _words(value, at)


_words = list_of(word, what="words", empty=False)


def _stdin(value: Any, at: Place) -> Any:
    # Unlike an argument, what is read may hold any character.
    if not isinstance(value, str):
        return any_text(value, at)
    if len(value) > MAX_STDIN_CHARACTERS:
        at.refuse(
            f"has {len(value):,} characters, and a job's input at most {MAX_STDIN_CHARACTERS:,}",
            "let it read a file",
        )
    return value


def _name(value: Any, at: Place) -> Any:
    if is_exec_id(value):
        at.refuse(f"{value!r} would be taken for the id of a job", "choose another name")
    return identifier(value, at)


_FIELDS: dict[str, Check] = {
    "code": _code,
    "argv": _argv,
    "entrypoint": variable,
    "args": anything,
    "cwd": text,
    "env": env,
    "stdin": _stdin,
    "ok_exit_codes": list_of(whole(-255, 255), what="exit codes", empty=False),
    "environment": identifier,
    "service": text,
    "user": text,
    "workdir": text,
    "name": _name,
    "restartable": flag,
    "max_worker_losses": whole(0, 1_000),  # each costs a dozen events
    "time_limit_seconds": duration,
    "kill_after_seconds": pause,
}
