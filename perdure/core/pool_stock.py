"""What is to be kept in stock, whether anybody waits for it or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from perdure.core.pool_definitions import Definition

FAILURES_AHEAD = 2
"""After so many failures in a row of instances that no request wanted, none is started any more
before one is asked for: then somebody hears why."""


class Stock:
    """The newest definitions, and of which of them instances stay."""

    def __init__(self) -> None:
        self.newest: dict[str, str] = {}
        """By environment: the key that was told last."""
        self.standing: dict[str, int] = {}
        """By key: how many are to be ready, needed or not."""
        self.kept: dict[str, None] = {}
        """Keys of which nothing is stopped that might be of use: `keep_envs`."""
        self._failures: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        """By key: why the last of so many failed in a row."""

    def learn(self, definition: Definition) -> None:
        """This is what its environment is from now on: older ones are not kept any longer."""
        older = self.newest.get(definition.name)
        if older is not None and older != definition.key:
            self.forget([older])
        self.newest[definition.name] = definition.key

    def want(self, key: str, count: int) -> None:
        """Have so many ready from now on, needed or not. Failures so far are forgotten: whoever
        asks may have mended what was wrong."""
        self.standing.pop(key, None)
        self.succeed(key)
        if count > 0:
            self.standing[key] = count

    def forget(self, keys: Iterable[str]) -> None:
        """Keep nothing of these."""
        for key in keys:
            self.standing.pop(key, None)
            self.kept.pop(key, None)

    def fail(self, key: str, reason: str) -> None:
        """An instance failed that no request wanted."""
        self._failures[key] += 1
        self.reasons[key] = reason

    def succeed(self, key: str) -> None:
        """An instance came up."""
        self._failures.pop(key, None)
        self.reasons.pop(key, None)

    def failures(self) -> list[tuple[str, int, str]]:
        """What failed in a row that no request wanted: key, how often, and why the last time."""
        return [(key, count, self.reasons[key]) for key, count in self._failures.items()]

    def hopeless(self) -> set[str]:
        """Keys of which nothing is started before it is asked for."""
        return {key for key, count in self._failures.items() if count >= FAILURES_AHEAD}

    def is_outdated(self, definition: Definition) -> bool:
        """Whether its environment has become another."""
        return self.newest.get(definition.name, definition.key) != definition.key

    def state(self) -> dict[str, Any]:
        """As JSON, for `from_state`."""
        return {
            "newest": dict(self.newest),
            "standing": dict(self.standing),
            "kept": list(self.kept),
            "failures": dict(self._failures),
            "reasons": dict(self.reasons),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Stock:
        """The inverse of `state`."""
        stock = cls()
        stock.newest = dict(state["newest"])
        stock.standing = dict(state["standing"])
        stock.kept = dict.fromkeys(state["kept"])
        stock._failures = Counter(state["failures"])
        stock.reasons = dict(state["reasons"])
        return stock
