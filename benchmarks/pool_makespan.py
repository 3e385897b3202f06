"""Runs the workloads of `workloads/` on a real pool of process environments."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ground import Ground
from workloads import FOLDER, Kept, Workload, judged

from perdure.core.environments import Environment, Memory, Port, Process, Ready, ResetEndpoint
from perdure.core.pool_definitions import Definition
from perdure.messages import PoolUse, SuiteInput, SuiteResult, SuiteTask, TaskOptions
from perdure.names import suite_workflow_id
from perdure.steps import step

GOAL = 1.2
_SERVER = Path(__file__).with_name("slow_server.py")
_PORTS = {"W1_small": 21000, "W2_reset_heavy": 22000, "W3_contention": 23000}
_GONE_SECONDS = 30.0


@step("use_all", keys={"seconds"}, on_loop=True)
async def use_all(step: dict[str, Any], context: Any, host: Any) -> None:
    """Uses every instance of the task for some seconds, at the same time."""
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=60) as client:

        async def use(port: int) -> None:
            where = f"http://127.0.0.1:{port}/use/{host.task_id}/{step['seconds']}"
            (await client.get(where)).raise_for_status()

        await asyncio.gather(*map(use, host.ports.values()))


@dataclass(frozen=True)
class Makespan:
    """A workload that was run."""

    load: Workload
    seconds: float
    result: SuiteResult
    kept: Kept

    @property
    def ratio(self) -> float:
        """Over the lower bound."""
        return self.seconds / self.load.bound_seconds

    @property
    def faults(self) -> list[str]:
        """Of the instances, and tasks that failed."""
        failed = self.result.failed
        return [*self.kept.faults, *([f"{failed} tasks failed"] if failed else [])]

    def line(self) -> str:
        """For people."""
        alive = ", ".join(f"{name} {most}" for name, most in sorted(self.kept.most_alive.items()))
        limits = "limits kept" if not self.faults else f"FAULTS: {'; '.join(self.faults)}"
        return (
            f"{self.load.name:15} {self.seconds:6.2f} s, bound {self.load.bound_seconds:5.2f} s, "
            f"ratio {self.ratio:.3f}  ({self.kept.starts} starts, {self.kept.resets} resets, "
            f"{self.kept.most_in_use} tasks at a time, alive: {alive}; {limits})"
        )


WARM_UP = Workload(
    "warm-up",
    max_parallel=1,
    envs={"warm": {"start_s": 0, "reset_s": 0, "stop_s": 0, "max_instances": 1,
                   "disable_reuse": False}},
    tasks=[{"id": "t", "envs": ["warm"], "seconds": 0}],
    bound_seconds=0.1,
)  # fmt: skip
"""Has server, worker and client load what they load only once."""


def workloads() -> list[Workload]:
    """All of them."""
    return [Workload.read(path) for path in sorted(FOLDER.glob("*.json"))]


async def makespan(here: Ground, load: Workload, folder: Path) -> Makespan:
    """Run one workload on a pool of its own, from cold to clean."""
    log = folder / f"{load.name}.log"
    log.touch()
    definitions = _definitions(load, log)
    suite = f"{load.name}-{uuid.uuid4().hex[:6]}"
    tasks = [
        {
            "id": task["id"],
            "environments": task["envs"],
            "steps": [{"id": "use", "type": "use_all", "seconds": task["seconds"]}],
        }
        for task in load.tasks
    ]
    began = time.monotonic()
    result = await here.client.execute_workflow(
        "SuiteWorkflow",
        SuiteInput(
            suite,
            [SuiteTask(task, "") for task in tasks],
            max_parallel=load.max_parallel,
            options=TaskOptions(),
            pool=PoolUse(pool=suite, max_parallel=load.max_parallel, local_words=True),
            environments={name: made.to_json() for name, made in definitions.items()},
        ),
        id=suite_workflow_id(suite),
        task_queue=here.queue,
        result_type=SuiteResult,
    )
    seconds = time.monotonic() - began
    await _until_gone(log)
    return Makespan(load, seconds, result, judged(load, log.read_text().splitlines()))


def _definitions(load: Workload, log: Path) -> dict[str, Definition]:
    first = _PORTS.get(load.name, 24000)
    found: dict[str, Definition] = {}
    for index, (name, env) in enumerate(load.envs.items()):
        variable = f"{name.upper()}_PORT"
        seconds = [str(env[key]) for key in ("start_s", "reset_s", "stop_s")]
        command = (
            sys.executable,
            "-IS",
            str(_SERVER),
            f"${{{variable}}}",
            name,
            *seconds,
            str(log),
        )
        environment = Environment(
            name,
            process=Process(
                command, None, Ready(http=f"http://127.0.0.1:${{{variable}}}/", timeout_seconds=60)
            ),
            max_instances=env["max_instances"],
            ports={variable: Port(first + index)},
            reset_endpoints=(ResetEndpoint("r", f"http://127.0.0.1:${{{variable}}}/reset"),),
            disable_reuse=env["disable_reuse"],
        )
        memory = Memory(required_gb=0.0, reserve_gb=0.0)
        found[name] = Definition(environment, load.name, str(log.parent), memory)
    return found


async def _until_gone(log: Path) -> None:
    """Wait until the pool has stopped what nobody needs any more."""
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        text = log.read_text()
        if text.count('"gone"') == text.count('"start"'):
            return
        await asyncio.sleep(0.1)
