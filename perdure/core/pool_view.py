"""A pool as people see it: figures, and who has, waits and runs what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from perdure.core.pool import Pool
from perdure.core.pool_hosts import Host
from perdure.core.pool_instances import PUBLIC_STATES


@dataclass(frozen=True)
class PoolStats:
    """Figures of a pool (P51). A task is a request: total = pending + running + completed."""

    total_tasks: int
    pending_tasks: int
    """Those that wait, whose instances are looked at, or that their suites have declared."""
    running_tasks: int
    completed_tasks: int
    total_instances: int
    available_instances: int
    in_use_instances: int
    instances_by_env: dict[str, int]
    """By environment, in order of the names; starting and stopping ones count."""


def stats(pool: Pool) -> PoolStats:
    """The pool in figures."""
    running = sum(lease.state != "checking" for lease in pool.leases.values())
    coming = sum(some.count for demand in pool.demands.values() for some in demand.coming)
    pending = len(pool.queue) + len(pool.leases) - running + coming
    states = Counter(PUBLIC_STATES[instance.state] for instance in pool.instances)
    return PoolStats(
        pending + running + pool.completed,
        pending,
        running,
        pool.completed,
        len(pool.instances),
        states["available"],
        states["in_use"],
        dict(sorted(pool.instances.alive().items())),
    )


def view(pool: Pool) -> dict[str, Any]:
    """Hosts, instances, failures of those that nobody asked for, leases and waiting requests."""
    return {
        "closing": pool.closing,
        "hosts": [
            {
                "name": host.name,
                "away": host.is_away,
                "heard": host.heard,
                "capacity": host.facts.capacity,
                "free_gb": _free_gb(pool, host),
                "max_gb": host.facts.max_gb,
                "instances": len(pool.instances.on(host.name)),
            }
            for host in sorted(pool.hosts, key=lambda host: host.name)
        ],
        "instances": [
            {
                "instance_id": i.instance_id,
                "number": i.number,
                "env_name": i.environment,
                "key": i.key,
                "project_name": i.project,
                "compose_file": pool.definition(i.key).environment.docker_compose,
                "host": i.host,
                "state": PUBLIC_STATES[i.state],
                "doing": i.state,
                "since": i.since,
                "ports": dict(i.ports),
                "request_id": i.lease,
                "current_task_id": _task_of(pool, i.lease),
                "wanted_by": i.wanted_by,
                "use_count": i.uses,
                "last_used": i.last_used,
                "reason": i.reason,
            }
            for i in pool.instances
        ],
        "failures": [
            {"env_name": key.rpartition("@")[0], "key": key, "count": count, "reason": reason}
            for key, count, reason in pool.failures()
        ],
        "leases": [
            {
                "request_id": request_id,
                "holder": lease.request.holder.workflow_id,
                "suite": lease.request.suite,
                "environments": lease.request.names,
                "host": lease.host,
                "state": lease.state,
                "since": lease.since,
                "reason": lease.reason,
            }
            for request_id, lease in pool.leases.items()
        ],
        "waiting": [
            {
                "request_id": waiter.request.request_id,
                "holder": waiter.request.holder.workflow_id,
                "suite": waiter.request.suite,
                "environments": waiter.request.names,
                "priority": waiter.request.priority,
                "host": waiter.request.host,
                "since": waiter.since,
                "overtaken": waiter.overtaken,
                "waits_for": waiter.waits_for,
            }
            for waiter in sorted(pool.queue, key=lambda waiter: waiter.arrival)
        ],
    }


def _free_gb(pool: Pool, host: Host) -> float | None:
    """As it was measured, or as much as is left of what the host's worker may give."""
    free, most = host.facts.free_gb, host.facts.max_gb
    if most is None:
        return free
    there = pool.instances.on(host.name)
    left = max(0.0, most - sum(pool.definition(i.key).needed_gb for i in there))
    return left if free is None else min(free, left)


def _task_of(pool: Pool, request_id: str | None) -> str | None:
    """The workflow id of the task that has a lease, or is about to have it."""
    lease = pool.leases.get(request_id) if request_id else None
    return lease.request.holder.workflow_id if lease else None
