"""What tasks, suites, pools, instances and hosts tell each other about environments.

Frozen dataclasses, as those of `perdure.messages`: fields are only ever added, with a default. An
environment's definition travels as JSON (`perdure.core.pool_definitions.Definition.to_json`). What
a pool tells the holder of a lease is `Grant`, `Refuse`, `Renew` and `LoseLease` of
`perdure.core.pool_decisions`, sent as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.messages import Holder

# --- Tasks and suites to a pool ---------------------------------------------------------------


@dataclass(frozen=True)
class PoolTimes:
    """For tests: how often a pool looks after others; None: as `workflows.options` has it."""

    probe_seconds: float | None = None
    idle_seconds: float | None = None
    history_limit_events: int | None = None
    host_away_seconds: float | None = None
    host_gone_seconds: float | None = None


@dataclass(frozen=True)
class PoolInput:
    """Start of a PoolWorkflow."""

    pool: str
    uuid: str
    """Drawn by chance by whoever starts it; labels of containers carry it."""
    prefix: str = "pool"
    """Of project names (P19)."""
    options: PoolTimes = field(default_factory=PoolTimes)
    state: dict[str, Any] | None = None
    """Carried over a continue-as-new."""
    early: bool = False
    """True: instances are started as soon as a suite declares its tasks, and their workflows begin
    with the order for that. False: a pool of the first version, which goes on as it began."""
    rules: int = 1
    """As in `PoolOptions`; 1: a pool that began before there were others."""


@dataclass(frozen=True)
class LeaseRequest:
    """Ask a pool for one instance of each environment, all at once. Idempotent by `request_id`."""

    pool: str
    request_id: str
    """`<first run id>:<1, 2, ...>`: the how many-th lease of the run it is."""
    holder: Holder
    environments: list[dict[str, Any]] = field(default_factory=list)
    """Definitions; none: a slot of the suite alone."""
    suite: str = ""
    max_parallel: int | None = None
    priority: str = "medium"
    host: str | None = None
    """The only host that will do; None: any."""
    bind: bool = False
    """True: only the host of the worker that hands the request on will do: it alone serves the
    task's queue."""
    index: int = 0
    """The task's position in its suite's list."""


@dataclass(frozen=True)
class LeaseRelease:
    """Give a lease back, or wait no more. Idempotent; by somebody else it changes nothing."""

    pool: str
    request_id: str
    holder: Holder
    broken: dict[str, str] = field(default_factory=dict)
    """By environment: why its instance must not be used again."""


@dataclass(frozen=True)
class LeaseSeen:
    """The holder has heard of its grant, or of its loss."""

    pool: str
    request_id: str
    holder: Holder


@dataclass(frozen=True)
class LeaseReset:
    """Make environments of a lease as new, which stays its holder's. Idempotent by `number`."""

    pool: str
    request_id: str
    holder: Holder
    number: int
    """1, 2, ... in the order in which the lease's resets are asked for."""
    environments: list[str]


@dataclass(frozen=True)
class CountedSet:
    """So many tasks that will ask for the same environments."""

    environments: list[str]
    """Names of those in `SetDemand.environments`."""
    count: int


@dataclass(frozen=True)
class SetDemand:
    """What a suite says of itself to its pool. A later one of the same suite replaces it."""

    pool: str
    suite: str
    holder: Holder
    max_parallel: int | None = None
    """0: nothing more is granted for now (the suite is paused)."""
    coming: list[CountedSet] = field(default_factory=list)
    """Tasks that have not asked yet."""
    keep_envs: bool = False
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Definitions of all that its tasks use, by name."""
    over: bool = False
    """True: the suite needs nothing more; its demand is forgotten."""
    prioritised: list[str] = field(default_factory=list)
    """Workflow ids of tasks whose requests come before all others, the last one first."""


# --- A pool to its instances, and back --------------------------------------------------------


@dataclass(frozen=True)
class InstanceOrder:
    """An order of the pool, by the signal `order`. An instance follows its newest order only."""

    kind: Literal["start", "reset", "check", "stop"]
    order: int
    ports: dict[str, int] = field(default_factory=dict)
    """Of a start: by variable."""
    reset: bool = False
    """Of a start: reset it before the answer."""
    task: str = ""
    """Of a start: as in `InstanceCall`."""
    reason: str = ""
    """Of a stop, for people."""


@dataclass(frozen=True)
class InstanceInput:
    """Start of an InstanceWorkflow."""

    pool: str
    pool_uuid: str
    number: int
    environment: str
    project: str
    definition: dict[str, Any]
    pool_workflow_id: str
    history_limit_events: int | None = None
    pool_run_id: str = ""
    """The first run id of the pool: an instance whose pool is gone stops. Empty: by its id
    alone."""
    state: dict[str, Any] | None = None
    """Carried over a continue-as-new."""
    order: InstanceOrder | None = None
    """The first one; None: it comes by signal, as all others do."""
    local_words: bool = False
    """True: it answers its pool by local activities. False: instances of the first version, which
    go on as they began."""


AnswerKind = Literal[
    "started",
    "start_failed",
    "ports_taken",
    "reset_done",
    "reset_failed",
    "healthy",
    "unhealthy",
    "lost",
    "stopped",
    "stop_failed",
]


@dataclass(frozen=True)
class InstanceAnswer:
    """What became of an order, by the signal `instance_answered`; `lost` answers none."""

    instance: int
    order: int
    kind: AnswerKind
    reason: str = ""
    """One or two lines for people: environment, service, reason, remedy."""
    log: list[str] = field(default_factory=list)
    """The last lines of what failed; at most 20, each of at most 300 characters."""
    is_final: bool = False
    """True: another try would fare no better."""
    is_crowded: bool = False
    """True: the engine has no place now."""
    ports: list[int] = field(default_factory=list)
    """Of `ports_taken`: those that somebody else has."""
    at_start: bool = False
    """Of `ports_taken`: that showed only when the instance came up."""
    was_reset: bool = False
    """Of `started`: it was reset after that."""
    pool_uuid: str = ""
    """Of the pool that the instance belongs to: another one of the same name may hear it."""


@dataclass(frozen=True)
class AnswerCall:
    """Input of the activity `answer_pool`."""

    pool: str
    answer: InstanceAnswer


@dataclass(frozen=True)
class InstanceCall:
    """Input of the activities of one instance, on its host's queue. All are idempotent."""

    pool: str
    pool_uuid: str
    number: int
    environment: str
    project: str
    definition: dict[str, Any]
    ports: dict[str, int] = field(default_factory=dict)
    pool_run_id: str = ""
    """As in `InstanceInput`."""
    reset: bool = False
    """Of a start: reset it when it is healthy."""
    task: str = ""
    """Of a start: the workflow id of the task whose request it is for; empty: for no single one."""


@dataclass(frozen=True)
class InstanceResult:
    """Result of the activities of one instance: a failure is an answer, not an exception."""

    ok: bool
    reason: str = ""
    log: list[str] = field(default_factory=list)
    is_final: bool = False
    is_crowded: bool = False
    taken_ports: list[int] = field(default_factory=list)
    at_start: bool = False


# --- Hosts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostBeat:
    """The worker of a host says that it is there, by the signal `host_beat`."""

    host: str
    worker: str
    """Drawn by chance once a worker process: a worker that is new to the pool has joined."""
    capacity: int | None = None
    """Instances at a time; None: as many as memory and ports allow."""
    free_gb: float | None = None
    total_gb: float = 0.0
    port_low: int = 8000
    port_high: int = 20000
    machine: str = ""
    """Hosts on one machine share its ports and memory."""
    max_gb: float | None = None
    """Memory that all instances of this host may need together; None: what the machine has."""


@dataclass(frozen=True)
class EndInstances:
    """Input of the activity `end_instances`: a host is gone, and nobody follows orders there."""

    workflow_ids: list[str]
    reason: str


@dataclass(frozen=True)
class SweepCall:
    """Input of the activity `sweep_host`: remove what this pool left there, but for some."""

    pool: str
    pool_uuid: str
    keep: list[int]
    """Numbers of instances."""
    before: int | None = None
    """Instances from this number on were started after the sweep was ordered, and stay, too."""


# --- What people ask for ----------------------------------------------------------------------


@dataclass(frozen=True)
class PoolWish:
    """An order of people to a pool, by the update `wish`; answers with a sentence."""

    kind: Literal["reset", "stop", "shutdown", "prewarm", "sweep"]
    environment: str | None = None
    """None: all of them."""
    count: int = 0
    """Of `prewarm`."""
    definition: dict[str, Any] | None = None
    """Of `prewarm`."""
