"""How patient a pool is."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.pool_requests import OVERTAKES_PER_LEASE


@dataclass(frozen=True)
class PoolOptions:
    """What people may set, and tests."""

    host_away_seconds: float = 15.0
    """A host so long silent gets nothing new."""
    host_gone_seconds: float = 45.0
    """One so long silent is gone, if another host is there."""
    fresh_seconds: float = 2.0
    """An instance that came up or was reset so long ago need not be looked at before a grant: it
    was healthy then."""
    unplaceable_seconds: float = 300.0
    """A request that no host could hold even if it were empty waits so long for a better one."""
    starts_early: bool = True
    """Instances are started for tasks that a suite has only declared, too, and half as many more
    than are in use at a time. False: pools of the first version, which go on as they began."""
    overtakes_per_lease: int = OVERTAKES_PER_LEASE
    """See `perdure.core.pool_requests`."""
