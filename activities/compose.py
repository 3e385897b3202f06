"""The backend for environments of docker compose: an instance is a project of its own.

All that a project makes carries labels with its pool's uuid and its number: by them it is found
again, whoever started it, and removed even where compose fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from pathlib import Path

from activities import marker
from activities.backend import LOG_LINES, Heartbeat, InnerCommand, failed
from activities.compose_failures import failure_of
from activities.compose_files import ComposeModel, override
from activities.compose_images import images_of_builds, prepare_images
from activities.compose_inside import argv_inside, run_inside
from activities.compose_leftovers import remove_by_labels, sweep_pool
from activities.compose_project import (
    OVERRIDE_FILE,
    Models,
    Project,
    Trouble,
    project_of,
    trouble_of,
)
from activities.compose_watch import (
    WATCH_SECONDS,
    Listing,
    note_ports,
    note_ready,
    noted_ports,
    noted_running,
    running_of,
)
from activities.docker_cli import DockerCli, DockerFailed
from activities.docker_containers import PROJECT_LABEL, READY, Verdict, death, judge, labels_of
from activities.docker_containers import Container as Seen
from activities.secrets import WorkerEnvironment
from activities.validate_hook import refusal
from perdure.core.redaction import mask
from perdure.docker_check import DockerMissing, EngineAway
from perdure.errors import PerdureError
from perdure.pool_messages import InstanceCall, InstanceResult

DOWN_SECONDS = 60.0
"""A limit of compose's own way; what is left then goes container by container (P49)."""

STOP_GRACE_SECONDS = 1
"""An instance is thrown away with its volumes: nothing in it is worth a longer wait."""

ENGINE_GONE_SECONDS = 180.0
"""An engine that is away so long has no instance of ours any more."""

CHECK_SECONDS = 1.9

_POLL_SECONDS = (0.2, 0.3, 0.5, 1.0, 2.0)
"""Pauses of a health wait: the first ones short, since most are healthy soon (P33)."""


_SETTLE_SECONDS = 3.0
"""So long a container that was restarted is waited for, whether it ends once more."""

_CODE_SECONDS = 2 * _SETTLE_SECONDS
"""So long one that did is looked at for its exit code: only while it does not run is that shown."""

_CODE_POLL_SECONDS = 0.05
"""Less than the engine's first pause before a restart; each pause is twice the last one."""

_BEGIN_SECONDS = 0.7
"""So long after `up` one that tells nothing of its health is looked at, whether it still runs: what
cannot do its work mostly ends at once."""

_log = logging.getLogger("perdure.instances")


class ComposeBackend:
    """Runs instances as compose projects of this host's engine."""

    def __init__(self, environment: WorkerEnvironment, cli: DockerCli | None = None) -> None:
        """`cli`: None: the docker that is on PATH."""
        self._environment = environment
        self.cli = cli or DockerCli(environment.variables)
        self._models = Models(self.cli)
        self._listing = Listing(self.cli)

    # --- The life of an instance --------------------------------------------------------------

    async def prepare(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Check the compose file; pull and build, once per host and digest."""

        async def prepare(project: Project) -> None:
            await prepare_images(self.cli, self._models, project, locks=folder.parents[1])

        return await self._told(call, folder, prepare)

    async def start(
        self, call: InstanceCall, folder: Path, *, heartbeat: Heartbeat
    ) -> InstanceResult:
        """Up, until every container is healthy; a failed project leaves nothing behind."""
        return await self._told(
            call, folder, lambda project: self._start(project, heartbeat), at_start=True
        )

    async def check(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Whether all containers are there and healthy; an answer within 2 s."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                own = await self._own(call, wait=False)
        except TimeoutError:
            return failed(call, f"the engine gave no answer within {CHECK_SECONDS:g} s")
        except (DockerMissing, DockerFailed) as error:
            return failed(call, str(error))
        verdict = death(own, noted_running(folder)) or judge(own)
        if verdict.state == "ready":
            return InstanceResult(ok=True)
        return failed(call, verdict.reason, service=verdict.service)

    async def watch(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Return when a container that ran has ended or is gone."""
        expected = noted_running(folder)
        answered = time.monotonic()
        while True:
            try:
                own = await self._listing.of(call.pool_uuid, call.number)
            except (DockerMissing, DockerFailed, TimeoutError) as error:
                if time.monotonic() - answered > ENGINE_GONE_SECONDS:
                    return failed(call, f"lost: {error}")
            else:
                answered = time.monotonic()
                expected = expected or running_of(own)  # its folder has lost what was noted
                if verdict := death(own, expected):
                    log = await self._log_of(verdict)
                    return failed(call, verdict.reason, service=verdict.service, log=log)
            await asyncio.sleep(WATCH_SECONDS)

    async def stop(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Down, with volumes and orphans; then nothing of it is left, or the reason is told."""
        try:
            project = self._project_at_all(call, folder)
            await self._down(project)
        except Trouble as trouble:
            return failed(call, trouble.reason, log=trouble.log)
        except (DockerMissing, DockerFailed, TimeoutError) as error:
            return failed(call, str(error))
        return InstanceResult(ok=True)

    async def sweep(self, pool_uuid: str, keep: Container[int], root: Path) -> list[str]:
        """Remove what a pool left on this host, but for some of its instances."""
        was_here = any(root.glob(f"*/{OVERRIDE_FILE}")) if root.is_dir() else False
        try:
            return await sweep_pool(self.cli, pool_uuid, keep, wait=was_here)
        except (DockerMissing, DockerFailed, TimeoutError) as error:
            if was_here:  # else there is most likely nothing, and no docker to ask
                raise PerdureError(str(error)) from None
            return []

    # --- Inside of a container ----------------------------------------------------------------

    async def exec_argv(self, call: InstanceCall, folder: Path, command: InnerCommand) -> list[str]:
        """`docker exec` in the service's first container. Raises PerdureError: it has none."""
        return await argv_inside(self.cli, call, folder, command)

    async def exec(
        self,
        call: InstanceCall,
        folder: Path,
        service: str | None,
        command: str,
        timeout_seconds: float,
    ) -> tuple[int, str]:
        """`docker exec … /bin/sh -c` (P44); secrets of the environment are masked."""
        project = self._project_at_all(call, folder)
        code, output = await run_inside(self.cli, call, service, command, timeout_seconds)
        return code, mask(output, project.secrets)

    async def published_ports(self) -> str:
        """What `docker ps` prints of ports, for `activities.ports`."""
        return await self.cli.published_ports()

    # --- Start --------------------------------------------------------------------------------

    async def _start(self, project: Project, heartbeat: Heartbeat) -> None:
        heartbeat("looking at the compose file")
        model = await self._models.of(project)
        if reason := await refusal(project.file, self.cli.seen_by(project.variables)):
            raise Trouble(reason, is_final=True)
        await self._end_earlier(project)
        left = await self._own(project.call)
        if left and not self._is_whole(project, left, model):
            heartbeat("removing what an earlier attempt left")
            await self._down(project)
        images = images_of_builds(project, model)
        project.override.write_text(override(model, project.labels, images))
        try:
            heartbeat("docker compose up")
            await self._up(project, model)
            await self._healthy(project, model, heartbeat)
        except Trouble:
            await self._down_quietly(project)
            raise

    def _is_whole(self, project: Project, left: Sequence[Seen], model: ComposeModel) -> bool:
        """Whether all of it is up, with the ports of this call."""
        if noted_ports(project.folder) not in (None, project.call.ports):
            return False
        there = {container.service for container in left if container.state == "running"}
        over = {container.service for container in left if container.is_over}
        return set(model.expected) <= there | over and judge(left).state != "failed"

    async def _up(self, project: Project, model: ComposeModel, *, again: bool = True) -> None:
        limit = project.environment.start_timeout_seconds
        note_ports(project.folder, project.call.ports)
        try:
            done = await self.cli.compose(
                project.name,
                project.files,
                *("up", "--detach", "--no-build", "--quiet-pull", "--remove-orphans"),
                variables=project.variables,
                timeout_seconds=limit,
                marker=project.marker,
            )
        except TimeoutError:
            verdict = judge(await self._own(project.call), model.expected)
            told = f": {verdict.reason}" if verdict.reason else ""
            raise Trouble(
                f"not up within {limit:g} s{told}; raise start_timeout if it is only slow",
                service=verdict.service,
                log=await self._log_of(verdict),
            ) from None
        if done.code == 0:
            return None
        images = {name: service.image for name, service in model.services.items()}
        failure = failure_of(done.lines, project.name, images)
        if failure.is_name_taken and again:
            # What a killed call of compose had asked the engine for came after all.
            await self._down(project)
            return await self._up(project, model, again=False)
        own = await self._own(project.call)
        # Of a dependency that is not healthy, and not of what waits for it.
        verdict = judge([each for each in own if each.service == failure.service] or own)
        log = await self._log_of(verdict)
        if verdict.container:
            log = log or [f"{verdict.service} {verdict.reason}, and printed nothing"]
        raise trouble_of(failure, project, log)

    async def _healthy(self, project: Project, model: ComposeModel, heartbeat: Heartbeat) -> None:
        """Wait until every container is healthy, as long as `health_timeout` says (P33, P34)."""
        limit = project.environment.health_timeout_seconds
        began = time.monotonic()
        until = began + limit
        pauses = [*_POLL_SECONDS]
        restarts: dict[str, int] = {}
        while True:
            before = restarts
            own = await self._own(project.call)
            verdict = judge(own, model.expected)
            if verdict.state == "ready":
                restarts = await self._restarts(own)
                verdict = _settled(own, before, restarts)
                if verdict.state == "failed":
                    verdict = await self._with_code(project, verdict)
            if verdict.state == "ready":
                young = began + _BEGIN_SECONDS - time.monotonic()
                if young > 0 and any(c.state == "running" and not c.health for c in own):
                    await asyncio.sleep(young)
                    continue
                note_ready(project.folder, project.call.ports, own)
                return
            if verdict.state == "failed":
                raise Trouble(
                    verdict.reason, service=verdict.service, log=await self._log_of(verdict)
                )
            if time.monotonic() > until:
                raise Trouble(
                    f"{verdict.reason} after {limit:g} s; look at its health check, or raise "
                    "health_timeout",
                    service=verdict.service,
                    log=await self._log_of(verdict),
                )
            heartbeat(f"waiting for service {verdict.service}: {verdict.reason}")
            if before != restarts:
                await asyncio.sleep(_SETTLE_SECONDS)
            await asyncio.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])

    async def _with_code(self, project: Project, verdict: Verdict) -> Verdict:
        """The verdict on a container that keeps ending, with its exit code if a look finds it."""
        until = time.monotonic() + _CODE_SECONDS
        while time.monotonic() < until:
            seen = judge(await self._own(project.call))
            if seen.state == "failed" and seen.container == verdict.container:
                return seen
            await asyncio.sleep(_CODE_POLL_SECONDS)
        return verdict

    # --- Down ---------------------------------------------------------------------------------

    async def _down(self, project: Project) -> None:
        """Compose's own way first; then whatever is left, by its labels. Raises DockerFailed."""
        await self._end_earlier(project)
        if project.override.is_file() and project.file.is_file():
            words = ("down", "--volumes", "--remove-orphans", "--timeout", str(STOP_GRACE_SECONDS))
            with contextlib.suppress(TimeoutError):
                done = await self.cli.compose(
                    project.name,
                    project.files,
                    *words,
                    variables=project.variables,
                    timeout_seconds=DOWN_SECONDS,
                    marker=project.marker,
                )
                if done.code:
                    reason = failure_of(done.lines, project.name).reason
                    _log.warning("%s: compose down: %s", project.name, reason)
        await remove_by_labels(self.cli, f"{PROJECT_LABEL}={project.name}")
        call = project.call
        await remove_by_labels(self.cli, *labels_of(call.pool_uuid, call.number))

    async def _down_quietly(self, project: Project) -> None:
        """After a failed start, whose reason matters more; the pool orders a stop anyway."""
        try:
            await self._down(project)
        except (DockerMissing, DockerFailed, TimeoutError) as error:
            _log.warning("%s is not quite gone: %s", project.name, error)

    async def _end_earlier(self, project: Project) -> None:
        """End calls of compose for this project that a killed worker has left running."""
        await asyncio.to_thread(marker.sweep, project.marker)

    def _project_at_all(self, call: InstanceCall, folder: Path) -> Project:
        """As `project_of`; a secret that is lost by now keeps nothing from being stopped."""
        try:
            return project_of(call, folder, self._environment)
        except Trouble:
            bare = {**call.definition, "environment": {**call.definition["environment"], "env": {}}}
            return project_of(
                InstanceCall(**{**vars(call), "definition": bare}), folder, self._environment
            )

    # --- Looking ------------------------------------------------------------------------------

    async def _own(self, call: InstanceCall, *, wait: bool = True) -> list[Seen]:
        return await self.cli.containers(*labels_of(call.pool_uuid, call.number), wait=wait)

    async def _restarts(self, own: Sequence[Seen]) -> dict[str, int]:
        """How often those were restarted that have no health check to tell how they fare."""
        unchecked = [c.id for c in own if c.state == "running" and not c.health]
        found = await self.cli.restarts(unchecked) if unchecked else {}
        return {id: count for id, count in found.items() if count}

    async def _log_of(self, verdict: Verdict) -> list[str]:
        return await self.cli.logs(verdict.container, LOG_LINES) if verdict.container else []

    async def _told(
        self,
        call: InstanceCall,
        folder: Path,
        work: Callable[[Project], Awaitable[None]],
        *,
        at_start: bool = False,
    ) -> InstanceResult:
        """Do it; every failure becomes a result."""
        try:
            project = project_of(call, folder, self._environment)
        except Trouble as trouble:
            return failed(call, trouble.reason, is_final=True)
        try:
            await work(project)
        except EngineAway as error:
            return failed(call, str(error))
        except DockerMissing as error:
            return failed(call, str(error), is_final=True)
        except Trouble as trouble:
            return project.masked(trouble, at_start=at_start)
        except (DockerFailed, TimeoutError) as error:
            return project.masked(Trouble(str(error)))
        return InstanceResult(ok=True)


def _settled(
    own: Sequence[Seen], before: Mapping[str, int], restarts: Mapping[str, int]
) -> Verdict:
    """Whether those that run, and were restarted, have not ended again since the last look."""
    for container in own:
        count = restarts.get(container.id, 0)
        if container.id in before and count > before[container.id]:
            reason = f"keeps ending; it was restarted {count} times"
            return Verdict("failed", container.service, reason, container.id)
        if count and container.id not in before:
            return Verdict("waiting", container.service, "was restarted", container.id)
    return READY
