"""A worker to be killed: serves a queue until then.

Usage: python -m tests.rollback_worker ADDRESS QUEUE FOLDER
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client

from perdure.config import Settings
from perdure.storage import data_converter
from worker import WorkerOptions, serving


async def main(address: str, queue: str, folder: str) -> None:
    here = Path(folder)
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(here / "state")})
    client = await Client.connect(address, data_converter=data_converter(settings))
    options = WorkerOptions(queue, "here", runs=here / "runs", results=here / "results")
    async with serving(client, options):
        print("serving", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
