"""`perdure retry`: run again what did not succeed of a suite, or a task of it from a step on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import (
    EnvFileOption,
    HostOption,
    InheritEnvOption,
    JsonOption,
    OptionError,
    PassEnvOption,
    StepsOption,
    flag_option,
    value_option,
)
from perdure.cli.panels import in_panels
from perdure.cli.suite_options import (
    HOW_IT_RUNS,
    WHAT_BOUNDS_IT,
    DetachOption,
    FailFastOption,
    JunitOption,
    KeepEnvsOption,
    LimitOption,
    MaxCostOption,
    MaxFailuresOption,
    MaxParallelOption,
    PoolOption,
    RetryInfrastructureOption,
    TaskTimeoutOption,
    bounds,
    junit_path,
    worker_config,
)

if TYPE_CHECKING:
    from perdure.client import Perdure, SuiteRun
    from perdure.workers import WorkerConfig


@in_panels(
    {
        "How it runs": (*HOW_IT_RUNS, "detach"),
        "What bounds it": WHAT_BOUNDS_IT,
        "Environments": ("pool", "keep_envs"),
        "Results": ("junit", "json"),
    }
)
def retry(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE", help="A suite that has ended, or a run of it.", show_default=False
        ),
    ],
    only_failed_trials: Annotated[
        bool,
        flag_option(
            "--only-failed-trials",
            "Of a task with several trials, run again only those that did not succeed.",
        ),
    ] = False,
    from_step: Annotated[
        str | None,
        value_option(
            "--from-step",
            "ID",
            "Of one run, SUITE/TASK or SUITE/TASK/TRIAL: run it again from this step on.",
        ),
    ] = None,
    max_parallel: MaxParallelOption = None,
    retry_infrastructure: RetryInfrastructureOption = None,
    steps: StepsOption = [],  # noqa: B006
    env_file: EnvFileOption = None,
    pass_env: PassEnvOption = [],  # noqa: B006
    inherit_env: InheritEnvOption = False,
    host: HostOption = None,
    detach: DetachOption = False,
    task_timeout: TaskTimeoutOption = None,
    limit: LimitOption = [],  # noqa: B006
    fail_fast: FailFastOption = False,
    max_failures: MaxFailuresOption = None,
    max_cost: MaxCostOption = None,
    pool: PoolOption = None,
    keep_envs: KeepEnvsOption = False,
    junit: JunitOption = None,
    json: JsonOption = False,
) -> None:
    """Run again every task of SUITE that did not succeed: failed, cancelled or not run.

    Documents are those that the suite was started with, and so is what bounds it, unless it is
    given here. What its processes need is not kept: give --steps, --env-file, --pass-env and
    --inherit-env again. What succeeded stays. For changed documents, or a suite that is still
    open, there is `perdure run TASKS --suite SUITE`.

    With --from-step, one run of a task goes on as a new run: what depends on that step runs again,
    and who used an environment, since environments are new. The rest counts as done, and nothing
    is undone. Once it has ended, it counts in its suite. --json prints its record.

    Exit status: as of `perdure run`.
    """
    from perdure.cli.session import Call, run_suite
    from perdure.suite_input import check_id

    if from_step is None and "/" in suite:
        name, _, task = suite.partition("/")
        raise OptionError(
            f"{suite!r} names a run: run it again from a step on with --from-step ID; or, while "
            f"its suite runs, all of it with: perdure suite {name} requeue {task}"
        )
    if from_step is None:
        check_id("SUITE", suite)
    bounded = bounds(
        max_parallel=max_parallel,
        retry_infrastructure=retry_infrastructure,
        fail_fast=fail_fast,
        max_failures=max_failures,
        max_cost=max_cost,
        task_timeout=task_timeout,
        limit=limit,
        pool=pool,
        keep_envs=keep_envs,
    )
    worker = worker_config(steps, env_file, pass_env, inherit_env, host)
    if from_step is not None:
        given = {name for name, value in bounded.items() if value}
        given |= {"only_failed_trials"} if only_failed_trials else set()
        _refuse_bounds(given | ({"junit"} if junit else set()))
        raise typer.Exit(_from_step(suite, from_step, worker, detach=detach, json=json))

    async def begin(perdure: Perdure, tell: Callable[[str], None]) -> SuiteRun:
        return await perdure.retry_suite(
            suite, only_failed_trials=only_failed_trials, worker=worker, say=tell, **bounded
        )

    report = junit_path(junit, detach=detach)
    call = Call(begin, suite, worker, detach=detach, json=json, junit=report, attaches=False)
    raise typer.Exit(asyncio.run(run_suite(call)))


def _from_step(run: str, from_step: str, worker: WorkerConfig, *, detach: bool, json: bool) -> int:
    from perdure.cli.reading import named
    from perdure.cli.resume_command import resume_run

    wanted = named(run)
    if wanted.task_id is None:
        raise OptionError(
            f"--from-step: {run!r} is a suite; name one of its runs: SUITE/TASK "
            f"(`perdure list {wanted.suite}`)"
        )
    return asyncio.run(resume_run(wanted, from_step, worker, detach=detach, json=json))


def _refuse_bounds(given: set[str]) -> None:
    """What bounds a suite, or tells of one, says nothing of a run that goes on."""
    if given:
        names = ", ".join(f"--{_option(name)}" for name in sorted(given))
        raise OptionError(
            f"--from-step: a run goes on with the bounds that it had; leave out {names}"
        )


def _option(name: str) -> str:
    return "limit" if name == "limits" else name.replace("_", "-")
