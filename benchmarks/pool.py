"""How well the pool uses its instances.

    python benchmarks/pool.py [--only W2] [--repeat 1] [--rounds 3]

The workloads of `workloads/` run on real process environments whose starts, resets and tasks are
sleeps. Printed: the time of the whole suite, its ratio to the lower bound that nobody can beat
(each file says how it is computed), and what the instances' own log says of the limits. Goal: a
ratio of 1.2 at most, and limits kept.

Then, with `--only cycles` alone: what a lease costs, against an entity workflow written by hand
with the same number of messages (`pool_cycles.py`). Goal: a ratio of 1.5 at most.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pool_cycles
from ground import ground, measured
from pool_makespan import GOAL, WARM_UP, makespan, workloads


async def run_workloads(only: str, repeat: int) -> bool:
    """Measure and print; True if all goals are reached."""
    reached = True
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        for number in range(repeat):
            for load in workloads():
                if only not in load.name:
                    continue
                place = Path(folder) / str(number)
                place.mkdir(exist_ok=True)
                async with ground() as here:
                    await makespan(here, WARM_UP, place)
                    measured = await makespan(here, load, place)
                print(measured.line(), flush=True)
                reached &= measured.ratio <= GOAL and not measured.faults
    return reached


async def main() -> bool:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="of the cycles")
    arguments = parser.parse_args()
    reached = await run_workloads(arguments.only, arguments.repeat)
    if arguments.only in "cycles":
        async with ground() as here:
            reached &= await pool_cycles.compare(here, arguments.rounds)
    print("goals reached" if reached else "GOALS NOT REACHED")
    return reached


if __name__ == "__main__":
    sys.exit(0 if measured(main) else 1)
