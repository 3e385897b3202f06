"""How patient a pool is."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.pool_requests import OVERTAKES_PER_LEASE

RULES = 2
"""The newest version of the rules that a pool keeps from its beginning to its end."""


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
    unheard_seconds: float = 15.0
    """So long it waits for one that has more memory in all: a host that is up is heard of by then.
    A request for which one host alone will do is refused at once."""
    starts_early: bool = True
    """Instances are started for tasks that a suite has only declared, too, and half as many more
    than are in use at a time. False: pools of the first version, which go on as they began."""
    rules: int = RULES
    """1: who needs more memory than there is anywhere waits for `unplaceable_seconds`, too; who
    lacks room on a host is overtaken by those alone that want the same environments; and for one
    that is due nothing is stopped before all that it lacks can be had at once."""
    overtakes_per_lease: int = OVERTAKES_PER_LEASE
    """See `perdure.core.pool_requests`."""

    @property
    def patiences(self) -> tuple[float, ...]:
        """After so many seconds each it is looked at again whether a request has any prospect."""
        if self.rules < 2:
            return (self.unplaceable_seconds,)
        return self.unheard_seconds, self.unplaceable_seconds

    def patience(self, *, is_lasting: bool, is_bound: bool) -> float:
        """How long a request waits that no host could hold. `is_lasting`: nor ever will, unless
        another one joins; `is_bound`: and another one would not do."""
        if self.rules < 2 or not is_lasting:
            return self.unplaceable_seconds
        return 0.0 if is_bound else self.unheard_seconds
