"""`perdure pool`: what a pool has, and what people ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.console import emit, emit_json, emit_table, printable, say
from perdure.cli.list_options import EnvConfigOption, RootOption
from perdure.cli.options import (
    FLAG,
    EnvFileOption,
    JsonOption,
    OptionError,
    env_file_path,
    examples,
    help_of,
)
from perdure.cli.suite_options import POOL, PoolOption

if TYPE_CHECKING:
    from perdure.cli.pool_session import PoolAnswer
    from perdure.core.environments import Environments
    from perdure.core.pool_definitions import Definition
    from perdure.environment_files import Checked

BAD_INPUT = 2

pool_app = typer.Typer(
    help="Show a pool's hosts, instances and waiting tasks; or ask something of it.",
    invoke_without_command=True,
    epilog=examples(
        ("perdure pool", "what there is, who has it, and who waits for what"),
        ("perdure pool prepare --env-config env.yaml", "images and instances before the first run"),
        ("perdure pool stop shop", "its instances end: those in use after their use"),
        ("perdure pool shutdown", "everything ends at once"),
    ),
)

EnvironmentArgument = Annotated[
    str, typer.Argument(metavar="ENV", help="An environment's name.", show_default=False)
]


@pool_app.callback()
def pool(context: typer.Context, pool: PoolOption = None, json: JsonOption = False) -> None:
    """Show a pool: its hosts, its instances with the tasks that have them, and those who wait.

    Nothing is started for that but, if need be, the embedded server.
    """
    name = _name(pool)
    if context.invoked_subcommand is not None:
        if json:
            raise OptionError(
                f"--json goes with `perdure pool` alone, or stands behind "
                f"{context.invoked_subcommand}"
            )
        context.obj = pool
        return
    from perdure.cli.pool_session import closed_view, view_of

    view = asyncio.run(view_of(name))
    if json:
        emit_json(view or closed_view(name))
    elif view is None:
        emit(f"pool {name}: nothing is up, and nobody waits")
    else:
        _show(view)


def prepare(
    context: typer.Context,
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV", help="One environment; by default all of them.", show_default=False
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            min=0,
            max=10_000,
            help="So many instances of each; 0: no longer. By default its `prewarm`, or 1.",
            show_default=False,
        ),
    ] = None,
    env_config: EnvConfigOption = None,
    root: RootOption = None,
    env_file: EnvFileOption = None,
    pool: PoolOption = None,
    json: JsonOption = False,
) -> None:
    """Pull or build what environments need, and have instances of them ready.

    They stay until `perdure pool stop`, whoever needs them or not; the next run finds them warm.
    """
    from perdure.cli.pool_session import prepare as prepare_pool

    name, values = _name(pool, context), env_file_path(env_file)
    definitions = _definitions(env_config, root, environment)
    _tell(asyncio.run(prepare_pool(name, definitions, count, values)), json=json)


def reset(
    context: typer.Context,
    environment: EnvironmentArgument,
    pool: PoolOption = None,
    json: JsonOption = False,
) -> None:
    """Reset the idle instances of an environment, and wait for it.

    Those in use are not touched: each is reset after its use anyhow.
    """
    from perdure.cli.pool_session import reset as reset_pool

    _tell(asyncio.run(reset_pool(_name(pool, context), environment)), json=json)


def stop(
    context: typer.Context,
    environment: EnvironmentArgument,
    pool: PoolOption = None,
    json: JsonOption = False,
) -> None:
    """Stop the instances of an environment, and wait for it: those in use end after their use."""
    from perdure.cli.pool_session import stop as stop_pool

    _tell(asyncio.run(stop_pool(_name(pool, context), environment)), json=json)


def shutdown(context: typer.Context, pool: PoolOption = None, json: JsonOption = False) -> None:
    """Stop every instance at once, whatever it does, and refuse everybody who waits.

    Tasks that had one lose it. The next run opens the pool anew.
    """
    from perdure.cli.pool_session import shutdown as shut_pool_down

    _tell(asyncio.run(shut_pool_down(_name(pool, context))), json=json)


def sweep(
    context: typer.Context,
    foreign: Annotated[
        bool,
        typer.Option(
            "--foreign",
            metavar=FLAG,
            help="List what other pools left on this machine, and ask whether to remove it.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", metavar=FLAG, help="With --foreign: do not ask.")
    ] = False,
    of: Annotated[
        list[str] | None,
        typer.Option("--of", metavar="UUID", help="With --foreign: only what is of this pool."),
    ] = None,
    pool: PoolOption = None,
    json: JsonOption = False,
) -> None:
    """Remove what a pool left behind on its hosts, such as the halves of failed starts.

    What belongs to its instances stays, and so does everything that is not this pool's. With
    --foreign: leftovers on this machine of pools that this server does not know, or no longer.
    """
    if yes and not foreign:
        raise OptionError("--yes answers the question of --foreign; give both, or leave it out")
    if of and not foreign:
        raise OptionError("--of names another pool; give --foreign, too, or leave it out")
    name = _name(pool, context)
    if foreign:
        from perdure.cli.pool_leftovers import sweep_foreign

        raise typer.Exit(asyncio.run(sweep_foreign(agreed=yes, json=json, of=of or ())))
    from perdure.cli.pool_session import sweep as sweep_pool

    _tell(asyncio.run(sweep_pool(name)), json=json)


def _command(function: Callable[..., Any], *shown: tuple[str, str]) -> None:
    pool_app.command(function.__name__, help=help_of(function), epilog=examples(*shown))(function)


_command(
    prepare,
    ("perdure pool prepare --env-config env.yaml", "one instance of each environment"),
    ("perdure pool prepare shop --count 4 --env-config env.yaml", "four of one"),
    ("perdure pool prepare shop --count 0 --env-config env.yaml", "no longer than needed"),
)
_command(reset, ("perdure pool reset shop", "as if they were new"))
_command(stop, ("perdure pool stop shop", "all of its instances"))
_command(shutdown, ("perdure pool shutdown", "everything of the pool"))
_command(
    sweep,
    ("perdure pool sweep", "leftovers of this pool on all of its hosts"),
    ("perdure pool sweep --foreign", "of others, on this machine: asks first"),
)


def _name(given: str | None, context: typer.Context | None = None) -> str:
    """The pool's name; `--pool` may stand before or behind the sub-command."""
    from perdure.suite_input import check_id

    name = given or (context.obj if context else None) or POOL
    return check_id("--pool", name)


def _definitions(
    env_config: Path | None, root: Path | None, environment: str | None
) -> Sequence[Definition]:
    """The environments of an env.yaml, or one of them; else all that is wrong, and the end."""
    from perdure.document_problems import problem_lines
    from perdure.environment_definitions import EnvironmentDefinitions
    from perdure.environment_files import read_environments
    from perdure.lists import ListOptions

    if env_config is None and root is None:
        raise OptionError("prepare what? Name the file of the environments by --env-config FILE")

    def read(path: Path) -> Checked[Environments]:
        checked = read_environments(path)
        for warning in checked.warnings:
            say(f"warning: {warning}")
        return checked

    lists = ListOptions(env_config=env_config, root=root)
    found = EnvironmentDefinitions(lists, read).described(environment)
    if found.problems:
        for problem in problem_lines(found.problems):
            say(problem)
        say("nothing was started")
        raise typer.Exit(BAD_INPUT)
    if not found.definitions:
        raise OptionError(f"{env_config or root} describes no environment; there is nothing to do")
    return found.definitions


def _show(view: dict[str, Any]) -> None:
    from perdure.cli.pool_tables import failure_lines, head_line, tables

    emit(head_line(view))
    for table in tables(view):
        emit("")
        emit_table(table)
    for line in failure_lines(view):
        emit(line)
    if not view["hosts"]:
        say("no host is there: a worker on it brings one (`perdure run`, `perdure worker`)")


def _tell(answer: PoolAnswer, *, json: bool) -> None:
    if json:
        emit_json({"pool": answer.pool, "told": answer.told, "left": answer.left})
    else:
        emit(printable(answer.told, 1000))
        for line in answer.left:
            say(printable(line, 1000))
    if answer.left:
        raise typer.Exit(1)
