"""`perdure run`: run tasks as one suite, and go on with it."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.console import say
from perdure.cli.options import (
    EnvFileOption,
    HostOption,
    InheritEnvOption,
    JsonOption,
    PassEnvOption,
    PathsArgument,
    ResultsOption,
    SeedOption,
    StepsOption,
    env_file_path,
    host_name,
    results_dir,
    seeds,
    variable_names,
)

if TYPE_CHECKING:
    from perdure.documents import LoadedTask
    from perdure.messages import TaskOptions

BAD_INPUT = 2


class Changed(StrEnum):
    """What to do with an open suite whose documents have changed."""

    keep = "keep"
    rerun = "rerun"


def run(
    paths: PathsArgument,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="ID",
            help="The suite's name: the same again goes on with it.",
            show_default="made from the time",
        ),
    ] = None,
    max_parallel: Annotated[
        int, typer.Option("--max-parallel", metavar="N", min=1, help="Tasks at once.")
    ] = 5,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            metavar="K",
            min=1,
            help="Trials of each task (pass@k).",
            show_default="the documents'",
        ),
    ] = None,
    only: Annotated[
        list[str],
        typer.Option(
            "--only",
            metavar="ID",
            help="Run this task only; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    seed: SeedOption = [],  # noqa: B006
    start_step: Annotated[
        int,
        typer.Option(
            "--start-step", metavar="N", min=0, help="Begin with step N (from 0) of each task."
        ),
    ] = 0,
    end_step: Annotated[
        int | None,
        typer.Option(
            "--end-step",
            metavar="N",
            min=1,
            help="Stop before step N of each task.",
            show_default="to the end",
        ),
    ] = None,
    agent_model: Annotated[
        str | None,
        typer.Option(
            "--agent-model", metavar="M", help="agent_model of each context.", show_default=False
        ),
    ] = None,
    agent_artifact_id: Annotated[
        str | None,
        typer.Option(
            "--agent-artifact-id",
            metavar="A",
            help="agent_artifact_id of each context.",
            show_default=False,
        ),
    ] = None,
    steps: StepsOption = [],  # noqa: B006
    env_file: EnvFileOption = None,
    pass_env: PassEnvOption = [],  # noqa: B006
    inherit_env: InheritEnvOption = False,
    results: ResultsOption = None,
    host: HostOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start the suite anew, whatever it has done before.")
    ] = False,
    changed: Annotated[
        Changed | None,
        typer.Option(
            "--changed",
            help="Documents of an open suite have changed: keep the old ones, or rerun the new.",
            show_default="refuse",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Start the suite, leave a worker behind, and return."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run tasks as one suite; the same command again goes on where it stopped.

    Unless Temporal's own settings name a service, a Temporal server with its UI and a worker are
    started, and stopped at the end. Ctrl-C cancels the suite and cleans up; twice, it leaves at
    once.

    Exit status: 0 all tasks succeeded, 1 some did not, 2 bad input or set-up, 130 interrupted.
    """
    from perdure.cli.run_session import SuiteRequest, run_suite
    from perdure.env_file import read_env_file
    from perdure.messages import TaskOptions
    from perdure.steps import load_step_modules
    from perdure.suite_input import check_id
    from perdure.workers import WorkerConfig

    if suite is not None:
        check_id("--suite", suite)
    load_step_modules(steps)
    worker = WorkerConfig(
        steps=tuple(steps),
        pass_env=tuple(variable_names(pass_env)),
        inherit_env=inherit_env,
        env_file=env_file_path(env_file),
        host=host_name(host),
    )
    kept = results_dir(results)
    options = TaskOptions(
        start_step=start_step,
        end_step=end_step,
        agent_model=agent_model,
        agent_artifact_id=agent_artifact_id,
        results_dir=str(kept) if kept else None,
    )
    tasks = _load(paths, seeds(seed), only, options, read_env_file(worker.env_file))
    _check_results(kept, suite)
    request = SuiteRequest(
        tasks=tasks,
        suite=suite,
        max_parallel=max_parallel,
        repeats=repeats,
        options=options,
        worker=worker,
        fresh=fresh,
        changed=changed.value if changed else None,
        detach=detach,
        json=json,
    )
    raise typer.Exit(asyncio.run(run_suite(request)))


def _load(
    paths: list[Path],
    seed: dict[str, str],
    only: list[str],
    options: TaskOptions,
    env_file: dict[str, str],
) -> list[LoadedTask]:
    """The tasks, if nothing is wrong with any of them; else all that is wrong, and the end."""
    from perdure.config import Settings, temporal_configured
    from perdure.core.run import BadRange, check_range
    from perdure.documents import load, unsupported
    from perdure.secret_checks import missing_secrets
    from perdure.steps import custom_types

    documents = load(paths, seed=seed, custom_types=custom_types(), only=only)
    for warning in documents.warnings:
        say(f"warning: {warning}")
    problems = [str(problem) for problem in documents.problems]
    for loaded in documents.tasks:
        problems += [str(problem) for problem in unsupported(loaded)]
        try:
            check_range(len(loaded.task.steps), options.start_step, options.end_step)
        except BadRange as error:
            problems.append(f"{loaded.source}: {str(error).replace('_', '-')} (--start-step, ...)")
    if not temporal_configured(Settings.from_env().temporal_env):
        problems += missing_secrets(documents.tasks, env_file)
    if problems:
        for problem in problems:
            say(problem)
        say("nothing was started")
        raise typer.Exit(BAD_INPUT)
    return documents.tasks


def _check_results(kept: Path | None, suite: str | None) -> None:
    """Refuse a directory that cannot be written, before a server starts.

    A team's workers have directories of their own, and a new state directory is checked whole.
    """
    from perdure.config import Settings, temporal_configured
    from perdure.results import check_writable

    settings = Settings.from_env()
    if temporal_configured(settings.temporal_env):
        return
    own = settings.state.results
    if kept or own.exists():
        check_writable(kept or own, suite)
