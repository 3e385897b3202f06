"""Makes an instance as if it were new: by its endpoints, else by scripts inside of it (P40 to P45).

The endpoints of an environment are called in the file's order; only if one fails, and scripts are
there, these are run, and count alone. An instance has several tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from activities.backend import Backend, Heartbeat, definition_of, failed
from perdure.core.environments import Environment
from perdure.core.redaction import mask
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall, InstanceResult
from perdure.reset_endpoints import Patience, ResetFailed, call_endpoint


async def reset(
    call: InstanceCall,
    folder: Path,
    backend: Backend,
    heartbeat: Heartbeat,
    patience: Patience | None = None,
    *,
    secrets: Sequence[str] = (),
) -> InstanceResult:
    """Reset an instance, with the environment's retries; nothing to do is success.

    Scripts run through `backend`, in whose `folder` the instance is. `secrets` are masked in what
    an endpoint says.
    """
    environment = definition_of(call).environment
    tries = environment.reset_retries + 1
    for number in range(1, tries + 1):
        if number > 1:
            await asyncio.sleep(environment.reset_retry_delay_seconds)
        try:
            await _reset_once(call, folder, backend, heartbeat, environment, patience or Patience())
        except ResetFailed as error:
            last = ResetFailed(mask(str(error), secrets), error.log)
            heartbeat(f"try {number} of {tries} failed: {last}")
        else:
            return InstanceResult(ok=True)
    times = "" if tries == 1 else f" ({tries} times)"
    return failed(call, f"reset failed{times}: {last}", log=last.log)


async def _reset_once(
    call: InstanceCall,
    folder: Path,
    backend: Backend,
    heartbeat: Heartbeat,
    environment: Environment,
    patience: Patience,
) -> None:
    scripts = environment.reset_scripts
    try:
        for endpoint in environment.reset_endpoints:
            heartbeat(f"reset endpoint {endpoint.name}")
            await call_endpoint(endpoint, call.ports, patience)
        if environment.reset_endpoints:
            return
    except ResetFailed as error:
        if not scripts:
            raise
        heartbeat("the endpoints failed; the scripts come next")
        before = f" (before, {error})"
    else:
        before = ""
    for service, command in scripts.items():
        heartbeat(f"reset script of {service}")
        try:
            await _run_script(call, folder, backend, environment, service, command)
        except ResetFailed as error:
            raise ResetFailed(f"{error}{before}", error.log) from None


# --- Scripts ------------------------------------------------------------------------------------


async def _run_script(
    call: InstanceCall,
    folder: Path,
    backend: Backend,
    environment: Environment,
    service: str,
    command: str,
) -> None:
    limit = environment.reset_script_timeout_seconds
    try:
        code, output = await backend.exec(call, folder, service, command, limit)
    except TimeoutError:
        raise ResetFailed(f"reset script of {service} did not end within {limit:g} s") from None
    except PerdureError as error:
        raise ResetFailed(f"reset script of {service} could not be run: {error}") from None
    if code != 0:
        lines = tuple(output.splitlines())
        raise ResetFailed(f"reset script of {service} ended with exit code {code}", lines)
