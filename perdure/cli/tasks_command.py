"""`perdure tasks`: the store of task documents, whose versions can be run like files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.console import emit, emit_json, emit_table, printable, say
from perdure.cli.options import JsonOption, PathsArgument, StepsOption, examples, help_of

if TYPE_CHECKING:
    from rich.table import Table

    from perdure.task_store import StoredTask, TaskStore

BAD_INPUT = 2

tasks_app = typer.Typer(
    help="Keep versions of task documents, to be run as store:ID@VERSION.",
    no_args_is_help=True,
    epilog=examples(
        ("perdure tasks put refund.yaml", "its next version"),
        ("perdure tasks list", "the latest version of each task"),
        ("perdure run store:refund@3 --suite nightly", "run one; store:refund is the latest"),
    ),
)


def put(paths: PathsArgument, steps: StepsOption = [], json: JsonOption = False) -> None:  # noqa: B006
    """Store each task as the next version of its id.

    The documents are checked as `perdure validate` does; if anything is wrong with one of them,
    none is stored. Scripts go into the store with their tasks, so that a version stays what it is.
    """
    from perdure.document_problems import InvalidDocuments, problem_lines
    from perdure.steps import load_step_modules
    from perdure.stored_tasks import load_to_store, store_tasks

    load_step_modules(steps)
    store = _store()
    documents = load_to_store(paths, store)
    for warning in documents.warnings:
        say(f"warning: {warning}")
    try:
        stored = store_tasks(store, documents)
    except InvalidDocuments as error:
        for problem in problem_lines(error.problems):
            say(problem)
        say("nothing was stored")
        raise typer.Exit(BAD_INPUT) from None
    if json:
        emit_json([_summary(task) for task in stored])
        return
    for task in stored:
        emit(task.name)


def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID[@VERSION]",
            help="A stored task; without a version, the latest.",
            show_default=False,
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Print a stored task's document, as YAML or JSON."""
    from perdure.task_store import parse_stored_name

    document = _store().get(*parse_stored_name(name)).document
    if json:
        emit_json(document)
    else:
        emit(to_yaml(document).rstrip("\n"))


def list_tasks(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Only ids like this one: 'shop-*'."),
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="T",
            help="Only tasks whose metadata say that they are of this type.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the latest version of each stored task."""
    found = _store().query(id=id, type=type)
    if json:
        emit_json([_summary(task) for task in found])
    elif found:
        emit_table(_table(found))
    elif id is None and type is None:
        say("no task is stored yet; `perdure tasks put FILE` stores one")
    else:
        say("no stored task is like that; `perdure tasks list` shows all")


def _command(name: str, function: Callable[..., Any], *shown: tuple[str, str]) -> None:
    tasks_app.command(name, help=help_of(function), epilog=examples(*shown))(function)


_command(
    "put",
    put,
    ("perdure tasks put refund.yaml", "its next version"),
    ("perdure tasks put tasks/", "those of a folder, or none of them"),
)
_command(
    "get",
    get,
    ("perdure tasks get refund", "the latest version"),
    ("perdure tasks get refund@3 > refund.yaml", "an older one, to be edited"),
)
_command(
    "list",
    list_tasks,
    ("perdure tasks list", "all of them"),
    ("perdure tasks list 'shop-*' --json", "some of them, for a program"),
)


def to_yaml(document: dict[str, Any]) -> str:
    """The document as YAML that perdure reads back as it was; scripts look as they do in files."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        # Outside of quotes, YAML reads each of its line breaks as the same one.
        quoted = any(character in text for character in "\r\x85\u2028\u2029\ufeff")
        style = '"' if quoted else "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)


def _store() -> TaskStore:
    from perdure.config import Settings
    from perdure.task_store import TaskStore

    return TaskStore(Settings.from_env().state.tasks)


def _summary(task: StoredTask) -> dict[str, Any]:
    steps = task.document.get("steps")
    return {
        "id": task.id,
        "version": task.version,
        "source": task.name,
        "type": task.metadata.get("type", "task"),
        "project_id": task.document.get("project_id"),
        "steps": len(steps) if isinstance(steps, list) else 0,
        "stored_at": task.stored_at,
    }


def _table(tasks: list[StoredTask]) -> Table:
    from perdure.cli.tables import table
    from perdure.cli.times import moment

    made = table("TASK", ("VERSION", "right"), "TYPE", ("STEPS", "right"), "STORED")
    for row in map(_summary, tasks):
        made.add_row(
            printable(row["id"]),
            str(row["version"]),
            printable(str(row["type"]), 40),
            str(row["steps"]),
            moment(row["stored_at"]),
        )
    return made
