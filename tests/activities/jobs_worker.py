"""A worker of jobs to be killed.

Usage: python -m tests.activities.jobs_worker ADDRESS QUEUE FOLDER
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client

from perdure.config import Settings
from perdure.storage import data_converter
from tests.activities.jobs_kit import JobsKit, environment


async def main(address: str, queue: str, folder: str) -> None:
    settings = Settings.from_env({"PERDURE_STATE_DIR": folder})
    client = await Client.connect(address, data_converter=data_converter(settings))
    async with JobsKit(client, Path(folder), environment(), queue=queue).worker():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
