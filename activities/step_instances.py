"""The instances of a task's environments, as one attempt of a step has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.backend import Backend, Backends, call_of, definition_of
from activities.secrets import MissingSecret, WorkerEnvironment, resolve
from perdure.core.environments import Environment
from perdure.core.pool_names import project_variable
from perdure.messages import StepInstance
from perdure.pool_messages import InstanceCall, InstanceResult
from perdure.steps import StepFailed

CHECK_SECONDS = 5.0

DOUBT_SECONDS = 20.0
"""One that does not look healthy is watched for so long: a busy server is not dead, and an engine
that is being restarted does not know yet."""


@dataclass(frozen=True)
class AtHand:
    """One instance, and how it is reached on this host."""

    call: InstanceCall
    folder: Path
    backend: Backend
    secrets: tuple[str, ...] = ()
    """Those that it knows."""

    @property
    def environment(self) -> Environment:
        """What it is made of."""
        return definition_of(self.call).environment


class StepInstances:
    """Those of the task's lease."""

    def __init__(
        self, instances: Sequence[StepInstance] = (), backends: Backends | None = None
    ) -> None:
        """`backends`: those of this host; None: steps cannot act on the instances themselves."""
        self._by_name = {instance.environment: instance for instance in instances}
        self._backends = backends

    @property
    def ports(self) -> dict[str, int]:
        """By variable, of all instances."""
        return {v: n for instance in self._by_name.values() for v, n in instance.ports.items()}

    @property
    def variables(self) -> dict[str, str]:
        """What every process of a step sees of them (P52): ports and project names."""
        projects = {project_variable(name): i.project for name, i in self._by_name.items()}
        return {**{variable: str(port) for variable, port in self.ports.items()}, **projects}

    def secrets(self, worker: WorkerEnvironment) -> set[str]:
        """What the instances were given and nobody may read; steps could come by it."""
        found: set[str] = set()
        for instance in self._by_name.values():
            definition = instance.definition or {}
            root = Path(definition.get("root", ""))
            for value in definition.get("environment", {}).get("env", {}).values():
                with contextlib.suppress(MissingSecret):  # then it is not there to be read
                    if not isinstance(value, str):
                        found.add(resolve(value, worker, root))
        return found

    def named(self, environment: str) -> StepInstance:
        """The instance of an environment. Raises StepFailed (`NoEnvironment`, not retried)."""
        if found := self._by_name.get(environment):
            return found
        known = ", ".join(self._by_name) or "none"
        raise StepFailed(
            f"the task has no instance of the environment {environment!r}; it has: {known}. Name "
            "it under the task's environments, and run the task in a suite with an env.yaml",
            type="NoEnvironment",
            kind="bad_input",
            retryable=False,
        )

    def at_hand(self, environment: str) -> AtHand:
        """The same, to act on it. Raises StepFailed as `named` does."""
        instance = self.named(environment)
        if self._backends is None or instance.definition is None:
            raise StepFailed(
                f"this worker runs no instances, so it cannot act on that of {environment!r}; run "
                "the step on a worker of the host where the instance is",
                type="NoEnvironment",
                kind="infrastructure",
                retryable=False,
            )
        call = call_of(instance)
        folder = self._backends.folder(call.pool_uuid, call.number)
        if not folder.is_dir():
            raise StepFailed(
                f"the instance of {environment!r} is not on this host any more",
                type="NoEnvironment",
                kind="environment",
            )
        definition = definition_of(call)
        secrets = tuple(self._backends.secrets_of(definition))
        return AtHand(call, folder, self._backends.of(definition), secrets)

    async def dead(self) -> dict[str, str]:
        """The environments whose instances are dead, and how they died.

        Asked after a failure: what failed for want of its environment is not the task's fault.
        """
        if self._backends is None:
            return {}
        found = await asyncio.gather(*map(self._death_of, self._by_name))
        return {name: reason for name, reason in zip(self._by_name, found, strict=True) if reason}

    async def _death_of(self, environment: str) -> str | None:
        try:
            return await _death_of(self.at_hand(environment))
        except StepFailed as failed:
            return str(failed) if failed.kind == "environment" else None


async def _death_of(instance: AtHand) -> str | None:
    backend, call, folder = instance.backend, instance.call, instance.folder
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            if (await backend.check(call, folder)).ok:
                return None
    except TimeoutError:
        pass  # it may be busy; the watch tells
    try:
        async with asyncio.timeout(DOUBT_SECONDS):
            return _told(await backend.watch(call, folder))
    except TimeoutError:
        return None


def _told(result: InstanceResult) -> str | None:
    return None if result.ok else result.reason
