"""`perdure events`: what happened in a run, in order; with --follow as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_module
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli.console import emit, printable
from perdure.cli.options import OptionError, ResultsOption, RunArgument, results_dir
from perdure.errors import PerdureError

TYPE_WIDTH = len("compensation.completed")
"""Of the longest type of an event."""


def events(
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until the run ends.")
    ] = False,
    type: Annotated[
        list[str],
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Only these: step.failed, or step for all that begin with it; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    results: ResultsOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on each line.")] = False,
) -> None:
    """Print the events of one run: when, what, which step.

    Nothing is run: what a server knows is asked of it, the rest is read from files of results.
    With --results DIR only those files are read, from any machine, and no server is asked.
    """
    from perdure.cli.reading import named

    _check_types(type)
    wanted = named(run)
    if wanted.task_id is None:
        raise PerdureError(
            f"{run!r} is a suite; name one of its runs: SUITE/TASK (`perdure list {wanted.suite}`)"
        )
    with contextlib.suppress(KeyboardInterrupt):  # the way to end --follow
        asyncio.run(
            _print(
                _events(wanted.suite, wanted.task_id, wanted.trial, results_dir(results), follow),
                set(type),
                as_json=json,
            )
        )


def _check_types(types: list[str]) -> None:
    """Refuse a type that no event has. Raises OptionError with the nearest that there is."""
    from perdure.core.problems import nearest
    from perdure.core.run import EVENT_TYPES

    known = {*EVENT_TYPES, *(name.partition(".")[0] for name in EVENT_TYPES)}
    for type in types:
        if type not in known:
            near = nearest(type, known)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(EVENT_TYPES)}"
            raise OptionError(f"--type {type!r}: no event is of this type; {hint}")


async def _print(events: AsyncIterator[dict[str, Any]], types: set[str], *, as_json: bool) -> None:
    async for event in events:
        name = str(event["type"])
        if not types or name in types or name.partition(".")[0] in types:
            emit(json_module.dumps(event, ensure_ascii=False) if as_json else event_line(event))


def event_line(event: dict[str, Any]) -> str:
    """An event on one line: time, type, and its facts."""
    from perdure.cli.environment_failures import reason_and_log
    from perdure.cli.job_text import job_words
    from perdure.cli.rollbacks import event_words
    from perdure.cli.times import moment, span

    words = []
    if "step" in event:
        attempt = f" (attempt {event['attempt']})" if event.get("attempt", 1) != 1 else ""
        words.append(f"{event['step']}{attempt}")
    if event.get("seconds") is not None:
        words.append(span(event["seconds"]))
    if "delay_seconds" in event:
        words.append(f"in {span(event['delay_seconds'])}")
    if event.get("host"):
        words.append(f"on {event['host']}")
    for instance in event.get("instances") or []:
        words.append(f"{instance['environment']} ({instance['project']})")
    words += [*event_words(event), *job_words(event)]
    reasons = [reason_and_log(event.get(key))[0] for key in ("error", "reason")]
    kind = str(event.get("error_type") or "")
    if not reasons[0].startswith(f"{kind}:"):  # a script's failure begins with it
        words.append(kind)
    words += reasons
    head = f"{moment(event['at'])}  {printable(event['type']):<{TYPE_WIDTH}}"
    return "  ".join([head, *(printable(word, 1000) for word in words if word)]).rstrip()


async def _events(
    suite: str, task_id: str, trial: int, results: Path | None, follow: bool
) -> AsyncIterator[dict[str, Any]]:
    from perdure.cli.reading import Named, to_read, unknown_run
    from perdure.results import suite_files

    async with to_read(results) as (perdure, root):
        if perdure:
            from perdure.event_log import UnknownRun

            with contextlib.suppress(UnknownRun):  # its history may be gone, its files not
                async for event in perdure.run(f"{suite}/{task_id}/{trial}").events(follow=follow):
                    yield event
                return
        kept = suite_files(root, suite).read_events(task_id, trial)
        if kept is None:
            raise unknown_run(root, Named(suite, task_id, trial), results)
        for event in kept:
            yield event
