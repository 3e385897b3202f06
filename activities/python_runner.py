"""Runs the code of a `python` step: the program of its process. Standard library only.

    python -P -u python_runner.py CALL

CALL is a JSON file: `script` (the code's file), `name` (what tracebacks call it), `entrypoint`,
`args`, and `answer`, the file that is written when the function has returned or raised:
`{"value": …}`, or `{"type": …, "message": …, "traceback": …}`.

Nothing of perdure is imported: the script may run under an interpreter that has none of it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import linecache
import math
import os
import sys
import traceback
from typing import Any

TRACEBACK_LIMIT_CHARS = 8_000
MAX_DEPTH = 128
MAX_INTEGER_BITS = 14_000


class NotJson(Exception):
    pass


def main() -> int:
    """Run what the file named by the only argument says; the exit code is 1 if it failed."""
    with open(sys.argv[1], encoding="utf-8") as file:
        call = json.load(file)
    with open(call["script"], encoding="utf-8") as file:
        code = file.read()
    name = call["name"]
    sys.argv = [name]
    sys.path.insert(0, os.getcwd())
    answer: dict[str, Any]
    try:
        answer = {"value": plain(run(code, name, call["entrypoint"], call["args"]))}
    except NotJson as error:
        answer = {"type": "BadResult", "message": str(error), "traceback": ""}
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the script's doing too
        answer = told(error)
        print(answer["traceback"], file=sys.stderr)
    draft = call["answer"] + ".draft"
    # Of the owner alone: the value may hold what is redacted later.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(draft, call["answer"])
    return 0 if "value" in answer else 1


def run(code: str, name: str, entrypoint: str, args: Any) -> Any:
    """Execute the code as a module and call its entry point, plain or async."""
    # For tracebacks: the lines of a script that exists under this name nowhere.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    module = type(sys)("__perdure_script__")
    module.__file__ = name
    sys.modules[module.__name__] = module  # what dataclasses and pickle look up
    exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)
    function = getattr(module, entrypoint, None)
    if not callable(function):
        raise NoEntrypoint(f"the script defines no function {entrypoint!r}")
    with open(os.environ["PERDURE_CONTEXT"], encoding="utf-8") as file:
        context = json.load(file)
    result = function({"args": args, "results": context["results"], "context": context})
    return asyncio.run(waited(result)) if inspect.isawaitable(result) else result


class NoEntrypoint(Exception):
    pass


async def waited(awaitable: Any) -> Any:
    return await awaitable


def told(error: BaseException) -> dict[str, str]:
    """The answer for an exception, its traceback without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        message = str(error)
    except Exception:
        message = "(an exception without a text)"
    try:
        lines = traceback.format_exception(type(error), error, frames)
    except Exception:
        lines = [f"{type(error).__name__}: {message}"]
    text = "".join(lines).rstrip()
    return {
        "type": type(error).__name__,
        "message": message[:TRACEBACK_LIMIT_CHARS],
        "traceback": text[-TRACEBACK_LIMIT_CHARS:],
    }


def plain(value: Any, place: str = "", depth: int = 0) -> Any:
    """The value as JSON would give it back: tuples as lists, numbers and texts as plain ones.

    Raises NotJson naming the place of what JSON cannot carry.
    """
    if depth > MAX_DEPTH:
        raise NotJson(f"the result{place[:200]} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise NotJson(f"the result{place} is an integer of more than 4,200 digits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(f"the result{place} is {value}, which JSON cannot carry")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{n}]", depth + 1) for n, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                kind = type(key).__name__
                raise NotJson(f"the result{place} has a key of type {kind}; keys must be texts")
        return {str(k): plain(item, f"{place}[{k!r}]", depth + 1) for k, item in value.items()}
    raise NotJson(f"the result{place} is of type {type(value).__name__}, which is not JSON")


if __name__ == "__main__":
    sys.exit(main())
