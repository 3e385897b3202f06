"""Rollbacks through a real server, a real worker and real processes, workers killed among them.

With an environment that is reset: `tests/test_examples.py`, whose pages tell of one.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities import threads
from activities.secrets import WorkerEnvironment
from perdure.history import record_of
from perdure.messages import PoolUse
from perdure.names import pool_workflow_id
from perdure.pool_messages import PoolTimes
from perdure.steps import step
from tests import warm
from tests.kit import Bench, bench, processes_with
from tests.waiting import until
from tests.workflows.instance_kit import counter
from worker import WorkerOptions

ROOT = Path(__file__).resolve().parent.parent
CANARY = "s3cr3t-CANARY-u5"


@step("kit-hand-out")
def hand_out(step: dict[str, Any], context: Any, host: Any) -> None:
    context.metadata["remote_tokens"] = {"shop": CANARY}


@pytest.fixture
async def here(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Bench]:
    variables = {"PATH": os.environ["PATH"]}
    async with bench(temporal.client, tmp_path, environment=WorkerEnvironment(variables)) as made:
        yield made


def shell(id: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "command", "command": command, **more}


async def test_files_and_side_effects_of_the_span_are_gone_before_it_runs_again(
    here: Bench, tmp_path: Path
) -> None:
    world = tmp_path / "orders"
    world.mkdir()
    handle = await here.start(
        shell(
            "order",
            f"test ! -e out; mkdir -p out; echo 7 >out/report; touch {world}/<order>",
            creates=["out"],
            compensate={"type": "command", "command": f"rm {world}/<order>; echo gone"},
        ),
        shell(
            "agent",
            "test -e twice || { touch twice half; exit 3; }; test ! -e half",
            creates=["half"],
            retry_config={"retry_from_step_id": "order"},
        ),
        seed={"order": "o-1"},
    )
    assert (await handle.result()).status == "succeeded"
    record = here.record(handle)
    kinds = [(c["step_id"], c["kind"]) for c in record["rollbacks"][0]["compensations"]]
    assert kinds == [("agent", "creates"), ("order", "declared"), ("order", "creates")]
    assert [path.name for path in world.iterdir()] == ["o-1"]
    assert (here.work_of(handle) / "out" / "report").exists()
    assert record["compensation_failures"] == []
    told = here.results_of(handle) / "undo" / "order.1.declared" / "stdout.log"
    assert told.read_text() == "gone\n"


async def test_what_undoes_has_the_runs_secrets_and_tells_none(here: Bench) -> None:
    """T30, T42"""
    look = "import json, os; print(json.load(open(os.environ['PERDURE_CONTEXT']))['metadata'])"
    undo = [sys.executable, "-c", f"{look}; open('seen', 'a').write(open(os.environ"
            "['PERDURE_CONTEXT']).read()); raise SystemExit(1)"]  # fmt: skip
    handle = await here.start(
        {
            "id": "a",
            "type": "kit-hand-out",
            "compensate": {"type": "command", "command": undo, "retry": {"max_attempts": 1}},
        },
        shell("b", "exit 1", retry_config={"retry_from_step_id": "a"}),
    )
    with pytest.raises(Exception, match="Workflow execution failed"):
        await handle.result()
    record = here.record(handle)
    assert CANARY in (here.work_of(handle) / "seen").read_text()
    history = await handle.fetch_history()
    kept = "".join(p.read_text("utf-8", "replace") for p in files_of(here.options.results))
    left = "".join(
        p.read_text("utf-8", "replace") for p in files_of(here.options.runs) if p.name != "seen"
    )
    for text in (history.to_json(), json.dumps(record), kept, left):
        assert CANARY not in text
    (failed,) = record["compensation_failures"]
    assert failed["error_type"] == "ExitCode"
    assert record["failure"]["step"] == "b"


async def test_what_undoes_is_told_a_large_context(here: Bench) -> None:
    handle = await here.start(
        shell("big", "head -c 60000 /dev/zero | tr '\\0' x"),
        shell(
            "a",
            "true",
            compensate={"type": "command", "command": "wc -c <$PERDURE_CONTEXT >size"},
        ),
        shell(
            "b",
            "test -e once || { touch once; exit 1; }",
            retry_config={"retry_from_step_id": "a"},
        ),
    )
    assert (await handle.result()).status == "succeeded"
    assert int((here.work_of(handle) / "size").read_text()) > 60_000


@step("kit-deaf")
def take_no_notice(step: dict[str, Any], context: Any, host: Any) -> None:
    """Blocks at its first attempt, whoever tells it to stop."""
    with (host.workdir / "calls").open("a") as calls:
        calls.write(f"begin {host.attempt}\n")
    end = time.monotonic() + 60
    while host.attempt == 1 and not (host.workdir / "go").exists() and time.monotonic() < end:
        time.sleep(0.02)
    with (host.workdir / "calls").open("a") as calls:
        calls.write(f"end {host.attempt}\n")


async def test_td13_a_step_that_cannot_be_stopped_blocks_no_rollback_and_has_no_second_beside_it(
    here: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "CANCEL_GRACE_SECONDS", 0.3)
    release = "touch go; until grep -q 'end 1' calls; do sleep 0.02; done"
    handle = await here.start(
        shell("start", "true", compensate={"type": "command", "command": release}),
        {"id": "deaf", "type": "kit-deaf", "depends_on": ["start"]},
        shell(
            "b",
            "test -e go && exit 0; until [ -e calls ]; do sleep 0.02; done; exit 1",
            depends_on=["start"],
            retry_config={"retry_from_step_id": "start"},
        ),
    )
    assert (await handle.result()).status == "succeeded"
    calls = (here.work_of(handle) / "calls").read_text().splitlines()
    assert calls == ["begin 1", "end 1", "begin 2", "end 2"]
    assert here.record(handle)["rollbacks"][0]["cancelled"] == ["deaf"]


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# --- With an environment ----------------------------------------------------------------------


async def test_an_instance_that_cannot_be_reset_is_replaced_under_the_lease(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Its new ports reach the steps that run again, and nothing is left of either."""
    pool = f"p{uuid.uuid4().hex[:8]}"
    quick = PoolTimes(probe_seconds=0.5, idle_seconds=0.5)
    scripts = {"app": "test ! -e broken-$APP_PORT"}
    definition = counter(tmp_path, reset_scripts=scripts, reset_retries=0)
    inside = {"type": "exec", "environment": definition.name, "service": "app"}
    async with bench(temporal.client, tmp_path, shared_queue=f"s-{pool}", pools=quick) as here:
        handle = await here.start(
            shell("port", "echo $APP_PORT"),
            {"id": "break", "command": "touch broken-$APP_PORT", **inside},
            shell(
                "agent",
                "test -e once || { touch once; exit 4; }",
                retry_config={"retry_from_step_id": "port"},
            ),
            environments=[definition.name],
            use=PoolUse(pool=pool, local_words=True),
            definitions=[json.loads(json.dumps(definition.to_json()))],
        )
        assert (await handle.result()).status == "succeeded"
        record = here.record(handle)
        assert await record_of(here.client, handle.id) == record
        events = await handle.query("events", 0)
        await here.client.get_workflow_handle(pool_workflow_id(pool)).result()
    assert record["lease"]["request_id"].endswith(":1"), "it had no other lease"
    assert record["rollbacks"][0]["replaced"] == [definition.name]
    (granted,) = (event for event in events if event["type"] == "lease.granted")
    (before,), (after,) = granted["instances"], record["lease"]["instances"]
    assert before["project"] != after["project"]
    port, other = before["ports"]["APP_PORT"], after["ports"]["APP_PORT"]
    assert port != other
    assert record["context"]["results"]["port"]["stdout"] == f"{other}\n"
    assert (tmp_path / f"broken-{other}").exists(), "what runs inside knows it, too"
    assert processes_with(str(tmp_path)) == []


# --- Killed workers ---------------------------------------------------------------------------


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


@pytest.fixture
def mortal(temporal: WorkflowEnvironment, tmp_path: Path) -> Iterator[Mortal]:
    made = Mortal(temporal.client, tmp_path)
    made.start()
    yield made
    made.kill()


def log(word: str) -> str:
    return f'echo "{word}" >>log'


def held(word: str) -> dict[str, Any]:
    """What undoes a step, and waits for a word of the test's."""
    command = f"{log(f'undo {word}')}; until [ -e go-{word} ]; do sleep 0.05; done; " + log(
        f"undone {word}"
    )
    return {"type": "command", "command": command, "heartbeat_timeout": 1}


async def test_a_rollback_goes_on_wherever_its_worker_is_killed(mortal: Mortal) -> None:
    """TD5."""
    here = mortal.bench
    quick = {"heartbeat_timeout": 1}
    stubborn = (
        f"trap '{log('told to stop')}; sleep 60' TERM; touch here; {log('do b')}; "
        "test -e again && exit 0; sleep 60 & wait"
    )
    handle = await here.start(
        shell("a", log("do a"), compensate=held("a"), **quick),
        shell("b", stubborn, depends_on=["a"], compensate=held("b"), **quick),
        shell(
            "c",
            f"{log('do c')}; test -e again && exit 0; until [ -e here ]; do sleep 0.05; done; "
            "exit 1",
            depends_on=["a"],
            retry_config={"retry_from_step_id": "a", "delay": 1.5},
            **quick,
        ),
        shell("d", log("do d"), **quick),
    )
    work = here.work_of(handle)

    def lines() -> list[str]:
        return (work / "log").read_text().splitlines() if (work / "log").exists() else []

    await until(lambda: "told to stop" in lines(), "the sibling is being stopped")
    mortal.kill_and_start()
    await until(lambda: "undo b" in lines(), "the first compensation")
    mortal.kill_and_start()
    await until(lambda: lines().count("undo b") == 2, "it is made again")
    (work / "go-b").touch()
    await until(lambda: "undo a" in lines(), "the second compensation")
    mortal.kill_and_start()
    await until(lambda: lines().count("undo a") == 2, "it is made again")
    (work / "again").touch()
    (work / "go-a").touch()

    async def is_taken_back() -> bool:
        return bool((await record_of(here.client, handle.id))["attempt_epoch"] == 1)

    await until(is_taken_back, "the delay before the span runs again")
    mortal.kill_and_start()
    assert (await handle.result()).status == "succeeded"

    done = lines()
    assert [line for line in done if line.startswith("undone")] == ["undone b", "undone a"]
    assert done.count("do d") == 1
    assert done.index("undone a") < done.index("do a", 1)
    assert sorted(done[done.index("undone a") + 1 :]) == ["do a", "do b", "do c", "do d"]
    assert here.record(handle) == await record_of(here.client, handle.id)
