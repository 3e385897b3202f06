"""What handles of suites and tasks share: a client, files of results, what keeps both useful."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client

from perdure.embedded import Embedded
from perdure.jobs import JobsApi

T = TypeVar("T")


@dataclass(frozen=True)
class Link:
    """One connection."""

    client: Client
    results: Path
    """Where results lie if a suite does not say."""
    embedded: Embedded | None
    """None: a team's server, whose workers are others' concern."""

    @cached_property
    def jobs(self) -> JobsApi:
        """The background jobs of its server."""
        return JobsApi(self.client, self.results)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work; but raise at once if what it depends on cannot be kept alive."""
        return await (self.embedded.guard(work) if self.embedded else work)

    def results_of(self, results_dir: str | None) -> Path:
        """Where a suite's results lie."""
        return Path(results_dir) if results_dir else self.results
