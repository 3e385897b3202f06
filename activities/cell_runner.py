"""Runs a python cell: the program of a job's process. Standard library only, Python 3.8 or later.

    python -P -u cell_runner.py

Standard input begins with a number, a line feed, and so many bytes of JSON: `code`, `name` (what
tracebacks call it), `entrypoint` (or null) with `args`, `results` and `context`, and `reports`:
paths, to the first of which that can be written it reports how the cell ended. What follows is
the cell's own input.

The report is `{"error", "error_type", "failing_line": {"number", "text"}, "interrupted", "exit"}`;
`interrupted`: a SIGINT arrived while the cell ran. It may be started with SIGINT blocked, so that
one that comes while it boots is the cell's.

Nothing of perdure is imported: the cell may run in a container that has none of it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import signal
import sys
import threading
import traceback
from types import FrameType, ModuleType, TracebackType
from typing import Any

VALUE = "__perdure_value__"
ERROR_LIMIT_CHARS = 4_000
LINE_LIMIT_CHARS = 1_000
TRACEBACK_LIMIT_CHARS = 64_000
INTERRUPTED = "Interrupted"


class NoEntrypoint(Exception):
    pass


class Interrupts:
    """Each SIGINT raises KeyboardInterrupt where the cell is, however many came before."""

    seen = False

    def begin(self) -> None:
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def end(self) -> None:
        """From here on the cell's end is being told, and none may come between."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


def main() -> int:
    """Run the cell that standard input names; the exit code is that of the report."""
    call = read_call()
    own = os.getpid()
    interrupts = Interrupts()
    error: BaseException | None = None
    sys.argv = [call["name"]]
    sys.path[:] = [os.getcwd(), *(place for place in sys.path if place)]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        try:
            interrupts.begin()
            echo(run(call))
            wait_for_threads()
        finally:
            interrupts.end()
    except BaseException as raised:  # SystemExit and KeyboardInterrupt are the cell's doing, too
        error = raised
    if os.getpid() != own:  # a fork that came back here; the cell's end is not its to tell
        if error is not None and not isinstance(error, SystemExit):
            tell(error, call)
        os._exit(exit_code(error))
    report = ended(call, error, interrupts.seen)
    for flush in (sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError, ValueError):  # the cell closed it
            flush()
    write(call["reports"], report)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # threads may keep it from ending
    return int(report["exit"])


def read_call() -> dict[str, Any]:
    """What is asked for. Byte by byte to the number's end: the rest is not ours to buffer."""
    size = b""
    while not size.endswith(b"\n"):
        size += read_some(1)
    content: list[bytes] = []
    left = int(size)
    while left:
        content.append(read_some(min(left, 1 << 20)))
        left -= len(content[-1])
    call: dict[str, Any] = json.loads(b"".join(content))
    return call


def read_some(size: int) -> bytes:
    piece = os.read(0, size)
    if not piece:
        raise SystemExit("standard input ended before the cell")
    return piece


# --- The cell ------------------------------------------------------------------------------------


def run(call: dict[str, Any]) -> Any:
    """Execute the cell and call its entry point, plain or async; the value to be echoed."""
    code, name = call["code"], call["name"]
    # For tracebacks: the lines of a file that exists under this name nowhere.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    module = ModuleType("__main__")
    sys.modules["__main__"] = module  # what dataclasses and pickle look up
    tree = ast.parse(code, name)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        kept = ast.Assign([ast.Name(VALUE, ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    exec(compile(tree, name, "exec", dont_inherit=True), module.__dict__)
    value = module.__dict__.pop(VALUE, None)
    if call["entrypoint"] is None:
        return value
    function = getattr(module, call["entrypoint"], None)
    if not callable(function):
        raise NoEntrypoint(f"the cell defines no function {call['entrypoint']!r}")
    result = function({key: call[key] for key in ("args", "results", "context")})
    return awaited(result) if hasattr(result, "__await__") else result


def awaited(awaitable: Any) -> Any:
    import asyncio  # most cells have no use for it, and it takes a while

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())


def echo(value: Any) -> None:
    if value is not None:
        print(repr(value))


def wait_for_threads() -> None:
    """Here, where a SIGINT still counts; the interpreter itself would wait for them later."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


# --- Its end -------------------------------------------------------------------------------------


def ended(
    call: dict[str, Any], error: BaseException | None, was_interrupted: bool
) -> dict[str, Any]:
    """The report; what a person should read is printed to standard error."""
    report: dict[str, Any] = {
        "error": None,
        "error_type": None,
        "failing_line": None,
        "interrupted": was_interrupted,
        "exit": exit_code(error),
    }
    is_by_interrupt = was_interrupted and isinstance(error, KeyboardInterrupt)
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            show(f"{text_of(error)}\n")
    elif error is not None:
        report["error_type"] = type(error).__name__
        message = text_of(error)
        said = f"{type(error).__name__}: {message}" if message else type(error).__name__
        report["error"] = said[:ERROR_LIMIT_CHARS]
        report["failing_line"] = failing_line(error, call)
        tell(error, call)
    if was_interrupted and (is_by_interrupt or report["error"] is None):
        report["error"] = INTERRUPTED
        report["exit"] = 130 if is_by_interrupt else report["exit"]
    return report


def exit_code(error: BaseException | None) -> int:
    if not isinstance(error, SystemExit):
        return 0 if error is None else 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(an exception without a text)"


def tell(error: BaseException, call: dict[str, Any]) -> None:
    """Print the traceback, without the frames of this file."""
    if isinstance(error, NoEntrypoint):
        show(f"{error}\n")
        return
    frames = of_cell(error.__traceback__, call["name"])
    without_handler(error, set())
    try:
        lines = traceback.format_exception(type(error), error, frames)
    except Exception:
        lines = [f"{type(error).__name__}: {text_of(error)}\n"]
    show("".join(lines)[-TRACEBACK_LIMIT_CHARS:])


def of_cell(frames: TracebackType | None, name: str) -> TracebackType | None:
    """The frames from the first one of the cell on."""
    while frames is not None and frames.tb_frame.f_code.co_filename != name:
        frames = frames.tb_next
    return frames


def without_handler(error: BaseException | None, known: set[int]) -> None:
    """Cut off the frame that raises for a SIGINT, in this error and in those that led to it."""
    while error is not None and id(error) not in known:
        known.add(id(error))
        frames = error.__traceback__
        while frames is not None:
            inner = frames.tb_next
            if inner is not None and inner.tb_frame.f_code is Interrupts._interrupt.__code__:
                frames.tb_next = inner = None
            frames = inner
        without_handler(error.__cause__, known)
        error = error.__context__


def failing_line(error: BaseException, call: dict[str, Any]) -> dict[str, int | str] | None:
    """The cell's innermost line when the error was raised; of one that is no Python, the place."""
    number: int | None = None
    frames = of_cell(error.__traceback__, call["name"])
    if frames is None and isinstance(error, SyntaxError) and error.filename == call["name"]:
        number = error.lineno
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == call["name"]:
            number = frames.tb_lineno
        frames = frames.tb_next
    lines = call["code"].splitlines()
    if number is None or not 0 < number <= len(lines):
        return None
    return {"number": number, "text": lines[number - 1][:LINE_LIMIT_CHARS]}


def show(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)


def write(paths: list[str], report: dict[str, Any]) -> None:
    """Write the report to the first path that can be written, for its owner's eyes only."""
    for path in paths:
        draft = f"{path}.draft"
        try:
            if os.path.lexists(draft):
                os.unlink(draft)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(report, file)
            os.replace(draft, path)
            return
        except OSError:
            continue


if __name__ == "__main__":
    sys.exit(main())
