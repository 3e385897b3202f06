"""What tasks and suites send to a pool, in the pool's own terms."""

from __future__ import annotations

from typing import Any

from perdure.core.pool_definitions import Definition
from perdure.core.pool_demand import Demand, EnvironmentSet
from perdure.core.pool_requests import Request
from perdure.pool_messages import LeaseRequest, SetDemand


class BadWords(ValueError):
    """A message that makes no sense; its text says why. It must not stop the pool."""


def request_of(message: LeaseRequest) -> Request:
    """What is asked for. Raises BadWords."""
    return Request(
        request_id=message.request_id,
        holder=message.holder,
        environments=tuple(_definition(value) for value in message.environments),
        suite=message.suite,
        max_parallel=message.max_parallel,
        priority=message.priority,
        host=message.host,
        index=message.index,
    )


def demand_of(message: SetDemand) -> Demand:
    """What a suite is going to need. Raises BadWords."""
    known = {name: _definition(value) for name, value in message.environments.items()}
    if unknown := {n for some in message.coming for n in some.environments} - known.keys():
        raise BadWords(f"tasks of unknown environments are declared: {', '.join(sorted(unknown))}")
    return Demand(
        suite=message.suite,
        holder=message.holder,
        max_parallel=message.max_parallel,
        coming=tuple(
            EnvironmentSet(tuple(known[name] for name in some.environments), some.count)
            for some in message.coming
            if some.count > 0
        ),
        keep_envs=message.keep_envs,
        environments=tuple(known.values()),
        prioritised=tuple(message.prioritised),
    )


def _definition(value: dict[str, Any]) -> Definition:
    try:
        return Definition.from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadWords(f"a definition of an environment cannot be read: {error!r}") from None
