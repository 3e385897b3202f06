"""The command line: `perdure`, a file per command.

Start-up time is felt at every call, so a command imports what it works with when it runs; here
only the option parser is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import gc as garbage
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from perdure.cli.cancel_command import cancel
from perdure.cli.console import ReaderGone, abandon_stdout, prepare_streams, printable, say
from perdure.cli.events_command import events
from perdure.cli.gc_command import gc
from perdure.cli.interrupt_command import interrupt
from perdure.cli.jobs_command import jobs
from perdure.cli.launch_command import LaunchCommand, launch
from perdure.cli.list_command import list_runs
from perdure.cli.options import examples, help_of
from perdure.cli.peek_command import peek
from perdure.cli.pool_command import pool_app
from perdure.cli.retry_command import retry
from perdure.cli.run_command import run
from perdure.cli.server_command import server_app
from perdure.cli.show_command import show
from perdure.cli.suite_command import suite
from perdure.cli.tasks_command import tasks_app
from perdure.cli.validate_command import validate
from perdure.cli.worker_command import worker
from perdure.errors import PerdureError

__all__ = ["app", "main"]

MISUSED = 2
INTERRUPTED = 130
READER_GONE = 141
"""What a shell reports of a program that SIGPIPE ended."""
INTERNAL_ERROR = 70

GARBAGE_AT_OBJECTS = 10_000
"""After so many new ones, the interpreter looks for garbage. A command's imports make 120,000 that
stay: with the usual 700, a tenth of its start is spent on looking through them."""

# The parser carries a copy of click, and does not export what all of its errors are.
_ParserError: type[Exception] = next(
    known for known in typer.BadParameter.__mro__ if known.__name__ == "ClickException"
)

app = typer.Typer(
    name="perdure",
    help="Run agent-evaluation tasks durably: whatever is killed, a run goes on where it stopped.",
    epilog=examples(
        ("perdure validate tasks/", "every mistake of every document"),
        ("perdure run tasks/ --suite nightly", "run them; again, to go on after a crash"),
        ("perdure list", "what ran, and how it ended"),
        ("perdure show nightly/refund", "one run: steps, attempts, failures, files"),
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(
    name: str,
    function: Callable[..., Any],
    *shown: tuple[str, str],
    kind: type[TyperCommand] | None = None,
) -> None:
    app.command(name, cls=kind, help=help_of(function), epilog=examples(*shown))(function)


_command(
    "run",
    run,
    ("perdure run task.yaml", "one task, under a suite named after it and the time"),
    ("perdure run tasks/ --suite nightly", "a folder of tasks; the same again goes on"),
    ("perdure run tasks/ --only refund --seed order=7", "one of them, with another seed"),
    (
        "perdure run tasks/ --repeats 5 --limit openai=4",
        "five trials of each; 4 model calls at once",
    ),
    (
        "perdure run tasks/ --max-failures 10% --max-cost 20",
        "start nothing more when it goes wrong",
    ),
    ("perdure run list.jsonl --domain crm --skip-existing", "what is left of a DTap list"),
    ("perdure run tasks/ --json > result.json", "the result for a program"),
)
_command(
    "retry",
    retry,
    ("perdure retry nightly", "its tasks that did not succeed, all of their trials"),
    ("perdure retry nightly --only-failed-trials", "the trials alone"),
    ("perdure retry nightly/refund --from-step agent", "one task, from a step on"),
)
_command(
    "suite",
    suite,
    ("perdure suite nightly", "how far it is"),
    ("perdure suite nightly --max-parallel 20", "20 tasks at once from now on"),
    ("perdure suite nightly pause", "start nothing more, until resume"),
    ("perdure suite nightly requeue refund", "run a failed task again"),
    ("perdure suite nightly prioritise refund/2", "start its second trial next"),
)
_command(
    "validate",
    validate,
    ("perdure validate tasks/", "a folder"),
    ("perdure validate a.yaml b.json list.jsonl", "files"),
)
_command(
    "worker",
    worker,
    ("perdure worker", "serve the embedded server"),
    ("TEMPORAL_ADDRESS=temporal.example:7233 perdure worker --host gpu-1", "or a team's"),
)
app.add_typer(pool_app, name="pool")
app.add_typer(server_app, name="server")
app.add_typer(tasks_app, name="tasks")
_command(
    "list",
    list_runs,
    ("perdure list", "all suites"),
    ("perdure list nightly", "the tasks of one"),
    ("perdure list --json", "for a program"),
)
_command(
    "show",
    show,
    ("perdure show nightly", "a suite"),
    ("perdure show nightly/refund", "a run of one of its tasks"),
    ("perdure show nightly/refund/2 --json", "its second trial, whole"),
)
_command(
    "cancel",
    cancel,
    ("perdure cancel nightly", "a suite and all of its tasks"),
    ("perdure cancel nightly/refund", "one of its tasks"),
)
_command(
    "events",
    events,
    ("perdure events nightly/refund --follow", "as they happen, until the run ends"),
    ("perdure events nightly/refund --type step.failed", "of one type"),
)
_command(
    "jobs",
    jobs,
    ("perdure jobs nightly/refund", "the background jobs of a run, and how they are"),
    ("perdure jobs nightly/refund --json", "with what they have printed"),
)
_command(
    "peek",
    peek,
    ("perdure peek exec-0123456789ab", "what it has printed so far"),
    ("perdure peek exec-0123456789ab --follow", "and what comes, until it ends"),
    ("perdure peek exec-0123456789ab --json", "the whole record, for a program"),
)
_command(
    "interrupt",
    interrupt,
    ("perdure interrupt exec-0123456789ab", "one Ctrl-C for it"),
    ("perdure interrupt exec-0123456789ab --kill-after 10", "and the end, if it does not heed it"),
)
_command(
    "launch",
    launch,
    ("perdure launch nightly/refund 'import os; os.listdir()'", "a python cell"),
    ("perdure launch nightly/refund --file train.py --name train", "from a file, with a name"),
    ("perdure launch nightly/refund --time-limit 1h -- make -C model", "a command"),
    kind=LaunchCommand,
)
_command(
    "gc",
    gc,
    ("perdure gc", "what would be removed"),
    ("perdure gc --delete", "remove it"),
)


def main() -> None:
    """The program `perdure`: run a command and exit with its status."""
    garbage.set_threshold(GARBAGE_AT_OBJECTS)
    prepare_streams()
    _leave(status_of(sys.argv[1:]))


@functools.cache
def parser() -> Callable[..., Any]:
    """The parser of `app`, made once: that takes longer than most commands."""
    return typer.main.get_command(app)


def _leave(status: int) -> NoReturn:
    """Exit without taking the interpreter down piece by piece.

    The SDK's threads may still hold it then, and abort the process (temporalio 1.35): what was
    asked for is done by now, and everything else of ours ends with the process.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def status_of(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name; returns the exit status, errors told on stderr."""
    try:
        # Not standalone: the parser would frame errors that have to fit on a line.
        status = parser()(list(arguments), prog_name="perdure", standalone_mode=False)
    except PerdureError as error:
        say(f"perdure: {error}")
        return error.exit_code
    except _ParserError as error:
        return _tell_misuse(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        abandon_stdout()
        return READER_GONE
    except Exception as error:
        return _tell_defect(error)
    return status if isinstance(status, int) else 0


_REMEDIES = {
    "float_parsing": "write a number, such as 2.50",
    "int_parsing": "write a whole number, such as 3",
    "greater_than_equal": "write {ge} or more",
    "less_than_equal": "write {le} or less",
}
"""By the parser's own name of what is wrong with a value."""


def _tell_misuse(error: Any) -> int:
    message = " ".join(error.format_message().split())
    message = re.sub(r"^Invalid value for '([^' ]+)[^']*': (Value error, )?", r"\1: ", message)
    if wrong := _wrong_value(error):
        message = message.partition(": ")[0] + wrong
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "perdure"
    if message:  # empty: the help was shown
        say(f"{command}: {message.rstrip('.')}; see `{command} --help`")
    return MISUSED


def _wrong_value(error: Any) -> str | None:
    """A value that the parser could not read, and what to write; None if it is not about one."""
    errors = getattr(error.__cause__, "errors", None)
    first = errors()[0] if callable(errors) else {}
    remedy = _REMEDIES.get(first.get("type", ""))
    if remedy is None:
        return None
    return f" {printable(str(first['input']), 60)!r}: {remedy.format(**first.get('ctx', {}))}"


def _tell_defect(error: Exception) -> int:
    if os.environ.get("PERDURE_DEBUG") == "1":
        traceback.print_exc()
    what = " ".join(str(error).split())[:300]
    say(
        f"perdure: internal error: {type(error).__name__}: {what}; this is a defect of perdure, "
        "please report it with the output of the same command under PERDURE_DEBUG=1"
    )
    return INTERNAL_ERROR
