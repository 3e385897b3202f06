"""The step of the soak, which works by a chance that is drawn anew for each attempt; and a worker
that runs it until it is killed.

    python benchmarks/soak_steps.py ADDRESS STATE_DIR QUEUE SEED

Lines in `<STATE_DIR>/ledger` tell what has happened to the world, one each; when the worker serves,
it makes the file `<STATE_DIR>/serves`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from perdure.config import Settings
from perdure.connection import connect
from perdure.steps import StepFailed, step
from worker import WorkerOptions, serving

LEDGER, SERVES = "ledger", "serves"

_ledger = Path()
_seed = ""


def token(step_id: str, attempt: int) -> str:
    """What an attempt writes, wherever it writes."""
    return f"{step_id}.{attempt}"


def fails(seed: str, task: str, step: dict[str, Any], attempt: int) -> bool:
    """Whether the attempt is one that fails."""
    draw = random.Random(f"{seed} {task} {step['id']} {attempt}")
    return draw.random() < float(step["failure"])


def writes(seed: str, task: str, step_id: str, attempt: int) -> bool:
    """Whether it writes before it fails."""
    return random.Random(f"{seed} {task} {step_id} {attempt} w").random() < 0.5


def _note(what: str, host: Any, step: dict[str, Any]) -> None:
    line = f"{what} {host.task_id} {token(step['id'], host.attempt)}\n".encode()
    file = os.open(_ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _call(host: Any, path: str, method: str, body: bytes | None = None) -> list[str] | None:
    """Do something with the task's environment; what it holds then, None if it knows no such
    item."""
    address = f"http://127.0.0.1:{host.ports['WORLD_PORT']}{path}"
    request = urllib.request.Request(address, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            items: list[str] = json.load(answer)["items"]
            return items
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def undo(step: dict[str, Any], context: Any, host: Any) -> None:
    """Takes a while, and does not always succeed at once."""
    _note("undo", host, step)
    if step["cleans"]:
        _call(host, f"/items/{token(step['id'], host.attempt)}", "DELETE")
    time.sleep(random.random() * 0.2)
    if random.random() < 0.05:
        raise StepFailed("try again")
    _note("undone", host, step)


@step("soak", keys={"failure", "seconds", "below", "cleans"}, undo=undo)
def soak(step: dict[str, Any], context: Any, host: Any) -> dict[str, Any]:
    """Takes its time, writes its token in several places, and then may fail."""
    _note("do", host, step)
    for other in [step["id"], *step["below"]]:
        if other in context.metadata.get("shared", {}):
            _note(f"saw-{other}", host, step)
    world = None
    if step["uses"]:
        item = {"text": token(step["id"], host.attempt)}
        world = _call(host, "/items", "POST", json.dumps(item).encode())
    time.sleep(step["seconds"])
    mine, failing = token(step["id"], host.attempt), fails(_seed, host.task_id, step, host.attempt)
    if not failing or writes(_seed, host.task_id, step["id"], host.attempt):
        context.prompt_responses.append(mine)
        context.deployed_sandboxes.append({"sandbox_id": mine, "sandbox_type": "vm"})
        context.metadata.setdefault("shared", {})[step["id"]] = [mine]
        context.metadata["last"] = mine
    if failing:
        raise StepFailed(f"error of {mine}")
    _note("done", host, step)
    return {"token": mine, "world": world}


async def main(address: str, state: str, queue: str, seed: str) -> None:
    """Serve until somebody ends the process."""
    global _ledger, _seed
    _ledger, _seed = Path(state) / LEDGER, seed
    settings = Settings.from_env({"PERDURE_STATE_DIR": state})
    client = await connect(settings, address=address)
    here = Path(state)
    async with serving(
        client, WorkerOptions(queue, "soak", runs=here / "runs", results=here / "results")
    ):
        (here / SERVES).touch()
        await asyncio.Event().wait()


if __name__ == "__main__":
    # Once only: as a module of this name, too, its step type would be registered twice.
    asyncio.run(main(*sys.argv[1:]))
