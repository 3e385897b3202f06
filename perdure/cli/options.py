"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.errors import PerdureError

FLAG = ""
"""Instead of a value's name in the help of an option that has none."""


def path_of(text: str | Path) -> Path:
    """A path that was typed; an empty one would be the current folder, which nobody meant."""
    if text == "":
        raise typer.BadParameter("the path is empty; name it")
    return Path(text)


def value_option(name: str, metavar: str | None, help: str, **more: Any) -> Any:
    """An option with a value; its default, which the help tells in words, is not shown."""
    return typer.Option(name, metavar=metavar, help=help, **{"show_default": False, **more})


def path_option(name: str, metavar: str, help: str) -> Any:
    """An option whose value is a path."""
    return value_option(name, metavar, help, parser=path_of)


def flag_option(name: str, help: str) -> Any:
    """An option that is given or not."""
    return typer.Option(name, metavar=FLAG, help=help)


PathsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        parser=path_of,
        help="Task documents (YAML, JSON, .jsonl), folders with them, or store:ID@VERSION.",
        show_default=False,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A suite, a task of it (SUITE/TASK, SUITE/TASK/TRIAL), or a workflow id.",
        show_default=False,
    ),
]
StepsOption = Annotated[
    list[str],
    value_option(
        "--steps", "MODULE", "A Python module with step types of your own; may be repeated."
    ),
]
SeedOption = Annotated[
    list[str],
    value_option(
        "--seed", "KEY=VALUE", "Replaces a value of the documents' seed; may be repeated."
    ),
]
PassEnvOption = Annotated[
    list[str],
    value_option(
        "--pass-env", "NAME", "A variable that the processes of steps may see; may be repeated."
    ),
]
InheritEnvOption = Annotated[
    bool, flag_option("--inherit-env", "Let the processes of steps see all variables.")
]
EnvFileOption = Annotated[
    Path | None,
    path_option(
        "--env-file", "FILE", "NAME=VALUE lines: values for what documents name by from_env."
    ),
]
ResultsOption = Annotated[
    Path | None,
    path_option(
        "--results", "DIR", "Where the files of results are; by default in the state directory."
    ),
]
HostOption = Annotated[
    str | None,
    value_option(
        "--host", "NAME", "This machine's name among the workers; by default its host name."
    ),
]
MaxMemoryOption = Annotated[
    str | None,
    value_option(
        "--max-memory",
        "GB",
        "Memory that the instances of environments on this host may need together; by default "
        "PERDURE_MAX_MEMORY_GB, else as much as the machine has.",
    ),
]
JsonOption = Annotated[
    bool, flag_option("--json", "One JSON document on stdout, and nothing else there.")
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class OptionError(PerdureError):
    """An option has a value that cannot be used."""


def examples(*shown: tuple[str, str]) -> str:
    """The end of a help text: commands to copy, and under each what it does."""
    lines = ["Examples:"]
    for command, does in shown:
        lines += [f"  {command}", f"      {does}"]
    return "\n".join(lines).replace("[", "\\[")


def help_of(function: Callable[..., object]) -> str:
    """A command's docstring, each paragraph on one line: the terminal breaks it anew."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def seeds(values: Iterable[str]) -> dict[str, str]:
    """What `--seed KEY=VALUE` says, repeated ones in order.

    Raises OptionError for one without `=` or key, and for a key that is there twice.
    """
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise OptionError(f"--seed {value!r}: write it as KEY=VALUE")
        if key in found:
            raise OptionError(f"--seed {key}=... is given twice; leave one out")
        found[key] = text
    return found


def max_memory(value: str | None) -> float | None:
    """What `--max-memory` says, in GB; None: it is not given.

    Raises OptionError for what is no number of GB.
    """
    from perdure.config import MOST_GB, gigabytes

    if value is None:
        return None
    if (number := gigabytes(value)) is None:
        raise OptionError(
            f"--max-memory {value!r} is not a number of GB such as 4 or 0.5, above 0 and at most"
            f" {MOST_GB:,}"
        )
    return number


def variable_names(names: Iterable[str]) -> list[str]:
    """What `--pass-env` says, each name once.

    Raises OptionError for what is no variable's name.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            hint = "; give its name alone" if "=" in name else ""
            raise OptionError(f"--pass-env {name!r} is not the name of a variable{hint}")
    return list(dict.fromkeys(names))


def env_file_path(path: Path | None) -> Path | None:
    """What `--env-file` names, as an absolute path: workers start elsewhere.

    Raises OptionError if it cannot be read.
    """
    if path is None:
        return None
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"--env-file {path}: {reason}; check the path") from error
    return Path(os.path.abspath(path))


def host_name(name: str | None) -> str | None:
    """What `--host` says.

    Raises OptionError for what cannot be part of a queue's name.
    """
    if name is not None and not _HOST.fullmatch(name):
        raise OptionError(
            f"--host {name!r}: letters, digits and . _ - only, at most 100, "
            "beginning with a letter or a digit"
        )
    return name


def results_dir(path: Path | None) -> Path | None:
    """What `--results` names, as an absolute path.

    Raises OptionError if something that is no directory is in its place.
    """
    if path is None:
        return None
    if os.path.exists(path) and not os.path.isdir(path):
        raise OptionError(f"--results {path} is not a directory; name another")
    return Path(os.path.abspath(path))
