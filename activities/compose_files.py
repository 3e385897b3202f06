"""What a compose file means for instances: what it declares, what cannot be there twice, and the
file that perdure puts beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.problems import shown
from perdure.reading import Unreadable, read_text, read_yaml

_UNSET = re.compile(r'The \\?"?(\w+)\\?"? variable is not set')
_REQUIRED = re.compile(r"required variable (\w+) is missing a value")


@dataclass(frozen=True)
class Service:
    """A service of a compose file, as compose understands it."""

    name: str
    image: str | None = None
    is_built: bool = False
    container_name: str | None = None
    published: tuple[str, ...] = ()
    """Ports of the host: a number, or a range, of which the engine takes a free one."""
    copies: int = 1


@dataclass(frozen=True)
class ComposeModel:
    """What a compose file declares, with its variables filled in."""

    services: dict[str, Service] = field(default_factory=dict)
    networks: dict[str, str] = field(default_factory=dict)
    """By key: the engine's name of each that the project makes for itself."""
    volumes: dict[str, str] = field(default_factory=dict)

    @property
    def expected(self) -> list[str]:
        """The services that have a container when the project is up."""
        return sorted(name for name, service in self.services.items() if service.copies > 0)

    @classmethod
    def from_config(cls, printed: str) -> ComposeModel:
        """Of what `compose config --format json` printed. Raises ValueError."""
        document = json.loads(printed[max(printed.find("{"), 0) :])
        if not isinstance(document, dict):
            raise ValueError("not an object")
        return cls(
            {name: _service(name, entry) for name, entry in _entries(document, "services")},
            dict(_own_names(document, "networks")),
            dict(_own_names(document, "volumes")),
        )


def _service(name: str, entry: Mapping[str, Any]) -> Service:
    copies = entry.get("scale", (entry.get("deploy") or {}).get("replicas", 1))
    ports = [port for port in entry.get("ports") or [] if isinstance(port, dict)]
    return Service(
        name,
        image=entry.get("image"),
        is_built=bool(entry.get("build")),
        container_name=entry.get("container_name"),
        published=tuple(str(port["published"]) for port in ports if port.get("published")),
        copies=copies if isinstance(copies, int) else 1,
    )


def _entries(document: Mapping[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in (document.get(kind) or {}).items():
        yield name, entry if isinstance(entry, dict) else {}


def _own_names(document: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    for name, entry in _entries(document, kind):
        if not entry.get("external"):
            yield name, str(entry.get("name") or name)


# --- Variables --------------------------------------------------------------------------------


def unset_variables(printed: str) -> list[str]:
    """The variables that compose found neither a value nor a default for, as it says itself."""
    return sorted({*_UNSET.findall(printed), *_REQUIRED.findall(printed)})


# --- What cannot be there twice ---------------------------------------------------------------


@dataclass(frozen=True)
class Fixed:
    """Something of a compose file that is the same for all instances, though each needs its own."""

    path: tuple[str, ...]
    """Where it stands in the file."""
    message: str
    remedy: str
    service: str | None = None


def fixed_parts(one: ComposeModel, other: ComposeModel) -> list[Fixed]:
    """What two instances of a compose file would both claim.

    `one` and `other` are the same file with two projects' names and ports: what is equal in both
    is fixed, however it is written: plainly, by a default, in a file that is included.
    """
    found = []
    for name, service in one.services.items():
        twin = other.services.get(name, Service(name))
        where = ("services", name)
        if service.container_name and service.container_name == twin.container_name:
            found.append(
                Fixed(
                    (*where, "container_name"),
                    f"container_name {shown(service.container_name)} is the same for all instances",
                    "remove it",
                    name,
                )
            )
        for port in service.published:
            if port in twin.published and "-" not in port:
                found.append(
                    Fixed(
                        (*where, "ports"),
                        f"port {port} of the host is the same for all instances",
                        'give it a variable of `ports` in env.yaml: "${SHOP_PORT}:80"',
                        name,
                    )
                )
    kinds = (("networks", one.networks, other.networks), ("volumes", one.volumes, other.volumes))
    for kind, names, others in kinds:
        for key, called in names.items():
            if others.get(key) == called:
                found.append(
                    Fixed(
                        (kind, key, "name"),
                        f"{kind[:-1]} {key} has the name {shown(called)} for all instances",
                        "remove the name; or add external: true if all are meant to share it",
                    )
                )
    return found


def place_of(file: Path, path: tuple[str, ...]) -> str:
    """`file:line` of a part of a YAML file; only the file, where that cannot be told."""
    try:
        source = read_yaml(read_text(file), later_wins=True)
    except Unreadable:
        return str(file)
    value: Any = source.value
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return str(file)  # in another file, which it includes
        value = value[part]
    return f"{file}:{source.line(path)}"


# --- The file beside it -----------------------------------------------------------------------


def built_image(environment: str, service: str, digest: str) -> str:
    """The name of an image that is built for all instances of a definition."""
    word = re.sub(r"[^a-z0-9]+", "-", f"{environment}-{service}".lower()).strip("-") or "image"
    return f"perdure-build/{word[:100]}:{digest[:32] or 'latest'}"


def override(model: ComposeModel, labels: Mapping[str, str], images: Mapping[str, str]) -> str:
    """A compose file that labels all that a project makes, and names the images of its builds."""
    quoted = {name: text.replace("$", "$$") for name, text in labels.items()}
    document = {
        "services": {
            name: {"labels": quoted, **({"image": images[name]} if name in images else {})}
            for name in model.services
        },
        "networks": {name: {"labels": quoted} for name in model.networks},
        "volumes": {name: {"labels": quoted} for name in model.volumes},
    }
    return json.dumps({kind: entries for kind, entries in document.items() if entries}, indent=1)
