"""A worker to be killed: does one thing to an instance and says what came of it.

Usage: python -m tests.activities.process_worker start|watch|stop FOLDER < call as JSON
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

from activities.process import ProcessBackend
from activities.secrets import WorkerEnvironment
from perdure.pool_messages import InstanceCall


async def main(what: str, folder: str) -> None:
    call = InstanceCall(**json.loads(sys.stdin.read()))
    backend = ProcessBackend(WorkerEnvironment(), orphan_after_seconds=600)
    if what == "start":
        here = Path(folder)
        here.mkdir(parents=True, exist_ok=True)
        result = await backend.start(call, here, heartbeat=lambda note: print(note, flush=True))
    else:
        print(what, flush=True)
        result = await getattr(backend, what)(call, Path(folder))
    print(json.dumps(dataclasses.asdict(result)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
