"""Step type `exec`: a command inside of an environment's instance."""

from __future__ import annotations

from typing import Any

from activities import marker
from activities.backend import InnerCommand
from activities.host import StepHost
from activities.inside import Inside, end_inside, environment_around, variables_inside
from activities.later import to_its_end
from activities.steps.streams import result_of
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.errors import PerdureError
from perdure.messages import Json
from perdure.steps import Context, ProcessResult, StepFailed, step


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
    inside = Inside(instance, service, document.get("user"))
    if host.comes_again:
        await end_inside(inside, key, host)
    variables = variables_inside(instance, host) | {marker.MARKER: f"{key}{host.attempt}/inside"}
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
        ended = await host.run_process(
            outer, whole_env=environment_around(instance, variables, host)
        )
    finally:
        if ended is None or ended.ended_by != "exit":
            await to_its_end(end_inside(inside, key, host))
    return result_of(ended, document)
