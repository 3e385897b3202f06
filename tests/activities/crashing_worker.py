"""A worker to be killed: runs one process and says what became of it.

Usage: python -m tests.activities.crashing_worker FOLDER KEY SCRIPT
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from activities.supervise import Supervisor
from tests.activities.living import sh, spec_of


async def main(folder: str, key: str, script: str) -> None:
    supervisor = await Supervisor.start()
    spec = spec_of(Path(folder), sh(script), key=key, timeout_seconds=60)
    ended = await supervisor.run(spec)
    await supervisor.close()
    # Read only now: whoever the process took its input from, it was not from here.
    print(ended.ended_by, sys.stdin.readline().strip(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
