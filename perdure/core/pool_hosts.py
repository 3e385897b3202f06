"""The hosts of a pool: what fits on each, and which of them is still there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perdure.core.ports import PortRange, Ports
from perdure.pool_messages import HostBeat

CROWDED_SECONDS = 30.0
"""How long nothing is started on an engine that said it was full, unless something ends there."""

REMEMBERED_WORKERS = 50
"""Of each host: of so many that serve it at a time, none is ever taken for a new one."""


@dataclass(frozen=True)
class HostFacts:
    """What a worker tells of its host, when it joins and with each beat."""

    capacity: int | None = None
    """Instances at a time; None: as many as memory and ports allow."""
    free_gb: float | None = None
    """Memory available now; None: not known, and not looked at."""
    total_gb: float = 0.0
    port_range: PortRange = field(default_factory=PortRange)
    machine: str = ""
    """Hosts on one machine share its ports and its memory; empty: a machine of its own."""
    max_gb: float | None = None
    """Memory that all instances there may need together; None: as much as the machine has."""

    @classmethod
    def of(cls, beat: HostBeat) -> HostFacts:
        """Those that a worker tells."""
        within = PortRange(beat.port_low, beat.port_high)
        return cls(beat.capacity, beat.free_gb, beat.total_gb, within, beat.machine, beat.max_gb)


@dataclass
class Host:
    """A worker's host as the pool knows it."""

    name: str
    facts: HostFacts
    heard: float
    """When its worker was heard of last; seconds since 1970."""
    freed_gb: float = 0.0
    """What instances that are gone used, and `facts` may not know yet."""
    is_away: bool = False
    """Silent for some time: nothing is placed there, and what is there may come back."""
    crowded_until: float = 0.0
    workers: list[str] = field(default_factory=list)
    """Those that have served it, the newest last."""

    @property
    def machine(self) -> str:
        """Whose ports and memory it uses."""
        return self.facts.machine or f"of {self.name}"


class Hosts:
    """The hosts that have joined and are not gone."""

    def __init__(self, seed: int = 0) -> None:
        """`seed`: where each machine's search for ports begins."""
        self._seed = seed
        self._hosts: dict[str, Host] = {}
        self._ports: dict[str, Ports] = {}

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def usable(self) -> list[Host]:
        """Those on which something can be placed, by name."""
        return sorted((h for h in self if not h.is_away), key=lambda host: host.name)

    def hear(self, name: str, facts: HostFacts, now: float) -> None:
        """The worker of a host says how it is."""
        old = self._hosts.get(name)
        self._hosts[name] = Host(
            name,
            facts,
            now,
            crowded_until=old.crowded_until if old else 0.0,
            workers=old.workers if old else [],
        )

    def has_worker(self, name: str, worker: str) -> bool:
        """Whether a worker has been heard of as serving this host."""
        return name in self._hosts and worker in self._hosts[name].workers

    def add_worker(self, name: str, worker: str) -> None:
        """A worker serves this host, from now on or still."""
        workers = self._hosts[name].workers
        if worker in workers:
            workers.remove(worker)
        workers.append(worker)
        del workers[:-REMEMBERED_WORKERS]

    def remove(self, name: str) -> None:
        """It is gone."""
        self._hosts.pop(name, None)

    def ports(self, name: str) -> Ports:
        """The ports of a host's machine."""
        return self._ports.setdefault(self._hosts[name].machine, Ports(self._seed))

    @property
    def all_ports(self) -> list[Ports]:
        """Of all machines."""
        return list(self._ports.values())

    def give_ports_back(self, instance: int) -> None:
        """On whatever machine the instance was."""
        for ports in self._ports.values():
            ports.give_back(instance)

    def grow_silent(self, now: float, away_seconds: float) -> None:
        """Note which have not been heard of for some time."""
        for host in self:
            host.is_away = now - host.heard >= away_seconds

    def forgive(self, seconds: float) -> None:
        """The pool itself slept: nobody could be heard."""
        for host in self:
            host.heard += 0.0 if host.is_away else seconds

    def state(self) -> dict[str, Any]:
        """As JSON, for `from_state`."""
        return {
            "hosts": [asdict(host) for host in self],
            "ports": {machine: ports.state() for machine, ports in self._ports.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], seed: int = 0) -> Hosts:
        """The inverse of `state`."""
        hosts = cls(seed)
        for value in state["hosts"]:
            facts = HostFacts(**value["facts"])
            facts = replace(facts, port_range=PortRange(**value["facts"]["port_range"]))
            hosts._hosts[value["name"]] = Host(**{**value, "facts": facts})
        for machine, value in state["ports"].items():
            hosts._ports[machine] = Ports.from_state(value)
        return hosts
