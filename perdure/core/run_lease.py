"""The lease of one task run: what was asked of the pool, what came, what is to be given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease, Refuse
from perdure.core.pool_definitions import Definition
from perdure.core.pool_names import ambiguous_variables
from perdure.core.run_start import BadStart
from perdure.messages import Holder, PoolUse, RunRef, StepInstance
from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseReset, LeaseSeen

LeaseState = Literal["waiting", "held", "lost", "over"]
"""`lost`: instances of it are gone, and steps that use the others may still be ending."""


@dataclass(frozen=True)
class LostLease:
    """A lease whose instances were lost under the run, for the record."""

    request_id: str
    host: str | None
    environments: list[str]
    """Of the instances that were lost."""
    reason: str
    at: float
    """Seconds since 1970."""


@dataclass
class _Outbox:
    """What is to be sent to the pool, each handed out once."""

    requests: list[LeaseRequest] = field(default_factory=list)
    seen: list[LeaseSeen] = field(default_factory=list)
    releases: list[LeaseRelease] = field(default_factory=list)


class RunLease:
    """What the run and its pool have told each other."""

    def __init__(
        self,
        run: RunRef,
        use: PoolUse,
        environments: Sequence[dict[str, Any]],
        *,
        priority: str,
        bind: bool,
        now: float,
        index: int = 0,
    ) -> None:
        """Ask for the first lease. `environments`: definitions, in the task's order.

        `bind`: only the host of the worker that hands the request on will do. `index`: the task's
        position in the list of its suite.
        Raises BadStart if two of the environments set one variable (PD26).
        """
        _check_variables(environments)
        self._run = run
        self._use = use
        self._definitions = {d["environment"]["name"]: d for d in environments}
        self._priority = priority
        self._bind = bind
        self._index = index
        self._number = 0
        self._broken: dict[str, str] = {}
        self._outbox = _Outbox()
        self.state: LeaseState = "over"
        self.grant: Grant | None = None
        """The newest one; kept when the lease is given back, for the record."""
        self.losses: list[LostLease] = []
        self.restarts = 0
        """How often the run has started over."""
        self.since = now
        """When the newest lease was asked for: the task's clock starts there."""
        self.waited = 0.0
        """Seconds that it waited for the newest lease."""
        self.waited_before = 0.0
        """Seconds that it waited for the leases it lost."""
        self.ask(now)

    # --- Asking and giving back -------------------------------------------------------------

    @property
    def request_id(self) -> str:
        """Of the newest request."""
        return f"{self._run.run_id}:{self._number}"

    @property
    def environments(self) -> list[str]:
        """Names of those that it takes an instance of, in the task's order."""
        return list(self._definitions)

    @property
    def request(self) -> LeaseRequest:
        """The newest request."""
        return LeaseRequest(
            pool=self._use.pool,
            request_id=self.request_id,
            holder=self.holder,
            environments=list(self._definitions.values()),
            suite=self._run.suite,
            max_parallel=self._use.max_parallel,
            priority=self._priority,
            bind=self._bind,
            index=self._index,
        )

    @property
    def holder(self) -> Holder:
        """The run, as pools know it."""
        return Holder(self._run.workflow_id, self._run.run_id)

    def ask(self, now: float) -> None:
        """Ask for the next lease."""
        self._number += 1
        self._broken = {}
        self.grant = None
        self.since, self.waited_before, self.waited = now, self.waited_before + self.waited, 0.0
        self.state = "waiting"
        self._outbox.requests.append(self.request)

    def reset(self, number: int, environments: Sequence[str]) -> LeaseReset | None:
        """The word by which these become as new, under this lease; None: it is not held."""
        if self.state != "held":
            return None
        return LeaseReset(self._use.pool, self.request_id, self.holder, number, list(environments))

    def spoil(self, environments: Mapping[str, str]) -> None:
        """Give these instances back as broken, when the time comes: by environment, why."""
        known = {name: why for name, why in environments.items() if name in self._definitions}
        self._broken = {**known, **self._broken}

    def replace(self, instances: Sequence[GrantedInstance]) -> list[str]:
        """These are the lease's instances of their environments now; names the other ones."""
        if self.grant is None:
            return []
        new = {instance.environment: instance for instance in instances}
        before = self.grant.instances
        self.grant = replace(self.grant, instances=[new.get(i.environment, i) for i in before])
        return [i.environment for i in before if new.get(i.environment, i).instance != i.instance]

    def give_back(self, now: float) -> bool:
        """Wait no more, or need the instances no more; False if there is nothing to give back."""
        if self.state == "over":
            return False
        if self.state == "waiting":
            self.waited = now - self.since
        self.state = "over"
        release = LeaseRelease(self._use.pool, self.request_id, self.holder, dict(self._broken))
        self._outbox.releases.append(release)
        return True

    # --- What the pool says -----------------------------------------------------------------

    def take(self, grant: Grant, now: float) -> bool:
        """Take a grant; False if it is not the one that is waited for.

        One that nobody knows is given back, in the name of whom it was meant for. One that is told
        twice is left alone: giving it back would free the instances under the run.
        """
        if not self._is_meant(grant.request_id) or self.state == "over":
            release_of = LeaseRelease(grant.pool or self._use.pool, grant.request_id, grant.holder)
            self._outbox.releases.append(release_of)
            return False
        self._outbox.seen.append(LeaseSeen(self._use.pool, grant.request_id, grant.holder))
        if self.state != "waiting":
            return False
        self.state, self.grant, self.waited = "held", grant, now - self.since
        return True

    def refuse(self, refusal: Refuse, now: float) -> bool:
        """The pool will never grant the request; False if nobody waits for it."""
        if not self._is_meant(refusal.request_id) or self.state != "waiting":
            return False
        self.state, self.waited = "over", now - self.since
        return True

    def lose(self, loss: LoseLease, now: float) -> bool:
        """Instances of the lease are gone; False if that is no news."""
        if not self._is_meant(loss.request_id) or self.state == "over":
            self._outbox.releases.append(LeaseRelease(self._use.pool, loss.request_id, loss.holder))
            return False
        self._outbox.seen.append(LeaseSeen(self._use.pool, loss.request_id, loss.holder))
        return self.miss(dict.fromkeys(loss.environments, loss.reason), loss.reason, now)

    def miss(self, gone: Mapping[str, str], reason: str, now: float) -> bool:
        """Instances of the lease are gone, whoever found out; False if that is no news.

        `gone`: by environment, how each was lost.
        """
        self._broken = {**gone, **self._broken}
        if self.state not in ("waiting", "held"):
            return False
        if self.state == "waiting":  # its grant was never heard
            self.waited = now - self.since
        self.state = "lost"
        host = self.grant.host if self.grant else None
        self.losses.append(LostLease(self.request_id, host, [*gone], reason, now))
        return True

    def _is_meant(self, request_id: str) -> bool:
        return request_id == self.request_id

    # --- What is to be sent -----------------------------------------------------------------

    def take_requests(self) -> list[LeaseRequest]:
        """The requests to send, each handed out once."""
        requests, self._outbox.requests = self._outbox.requests, []
        return requests

    def take_seen(self) -> list[LeaseSeen]:
        """Of what the pool is to know that it was heard, each handed out once."""
        seen, self._outbox.seen = self._outbox.seen, []
        return seen

    def take_releases(self) -> list[LeaseRelease]:
        """What to give back, each handed out once."""
        releases, self._outbox.releases = self._outbox.releases, []
        return releases

    # --- What is seen -----------------------------------------------------------------------

    @property
    def instances(self) -> list[GrantedInstance]:
        """Of the newest grant, in the order of the task's environments."""
        by_name = {i.environment: i for i in self.grant.instances} if self.grant else {}
        return [by_name[name] for name in self._definitions if name in by_name]

    def for_steps(self) -> list[StepInstance]:
        """The instances, as steps need them."""
        uuid = self.grant.pool_uuid if self.grant else ""
        return [
            StepInstance(
                environment=instance.environment,
                project=instance.project,
                ports=dict(instance.ports),
                number=instance.instance,
                pool=self._use.pool,
                pool_uuid=uuid,
                definition=self._definitions[instance.environment],
            )
            for instance in self.instances
        ]

    def recorded_instances(self) -> list[dict[str, Any]]:
        """The instances, as records and results have them."""
        return [
            {
                "environment": instance.environment,
                "instance_id": f"{instance.environment}:{instance.project}",
                "project": instance.project,
                "ports": dict(instance.ports),
                "number": instance.instance,
            }
            for instance in self.instances
        ]

    def recorded(self) -> dict[str, Any]:
        """The lease, as records have it."""
        return {
            "pool": self._use.pool,
            "request_id": self.request_id,
            "state": self.state,
            "environments": self.environments,
            "host": self.grant.host if self.grant else None,
            "instances": self.recorded_instances(),
            "waited_seconds": round(self.waited_before + self.waited, 3),
        }

    def progress(self) -> dict[str, Any]:
        """How it stands, for a line on a terminal."""
        return {
            "pool": self._use.pool,
            "request_id": self.request_id,
            "state": self.state,
            "environments": self.environments,
            "since": self.since,
        }

    # --- Over a continue-as-new -------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What a restored run needs; only while nothing is left to be sent."""
        return {
            "number": self._number,
            "state": self.state,
            "grant": asdict(self.grant) if self.grant else None,
            "broken": self._broken,
            "losses": [asdict(loss) for loss in self.losses],
            "restarts": self.restarts,
            "since": self.since,
            "waited": self.waited,
            "waited_before": self.waited_before,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `to_state`; nothing is asked again."""
        self._outbox = _Outbox()
        self._number, self.state = state["number"], state["state"]
        self._broken = dict(state["broken"])
        self.losses = [LostLease(**loss) for loss in state["losses"]]
        self.restarts = state["restarts"]
        self.since, self.waited = state["since"], state["waited"]
        self.waited_before = state["waited_before"]
        grant = state["grant"]
        self.grant = grant and _grant_of(grant)


def _check_variables(environments: Sequence[dict[str, Any]]) -> None:
    known = (Definition.from_json(definition).environment for definition in environments)
    for variable, names in ambiguous_variables(known).items():
        raise BadStart(
            f"{variable} is set by the environments {' and '.join(names)}, of which the last would "
            "win unseen; a task that needs both needs a name of its own for each port, in env.yaml"
        )


def _grant_of(value: dict[str, Any]) -> Grant:
    return Grant(
        **{
            **value,
            "holder": Holder(**value["holder"]),
            "instances": [GrantedInstance(**instance) for instance in value["instances"]],
        }
    )
