"""Step type `exec`: a command inside of an environment's instance."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from activities import marker
from activities.backend import InnerCommand
from activities.commands import run_command
from activities.compose_inside import END_MARKED
from activities.compose_project import OVERRIDE_FILE
from activities.host import StepHost
from activities.step_instances import AtHand
from activities.steps.streams import result_of
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.docker_check import engine_environment
from perdure.errors import PerdureError
from perdure.messages import Json
from perdure.steps import Context, ProcessResult, StepFailed, step

END_SECONDS = 10.0
"""For ending what an attempt left inside."""


@step("exec", keys=BUILT_IN_TYPES["exec"].keys, on_loop=True)
async def run_inside(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Run the step's `command` in the container of `service`; the result is as of `command`.

    A list is an argv, a text is for `/bin/sh -c`, both of the container. The process sees the
    container's own variables, the step's `env`, `PERDURE_*` but for paths of this host, the
    environment's ports with the numbers that they have inside, and `<SERVICE>_HOST` of each
    service. In an environment that is a process it runs beside the server, on this host.

    What an attempt that was ended, or whose worker was lost, left inside is killed before it is
    said to be over, or another one begins. What a command leaves in the background when it ends
    by itself stays, as a part of the instance, until that is reset.

    Raises StepFailed, with the result kept:
        ExitCode: another exit code than 0.
        Timeout, IdleTimeout: ended at the step's limit.
        ExecFailed: no such service, or it does not run; kind `environment`.
        NoEnvironment: the task has no such environment.
    """
    instance = host.instances.at_hand(str(document["environment"]))
    service, command = str(document["service"]), document["command"]
    key = f"{host.run_id}/{document['id']}/"  # no id holds a slash
    if host.comes_again:
        await _end(instance, service, key, host)
    variables = _variables(instance, host) | {marker.MARKER: f"{key}{host.attempt}/inside"}
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    try:
        inner = InnerCommand(
            argv, service, variables, document.get("user"), document.get("workdir")
        )
        outer = await instance.backend.exec_argv(instance.call, instance.folder, inner)
    except PerdureError as error:
        raise StepFailed(str(error), type="ExecFailed", kind="environment") from None
    ended: ProcessResult | None = None
    try:
        ended = await host.run_process(outer, whole_env=_around(instance, variables, host))
    finally:
        if ended is None or ended.ended_by != "exit":
            await _to_its_end(_end(instance, service, key, host))
    return result_of(ended, document)


# --- Variables ----------------------------------------------------------------------------------


def _variables(instance: AtHand, host: StepHost) -> dict[str, str]:
    """What the process inside sees beside the variables of its container."""
    environment = instance.environment
    if environment.process:  # what runs there is on this host, and knows the ports from its server
        return {**host.step_variables(), **host.own_variables()}
    inside = {
        variable: str(port.container_port)
        for variable, port in environment.ports.items()
        if port.container_port is not None
    }
    for name in _services(instance):
        inside[re.sub(r"[^A-Z0-9_]", "_", name.upper()) + "_HOST"] = name
    own = host.own_variables()
    return {
        **inside,
        **host.step_variables(),
        **{name: own[name] for name in _WITHOUT_PATHS if name in own},
    }


_WITHOUT_PATHS = (
    "PERDURE_TASK_ID",
    "PERDURE_STEP_ID",
    "PERDURE_RUN_ID",
    "PERDURE_TRIAL",
    "PERDURE_ATTEMPT",
    "PERDURE_COMPENSATES",
)


def _services(instance: AtHand) -> list[str]:
    """The compose project's services, as they were when it came up."""
    try:
        document = json.loads((instance.folder / OVERRIDE_FILE).read_bytes())
        return sorted(document["services"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _around(instance: AtHand, inside: Mapping[str, str], host: StepHost) -> dict[str, str]:
    """The environment of the process on this host that leads inside."""
    around = engine_environment(host.worker_variables)
    # Docker is told by other means; it would heed a DOCKER_HOST that is meant for the inside.
    return {**around, **inside} if instance.environment.process else around


# --- What is left inside ------------------------------------------------------------------------


async def _end(instance: AtHand, service: str, key: str, host: StepHost) -> None:
    """Kill what carries a marker that begins with `key`, inside of the service (C33)."""
    if instance.environment.process:
        return  # it is a process of this host, and was ended as such
    variable = f"{marker.MARKER}={key}"
    argv = ["/bin/sh", "-c", END_MARKED, "sh", variable]
    try:
        inner = InnerCommand(argv, service, user="0")
        outer = await instance.backend.exec_argv(instance.call, instance.folder, inner)
        await run_command(outer, engine_environment(host.worker_variables), END_SECONDS)
    except (PerdureError, OSError, TimeoutError) as error:
        host.log.warning("what %s left in %s may still run there: %s", key, service, error)
    # Where the image has no shell: if the engine is that of this host, its processes are seen here.
    await asyncio.to_thread(marker.sweep, key, prefix=True)


async def _to_its_end(work: Any) -> None:
    """Await work although this task is being cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
