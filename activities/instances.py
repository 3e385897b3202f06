"""The activities of a host's instances: up, reset, look, down, each through its backend.

A failure is a result that says what, where, why and what to do; the instance's workflow hands it on
to its pool. All are idempotent: the worker may die at any moment, and another one comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable
from pathlib import Path

from temporalio import activity
from temporalio.client import Client

from activities import noted_ports
from activities.backend import Backends, Kept, definition_of, failed
from activities.beats import Beat, beating
from activities.held_ports import Holds
from activities.ports import PortProbe
from activities.reset import reset
from perdure.errors import PerdureError
from perdure.event_log import find_execution
from perdure.names import (
    CHECK_INSTANCE,
    PREPARE_ENVIRONMENT,
    RESET_INSTANCE,
    START_INSTANCE,
    STOP_INSTANCE,
    SWEEP_HOST,
    WATCH_INSTANCE,
    pool_workflow_id,
)
from perdure.pool_messages import InstanceCall, InstanceResult, SweepCall

WATCH_BEAT_SECONDS = 10.0
"""There are hundreds of watches, and none is in a hurry to end."""

POOL_LOOK_SECONDS = 30.0
"""How often an instance that is up looks whether its pool is still there."""

CHECK_SECONDS = 5.0
"""A look takes 2 s at most; a busy machine is given some more."""

_AFTER_RESET_PAUSES = (1.0, 2.0, 4.0, 0.0)
"""Between looks at an instance that is not healthy after its reset."""

_log = logging.getLogger("perdure.instances")


class Instances:
    """What one worker does for the instances of its host."""

    def __init__(self, client: Client, backends: Backends, ports: PortProbe) -> None:
        self._client = client
        self._backends = backends
        self._ports = ports
        self._watches: dict[tuple[str, int], asyncio.Task[InstanceResult]] = {}
        """By pool and number."""

    @activity.defn(name=PREPARE_ENVIRONMENT)
    async def prepare_environment(self, call: InstanceCall) -> InstanceResult:
        """Have what a start needs on this host: pulled, built, checked."""
        async with beating():
            return await _told(call, "prepared", self._prepare(call))

    @activity.defn(name=START_INSTANCE)
    async def start_instance(self, call: InstanceCall) -> InstanceResult:
        """Bring an instance up with these ports, until it is healthy, or find it so; and reset it
        if that is asked for."""
        async with beating() as beat:
            started = await _told(call, "started", self._start(call, beat))
            if not started.ok or not call.reset:
                return started
            return await _told(call, "reset", self._reset(call, beat))

    @activity.defn(name=RESET_INSTANCE)
    async def reset_instance(self, call: InstanceCall) -> InstanceResult:
        """Make an instance as if it were new, with the environment's retries."""
        async with beating() as beat:
            return await _told(call, "reset", self._reset(call, beat))

    @activity.defn(name=CHECK_INSTANCE)
    async def check_instance(self, call: InstanceCall) -> InstanceResult:
        """Look whether an instance is healthy. A local activity: it beats not."""
        return await _told(call, "looked at", self._check(call))

    @activity.defn(name=WATCH_INSTANCE)
    async def watch_instance(self, call: InstanceCall) -> InstanceResult:
        """Return when an instance has died, as a failure; or, with success, when its pool is gone
        and nobody would ever stop it."""
        key = (call.pool_uuid, call.number)
        async with beating(WATCH_BEAT_SECONDS):
            dead = asyncio.create_task(_told(call, "watched", self._watch(call)))
            orphan = asyncio.create_task(self._until_orphaned(call))
            self._watches[key] = dead
            try:
                await asyncio.wait({dead, orphan}, return_when=asyncio.FIRST_COMPLETED)
                if dead.cancelled():
                    return failed(call, "it is being stopped")
                return dead.result() if dead.done() else orphan.result()
            finally:
                await _ended(dead, orphan)
                if self._watches.get(key) is dead:
                    del self._watches[key]

    @activity.defn(name=STOP_INSTANCE)
    async def stop_instance(self, call: InstanceCall) -> InstanceResult:
        """Take an instance down, with its folder; one that is not there is stopped."""
        async with beating():
            return await _told(call, "stopped", self._stop(call))

    @activity.defn(name=SWEEP_HOST)
    async def sweep_host(self, sweep: SweepCall) -> list[str]:
        """Remove what a pool left here, but for its present instances; says what it was."""
        async with beating():
            keep = Kept(sweep.keep, sweep.before)
            root = self._backends.pool_root(sweep.pool_uuid)
            removed: list[str] = []
            for backend in self._backends.all:
                try:
                    removed += await backend.sweep(sweep.pool_uuid, keep, root)
                except (PerdureError, OSError) as error:  # the other one is swept all the same
                    _log.warning("what pool %s left here stays: %s", sweep.pool, error)
            await asyncio.to_thread(_remove_folders, root, keep)
            if removed:
                _log.info("left over by pool %s and removed: %s", sweep.pool, ", ".join(removed))
            return removed

    # --- Inside -----------------------------------------------------------------------------

    async def _prepare(self, call: InstanceCall) -> InstanceResult:
        definition, folder = definition_of(call), self._made_folder(call)
        limit = definition.environment.prepare_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._backends.of(definition).prepare(call, folder)
        except TimeoutError:
            return failed(
                call,
                f"its images were not ready within {limit:g} s; pull or build them by hand, or "
                "raise prepare_timeout",
            )

    async def _start(self, call: InstanceCall, beat: Beat) -> InstanceResult:
        folder = self._made_folder(call)
        with Holds() as holds:  # until it listens there
            # After a lost attempt its own containers have the ports.
            if call.ports and noted_ports.noted(folder) != call.ports:
                if taken := await self._ports.taken(call.ports.values(), holds):
                    told = ", ".join(f"{n} ({v})" for v, n in call.ports.items() if n in taken)
                    return failed(call, f"ports in use: {told}", taken_ports=taken)
                noted_ports.note(folder, call.ports)
            backend = self._backends.of(definition_of(call))
            result = await backend.start(call, folder, heartbeat=beat)
        if result.taken_ports:
            noted_ports.forget(folder)
        return result

    async def _reset(self, call: InstanceCall, beat: Beat) -> InstanceResult:
        definition, folder = definition_of(call), self._made_folder(call)
        backend, secrets = self._backends.of(definition), self._backends.secrets_of(definition)
        result = await reset(call, folder, backend, beat, secrets=secrets)
        # Whoever is given it a moment later need not wait for another look.
        return await self._healthy_after_reset(call, beat) if result.ok else result

    async def _healthy_after_reset(self, call: InstanceCall, beat: Beat) -> InstanceResult:
        beat("looking whether it is healthy")
        for pause_seconds in _AFTER_RESET_PAUSES:
            result = await self._check(call)
            if result.ok:
                break
            await asyncio.sleep(pause_seconds)  # a reset may have restarted a part of it
        return result

    async def _check(self, call: InstanceCall) -> InstanceResult:
        backend = self._backends.of(definition_of(call))
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await backend.check(call, self._made_folder(call))
        except TimeoutError:
            return failed(call, f"a look at its health took longer than {CHECK_SECONDS:g} s")

    async def _watch(self, call: InstanceCall) -> InstanceResult:
        backend = self._backends.of(definition_of(call))
        return await backend.watch(call, self._made_folder(call))

    async def _until_orphaned(self, call: InstanceCall) -> InstanceResult:
        workflow_id = pool_workflow_id(call.pool)
        while True:
            await asyncio.sleep(POOL_LOOK_SECONDS)
            with contextlib.suppress(PerdureError):  # no answer; the next look tells
                pool = await find_execution(self._client, workflow_id)
                is_there = pool is not None and pool.is_open
                is_another = pool and call.pool_run_id not in ("", pool.first_run_id)
                if not is_there or is_another:
                    return InstanceResult(ok=True, reason="its pool is gone")

    async def _stop(self, call: InstanceCall) -> InstanceResult:
        # Its workflow has cancelled it, which it would hear of much later.
        if watch := self._watches.get((call.pool_uuid, call.number)):
            watch.cancel()
        folder = self._made_folder(call)
        result = await self._backends.of(definition_of(call)).stop(call, folder)
        if result.ok:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return result

    def _made_folder(self, call: InstanceCall) -> Path:
        return self._backends.made_folder(call.pool_uuid, call.number)


async def _told(call: InstanceCall, done: str, work: Awaitable[InstanceResult]) -> InstanceResult:
    """The result, of a fault of ours or of the disk, too: every order gets an answer."""
    try:
        return await work
    except PerdureError as error:
        return failed(call, f"cannot be {done}: {error}")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return failed(call, f"cannot be {done}: {error.strerror or error}{where}")
    except Exception as error:
        _log.exception("environment %s, instance %s", call.environment, call.number)
        return failed(call, f"cannot be {done}: {type(error).__name__}: {error}")


async def _ended(*tasks: asyncio.Task[InstanceResult]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _remove_folders(root: Path, keep: Kept) -> None:
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.name.isdecimal() and int(folder.name) not in keep:
            shutil.rmtree(folder, ignore_errors=True)
