"""What docker says of containers, and what that means for the instance they belong to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

POOL_LABEL = "perdure.pool"
POOL_NAME_LABEL = "perdure.pool-name"
ENVIRONMENT_LABEL = "perdure.environment"
INSTANCE_LABEL = "perdure.instance"
PROJECT_LABEL = "com.docker.compose.project"
_SERVICE_LABEL = "com.docker.compose.service"
_ONE_OFF_LABEL = "com.docker.compose.oneoff"

_LABELS = (PROJECT_LABEL, _SERVICE_LABEL, _ONE_OFF_LABEL, POOL_LABEL, INSTANCE_LABEL)

# One container a line, its fields between tabs. Label by label, since the column of all labels
# puts commas between them, and values have commas of their own. No field of JSON: its shape
# changed from version to version (C06, PD10).
FORMAT = "\t".join(
    [
        *("{{.ID}}", "{{.Names}}", "{{.Status}}", "{{.Ports}}"),
        *(f'{{{{.Label "{label}"}}}}' for label in _LABELS),
    ]
)

_ID = re.compile(r"[0-9a-f]{12,64}")
_CODE = re.compile(r"\((-?\d+)\)")

Kind = Literal["container", "network", "volume"]
"""Of what a compose project makes."""

State = Literal["created", "running", "paused", "restarting", "exited", "dead"]


@dataclass(frozen=True)
class Container:
    """A container, as a line of `docker ps` shows it."""

    id: str
    name: str
    project: str
    service: str
    state: State
    code: int = 0
    """Of one that has ended or is restarted."""
    health: Literal["", "starting", "healthy", "unhealthy"] = ""
    """Nothing: it has no health check."""
    is_published: bool = False
    """Whether it has a port of the host's; while it runs."""
    is_one_off: bool = False
    """Made by `compose run`: no part of the services."""
    pool: str = ""
    instance: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has done its work: a service that runs once, and went well."""
        return self.state == "exited" and self.code == 0

    @property
    def serves(self) -> bool:
        """Whether it is there to be asked: its end, however it went, is its failure."""
        return self.is_published or bool(self.health)


@dataclass(frozen=True)
class Ran:
    """A container that ran when its instance was ready."""

    service: str
    serves: bool = True


@dataclass(frozen=True)
class Thing:
    """A container, network or volume."""

    name: str
    """What it is removed by: its id, or a volume's name."""
    instance: str = ""
    project: str = ""


def labels_of(pool_uuid: str, number: int) -> tuple[str, str]:
    """What all of an instance is found by."""
    return f"{POOL_LABEL}={pool_uuid}", f"{INSTANCE_LABEL}={number}"


def parse_containers(printed: str) -> list[Container]:
    """The containers that `docker ps --format FORMAT` printed; what is no such line is skipped."""
    found: list[Container] = []
    for line in printed.splitlines():
        fields = line.split("\t")
        if len(fields) != 4 + len(_LABELS) or not _ID.fullmatch(fields[0]):
            continue  # a warning, for example
        id, name, status, ports, *values = (
            "" if field == "<no value>" else field for field in fields
        )
        labels = dict(zip(_LABELS, values, strict=True))
        found.append(_container(id, name.split(",")[0], status, "->" in ports, labels))
    return found


def container_of(listed: Mapping[str, Any]) -> Container:
    """One of the containers that the engine's own API lists. Raises KeyError, TypeError."""
    names = listed["Names"] or [""]  # none: its removal is under way
    labels = listed["Labels"] or {}
    is_published = any(port.get("PublicPort") for port in listed["Ports"] or [])
    return _container(
        listed["Id"], names[0].removeprefix("/"), listed["Status"], is_published, labels
    )


def thing_of(name: str, labels: Mapping[str, str]) -> Thing:
    """What has these labels."""
    return Thing(name, labels.get(INSTANCE_LABEL, ""), labels.get(PROJECT_LABEL, ""))


def _container(
    id: str, name: str, status: str, is_published: bool, labels: Mapping[str, str]
) -> Container:
    code = _CODE.search(status)
    return Container(
        id=id,
        name=name,
        project=labels.get(PROJECT_LABEL, ""),
        service=labels.get(_SERVICE_LABEL, ""),
        state=_state(status),
        code=int(code[1]) if code else 0,
        health=_health(status),
        is_published=is_published,
        is_one_off=labels.get(_ONE_OFF_LABEL, "").lower() == "true",
        pool=labels.get(POOL_LABEL, ""),
        instance=labels.get(INSTANCE_LABEL, ""),
    )


def _state(status: str) -> State:
    match status.split(maxsplit=1)[:1]:
        case ["Up"]:
            return "paused" if status.endswith("(Paused)") else "running"
        case ["Exited"]:
            return "exited"
        case ["Restarting"]:
            return "restarting"
        case ["Created"] | []:
            return "created"
    return "dead"  # `Dead`, or its removal is under way


def _health(status: str) -> Literal["", "starting", "healthy", "unhealthy"]:
    if "(unhealthy)" in status:
        return "unhealthy"
    if "(healthy)" in status:
        return "healthy"
    return "starting" if "(health: starting)" in status else ""


# --- What it means ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What an instance's containers say of it."""

    state: Literal["ready", "waiting", "failed"]
    service: str | None = None
    """The one that is waited for, or has failed."""
    reason: str = ""
    container: str | None = None
    """Whose log tells more."""


READY = Verdict("ready")


def judge(containers: Iterable[Container], services: Collection[str] | None = None) -> Verdict:
    """Whether an instance is as it should be: every container that it has, and every service.

    One-shot services that ended with 0 are; a service that ended otherwise, or keeps being
    restarted, will not recover, and one that is not healthy yet may.
    """
    own = sorted((c for c in containers if not c.is_one_off), key=lambda c: (c.service, c.name))
    if not own:
        return Verdict("failed", reason="it has no container any more")
    for container in own:
        if reason := _end_of(container):
            return Verdict("failed", container.service, reason, container.id)
    missing = sorted(set(services or ()) - {container.service for container in own})
    if missing:
        return Verdict("waiting", missing[0], "has no container")
    for container in own:
        if reason := _wait_for(container):
            return Verdict("waiting", container.service, reason, container.id)
    if all(container.is_over for container in own):
        last = own[-1]
        return Verdict("failed", last.service, "all services have ended, with 0", last.id)
    return READY


def death(containers: Iterable[Container], expected: Mapping[str, Ran]) -> Verdict | None:
    """How an instance that was ready has died since; None: it lives.

    `expected` are the containers that ran then, by id. What ended by then, or merely turned
    unhealthy, does not count, nor what its own restart policy brings back, nor that a service
    which nobody asks has ended with 0: it had something to do, and has done it.
    """
    by_id = {container.id: container for container in containers}
    if not by_id:
        return Verdict("failed", reason="all of its containers are gone")
    for id, ran in expected.items():
        container = by_id.get(id)
        if container is None:
            return Verdict("failed", ran.service, "its container is gone")
        if container.state in ("exited", "dead") and (ran.serves or not container.is_over):
            return Verdict("failed", ran.service, _end_of(container) or "ended with 0", id)
    left = [by_id[id] for id in expected]
    if left and all(container.is_over for container in left):
        return Verdict("failed", left[-1].service, "all services have ended, with 0", left[-1].id)
    return None


def _end_of(container: Container) -> str:
    match container.state:
        case "exited" if container.code:
            return f"exited with {container.code}"
        case "restarting":
            return f"keeps ending with {container.code} and is restarted"
        case "dead":
            return "its container is dead"
    return ""


def _wait_for(container: Container) -> str:
    match container.state:
        case "created":
            return "was not started"
        case "paused":
            return "is paused"
        case "running" if container.health in ("starting", "unhealthy"):
            return "is not healthy" if container.health == "unhealthy" else "is not healthy yet"
    return ""
