"""Workers that are killed, each in a process of its own."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from temporalio.client import Client

from tests import warm
from tests.kit import Bench
from worker import WorkerOptions

ROOT = Path(__file__).resolve().parent.parent


class Mortal:
    """Workers of one queue, one after another, each killed at a moment of the test's choice."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.queue = f"q-{uuid.uuid4().hex[:8]}"
        self._client = client
        self._folder = folder
        self._process: warm.Popen | None = None

    @property
    def bench(self) -> Bench:
        folder = self._folder
        options = WorkerOptions(self.queue, "here", folder / "runs", folder / "results")
        return Bench(self._client, options)

    def start(self) -> None:
        address = self._client.service_client.config.target_host
        self._process = warm.Popen(
            [sys.executable, "-m", "tests.rollback_worker", address, self.queue, str(self._folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def kill_and_start(self) -> None:
        self.kill()
        self.start()
