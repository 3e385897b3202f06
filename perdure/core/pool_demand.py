"""What is going to be needed: what suites have declared, beside the requests that wait."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from perdure.core.pool_definitions import Definition
from perdure.core.pool_requests import Waiter
from perdure.messages import Holder


@dataclass(frozen=True)
class EnvironmentSet:
    """Tasks that have not asked yet and will ask for the same environments."""

    environments: tuple[Definition, ...]
    count: int


@dataclass(frozen=True)
class Demand:
    """What a suite says of itself. A later one of the same suite replaces it."""

    suite: str
    holder: Holder
    """The suite's workflow: when it is closed, its demand is gone."""
    max_parallel: int | None = None
    coming: tuple[EnvironmentSet, ...] = ()
    """Beside its requests that wait or have leases."""
    keep_envs: bool = False
    """True: instances of its environments stay when nobody needs them."""
    environments: tuple[Definition, ...] = ()
    """All that its tasks use; `keep_envs` and `prewarm` speak of them."""
    prioritised: tuple[str, ...] = ()
    """Workflow ids of holders that people want served before all others, the last one first."""

    def without(self, environments: Sequence[Definition]) -> Demand:
        """The same after one of the tasks that were to come has asked for its environments."""
        keys = {definition.key for definition in environments}
        for position, some in enumerate(self.coming):
            if some.count and {definition.key for definition in some.environments} == keys:
                fewer = replace(some, count=some.count - 1)
                coming = (*self.coming[:position], fewer, *self.coming[position + 1 :])
                return replace(self, coming=coming)
        return self

    def definitions(self) -> Iterator[Definition]:
        """All that it speaks of; some may come twice."""
        for some in self.coming:
            yield from some.environments
        yield from self.environments

    def to_json(self) -> dict[str, Any]:
        """As JSON: each definition is told by its key alone."""
        return {
            "suite": self.suite,
            "holder": asdict(self.holder),
            "max_parallel": self.max_parallel,
            "keep_envs": self.keep_envs,
            "coming": [
                {"environments": [d.key for d in some.environments], "count": some.count}
                for some in self.coming
            ],
            "environments": [definition.key for definition in self.environments],
            "prioritised": list(self.prioritised),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], definitions: dict[str, Definition]) -> Demand:
        """The inverse of `to_json`."""

        def named(keys: Iterable[str]) -> tuple[Definition, ...]:
            return tuple(definitions[key] for key in keys)

        coming = [
            EnvironmentSet(named(some["environments"]), some["count"]) for some in value["coming"]
        ]
        return cls(
            value["suite"],
            Holder(**value["holder"]),
            value["max_parallel"],
            tuple(coming),
            value["keep_envs"],
            named(value["environments"]),
            tuple(value["prioritised"]),
        )


class Need:
    """How many instances of each definition are still needed by tasks without a lease.

    Some are worth starting before their turn comes: all that a suite's next tasks would use at a
    time, were every instance there already. The order in which tasks get their leases prefers
    those with many instances to use again; so this is what will be in use soon. Tasks that have
    asked come before those that are only declared.

    While some of them are in use others are being reset. So half as many more are worth having up,
    as long as there are tasks for them: else a task that could begin would wait for a reset.
    """

    def __init__(
        self,
        waiting: Iterable[Waiter],
        demands: Iterable[Demand],
        max_parallel: Mapping[str, int | None],
        *,
        early: bool = True,
    ) -> None:
        """`early`: what is only declared is worth starting, too, and so are the half as many more;
        pools of the first version had neither."""
        self.by_key: Counter[str] = Counter()
        """Tasks that need an instance with this key."""
        self.at_a_time: Counter[str] = Counter()
        """Instances with this key that are worth having up."""
        suites: dict[str, list[Waiter]] = {}
        declared: dict[str, tuple[EnvironmentSet, ...]] = {}
        pausing: set[str] = set()
        """Keys of what cannot be used again at once."""
        for waiter in waiting:
            self.by_key.update(definition.key for definition in waiter.request.environments)
            pausing.update(d.key for d in waiter.request.environments if _pauses(d))
            suites.setdefault(waiter.request.suite, []).append(waiter)
        for demand in demands:
            for some in demand.coming:
                for definition in some.environments:
                    self.by_key[definition.key] += some.count
                pausing.update(d.key for d in some.environments if _pauses(d))
            declared[demand.suite] = demand.coming
        for suite, waiters in suites.items():
            for waiter in sorted(waiters, key=_when_warm)[: max_parallel.get(suite)]:
                self.at_a_time.update(d.key for d in waiter.request.environments)
        if not early:
            return
        for suite, sets in declared.items():
            limit, asked = max_parallel.get(suite), len(suites.get(suite, ()))
            self._add_declared(sets, math.inf if limit is None else limit - asked)
        for key in pausing:
            self.at_a_time[key] += self.at_a_time[key] // 2

    def _add_declared(self, sets: Iterable[EnvironmentSet], slots: float) -> None:
        """What a suite's declared tasks would use in so many slots."""
        for some in sorted(sets, key=lambda some: -len(some.environments)):
            count = max(0, min(slots, some.count))
            slots -= count
            for definition in some.environments:
                self.at_a_time[definition.key] += int(count)


def _pauses(definition: Definition) -> bool:
    """Whether an instance is reset, or replaced, before its next use."""
    return definition.is_resettable or definition.environment.disable_reuse


def _when_warm(waiter: Waiter) -> tuple[int, int, int]:
    return waiter.rank, -len(waiter.request.environments), waiter.arrival
