"""Whether a host could hold a request at all, were everything gone that is there now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from perdure.core.pool_definitions import Definition
from perdure.core.pool_hosts import Host
from perdure.core.pool_requests import Request
from perdure.core.problems import listed

ROUNDING_GB = 1e-6
"""Sums of needs that differ by less are the same."""


@dataclass(frozen=True)
class Objection:
    """Why no host could hold a request even if it were empty."""

    reason: str
    is_lasting: bool = False
    """However much becomes free: no host has as much memory as is needed."""


def unplaceable(
    request: Request,
    hosts: Sequence[Host],
    away: Iterable[Host],
    most_gb: Callable[[Host], float],
) -> Objection | None:
    """Why none of some hosts could hold a request; None: one could, or there is none.

    `away` are those that may come back; `most_gb`: a host's memory that were free if nothing of
    the pool were there.
    """
    found = [objection(request, host, most_gb(host)) for host in hosts]
    if not found or None in found:
        return None
    everybody = [*hosts, *away]
    if all(lacks_memory(request, host) for host in everybody):
        return Objection(_too_large(request, everybody), is_lasting=True)
    return Objection(next(reason for reason in found if reason))


def objection(request: Request, host: Host, most_gb: float) -> str | None:
    """Why a host could not hold a request even if all that is there were gone."""
    wanted, facts = request.environments, host.facts
    who = _who(request)
    if facts.capacity is not None and len(wanted) > facts.capacity:
        return (
            f"{who}: {host.name} takes {facts.capacity} at a time, and {len(wanted)} are needed"
            " at once; raise --max-instances of its worker"
        )
    ports = sum(port in facts.port_range for some in wanted for port in wanted_ports(some))
    if ports > len(facts.port_range):
        return (
            f"{who}: {host.name} has {len(facts.port_range)} ports to give, and {ports} are"
            " needed; widen DT_PORT_RANGE"
        )
    have = most_gb
    for definition in wanted:
        if have < definition.demanded_gb + definition.reserve_gb(facts.total_gb):
            return f"environment {definition.name}: {too_little(host, have, definition)}"
        have -= definition.needed_gb
    return _too_large(request, [host]) if lacks_memory(request, host) else None


def lacks_memory(request: Request, host: Host) -> bool:
    """Whether a host has less memory in all than a request needs; False: nobody knows."""
    facts = host.facts
    needed = sum(definition.needed_gb for definition in request.environments)
    if facts.max_gb is not None and needed > facts.max_gb + ROUNDING_GB:
        return True
    reserve = max((d.reserve_gb(facts.total_gb) for d in request.environments), default=0.0)
    return 0 < facts.total_gb < _demanded_gb(request) + reserve


def wanted_ports(definition: Definition) -> list[int]:
    """The numbers that an instance asks for."""
    return [port.wanted for port in definition.environment.ports.values()]


def too_little(host: Host, have_gb: float, definition: Definition) -> str:
    """That a host has too little memory left for one more instance."""
    reserve = definition.reserve_gb(host.facts.total_gb)
    return (
        f"{host.name} has {max(0.0, have_gb):.1f} GB of memory free for {definition.name}, which"
        f" needs {definition.demanded_gb:g} GB beside the reserve of {reserve:g} GB; free some, or"
        " lower memory_gb or the reserve_gb of memory in env.yaml"
    )


def _demanded_gb(request: Request) -> float:
    """What must be there beside the reserve when the last instance is started (P29)."""
    started, most = 0.0, 0.0
    for definition in request.environments:
        most = max(most, started + definition.demanded_gb)
        started += definition.needed_gb
    return most


def _too_large(request: Request, hosts: Sequence[Host]) -> str:
    """That all of some hosts have less memory than a request needs, and what to do."""
    many = len(request.environments) > 1
    needs = "need together" if many else "needs"
    remedy = "lower memory_gb or the reserve_gb of memory in env.yaml"
    if any(host.facts.max_gb is not None for host in hosts):
        remedy += ", or raise --max-memory of a worker"
    if request.host is None:
        remedy += ", or add a host that has more"
    has = listed(_memory_of(host, request) for host in hosts)
    return f"{_who(request)} {needs} {_demanded_gb(request):g} GB of memory: {has}; {remedy}"


def _memory_of(host: Host, request: Request) -> str:
    facts = host.facts
    needed = sum(definition.needed_gb for definition in request.environments)
    if facts.max_gb is not None and needed > facts.max_gb + ROUNDING_GB:
        return f"{host.name} may give {facts.max_gb:g} GB in all"
    reserve = max(definition.reserve_gb(facts.total_gb) for definition in request.environments)
    return f"{host.name} has {facts.total_gb:.1f} GB in all and a reserve of {reserve:.1f} GB"


def _who(request: Request) -> str:
    return f"environment{'s' if len(request.environments) > 1 else ''} {listed(request.names)}"
