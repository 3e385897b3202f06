"""Step type `command`: a process, by its argv or by a line for the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from activities.host import StepHost
from activities.leftovers import inside
from activities.step_servers import own_servers
from activities.steps.streams import result_of
from perdure.core.context import NotJson, check_json
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.messages import Json
from perdure.steps import Context, ProcessResult, StepFailed, step


@step("command", keys=BUILT_IN_TYPES["command"].keys, on_loop=True)
async def run_command(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Run the step's `command`; the result is `exit_code`, `stdout`, `stderr`, `json`, `duration`.

    A list is an argv, a text is for `/bin/sh -c`. `cwd` lies in the run's working directory
    unless it is absolute. `stdin` is fed and closed; without it the process reads end of file.
    For the servers under `mcp` it is given ports (`activities.step_servers`).
    `json` is null unless the document asks for it.

    Raises StepFailed, with the result kept:
        ExitCode: an exit code that is not among `ok_exit_codes` ([0]).
        Timeout, IdleTimeout: ended at the step's limit.
        BadJson: `json: true`, and standard output is not JSON.
        BadPath: a relative `cwd` that leads out of the working directory.
        SpawnFailed: it cannot be started.
        BadMcpConfig, NoPort: its servers cannot be had.
    """
    command, stdin = document["command"], document.get("stdin")
    async with own_servers(host, document.get("mcp")) as variables:
        ended = await host.run_process(
            ["/bin/sh", "-c", command] if isinstance(command, str) else command,
            cwd=_cwd(host, document.get("cwd")),
            env=variables,
            stdin=None if stdin is None else str(stdin).encode(),
        )
    result = result_of(ended, document)
    if document.get("json"):
        result["json"] = _parsed(ended, result)
    return result


def _cwd(host: StepHost, cwd: str | None) -> Path:
    if cwd is None:
        return host.workdir
    return Path(cwd) if cwd.startswith("/") else inside(host.workdir, cwd, "cwd")


def _parsed(ended: ProcessResult, result: Json) -> Json:
    try:
        value = json.loads(ended.stdout_path.read_bytes())
        check_json(value)
    except (NotJson, ValueError, RecursionError) as error:
        raise StepFailed(
            f"json: standard output is not JSON ({error})", type="BadJson", result=result
        ) from None
    return value
