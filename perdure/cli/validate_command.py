"""`perdure validate`: every problem of every document, and what its rollbacks would undo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli.console import emit, printable
from perdure.cli.options import PathsArgument, SeedOption, StepsOption, seeds

if TYPE_CHECKING:
    from perdure.core.spans import Span
    from perdure.documents import Documents, LoadedTask

BAD_INPUT = 2


def validate(paths: PathsArgument, steps: StepsOption = [], seed: SeedOption = []) -> None:  # noqa: B006
    """Check task documents and start nothing.

    Every problem of every document is a line: file, line, step, key, what is wrong, what to do.
    For each retry_config the steps are named that a rollback would undo. What this version cannot
    run is a note. The exit status is 2 if there is any problem.
    """
    from perdure.documents import load
    from perdure.steps import custom_types, load_step_modules

    load_step_modules(steps)
    documents = load(paths, seed=seeds(seed), custom_types=custom_types())
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
    for loaded in documents.tasks:
        lines += [f"note: {found}" for found in unsupported(loaded)]
        lines += [span_line(loaded, span) for span in spans(loaded.task)]
    valid = _count(len(documents.tasks), "valid task")
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
