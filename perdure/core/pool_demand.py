"""What is going to be needed: what suites have declared, beside the requests that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
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
    those with many instances to use again; so this is what will be in use soon.
    """

    def __init__(
        self,
        waiting: Iterable[Waiter],
        demands: Iterable[Demand],
        max_parallel: Mapping[str, int | None],
    ) -> None:
        self.by_key: Counter[str] = Counter()
        """Tasks that need an instance with this key."""
        self.at_a_time: Counter[str] = Counter()
        """Instances with this key that are worth having up."""
        suites: dict[str, list[Waiter]] = {}
        for waiter in waiting:
            self.by_key.update(definition.key for definition in waiter.request.environments)
            suites.setdefault(waiter.request.suite, []).append(waiter)
        for demand in demands:
            for some in demand.coming:
                for definition in some.environments:
                    self.by_key[definition.key] += some.count
        for suite, waiters in suites.items():
            for waiter in sorted(waiters, key=_when_warm)[: max_parallel.get(suite)]:
                self.at_a_time.update(d.key for d in waiter.request.environments)


def _when_warm(waiter: Waiter) -> tuple[int, int, int]:
    return waiter.rank, -len(waiter.request.environments), waiter.arrival
