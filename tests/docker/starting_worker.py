"""A worker's part of one call, in a process that a test kills: `starting_worker.py WHAT FILE`.

FILE holds the call as JSON. Its only output is `called` once compose is at work.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from activities.compose import ComposeBackend
from activities.docker_cli import DockerCli
from activities.secrets import WorkerEnvironment
from perdure.pool_messages import InstanceCall


async def main(what: str, file: Path) -> None:
    """Do what the worker does, as far as it comes."""
    given = json.loads(file.read_text())
    call, folder = InstanceCall(**given["call"]), Path(given["folder"])
    cli = DockerCli()
    backend = ComposeBackend(WorkerEnvironment(), cli)
    if what == "start":
        work = asyncio.create_task(backend.start(call, folder, heartbeat=print_flushed))
    elif what == "stop":
        work = asyncio.create_task(backend.stop(call, folder))
        print_flushed("stopping")
    else:
        work = asyncio.create_task(backend.exec(call, folder, "app", what, 60))
        print_flushed("executing")
    print(await work, flush=True)


def print_flushed(note: str) -> None:
    """Tell the test where it is."""
    print(note, flush=True)


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
