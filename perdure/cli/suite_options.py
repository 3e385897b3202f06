"""The options of `perdure run` and `perdure retry`: how a suite runs, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perdure.cli.options import (
    OptionError,
    env_file_path,
    flag_option,
    host_name,
    path_option,
    value_option,
    variable_names,
)

if TYPE_CHECKING:
    from perdure.suite_settings import BoundSettings
    from perdure.workers import WorkerConfig


class Changed(StrEnum):
    """What to do with an open suite whose documents have changed."""

    keep = "keep"
    rerun = "rerun"


# --- The suite --------------------------------------------------------------------------------

SuiteOption = Annotated[
    str | None,
    value_option(
        "--suite",
        "ID",
        "Its name; the same again goes on with it. By default one made from the time.",
    ),
]
FreshOption = Annotated[bool, flag_option("--fresh", "Start it anew, whatever it has done before.")]
ChangedOption = Annotated[
    Changed | None,
    value_option(
        "--changed",
        None,
        "It still runs, and its documents have changed: go on with the old ones, or cancel it "
        "and run the new. By default that is refused.",
    ),
]
DetachOption = Annotated[
    bool,
    flag_option(
        "--detach",
        "Leave it to a worker in the background. The `perdure run` of the suite follows it again.",
    ),
]

# --- What to run ------------------------------------------------------------------------------

OnlyOption = Annotated[
    list[str], value_option("--only", "ID", "Run this task only; may be repeated.")
]
RepeatsOption = Annotated[
    int | None,
    value_option(
        "--repeats",
        "K",
        "Trials of each task, over what its document says; gives pass@1 to pass@K.",
        min=1,
        max=100_000,
    ),
]
StartStepOption = Annotated[
    int,
    value_option(
        "--start-step", "N", "Begin each task with its step N, from 0.", min=0, show_default=True
    ),
]
EndStepOption = Annotated[
    int | None, value_option("--end-step", "N", "Stop each task before its step N.", min=1)
]
AgentModelOption = Annotated[
    str | None, value_option("--agent-model", "M", "agent_model of each context.")
]
AgentArtifactOption = Annotated[
    str | None, value_option("--agent-artifact-id", "A", "agent_artifact_id of each context.")
]

# --- How it runs, and what bounds it ----------------------------------------------------------

HOW_IT_RUNS = (
    *("max_parallel", "retry_infrastructure", "steps"),
    *("env_file", "pass_env", "inherit_env", "host"),
)
WHAT_BOUNDS_IT = ("task_timeout", "limit", "fail_fast", "max_failures", "max_cost")
"""Parameters, for the panels of a command's help."""

POOL = "default"
"""The pool that is used when nothing is said."""

PoolOption = Annotated[
    str | None,
    value_option(
        "--pool", "NAME", f"The pool that environments are taken from; by default `{POOL}`."
    ),
]
KeepEnvsOption = Annotated[
    bool,
    flag_option(
        "--keep-envs", "Let instances of environments stay when nobody needs them any more."
    ),
]
MaxParallelOption = Annotated[
    int | None,
    value_option(
        "--max-parallel",
        "N",
        "Tasks at once; by default 5, or as the suite was started. Of one that runs: from now on.",
        min=1,
    ),
]
RetryInfrastructureOption = Annotated[
    int | None,
    value_option(
        "--retry-infrastructure",
        "N",
        "Run a trial again, at most N times, when workers or hosts failed it and not the task "
        "itself. By default once, or as the suite was started.",
        min=0,
    ),
]
TaskTimeoutOption = Annotated[
    str | None,
    value_option(
        "--task-timeout",
        "T",
        "No task runs longer, whatever its document says: seconds, or 10m, 2h.",
    ),
]
LimitOption = Annotated[
    list[str],
    value_option(
        "--limit",
        "NAME=N",
        "At most N steps at once that say `limit: NAME`, in all suites of the server; may be "
        "repeated.",
    ),
]
FailFastOption = Annotated[
    bool,
    flag_option(
        "--fail-fast", "Start nothing more after the first failure; what runs ends by itself."
    ),
]
MaxFailuresOption = Annotated[
    str | None,
    value_option(
        "--max-failures", "N|P%", "Start nothing more after N failed trials, or a share of all."
    ),
]
MaxCostOption = Annotated[
    float | None,
    value_option("--max-cost", "X", "Start nothing more once the steps' usage.cost adds up to X."),
]

# --- Results ----------------------------------------------------------------------------------

JunitOption = Annotated[
    Path | None,
    path_option("--junit", "FILE", "At the end, write the results to FILE as JUnit XML."),
]


def worker_config(
    steps: list[str],
    env_file: Path | None,
    pass_env: list[str],
    inherit_env: bool,
    host: str | None,
) -> WorkerConfig:
    """What the embedded worker is given; the modules of `--steps` are loaded here, too.

    Raises PerdureError for a value that cannot be used.
    """
    from perdure.steps import load_step_modules
    from perdure.workers import WorkerConfig

    load_step_modules(steps)
    return WorkerConfig(
        steps=tuple(steps),
        pass_env=tuple(variable_names(pass_env)),
        inherit_env=inherit_env,
        env_file=env_file_path(env_file),
        host=host_name(host),
    )


def bounds(
    *,
    max_parallel: int | None,
    retry_infrastructure: int | None,
    fail_fast: bool,
    max_failures: str | None,
    max_cost: float | None,
    task_timeout: str | None,
    limit: Iterable[str],
    pool: str | None = None,
    keep_envs: bool = False,
) -> BoundSettings:
    """The options that say how a suite runs, and what bounds it.

    Raises OptionError, BadId and BadBound for a value that cannot be used, before anything is
    started.
    """
    from perdure import bounds as values
    from perdure.suite_input import check_id

    if fail_fast and max_failures is not None:
        raise OptionError("--fail-fast is --max-failures 1; give one of the two")
    for option, number, low in (
        ("--max-parallel", max_parallel, 1),
        ("--retry-infrastructure", retry_infrastructure, 0),
    ):
        if number is not None:
            values.count(option, number, low)
    if pool is not None:
        check_id("--pool", pool)
    values.failures("--max-failures", max_failures)
    values.cost("--max-cost", max_cost)
    values.seconds("--task-timeout", task_timeout)
    return {
        "max_parallel": max_parallel,
        "retry_infrastructure": retry_infrastructure,
        "max_failures": 1 if fail_fast else max_failures,
        "max_cost": max_cost,
        "task_timeout": task_timeout,
        "limits": limits(limit),
        "pool": pool,
        "keep_envs": keep_envs or None,  # not said: as it was
    }


def limits(given: Iterable[str]) -> dict[str, int]:
    """What `--limit NAME=N` says, repeated ones in order.

    Raises OptionError for one without name or number, and for a name that is there twice.
    """
    from perdure.bounds import slots

    found: dict[str, int] = {}
    for text in given:
        name, equals, count = text.partition("=")
        if not equals or not name or not (count.isascii() and count.isdigit() and len(count) < 8):
            raise OptionError(f"--limit {text!r}: write it as NAME=N, such as openai=4")
        if name in found:
            raise OptionError(f"--limit {name}=... is given twice; leave one out")
        found[name] = int(count)
    return slots("--limit", found)


def junit_path(path: Path | None, *, detach: bool = False) -> Path | None:
    """What `--junit` names; hours later is too late to find that it cannot be written.

    Raises JUnitError, and OptionError with `detach`: then nobody is there at the end to write it.
    """
    if path is not None:
        if detach:
            raise OptionError(
                "--junit is written by the command that sees the suite end, and --detach does not "
                "wait for that; leave it out here, and give it to the `perdure run` that follows "
                "the suite"
            )
        from perdure.junit import check_junit

        check_junit(path)
    return path
