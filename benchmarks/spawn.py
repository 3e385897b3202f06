"""What a process costs more under the supervisor than by a bare Popen.

`python benchmarks/spawn.py [RUNS]` starts `true` in turn by both ways, from one process, with
stdout and stderr going to files either way, and prints the medians, their difference and ratio.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from activities.supervise import ProcessSpec, Supervisor

GOAL_MS = 15.0
WARM_UP_RUNS = 5


def bare(folder: Path) -> None:
    """Run `true` as a program without a supervisor would."""
    with (folder / "out").open("wb") as stdout, (folder / "err").open("wb") as stderr:
        subprocess.run(
            ["true"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            check=True,
        )


async def measure(runs: int, folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds of each run: by Popen, and under the supervisor."""
    supervisor = await Supervisor.start()
    popen: list[float] = []
    supervised: list[float] = []
    for number in range(runs + WARM_UP_RUNS):
        spec = ProcessSpec(
            key=f"benchmark/{number}",
            argv=["true"],
            cwd=folder,
            env=dict(os.environ),
            stdin=None,
            stdout=folder / "out",
            stderr=folder / "err",
            exit_file=folder / "exit",
        )
        start = time.perf_counter()
        bare(folder)
        between = time.perf_counter()
        await supervisor.run(spec)
        end = time.perf_counter()
        if number >= WARM_UP_RUNS:
            popen.append((between - start) * 1000)
            supervised.append((end - between) * 1000)
    await supervisor.close()
    return popen, supervised


def main(runs: int = 200) -> None:
    """Measure and print; exit with 1 if the goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        popen, supervised = asyncio.run(measure(runs, Path(folder)))
    a, b = statistics.median(popen), statistics.median(supervised)
    print(f"Popen {a:.2f} ms, supervisor {b:.2f} ms (medians of {runs} alternating runs)")
    print(f"difference {b - a:.2f} ms (goal {GOAL_MS:g}), ratio {b / a:.2f}")
    if b - a > GOAL_MS:
        sys.exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
