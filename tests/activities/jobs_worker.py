"""A worker of jobs to be killed.

Usage: python -m tests.activities.jobs_worker ADDRESS QUEUE FOLDER [INSTANCES]

INSTANCES: the folder of compose instances in which jobs may run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from temporalio.client import Client

from activities.backend import Backends
from activities.compose import ComposeBackend
from activities.secrets import WorkerEnvironment
from perdure.config import Settings
from perdure.storage import data_converter
from tests.activities.jobs_kit import JobsKit, environment


async def main(address: str, queue: str, folder: str, instances: str | None = None) -> None:
    settings = Settings.from_env({"PERDURE_STATE_DIR": folder})
    client = await Client.connect(address, data_converter=data_converter(settings))
    kit = JobsKit(client, Path(folder), environment(), queue=queue)
    if instances is not None:
        kit.environment = WorkerEnvironment(dict(os.environ))
        backend = ComposeBackend(kit.environment, None)
        kit.backends = Backends(backend, backend, Path(instances))
    async with kit.worker():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
