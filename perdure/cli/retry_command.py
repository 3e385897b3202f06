"""`perdure retry`: run again what did not succeed of a suite that has ended."""

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
        typer.Argument(metavar="SUITE", help="A suite that has ended.", show_default=False),
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
            "Run one task again from this step on; this version cannot do it yet.",
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

    Exit status: as of `perdure run`.
    """
    from perdure.cli.session import Call, run_suite
    from perdure.suite_input import check_id

    if from_step is not None:
        raise OptionError(
            "--from-step: this version cannot run a task again from one of its steps on; run it "
            f"again whole with: perdure retry {suite.partition('/')[0]}"
        )
    if "/" in suite:
        raise OptionError(
            f"{suite!r} names a run, and `perdure retry` runs suites again; while its suite runs, "
            f"there is: perdure suite {suite.partition('/')[0]} requeue {suite.partition('/')[2]}"
        )
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

    async def begin(perdure: Perdure, tell: Callable[[str], None]) -> SuiteRun:
        return await perdure.retry_suite(
            suite, only_failed_trials=only_failed_trials, worker=worker, say=tell, **bounded
        )

    report = junit_path(junit, detach=detach)
    call = Call(begin, suite, worker, detach=detach, json=json, junit=report, attaches=False)
    raise typer.Exit(asyncio.run(run_suite(call)))
