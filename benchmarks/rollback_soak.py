"""Rollbacks by chance on a real server, whose workers are killed all the time.

    python benchmarks/rollback_soak.py [--seconds 200] [--seed N] [--tasks 8]

Tasks of random graphs run beside each other; their steps fail by chance, some with a rollback as
the answer, and some tasks are cancelled. Some use an environment of a pool. What came of each is
judged by rules that know nothing of how a rollback is made, from the task's record and from what
its steps have written to a ledger:

- the final context is that of the attempts that count, made one after another, and what the last
  step finds in the environment is theirs alone;
- no attempt saw what it, or a step that depends on it, had written before;
- each attempt that was taken back was undone at least once, after its last word;
- no step that had succeeded ran again without a rollback that took it back;
- attempts are undone in the reverse order of their ends, and what was planned is done.

`tests/core/test_rollback_model.py` shows the same of the rules alone, by thousands of cases.
The seed is printed; it draws the tasks, not the moments of the kills.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from soak_judge import judge
from soak_steps import LEDGER, SERVES
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from perdure.config import Settings
from perdure.connection import connect
from perdure.core.environments import Environment, Memory, Port, Process, Ready, ResetEndpoint
from perdure.core.pool_definitions import Definition
from perdure.history import record_of
from perdure.messages import PoolUse, TaskInput, TrialSummary
from perdure.names import task_workflow_id
from perdure.server import embedded_server

QUEUE, SUITE, WORLD = "soak", "soak", "world"
PATIENCE_SECONDS = 300.0
"""For the tasks that are left when no worker is killed any more."""

STATUSES = ("succeeded", "failed", "cancelled")
COUNTED = (
    *("kills", "attempts", "attempts lost", "outcomes adopted"),
    *("restarts", "rollbacks", "with a reset", "compensations", "tries of compensations"),
)

Handle = WorkflowHandle[Any, TrialSummary]


def random_task(chance: random.Random, id: str) -> dict[str, Any]:
    """A document of up to 30 steps."""
    steps: list[dict[str, Any]] = []
    above: dict[str, set[str]] = {}
    for number in range(chance.randint(1, 30)):
        name = f"s{number}"
        nearest = [step["id"] for step in steps][-6:]
        chosen = chance.sample(nearest, chance.randint(0, min(2, len(nearest))))
        above[name] = set(chosen).union(*(above[other] for other in chosen))
        step: dict[str, Any] = {
            "id": name,
            "type": "soak",
            "depends_on": [{"task_step_id": other} for other in sorted(chosen)],
            "failure": chance.choice([0, 0.1, 0.3]),
            "seconds": chance.choice([0, 0.05, 0.5]),
            "fail_task_on_error": chance.random() < 0.1,
        }
        if chance.random() < 0.5:
            step["retry_config"] = {
                "retry_from_step_id": chance.choice([name, *sorted(above[name])]),
                "max_retries": chance.randint(1, 3),
                "delay": chance.choice([0, 0, 0.5]),
            }
        if chance.random() < 0.2:
            step["retry"] = {"max_attempts": 2, "initial_interval": 0.2}
        steps.append(step)
    document = {"id": id, "steps": steps, "max_rollbacks": chance.choice([1, 3, 20, 20])}
    if chance.random() < 0.3:
        document["environments"] = [WORLD]
        needs = [{"task_step_id": name} for name in above]
        above["end"] = set(above)
        steps.append({"id": "end", "type": "soak", "failure": 0, "seconds": 0, "depends_on": needs})
    how = chance.choice(["reset", "reset", "keep"])
    for step in steps:
        step["below"] = [name for name, others in above.items() if step["id"] in others]
        has_part = "environments" in document and (step["id"] == "end" or chance.random() < 0.4)
        # Where the environment is not reset, undoing a step cleans up after it.
        step |= {"uses": [WORLD] if has_part else [], "cleans": has_part and how == "keep"}
        step |= {"heartbeat_timeout": 1, "max_worker_losses": 1000}
        if "retry_config" in step:
            step["retry_config"]["environments"] = how
    return document


def world(state: Path) -> Definition:
    """An environment of which each use is seen: a list, kept by a process."""
    server = Path(__file__).parent.parent / "examples" / "environments" / "server.py"
    address = "http://127.0.0.1:${WORLD_PORT}"
    environment = Environment(
        WORLD,
        # The last argument is there to find the process by.
        process=Process(
            (sys.executable, "-IS", str(server), WORLD, "${WORLD_PORT}", str(state)),
            ready=Ready(http=f"{address}/items", timeout_seconds=60),
        ),
        max_instances=3,
        ports={"WORLD_PORT": Port(24200)},
        reset_endpoints=(ResetEndpoint("all", f"{address}/reset"),),
    )
    return Definition(environment, "1", str(state), Memory(required_gb=0.0, reserve_gb=0.0))


@dataclass
class Tally:
    """What has been seen so far."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, record: dict[str, Any], ledger: list[str]) -> None:
        """Take in a task that has ended."""
        attempts = [attempt for step in record["steps"] for attempt in step["attempts"]]
        self.counts[record["status"]] += 1
        self.counts["attempts"] += len(attempts)
        self.counts["attempts lost"] += sum(known["status"] == "lost" for known in attempts)
        self.counts["outcomes adopted"] += sum(known["adopted"] for known in attempts)
        self.counts["rollbacks"] += len(record["rollbacks"])
        self.counts["with a reset"] += sum(bool(r["environments"]) for r in record["rollbacks"])
        self.counts["restarts"] += len(record["leases_lost"])
        self.counts["compensations"] += sum(len(r["compensations"]) for r in record["rollbacks"])
        self.counts["tries of compensations"] += sum(x.startswith("undo ") for x in ledger)

    def line(self) -> str:
        """For people."""
        runs = sum(self.counts[status] for status in STATUSES)
        ends = ", ".join(f"{self.counts[status]} {status}" for status in STATUSES)
        told = ", ".join(f"{self.counts[what]} {what}" for what in COUNTED)
        return f"{runs} runs judged ({ends}), {told}; {len(self.faults)} faults"


# --- Running ----------------------------------------------------------------------------------


class Workers:
    """One worker after another."""

    def __init__(self, address: str, state: Path, seed: str) -> None:
        script = Path(__file__).with_name("soak_steps.py")
        self._command = [sys.executable, str(script), address, str(state), QUEUE, seed]
        self._log = (state / "worker.log").open("ab")
        self._serves = state / SERVES
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)

    @property
    def serves(self) -> bool:
        """Whether the newest has begun to."""
        return self._serves.exists()

    def kill(self) -> None:
        """End the worker as a crash does."""
        self._process.kill()
        self._process.wait()
        self._serves.unlink(missing_ok=True)

    def kill_and_start(self) -> None:
        """And have the next one."""
        self.kill()
        self._process = self._start()


async def one(
    client: Client, chance: random.Random, seed: str, number: int, state: Path, tally: Tally
) -> None:
    """Run a task to its end and judge it."""
    document = random_task(chance, f"t{number}")
    workflow_id = task_workflow_id(SUITE, document["id"], 1)
    pool = PoolUse("soak", local_words=True)
    handle: Handle = await client.start_workflow(
        "TaskWorkflow",
        TaskInput(document, SUITE, pool=pool, environments=[world(state).to_json()])
        if "environments" in document
        else TaskInput(document, SUITE),
        id=workflow_id,
        task_queue=QUEUE,
        result_type=TrialSummary,
    )
    after = chance.uniform(1, 15) if chance.random() < 0.1 else None
    ending = asyncio.ensure_future(handle.result())
    if after is not None and not (await asyncio.wait({ending}, timeout=after))[0]:
        await handle.cancel()
    with contextlib.suppress(WorkflowFailureError):
        await ending
    record = await record_of(client, workflow_id)
    lines = await asyncio.to_thread(_mine, state / LEDGER, document["id"])
    tally.count(record, lines)
    faults = judge(seed, document, record, lines)
    tally.faults += [f"{document['id']}: {fault}" for fault in faults]
    for fault in faults:
        print(f"FAULT {document['id']}: {fault}", flush=True)


def _mine(ledger: Path, task: str) -> list[str]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [line for line in lines if line.split(" ")[1] == task]


async def soak(seconds: float, seed: str, beside: int, state: Path) -> Tally:
    """Run tasks for so long; what came of them."""
    chance, tally = random.Random(seed), Tally()
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(state)})
    async with embedded_server(settings) as server:
        client = await connect(settings, address=server.address)
        workers = Workers(server.address, state, seed)
        until, number, said = time.monotonic() + seconds, 0, time.monotonic()
        next_kill: float | None = None
        running: set[asyncio.Task[None]] = set()
        try:
            while time.monotonic() < until:
                while len(running) < beside:
                    luck = random.Random(f"{seed} {number}")
                    work = one(client, luck, seed, number, state, tally)
                    running.add(asyncio.create_task(work))
                    number += 1
                done, running = await asyncio.wait(
                    running, timeout=0.2, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if next_kill is None and workers.serves:
                    next_kill = time.monotonic() + chance.uniform(0, 6)
                elif next_kill is not None and time.monotonic() > next_kill:
                    await asyncio.to_thread(workers.kill_and_start)
                    tally.counts["kills"] += 1
                    next_kill = None
                if time.monotonic() - said > 20:
                    said = time.monotonic()
                    print(f"  {tally.line()}", file=sys.stderr)
            done, left = await asyncio.wait(running, timeout=PATIENCE_SECONDS)
            for task in done:
                task.result()
            tally.faults += [f"{len(left)} tasks did not end"] if left else []
            for task in left:
                task.cancel()
        finally:
            await asyncio.to_thread(_end_world, state)
            workers.kill()
            await asyncio.to_thread(_end_world, state, 0)
    return tally


def _end_world(state: Path, patience_seconds: float = 20) -> None:
    """The pool stops what nobody needs; what is left when it should have is killed."""
    until = time.monotonic() + patience_seconds
    while left := [p for p in psutil.process_iter(["cmdline"]) if _is_of(p, state)]:
        if time.monotonic() > until:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return
        time.sleep(0.2)


def _is_of(process: psutil.Process, state: Path) -> bool:
    return str(state) in (process.info["cmdline"] or [])[-1:]


async def main() -> bool:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", default=str(random.randrange(2**32)))
    parser.add_argument("--tasks", type=int, default=8, help="at a time")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="perdure-soak-", ignore_cleanup_errors=True) as folder:
        tally = await soak(arguments.seconds, arguments.seed, arguments.tasks, Path(folder))
        print(f"seed {arguments.seed}: {tally.line()}")
    return not tally.faults


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
