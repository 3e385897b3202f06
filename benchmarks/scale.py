"""What a task of a large suite costs, against one of a small suite.

    python benchmarks/scale.py [--small 100] [--large 2000] [--parallel 100]

Suites of two-step tasks, one after another on one server: `small`, `large`, and `large` again with
every task failing after 100 kB of output. Goals: the cost of a task grows by 1.2 at most; no
history has more than 5,000 events or 10 MB.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from ground import Ground, ground, measured


@dataclass(frozen=True)
class Measured:
    """One suite."""

    name: str
    tasks: int
    seconds: float
    most_events: int
    most_bytes: int
    runs_of_suite: int

    @property
    def per_task_ms(self) -> float:
        """Wall time a task."""
        return self.seconds / self.tasks * 1000

    def line(self) -> str:
        """For people."""
        return (
            f"{self.name:22} {self.tasks:5} tasks  {self.seconds:7.1f} s  "
            f"{self.per_task_ms:6.1f} ms a task  longest history {self.most_events} events, "
            f"{self.most_bytes / 1e6:.2f} MB, suite in {self.runs_of_suite} runs"
        )


def two_steps(number: int, body: dict[str, Any]) -> dict[str, Any]:
    """A task of two steps."""
    return {"id": f"t{number}", "steps": [{"id": "first", "type": "noop"}, {"id": "last", **body}]}


async def measure(
    here: Ground, name: str, count: int, body: dict[str, Any], parallel: int
) -> Measured:
    """Run a suite of `count` tasks, then look at every history."""
    began = time.perf_counter()
    suite, result = await here.run_suite([two_steps(n, body) for n in range(count)], parallel)
    seconds = time.perf_counter() - began
    assert result.succeeded + result.failed == count, result
    own = await here.sizes(f"suite/{suite}")
    sizes = [*own, *await here.suite_sizes(suite, [f"t{n}" for n in range(0, count, 10)])]
    return Measured(
        name,
        count,
        seconds,
        max(events for events, _ in sizes),
        max(size for _, size in sizes),
        len(own),
    )


async def main() -> None:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", type=int, default=100)
    parser.add_argument("--large", type=int, default=2000)
    parser.add_argument("--parallel", type=int, default=100)
    arguments = parser.parse_args()
    noop = {"type": "noop"}
    noise = "head -c 100000 /dev/zero | tr '\\0' x; exit 1"
    fails = {"type": "command", "command": noise}
    async with ground() as here:
        await measure(here, "warm-up", arguments.small, noop, arguments.parallel)
        small = await measure(here, "small", arguments.small, noop, arguments.parallel)
        print(small.line(), flush=True)
        large = await measure(here, "large", arguments.large, noop, arguments.parallel)
        print(large.line(), flush=True)
        failing = await measure(here, "large, all fail", arguments.large, fails, arguments.parallel)
        print(failing.line(), flush=True)
        worker, server = here.peak_memory_mb()
    print(
        f"ratio of the cost of a task, large to small: {large.per_task_ms / small.per_task_ms:.3f}"
    )
    print(f"memory: client and worker {worker:.0f} MB at most, server {server:.0f} MB at the end")


if __name__ == "__main__":
    measured(main)
