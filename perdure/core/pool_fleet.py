"""The hosts and instances of a pool, with the orders that were given to them.

An order stays outstanding until its answer comes; answers to older orders are not heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from perdure.core import pool_decisions as told
from perdure.core.pool_decisions import Decision
from perdure.core.pool_definitions import Definition
from perdure.core.pool_hosts import Hosts
from perdure.core.pool_instances import Instance, Instances, State
from perdure.core.pool_names import project_name
from perdure.core.pool_requests import Request

STOP_AGAIN_SECONDS = 30.0
"""After a stop that failed."""

PORT_SEARCHES = 20
"""How often an instance gets other ports, found taken before anything came up, at most."""

BIND_CONFLICTS = 2
"""So many times a port may turn out to be taken when the instance comes up; the last fails it."""


@dataclass(frozen=True)
class Failure:
    """Why an instance did not come up, or is not well."""

    reason: str
    log: tuple[str, ...] = ()
    """The last lines of what it printed."""
    is_final: bool = False
    """True: another try would fare no better, as when an image or a file is missing."""
    is_crowded: bool = False
    """True: the engine has no place now (its address pools are exhausted); nobody's fault."""


class Fleet:
    """All hosts that are not gone, and all instances that are not gone without a trace."""

    def __init__(self, uuid: str, prefix: str, decisions: list[Decision]) -> None:
        """`decisions` is where orders are told."""
        self.uuid = uuid
        self.prefix = prefix
        self.hosts = Hosts(_port_seed(uuid))
        self.instances = Instances()
        self.definitions: dict[str, Definition] = {}
        """By key."""
        self.numbers = 0
        """The newest instance's."""
        self._decisions = decisions

    # --- Orders -----------------------------------------------------------------------------

    def start(
        self,
        definition: Definition,
        host: str,
        request: Request | None,
        now: float,
        state: State = "starting",
    ) -> Instance | None:
        """Start an instance, for a request or ahead; its ports are reserved from here on.

        None: they were not found.
        """
        number = self.numbers + 1
        within = self.hosts[host].facts.port_range
        ports = self.hosts.ports(host).choose(number, _wanted(definition), within, now)
        if ports is None:
            return None  # counted as free, but not from where the search could find them
        self.numbers = number
        project = project_name(definition.name, number, self.uuid, self.prefix)
        instance = Instance(number, definition.key, definition.name, project, host, ports)
        if request:
            instance.wanted_by = request.request_id
            instance.started_for = request.holder.workflow_id
        instance.order = 0
        self.instances.add(instance)
        self.order(instance, state, now)
        return instance

    def reset(self, instance: Instance, now: float) -> None:
        """Make it as if it were new."""
        self.order(instance, "resetting", now)

    def check(self, instance: Instance, request_id: str, now: float) -> None:
        """Look whether it is healthy: the request is about to get it."""
        instance.lease, instance.wanted_by = request_id, None
        instance.is_looked_at = True
        self.order(instance, "checking", now)

    def stop(self, instance: Instance, reason: str, now: float) -> None:
        """Take it down, whatever it does."""
        instance.lease = instance.wanted_by = instance.retry_at = None
        instance.reason = reason
        self.order(instance, "stopping", now)

    def order(self, instance: Instance, state: State, now: float) -> None:
        """Give an order; the state is what it is doing from now on."""
        instance.order += 1
        instance.become(state, now)
        self._decisions += self._unanswered(instance)

    def outstanding(self) -> list[Decision]:
        """The orders that are not answered."""
        return [order for instance in self.instances for order in self._unanswered(instance)]

    def _unanswered(self, i: Instance) -> list[Decision]:
        if i.state in ("starting", "replacing"):
            ports = dict(i.ports)
            return [
                told.StartInstance(
                    i.number,
                    i.order,
                    i.key,
                    i.environment,
                    i.project,
                    i.host,
                    ports,
                    reset=self.definition(i).is_resettable,
                    task=i.started_for,
                )
            ]
        if i.state in ("resetting", "renewing"):
            return [told.ResetInstance(i.number, i.order, i.host)]
        if i.state == "checking":
            return [told.CheckInstance(i.number, i.order, i.host)]
        if i.state == "stopping" and i.retry_at is None:
            return [told.StopInstance(i.number, i.order, i.host, i.reason)]
        return []

    # --- Answers ----------------------------------------------------------------------------

    def answering(self, number: int, order: int, *states: State) -> Instance | None:
        """The instance, if this answers its newest order; else there is nothing to hear."""
        instance = self.instances.get(number)
        if instance and instance.order == order and instance.state in states:
            return instance
        return None

    def is_up(self, instance: Instance, now: float, *, was_reset: bool = False) -> None:
        """It has come up: what is to be reset is, if that was not done yet (P40)."""
        instance.cleaned = instance.settled = now
        is_dirty = self.definition(instance).is_resettable and not was_reset
        instance.become("dirty" if is_dirty else "clean", now)

    def is_clean(self, instance: Instance, now: float) -> None:
        """It was reset."""
        instance.is_looked_at = False
        instance.cleaned = now
        instance.become("clean", now)

    def hand_out(self, instance: Instance, now: float) -> None:
        """It is in use."""
        instance.is_looked_at = False
        instance.uses += 1
        instance.last_used = now
        instance.become("leased", now)

    def take_back(self, instance: Instance, now: float, *, used: bool) -> None:
        """It is nobody's again."""
        definition = self.definition(instance)
        instance.lease = None
        if used and definition.environment.disable_reuse:
            instance.is_retiring = True
        if instance.state in ("renewing", "replacing"):  # that goes on, for whoever comes next
            instance.become("resetting" if instance.state == "renewing" else "starting", now)
            return
        instance.become("dirty" if used and definition.is_resettable else "clean", now)

    def change_ports(
        self, instance: Instance, ports: Iterable[int], now: float, *, at_start: bool
    ) -> Failure | None:
        """Start it again with others for these ports, which somebody else has.

        Returns why not, if it had too many tries or there are no others.
        """
        host, taken = self.hosts[instance.host], sorted(set(ports))
        instance.conflicts += at_start
        instance.searches += not at_start
        lost = {name for name, port in instance.ports.items() if port in taken}
        for name in lost:
            del instance.ports[name]
        book = self.hosts.ports(host.name)
        book.take(taken, now)
        wanted = {n: p for n, p in _wanted(self.definition(instance)).items() if n in lost}
        chosen = book.choose(instance.number, wanted, host.facts.port_range, now)
        tried_enough = instance.conflicts >= BIND_CONFLICTS or instance.searches >= PORT_SEARCHES
        if chosen is None or tried_enough:
            return Failure(
                f"ports of {host.name} are in use: {', '.join(map(str, taken))}; stop what has "
                "them, or widen DT_PORT_RANGE"
            )
        instance.ports.update(chosen)
        self.order(instance, instance.state, now)
        return None

    def is_gone(self, instance: Instance) -> None:
        """Nothing is left of it: its seat, its room and its ports are free."""
        if instance.host in self.hosts:
            host = self.hosts[instance.host]
            if instance.is_measured(host.heard):
                host.freed_gb += self.definition(instance).needed_gb
            if instance.cleaned:  # it was up, so there is more room now than there was
                host.crowded_until = 0.0
        self.hosts.give_ports_back(instance.number)
        self.instances.remove(instance.number)

    def stop_again(self, now: float) -> None:
        """Order those stops again that failed some time ago."""
        for instance in self.instances:
            if instance.retry_at is not None and now >= instance.retry_at:
                instance.retry_at = None
                self.order(instance, "stopping", now)

    def hurry_stops(self, now: float, environment: str | None = None) -> None:
        """Somebody asks: stops that failed are tried again at once."""
        for instance in self.instances:
            if instance.retry_at is not None and environment in (None, instance.environment):
                instance.retry_at = now

    def definition(self, instance: Instance) -> Definition:
        """What it is made of."""
        return self.definitions[instance.key]

    # --- Over a continue-as-new, or a crash -------------------------------------------------

    def state(self, spoken_of: Iterable[str]) -> dict[str, Any]:
        """As JSON, for `from_state`, with the definitions of what is there and `spoken_of`."""
        keys = {instance.key for instance in self.instances} | {*spoken_of}
        return {
            "uuid": self.uuid,
            "prefix": self.prefix,
            "numbers": self.numbers,
            "instances": self.instances.state(),
            "definitions": {k: d.to_json() for k, d in self.definitions.items() if k in keys},
            **self.hosts.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], decisions: list[Decision]) -> Fleet:
        """The inverse of `state`."""
        fleet = cls(state["uuid"], state["prefix"], decisions)
        fleet.numbers = state["numbers"]
        fleet.hosts = Hosts.from_state(state, _port_seed(fleet.uuid))
        fleet.instances = Instances.from_state(state["instances"])
        for key, value in state["definitions"].items():
            fleet.definitions[key] = Definition.from_json(value)
        return fleet


def _port_seed(uuid: str) -> int:
    """Another one for each pool."""
    return crc32(uuid.encode())


def _wanted(definition: Definition) -> dict[str, int]:
    return {name: port.wanted for name, port in definition.environment.ports.items()}
