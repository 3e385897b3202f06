"""`perdure validate`: every problem of every document, and what its rollbacks would undo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli.console import emit, printable
from perdure.cli.list_options import (
    EnvConfigOption,
    McpConfigOption,
    RootOption,
    TaskCommandOption,
)
from perdure.cli.options import PathsArgument, SeedOption, StepsOption, seeds

if TYPE_CHECKING:
    from perdure.core.spans import Span
    from perdure.documents import Documents, LoadedTask

BAD_INPUT = 2


def validate(
    paths: PathsArgument,
    steps: StepsOption = [],  # noqa: B006
    seed: SeedOption = [],  # noqa: B006
    env_config: EnvConfigOption = None,
    mcp_config: McpConfigOption = None,
    root: RootOption = None,
    task_command: TaskCommandOption = None,
) -> None:
    """Check task documents and start nothing.

    Every problem of every document is a line: file, line, step, key, what is wrong, what to do.
    For each retry_config the steps are named that a rollback would undo. What this version cannot
    run is a note. An env.yaml or mcp.yaml among the paths is checked as what it is. The exit
    status is 2 if there is any problem.
    """
    from perdure.documents import ListOptions, load
    from perdure.steps import custom_types, load_step_modules

    load_step_modules(steps)
    lists = ListOptions(
        env_config=env_config,
        mcp_config=mcp_config,
        root=root,
        task_command=task_command,
        validating=True,
    )
    documents = load(paths, seed=seeds(seed), custom_types=custom_types(), lists=lists)
    for line in report(documents):
        emit(line)
    if documents.problems:
        raise typer.Exit(BAD_INPUT)


def report(documents: Documents) -> list[str]:
    """What there is to say about documents, a line each; the last one sums up."""
    from perdure.core.spans import spans
    from perdure.documents import unsupported

    lines = [str(problem) for problem in documents.problems]
    lines += [f"warning: {warning}" for warning in documents.warnings]
    lines += [printable(f"{known.file}: {known.holds}") for known in documents.configurations]
    for loaded in documents.tasks:
        lines += [f"note: {found}" for found in unsupported(loaded)]
        lines += [span_line(loaded, span) for span in spans(loaded.task)]
    valid = _count(len(documents.tasks), "valid task")
    if documents.configurations and not documents.tasks:
        valid = _count(len(documents.configurations), "configuration file")
    if documents.problems:
        return [*lines, f"{_count(len(documents.problems), 'problem')}; {valid} beside them"]
    return [*lines, valid]


def span_line(loaded: LoadedTask, span: Span) -> str:
    """What a rollback of one step would undo."""
    resets = f"; resets {', '.join(span.environments)}" if span.environments else ""
    return printable(
        f"{loaded.source}: step {span.step_id!r}: a failure rolls back to {span.resume_id!r} "
        f"at most {_count(span.max_retries, 'time')} and undoes {', '.join(span.steps)}{resets}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
