"""What a pool decides: orders to instances, and news for those who asked.

An order is answered by an event that repeats its number. An instance follows its newest order
only, and the pool listens to answers to the newest only; so orders and answers may be told twice
or late.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from perdure.messages import Holder

FailureKind = Literal["bad_input", "environment", "infrastructure"]


@dataclass(frozen=True)
class StartInstance:
    """Bring an instance up, until it is healthy. Again, with other ports, after a conflict."""

    instance: int
    order: int
    key: str
    environment: str
    project: str
    host: str
    ports: dict[str, int]
    reset: bool = False
    """True: it is reset before it counts as up (P40), so that no order for that is needed."""
    task: str = ""
    """The workflow id of the task whose request it is started for; empty: for no one of them."""


@dataclass(frozen=True)
class ResetInstance:
    """Make an instance as if it were new."""

    instance: int
    order: int
    host: str


@dataclass(frozen=True)
class CheckInstance:
    """Look whether an instance is healthy, before somebody gets it."""

    instance: int
    order: int
    host: str


@dataclass(frozen=True)
class StopInstance:
    """Take an instance down, whatever it is doing, with all that a failed start left of it."""

    instance: int
    order: int
    host: str
    reason: str


@dataclass(frozen=True)
class GrantedInstance:
    """One instance of a lease."""

    instance: int
    key: str
    environment: str
    project: str
    ports: dict[str, int]


@dataclass(frozen=True)
class Grant:
    """The holder has a lease from now on."""

    request_id: str
    holder: Holder
    host: str | None
    """Where the instances are; None for a lease without any."""
    instances: list[GrantedInstance] = field(default_factory=list)
    pool_uuid: str = ""
    """What tells the pool's projects and folders from others'."""
    pool: str = ""
    """The pool's name, filled in by who sends this: a holder that knows no pool gives it back."""


@dataclass(frozen=True)
class Refuse:
    """The request gets no lease, ever."""

    request_id: str
    holder: Holder
    kind: FailureKind
    reason: str
    log: list[str] = field(default_factory=list)
    """The last lines of what failed."""


@dataclass(frozen=True)
class Renew:
    """Environments of a lease are as new, as the holder asked; some may be other instances now."""

    request_id: str
    holder: Holder
    number: int
    """Of the reset that was asked for."""
    instances: list[GrantedInstance]
    """Those of the environments that were to be reset."""


@dataclass(frozen=True)
class LoseLease:
    """Instances under a lease are gone. What is left is the holder's until it releases it."""

    request_id: str
    holder: Holder
    reason: str
    environments: list[str]
    """Of the instances that are gone."""


@dataclass(frozen=True)
class SweepHost:
    """Remove from a host what this pool left there, but for these instances."""

    host: str
    keep: list[int]
    """All that the pool knows: another host may be on the same machine."""


@dataclass(frozen=True)
class AbandonInstance:
    """An instance is gone with its host: nobody waits for what its workflow might answer."""

    instance: int
    environment: str
    host: str
    reason: str


Decision = (
    StartInstance
    | ResetInstance
    | CheckInstance
    | StopInstance
    | Grant
    | Refuse
    | Renew
    | LoseLease
    | SweepHost
    | AbandonInstance
)

_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        StartInstance,
        ResetInstance,
        CheckInstance,
        StopInstance,
        Grant,
        Refuse,
        Renew,
        LoseLease,
        SweepHost,
        AbandonInstance,
    )
}


def to_json(decision: Decision) -> dict[str, Any]:
    """As JSON; the inverse of `from_json`."""
    return {"type": type(decision).__name__, **asdict(decision)}


def from_json(value: dict[str, Any]) -> Decision:
    """The inverse of `to_json`."""
    facts = dict(value)
    kind = _TYPES[facts.pop("type")]
    if "holder" in facts:
        facts["holder"] = Holder(**facts["holder"])
    if "instances" in facts:
        facts["instances"] = [GrantedInstance(**instance) for instance in facts["instances"]]
    decision: Decision = kind(**facts)
    return decision
