"""`perdure launch`: start a background job beside a run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from perdure.cli.console import emit, emit_json, say
from perdure.cli.options import (
    JsonOption,
    OptionError,
    RunArgument,
    flag_option,
    path_option,
    value_option,
)
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.cli.reading import Named
    from perdure.job_handle import JobSettings

MAX_FILE_BYTES = 1024 * 1024
"""Of a cell; more than a job may have is read, so that its own limit is told."""

_ARGV = "perdure.argv"


class LaunchCommand(TyperCommand):
    """Tells what stands behind `--` from what stands before it; the parser alone would not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_ARGV], args = args[at + 1 :], args[:at]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def launch(
    context: typer.Context,
    run: RunArgument,
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE] [-- ARGV...]",
            help="A python cell; the value of its last expression is printed. Or, behind --, a "
            "command and its arguments.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None, path_option("--file", "FILE", "A python cell in a file; - is stdin.")
    ] = None,
    name: Annotated[
        str | None, value_option("--name", "NAME", "Another word for the job within its task.")
    ] = None,
    environment: Annotated[
        str | None,
        value_option("--environment", "ENV", "Run inside of this environment of the task."),
    ] = None,
    service: Annotated[
        str | None, value_option("--service", "NAME", "The environment's service to run in.")
    ] = None,
    time_limit: Annotated[
        str | None, value_option("--time-limit", "T", "It may run so long: seconds, or 10m, 2h.")
    ] = None,
    restartable: Annotated[
        bool, flag_option("--restartable", "Start it again if its worker is lost.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start a background job beside a run that is under way: a python cell, or a command.

    Prints the job's id once the run has admitted it. It runs on the run's host, in the run's
    directory, and ends with the run at the latest. A suite's worker must be up; none is started.
    """
    from perdure.bounds import seconds
    from perdure.cli.jobs_command import run_of

    wanted = run_of(run)
    argv: list[str] | None = context.meta.get(_ARGV)
    if sum(given is not None for given in (code, file, argv)) != 1:
        raise OptionError("say what to run by one of CODE, --file FILE, and -- ARGV...")
    spec: JobSettings = {
        "argv": argv,
        "name": name,
        "environment": environment,
        "service": service,
        "time_limit_seconds": seconds("--time-limit", time_limit),
        "restartable": restartable,
    }
    cell = code if file is None else _read(file)
    exec_id = asyncio.run(_launch(wanted, cell, spec))
    if json:
        emit_json({"exec_id": exec_id, "status": "running"})
    else:
        emit(exec_id)
        say(f"see what it prints with: perdure peek {exec_id} --follow")


def _read(file: Path) -> str:
    from perdure.reading import Unreadable, read_bytes

    try:
        if str(file) == "-":
            content = sys.stdin.buffer.read(MAX_FILE_BYTES)
        else:
            content = read_bytes(file, MAX_FILE_BYTES)
        return content.decode()
    except Unreadable as error:
        raise OptionError(f"--file {file}: {error.finding.message}; check the path") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"--file {file}: is not UTF-8 ({error.reason}); convert it") from None


async def _launch(run: Named, code: str | None, settings: JobSettings) -> str:
    from perdure.cli.reading import server_to_act
    from perdure.config import Settings
    from perdure.event_log import UnknownRun

    async with server_to_act(Settings.from_env(), "launch") as perdure:
        try:
            wanted = perdure.run(f"{run.suite}/{run.task_id}/{run.trial}")
            return (await wanted.launch_job(code, **settings)).exec_id
        except UnknownRun:
            raise PerdureError(
                f"there is no run {run}; `perdure list {run.suite}` shows those there are"
            ) from None
