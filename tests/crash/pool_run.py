"""One `perdure run` over a pool, whose worker the test kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from perdure.client import Perdure
from perdure.config import Settings
from perdure.event_log import find_execution, until_closed
from perdure.names import suite_workflow_id, task_workflow_id
from tests.cli.support import CommandLine
from tests.crash.pool_project import PoolProject

PATIENCE_SECONDS = 120.0
"""For whatever must happen next: a lost lease, a worker's return, probes every 15 s."""


class PoolRun:
    """A suite `pool` of a project, run by the command line."""

    def __init__(
        self,
        folder: Path,
        project: PoolProject,
        variables: Mapping[str, str],
        *options: str,
    ) -> None:
        self._variables = dict(variables)
        current = folder / "cwd"
        current.mkdir(parents=True)
        self.perdure = CommandLine(folder / "state", current)
        self._answer, self._log = folder / "answer.json", folder / "run.log"
        self._arguments = ["run", project.tasks, "--env-config", project.environments, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Type the command."""
        command = [*self._arguments, "--suite", "pool", "--max-parallel", "8", "--json"]
        with self._log.open("ab") as log, self._answer.open("wb") as answer:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perdure", *map(str, command)],
                cwd=self.perdure.folder,
                env=self.perdure.environment(**self._variables),
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=log,
                start_new_session=True,
            )

    def finish(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Let it come to its end: its status, and the only trial of each task that had begun."""
        assert self._process
        status = self._process.wait(2 * PATIENCE_SECONDS)
        told = json.loads(self._answer.read_bytes() or b'{"tasks": []}')
        return status, {task["id"]: task["trials"][0] for task in told["tasks"] if task["trials"]}

    def record(self, task: str) -> dict[str, Any]:
        """The record of a task that has ended."""
        file = self.perdure.state / "results" / "pool" / task / "1" / "record.json"
        record: dict[str, Any] = json.loads(file.read_text())
        return record

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds, while the command runs."""
        assert self._process
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._process.poll() is None, f"the command ended before: {what}\n{self.log()}"
            assert time.monotonic() < deadline, f"never: {what}\n{self.log()}"
            time.sleep(0.05)

    def kill_worker(self) -> None:
        """SIGKILL for the worker, as soon as there is one that serves."""
        self.wait(self._worker, "a worker serves")
        worker = self._worker()
        assert worker
        worker.kill()
        self.wait(lambda: not worker.is_running() or worker.status() == "zombie", "it is dead")

    def kill_everything(self) -> None:
        """SIGKILL for the command, its worker and its server at once, as by a machine's end."""
        assert self._process
        children = psutil.Process(self._process.pid).children()
        self._process.kill()
        for process in children:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep the command from noticing anything."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """Ctrl-C."""
        assert self._process
        os.killpg(self._process.pid, signal.SIGINT)

    def _worker(self) -> psutil.Process | None:
        assert self._process
        with suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children():
                logs = (self.perdure.state / "workers").glob(f"*.{process.pid}.log")
                if any("serving queue" in log.read_text() for log in logs):
                    return process
        return None

    async def terminate(self, task: str) -> None:
        """End a task's workflow as an operator would, by force."""
        async with self._connection() as connection:
            handle = connection.client.get_workflow_handle(task_workflow_id("pool", task, 1))
            await handle.terminate("by a test")

    async def closed(self) -> None:
        """Wait until the suite's workflow is closed, whatever the command knows of it."""
        async with self._connection() as connection, asyncio.timeout(PATIENCE_SECONDS):
            suite = await find_execution(connection.client, suite_workflow_id("pool"))
            assert suite
            await until_closed(connection.client, suite)

    async def doing(self) -> list[str]:
        """What the pool says that its instances are at, in alphabetical order."""
        async with self._connection() as connection:
            view = await connection.pool("default").view()
        assert view
        return sorted(instance["doing"] for instance in view["instances"])

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Perdure]:
        settings = Settings.from_env({"PERDURE_STATE_DIR": str(self.perdure.state)})
        async with await Perdure.connect(settings, role="reader") as connection:
            yield connection

    def log(self) -> str:
        """The end of what the command and its workers said."""
        logs = [self._log, *sorted((self.perdure.state / "workers").glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def end(self) -> None:
        """Leave no process behind, however the test went."""
        mark = str(self.perdure.state)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PERDURE_STATE_DIR") == mark:
                    process.kill()
        if self._process:
            self._process.wait()


@contextmanager
def pool_run(
    folder: Path, project: PoolProject, variables: Mapping[str, str], *options: str
) -> Iterator[PoolRun]:
    """A run that has begun; what it said is shown beside a failed test."""
    run = PoolRun(folder, project, variables, *options)
    try:
        run.start()
        yield run
    finally:
        print(run.log())
        print("\n".join(f"{event.instance} {event.what}" for event in project.events()))
        run.end()
