"""Images of a compose environment: pulled or built once per host and digest, before any start."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from activities.compose_failures import failure_of
from activities.compose_files import ComposeModel, built_image, fixed_parts, override, place_of
from activities.compose_project import Models, Project, Trouble, model_of, trouble_of
from activities.docker_cli import DockerCli, checked

_LOCK_POLL_SECONDS = 0.2
_RUNNING_IN = re.compile(r"^ ---> Running in ([0-9a-f]{12,64})\s*$", re.MULTILINE)


def images_of_builds(project: Project, model: ComposeModel) -> dict[str, str]:
    """By service that is built and has no image named: the name that its image gets.

    Without it every instance would build an image of its own.
    """
    return {
        name: built_image(project.call.environment, name, project.digest)
        for name, service in model.services.items()
        if service.is_built and not _is_named(project, name, service.image)
    }


def _is_named(project: Project, service: str, image: str | None) -> bool:
    # Old versions print the name that compose itself would give.
    return image is not None and image not in (
        f"{project.name}-{service}",
        f"{project.name}_{service}",
    )


async def prepare_images(cli: DockerCli, models: Models, project: Project, locks: Path) -> None:
    """Check the compose file, and have all images that it needs. Raises Trouble.

    One at a time on this host; those who come second find the work done.
    """
    model = await models.of(project)
    if project.environment.max_instances != 1 and models.key(project) not in models.good_for_many:
        await _check_for_many(cli, project)
        models.good_for_many.add(models.key(project))
    async with _alone(locks / f".prepare-{_key(project)}.lock"):
        await _build(cli, project, model)
        await _pull(cli, project, model)


async def _check_for_many(cli: DockerCli, project: Project) -> None:
    """Raises Trouble: two instances of the file would get into each other's way."""
    ports = {name: str(20_000 + n) for n, name in enumerate(project.environment.ports)}
    others = {name: str(int(port) + 20_000) for name, port in ports.items()}
    twins = [
        replace(
            project,
            call=replace(project.call, project=name),
            variables={**project.variables, **changed},
        )
        for name, changed in (("perdure-one", ports), ("perdure-other", others))
    ]
    one, other = [await model_of(cli, twin) for twin in twins]
    found = fixed_parts(one, other)
    if not found:
        return
    told = [
        f"{place_of(project.file, part.path)}: "
        + (f"service {part.service}: " if part.service else "")
        + f"{part.message}; {part.remedy}, or set max_instances: 1"
        for part in found
    ]
    raise Trouble(told[0], service=found[0].service, log=told[1:], is_final=True)


# --- Builds -----------------------------------------------------------------------------------


async def _build(cli: DockerCli, project: Project, model: ComposeModel) -> None:
    """Build what is not built of this digest yet; an image of ours says that it is."""
    names = images_of_builds(project, model)
    marks = {
        name: names.get(name) or built_image(project.call.environment, name, project.digest)
        for name, service in model.services.items()
        if service.is_built
    }
    missing = list(await _missing(cli, marks))
    if not missing:
        return
    draft = project.folder / f"prepare-{_key(project)}.json"
    draft.write_text(override(model, {}, names))
    done = await cli.compose(
        project.name,
        [project.file, draft],
        *("build", *missing),
        variables=project.variables,
        timeout_seconds=project.environment.prepare_timeout_seconds,
        marker=f"compose/prepare/{_key(project)}",
    )
    if done.code:
        if halted := _RUNNING_IN.findall(done.out):  # the old builder leaves these where they fail
            await cli.docker("rm", "--force", *halted)
        failure = failure_of(done.lines, project.name, missing)
        raise Trouble(
            f"its image cannot be built: {failure.reason}",
            service=failure.service or (missing[0] if len(missing) == 1 else None),
            log=done.lines,
            is_final=True,
        )
    for name in missing:
        image = model.services[name].image
        if name not in names and image:
            checked(await cli.docker("tag", image, marks[name]))


async def _pull(cli: DockerCli, project: Project, model: ComposeModel) -> None:
    images = {
        name: service.image
        for name, service in model.services.items()
        if service.image and not service.is_built
    }
    built = {service.image for service in model.services.values() if service.is_built}
    missing = await _missing(cli, {n: i for n, i in images.items() if i not in built})
    if not missing:
        return
    done = await cli.compose(
        project.name,
        [project.file],
        *("pull", "--quiet", *missing),
        variables=project.variables,
        timeout_seconds=project.environment.prepare_timeout_seconds,
        marker=f"compose/prepare/{_key(project)}",
    )
    still_missing = await _missing(cli, missing)
    if not still_missing:
        return
    service, image = next(iter(still_missing.items()))
    failure = failure_of(done.lines, project.name, still_missing)
    if done.code:
        trouble = trouble_of(failure, project, [])
        trouble.reason = f"image {image} is not on this host, nor to be had: {trouble.reason}"
        trouble.service = failure.service or service
        raise trouble
    raise Trouble(
        f"image {image} is not on this host, and is not to be pulled; build or load it",
        service=service,
        is_final=True,
    )


async def _missing(cli: DockerCli, images: Mapping[str, str]) -> dict[str, str]:
    """Those that are not on this host."""
    if not images or await _has(cli, *images.values()):
        return {}
    return {name: image for name, image in images.items() if not await _has(cli, image)}


async def _has(cli: DockerCli, *images: str) -> bool:
    return (await cli.docker("image", "inspect", "--format", "{{.Id}}", *images)).code == 0


# --- One at a time ----------------------------------------------------------------------------


def _key(project: Project) -> str:
    whole = f"{project.call.environment}\0{project.digest}\0{project.file}"
    return hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:16]


@contextlib.asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """Hold a lock of this host; one that a dead worker held is free."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(file)
