"""Processes inside of an instance: what they see, and how signals find them there.

They are children of the engine's, not ours, and are known by the marker in their environment. What
is signalled on this host is but the client that waits for them (C33).
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from activities import marker, procfs
from activities.backend import InnerCommand
from activities.commands import Finished, run_command
from activities.compose_inside import END_MARKED, NUDGE_MARKED
from activities.compose_project import OVERRIDE_FILE
from activities.host import StepHost
from activities.step_instances import AtHand
from perdure.docker_check import engine_environment
from perdure.errors import PerdureError

END_SECONDS = 10.0
"""For ending what an attempt left inside."""

NUDGE_SECONDS = 4.0
"""For one SIGINT inside, as the process may be just being started. Nobody waits longer than 5 s."""
_BETWEEN_LOOKS_SECONDS = 0.1


@dataclass(frozen=True)
class Inside:
    """Where a process runs."""

    instance: AtHand
    service: str | None
    """None: the only one."""
    user: str | None = None
    """None: that of the container."""


# --- Variables ----------------------------------------------------------------------------------


def variables_inside(instance: AtHand, host: StepHost) -> dict[str, str]:
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
    "PERDURE_JOB_ID",
)


def _services(instance: AtHand) -> list[str]:
    """The compose project's services, as they were when it came up."""
    try:
        document = json.loads((instance.folder / OVERRIDE_FILE).read_bytes())
        return sorted(document["services"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def environment_around(
    instance: AtHand, inside: Mapping[str, str], host: StepHost
) -> dict[str, str]:
    """The environment of the process on this host that leads inside."""
    around = engine_environment(host.worker_variables)
    # Docker is told by other means; it would heed a DOCKER_HOST that is meant for the inside.
    return {**around, **inside} if instance.environment.process else around


# --- Signals ------------------------------------------------------------------------------------


async def end_inside(
    inside: Inside, key: str, host: StepHost, limit_seconds: float = END_SECONDS
) -> bool:
    """Kill what carries a marker that begins with `key`, inside of the service (C33).

    False if some of it may still run there; the log says why.
    """
    if inside.instance.environment.process:
        return True  # it is a process of this host, and was ended as such
    argv = ["/bin/sh", "-c", END_MARKED, "sh", f"{marker.MARKER}={key}"]
    # Root may kill whoever it was that ran it, but in most containers sees only its own markers.
    done = await asyncio.gather(
        *(_run(inside, argv, user, host, limit_seconds) for user in {"0", inside.user}),
        return_exceptions=True,
    )
    reason = None
    for error in done:
        if isinstance(error, PerdureError | OSError | TimeoutError):
            host.log.warning("what %s left in %s may still run: %s", key, inside.service, error)
            reason = error
        elif isinstance(error, BaseException):
            raise error
    # Where the image has no shell: if the engine is that of this host, its processes are seen here.
    await asyncio.to_thread(marker.sweep, key, prefix=True)
    return reason is None


async def nudge_inside(inside: Inside, key: str, host: StepHost) -> str | None:
    """Send one SIGINT to what carries a marker that begins with `key`; None, or why it reached
    nobody."""
    argv = ["/bin/sh", "-c", NUDGE_MARKED, "sh", f"{marker.MARKER}={key}"]
    deadline = time.monotonic() + NUDGE_SECONDS
    while True:
        try:
            reason = "no process of it is seen inside"
            left_seconds = max(0.5, deadline - time.monotonic())
            # By who runs it: root sees no markers but its own.
            if (await _run(inside, argv, inside.user, host, left_seconds)).code == 0:
                return None
        except (PerdureError, OSError, TimeoutError) as error:
            reason = str(error)
        if await asyncio.to_thread(nudge_contained, key):
            return None
        if time.monotonic() > deadline:
            return reason
        await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)


def nudge_contained(key: str) -> bool:
    """Send one SIGINT to the processes with a marker that begins with `key` in containers that are
    seen from this machine. The clients that wait for them, which carry it too, get none."""
    found = [seen for seen in marker.find(key, prefix=True) if procfs.is_contained(seen.pid)]
    return sum(procfs.send_signal(process, signal.SIGINT) for process in found) > 0


async def _run(
    inside: Inside, argv: list[str], user: str | None, host: StepHost, limit_seconds: float
) -> Finished:
    instance = inside.instance
    inner = InnerCommand(argv, inside.service, user=user)
    outer = await instance.backend.exec_argv(instance.call, instance.folder, inner)
    return await run_command(outer, engine_environment(host.worker_variables), limit_seconds)
