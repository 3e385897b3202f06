"""Benchmarks leave nothing behind, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[1]

ENDLESS = """\
import asyncio
from ground import ground, measured
from perdure.server import status

async def main():
    async with ground() as here:
        print(here.settings.state.path, status(here.settings.state).pid, flush=True)
        await asyncio.sleep(600)

measured(main)
"""


async def test_a_benchmark_that_is_told_to_end_takes_its_server_and_its_directory_along() -> None:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))
    with subprocess.Popen(  # noqa: ASYNC220  (nothing else runs meanwhile)
        [sys.executable, "-c", ENDLESS],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as benchmark:
        assert benchmark.stdout is not None
        folder, pid = benchmark.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        benchmark.send_signal(signal.SIGTERM)
        _, told = benchmark.communicate(timeout=60)
    assert benchmark.returncode == 1
    assert "Traceback" not in told
    await until(lambda: not psutil.pid_exists(int(pid)), "the server is gone")
    assert not Path(folder).exists()
