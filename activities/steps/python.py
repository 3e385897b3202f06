"""Step type `python`: a function of a script that is part of the document."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from activities.host import StepHost
from activities.steps.streams import exit_words, failed_by_limit
from perdure.core.context import NotJson, check_json
from perdure.core.step_types import BUILT_IN_TYPES, TRACEBACK_ENDS_WITH
from perdure.messages import Json
from perdure.steps import Context, ProcessResult, StepFailed, step

RUNNER = Path(__file__).parent.parent / "python_runner.py"
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024
TRACEBACK_LINES = 8
MESSAGE_CHARS = 1000


@step("python", keys=BUILT_IN_TYPES["python"].keys, on_loop=True)
async def run_python(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Call the script's `entrypoint` with `{"args", "results", "context"}`; the result is what
    it returns, also at `metadata.script_results.<result_id>` (default: the step's id).

    It runs in a process of its own, with the worker's Python and the run's working directory as
    its current one and on its path. Tuples come back as lists.

    Raises StepFailed:
        the class name of the exception that the script raised; the message begins with its
            first line, and ends with the last lines of its traceback.
        BadResult: what it returned is not JSON.
        ExitCode: the process ended without returning.
        Timeout, IdleTimeout: ended at the step's limit.
    """
    answer_path = host.step_dir / "answer.json"
    call = {
        "script": str(host.private_file("script.py", _code(document).encode())),
        "name": _shown_name(document),
        "entrypoint": document.get("entrypoint", "run"),
        "args": host.resolved(document.get("args")),
        "answer": str(answer_path),
    }
    call_path = host.private_file("call.json", json.dumps(call).encode())
    ended = await host.run_process([sys.executable, "-P", "-u", str(RUNNER), str(call_path)])
    if failure := failed_by_limit(ended):
        raise failure
    value = _returned(answer_path, ended)
    result_id = document.get("result_id") or document["id"]
    kept = context.metadata.get("script_results")
    kept = kept if isinstance(kept, dict) else {}
    context.metadata["script_results"] = {**kept, result_id: value}
    return value


def _code(document: dict[str, Any]) -> str:
    if isinstance(code := document.get("code"), str):
        return code
    raise StepFailed(
        "the step has no code; a script named by `file` is embedded when its document is loaded",
        type="BadInput",
        kind="bad_input",
        retryable=False,
    )


def _shown_name(document: dict[str, Any]) -> str:
    return str(document.get("file_name") or document.get("file") or f"<step {document['id']}>")


def _returned(path: Path, ended: ProcessResult) -> Json:
    answer = _read(path)
    if answer is None:
        raise StepFailed(
            f"the script's process ended before the function returned: {exit_words(ended)}",
            type="ExitCode",
        )
    if "value" in answer:
        try:
            check_json(answer["value"])
        except NotJson as error:
            raise StepFailed(f"the result is not JSON: {error}", type="BadResult") from None
        return answer["value"]
    lines = str(answer.get("traceback", "")).splitlines()
    name, message = str(answer.get("type")), str(answer.get("message"))
    first = message.strip().partition("\n")[0]
    said = f"{name}: {first[:MESSAGE_CHARS]}" if first else name
    ending = "\n".join(lines[-TRACEBACK_LINES:])
    raise StepFailed(f"{said}{TRACEBACK_ENDS_WITH}{ending}" if ending else said, type=name)


def _read(path: Path) -> dict[str, Json] | None:
    """What the runner wrote; None if it is not there, or not what it writes."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            content = file.read(ANSWER_LIMIT_BYTES + 1)
        if len(content) > ANSWER_LIMIT_BYTES:
            raise StepFailed(
                f"the result is larger than {ANSWER_LIMIT_BYTES:,} bytes; write it to a file in "
                "PERDURE_WORKDIR and return its name",
                type="BadResult",
            )
        answer = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None
