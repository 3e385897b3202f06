"""`perdure run`: run tasks as one suite, and go on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perdure.cli.console import emit_json, say
from perdure.cli.list_options import (
    DomainOption,
    EnvConfigOption,
    McpConfigOption,
    RiskCategoryOption,
    RootOption,
    SkipExistingOption,
    TaskCommandOption,
    ThreatModelOption,
    TypeOption,
)
from perdure.cli.loading import Wanted, check_results, load_checked
from perdure.cli.options import (
    EnvFileOption,
    HostOption,
    InheritEnvOption,
    JsonOption,
    OptionError,
    PassEnvOption,
    PathsArgument,
    ResultsOption,
    SeedOption,
    StepsOption,
    results_dir,
    seeds,
)
from perdure.cli.panels import in_panels
from perdure.cli.suite_options import (
    HOW_IT_RUNS,
    WHAT_BOUNDS_IT,
    AgentArtifactOption,
    AgentModelOption,
    Changed,
    ChangedOption,
    DetachOption,
    EndStepOption,
    FailFastOption,
    FreshOption,
    JunitOption,
    KeepEnvsOption,
    LimitOption,
    MaxCostOption,
    MaxFailuresOption,
    MaxParallelOption,
    OnlyOption,
    PoolOption,
    RepeatsOption,
    RetryInfrastructureOption,
    StartStepOption,
    SuiteOption,
    TaskTimeoutOption,
    bounds,
    junit_path,
    worker_config,
)

if TYPE_CHECKING:
    from perdure.cli.session import Begin
    from perdure.client import Perdure, SuiteRun
    from perdure.documents import LoadedTask
    from perdure.messages import TaskOptions
    from perdure.suite_settings import BoundSettings
    from perdure.workers import WorkerConfig


@in_panels(
    {
        "What to run": (
            *("only", "repeats", "seed", "start_step", "end_step"),
            *("agent_model", "agent_artifact_id"),
        ),
        "The suite": ("suite", "fresh", "changed", "detach"),
        "How it runs": HOW_IT_RUNS,
        "What bounds it": WHAT_BOUNDS_IT,
        "Environments": ("env_config", "root", "pool", "keep_envs"),
        "Results": ("results", "junit", "json"),
        "DTap directories and lists": (
            *("mcp_config", "task_command"),
            *("domain", "type_", "threat_model", "risk_category", "skip_existing"),
        ),
    }
)
def run(
    paths: PathsArgument,
    only: OnlyOption = [],  # noqa: B006
    repeats: RepeatsOption = None,
    seed: SeedOption = [],  # noqa: B006
    start_step: StartStepOption = 0,
    end_step: EndStepOption = None,
    agent_model: AgentModelOption = None,
    agent_artifact_id: AgentArtifactOption = None,
    suite: SuiteOption = None,
    fresh: FreshOption = False,
    changed: ChangedOption = None,
    detach: DetachOption = False,
    max_parallel: MaxParallelOption = None,
    retry_infrastructure: RetryInfrastructureOption = None,
    steps: StepsOption = [],  # noqa: B006
    env_file: EnvFileOption = None,
    pass_env: PassEnvOption = [],  # noqa: B006
    inherit_env: InheritEnvOption = False,
    host: HostOption = None,
    task_timeout: TaskTimeoutOption = None,
    limit: LimitOption = [],  # noqa: B006
    fail_fast: FailFastOption = False,
    max_failures: MaxFailuresOption = None,
    max_cost: MaxCostOption = None,
    results: ResultsOption = None,
    junit: JunitOption = None,
    json: JsonOption = False,
    env_config: EnvConfigOption = None,
    root: RootOption = None,
    pool: PoolOption = None,
    keep_envs: KeepEnvsOption = False,
    mcp_config: McpConfigOption = None,
    task_command: TaskCommandOption = None,
    domain: DomainOption = None,
    type_: TypeOption = None,
    threat_model: ThreatModelOption = None,
    risk_category: RiskCategoryOption = None,
    skip_existing: SkipExistingOption = False,
) -> None:
    """Run tasks as one suite; the same command again goes on where it stopped.

    Unless Temporal's own settings name a service, a Temporal server with its UI and a worker are
    started, and stopped at the end. Ctrl-C cancels the suite and cleans up; twice, it leaves at
    once.

    Exit status: 0 all tasks succeeded, 1 some did not, 2 bad input or set-up, 130 interrupted.
    """
    from perdure.cli.session import Call, run_suite
    from perdure.lists import ListOptions
    from perdure.messages import TaskOptions
    from perdure.suite_input import check_id, check_trials

    if suite is not None:
        check_id("--suite", suite)
    if fresh and changed:
        raise OptionError(
            f"--fresh starts the suite anew, and --changed {changed.value} goes on with what it "
            "has done; give one of the two"
        )
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
    kept = results_dir(results)
    options = TaskOptions(
        start_step=start_step,
        end_step=end_step,
        agent_model=agent_model,
        agent_artifact_id=agent_artifact_id,
        results_dir=str(kept) if kept else None,
    )
    lists = ListOptions(
        env_config=env_config,
        mcp_config=mcp_config,
        root=root,
        task_command=task_command,
        domain=domain,
        type=type_,
        threat_model=threat_model,
        risk_category=risk_category,
        skip_existing=skip_existing,
        agent_artifact_id=agent_artifact_id,
        agent_model=agent_model,
        results=kept,
    )
    limits = dict(bounded["limits"] or {})
    followed = None if fresh else suite
    wanted = Wanted(paths, seeds(seed), only, lists, options, limits, worker, followed)
    tasks = load_checked(wanted)
    check_trials("nothing was started", sum(repeats or loaded.task.repeats for loaded in tasks))
    check_results(kept, suite)
    report = junit_path(junit, detach=detach)
    if not tasks:
        raise typer.Exit(_nothing_to_run(suite, report, json=json))
    begin = _begin(tasks, suite, repeats, options, bounded, worker, fresh=fresh, changed=changed)
    call = Call(begin, suite, worker, detach=detach, json=json, junit=report)
    raise typer.Exit(asyncio.run(run_suite(call)))


def _begin(
    tasks: list[LoadedTask],
    suite: str | None,
    repeats: int | None,
    options: TaskOptions,
    bounded: BoundSettings,
    worker: WorkerConfig,
    *,
    fresh: bool,
    changed: Changed | None,
) -> Begin:
    """How the suite is started, once there is a connection."""

    async def begin(perdure: Perdure, tell: Callable[[str], None]) -> SuiteRun:
        return await perdure.start_suite(
            tasks,
            suite=suite,
            repeats=repeats,
            options=options,
            fresh=fresh,
            changed=changed.value if changed else None,
            worker=worker,
            say=tell,
            **bounded,
        )

    return begin


def _nothing_to_run(suite: str | None, report: Path | None, *, json: bool) -> int:
    """Say so, also to programs, with the document of a suite without tasks; returns the status."""
    from perdure.cli.summary import report_junit
    from perdure.outcome import Trials, outcome

    nothing = outcome(suite or "", "", [], Trials(ended=()))
    say("there is nothing to run")
    if json:
        emit_json(nothing)
    return report_junit(report, nothing, None) if report else 0
