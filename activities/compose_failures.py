"""What compose says when it fails, and what kind of failure that is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_PROGRESS = re.compile(
    r"^\s*(Network|Container|Volume|Image|Service)\s+\S+\s+"
    r"(Creat|Start|Stopp|Stopped|Remov|Pull|Build|Built|Wait|Recreat|Running|Exited|Healthy"
    r"|Interrupted|Warning|Skipped)\w*\s*(Resource is still in use)?\s*$"
)
_WARNING = re.compile(r"\blevel=(warning|info)\b")
_LOGFMT = re.compile(r'^time="[^"]*" level=\w+ msg="(.*)"\s*$')

_PORTS = (
    re.compile(r"Bind for \S*?:(\d{1,5}) failed: port is already allocated"),
    re.compile(r"listen \w+ \S*?:(\d{1,5}): bind: "),
    re.compile(r"exposing port \w+ \S*?:(\d{1,5}) "),
    re.compile(r"failed to bind (?:host )?port(?: for)? \S*?:(\d{1,5})[:/ ]"),
)
_ALL_TAKEN = re.compile(r"all ports are allocated|port is already allocated|address already in use")

_CROWDED = re.compile(
    r"non-overlapping IPv4 address pool|predefined address pools have been fully subnetted"
    r"|no available network|no available IPv4 addresses",
    re.IGNORECASE,
)
_NO_IMAGE = re.compile(
    r"no such image|manifest (for \S+ )?(not found|unknown)|pull access denied"
    r"|repository does not exist|repository name not known|no such host|invalid reference format"
    r"|no matching manifest|unauthorized|denied: requested access",
    re.IGNORECASE,
)
_BAD_FILE = re.compile(
    r"^validating |^failed to parse |error while interpolating|invalid compose project"
    r"|additional propert|undefined (volume|network|service|secret|config)|depends on undefined"
    r"|^compose file .* is invalid|^yaml: |has neither an image nor a build context",
    re.IGNORECASE | re.MULTILINE,
)
_TAKEN_NAME = re.compile(r"name \"?\S+\"? is already in use by container", re.IGNORECASE)

_SERVICE = (
    re.compile(r'service "([^"]+)" didn\'t complete'),
    re.compile(r"dependency (\S+) failed to start"),
)


@dataclass(frozen=True)
class Failure:
    """How a call of compose failed."""

    reason: str
    """The line that says it."""
    lines: list[str]
    """All lines that are not merely about progress."""
    service: str | None = None
    ports: tuple[int, ...] = ()
    """Of the host, that somebody else has."""
    is_crowded: bool = False
    is_final: bool = False
    is_image_missing: bool = False
    is_name_taken: bool = False
    """A container of that name is there."""

    @property
    def is_port_taken(self) -> bool:
        """Whether somebody else has a port; its number is not always said."""
        return bool(self.ports) or bool(_ALL_TAKEN.search("\n".join(self.lines)))


def failure_of(
    lines: Sequence[str], project: str, services: Mapping[str, str | None] | Collection[str] = ()
) -> Failure:
    """What the last lines of a failed call say. `services`: their images, by name."""
    telling = [
        match[1].replace('\\"', '"') if (match := _LOGFMT.match(line)) else line.strip()
        for line in lines
        if line.strip() and not _PROGRESS.match(line) and not _WARNING.search(line)
    ]
    text = "\n".join(telling)
    reason = telling[-1] if telling else "compose failed and said nothing"
    is_image_missing = bool(_NO_IMAGE.search(text))
    return Failure(
        reason=reason,
        lines=telling,
        service=_service(telling, project, services),
        ports=tuple(sorted({int(n) for pattern in _PORTS for n in pattern.findall(text)})),
        is_crowded=bool(_CROWDED.search(text)),
        is_final=is_image_missing or bool(_BAD_FILE.search(text)),
        is_image_missing=is_image_missing,
        is_name_taken=bool(_TAKEN_NAME.search(text)),
    )


def _service(
    lines: Sequence[str], project: str, services: Mapping[str, str | None] | Collection[str]
) -> str | None:
    """The service that the last telling line names, by itself, its container or its image."""
    images: Mapping[str, str | None] = (
        services if isinstance(services, Mapping) else dict.fromkeys(services)
    )
    longest_first = sorted(images, key=len, reverse=True)
    for line in reversed(lines):
        for pattern in _SERVICE:
            if (match := pattern.search(line)) and match[1] in images:
                return match[1]
        for name in longest_first:
            if re.search(rf"\b{re.escape(project)}[-_]{re.escape(name)}[-_]\d+\b", line):
                return name
        for name in longest_first:
            if (image := images[name]) and image in line:
                return name
    return None
