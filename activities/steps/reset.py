"""Step type `reset`: makes an environment's instance as if it were new."""

from __future__ import annotations

from typing import Any

from activities.host import StepHost
from activities.reset import reset
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.messages import Json
from perdure.steps import Context, StepFailed, step


@step("reset", keys=BUILT_IN_TYPES["reset"].keys, on_loop=True)
async def reset_instance(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Reset the task's instance of `environment`, as its pool does between two tasks (P40 to P45).

    With neither endpoints nor scripts it does nothing. The result is `{}`.

    Raises StepFailed:
        ResetFailed: all tries failed; kind `environment`.
        NoEnvironment: the task has no such environment.
    """
    instance = host.instances.at_hand(str(document["environment"]))
    done = await reset(
        instance.call,
        instance.folder,
        instance.backend,
        host.heartbeat,
        secrets=instance.secrets,
    )
    if not done.ok:
        raise StepFailed(
            "\n".join([done.reason, *done.log]), type="ResetFailed", kind="environment"
        )
    return {}
