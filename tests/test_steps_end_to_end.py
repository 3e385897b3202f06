"""Steps through a real server, a real worker and real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.testing import WorkflowEnvironment

from activities import step as step_activity
from activities import threads
from activities.attempt import Attempt
from activities.places import RunPlace
from activities.secrets import WorkerEnvironment
from perdure.messages import StepOutcome
from perdure.steps import StepFailed, step
from tests.kit import Bench, bench, processes_with, step_named
from tests.waiting import until, written
from worker import serving

CANARY = "s3cr3t-CANARY-9f"


@step("kit-write", keys={"key", "value"})
async def write(step: dict[str, Any], context: Any, host: Any) -> Any:
    context.metadata[step["key"]] = step["value"]
    return {"seen": sorted(context.metadata)}


@step("kit-spoil", on_loop=True)
async def spoil(step: dict[str, Any], context: Any, host: Any) -> Any:
    context.metadata["x"]["deep"].append(threading.current_thread() is threading.main_thread())
    raise StepFailed("only after it has written")


@step("kit-bad", keys={"how"})
def misbehave(step: dict[str, Any], context: Any, host: Any) -> Any:
    context.metadata["half"] = "written"
    if step["how"] == "raise":
        raise ValueError("a plain exception")
    if step["how"] == "half a character":
        raise ValueError("it is \ud800")
    if step["how"] == "half a result":
        return {"it": "is \ud800"}
    if step["how"] == "fail":
        raise StepFailed("by its own word", type="OwnType", retryable=False, result={"kept": 1})
    if step["how"] == "set":
        context.metadata["half"] = {1, 2}
    if step["how"] == "block":
        time.sleep(4)
    return object() if step["how"] == "object" else None


@step("kit-secret", keys=set())
async def keep_secret(step: dict[str, Any], context: Any, host: Any) -> Any:
    known = context.metadata.get("remote_tokens")
    context.metadata["remote_tokens"] = {"shop": CANARY}
    return {"before": known is not None and known["shop"] == CANARY}


@step("kit-tell", keys={"key"})
async def tell(step: dict[str, Any], context: Any, host: Any) -> Any:
    context.metadata[step["key"]] = CANARY[::-1]
    known = context.results["a"]["json"]["session_key"]
    raise StepFailed(f"made {CANARY[::-1]}, was given {known}", retryable=False)


@step("kit-stubborn", keys={"seconds"})
def block(step: dict[str, Any], context: Any, host: Any) -> None:
    with (host.workdir / "calls").open("a") as calls:
        calls.write(f"{host.attempt}\n")
    end = time.monotonic() + step["seconds"]
    while host.attempt == 1 and time.monotonic() < end and not (host.workdir / "go").exists():
        time.sleep(0.02)


@step("kit-beaten", keys={"size"})
async def write_and_wait(step: dict[str, Any], context: Any, host: Any) -> None:
    context.metadata["beaten"] = "x" * step["size"]
    while not (host.workdir / "go").exists():  # noqa: ASYNC110 (the test makes it)
        await asyncio.sleep(0.05)


@step("kit-process", keys={"argv"})
async def run_process(step: dict[str, Any], context: Any, host: Any) -> Any:
    ended = await host.run_process(step["argv"])
    return {"code": ended.exit_code, "out": ended.stdout_path.read_text()}


@pytest.fixture
async def here(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Bench]:
    variables = {"PATH": "/usr/bin:/bin", "TOKEN": CANARY, "OTHER": "not for steps"}
    async with bench(
        temporal.client, tmp_path, environment=WorkerEnvironment(variables=variables)
    ) as made:
        yield made


async def history_text(here: Bench, handle: WorkflowHandle[Any, Any]) -> str:
    history = await handle.fetch_history()
    return history.to_json()


async def test_a_task_of_commands_passes_results_on(here: Bench) -> None:
    record = await here.run(
        {"id": "a", "type": "command", "command": "echo '{\"n\": 3}'", "json": True},
        {
            "id": "b",
            "type": "python",
            "code": "def run(input):\n    return input['results']['a']['json']['n'] * 2",
        },
        {
            "id": "c",
            "type": "verify",
            "checks": [{"path": "results.b", "equals": 6}],
        },
    )
    assert record["status"] == "succeeded", record["failure"]
    assert record["context"]["results"]["c"]["verdict"] == "passed"


async def test_a_steps_process_sees_the_contract_and_nothing_else(here: Bench) -> None:
    show = (
        "import json, os; print(json.dumps({'env': dict(os.environ), 'cwd': os.getcwd(), "
        "'context': json.load(open(os.environ['PERDURE_CONTEXT']))}))"
    )
    record = await here.run(
        {
            "id": "a",
            "type": "command",
            "command": ["python3", "-c", show],
            "json": True,
            "env": {"MODE": "eval"},
        },
        id="seen",
    )
    seen = record["context"]["results"]["a"]["json"]
    env = seen["env"]
    assert env["PERDURE_TASK_ID"] == "seen"
    assert env["PERDURE_STEP_ID"] == "a"
    assert env["PERDURE_RUN_ID"] == record["run_id"]
    assert (env["PERDURE_TRIAL"], env["PERDURE_ATTEMPT"], env["MODE"]) == ("1", "1", "eval")
    assert seen["cwd"] == env["PERDURE_WORKDIR"]
    assert "OTHER" not in env
    assert "TOKEN" not in env
    assert seen["context"]["instance_id"] == record["instance_id"]


async def test_output_artifacts_usage_and_creates_are_recorded(here: Bench) -> None:
    script = (
        'echo \'{"answer": 42, "usage": {"tokens": 7, "cost": 0.5}}\' > "$PERDURE_OUTPUT"\n'
        'echo kept > "$PERDURE_ARTIFACTS/note.txt"; mkdir out; echo r > out/report.json'
    )
    handle = await here.start(
        {"id": "a", "type": "command", "command": script, "creates": ["out/report.json", "no"]}
    )
    await handle.result()
    record = here.record(handle)
    assert record["context"]["metadata"]["answer"] == 42
    assert record["usage"] == {"tokens": 7, "cost": 0.5}
    assert step_named(record, "a")["attempts"][0]["creates"] == ["out/report.json"]
    assert (here.results_of(handle) / "artifacts" / "note.txt").read_text() == "kept\n"
    assert [a["path"] for a in record["artifacts"]] == ["note.txt"]
    assert (here.results_of(handle) / "steps" / "a.1" / "stdout.log").exists()


@step("kit-spend", keys={"amounts", "argv"})
async def spend(step: dict[str, Any], context: Any, host: Any) -> None:
    for amounts in step["amounts"]:
        host.add_usage(**amounts)
    if host.attempt == 1 and "argv" in step:
        await host.run_process(step["argv"])
        raise StepFailed("spent for nothing")


async def test_what_a_custom_step_uses_counts_with_what_its_processes_report(here: Bench) -> None:
    record = await here.run(
        {
            "id": "a",
            "type": "kit-spend",
            "amounts": [{"cost": 0.5, "tokens": 120}, {"cost": 0.25}],
            "argv": ["/bin/sh", "-c", 'echo \'{"usage": {"cost": 1}}\' > "$PERDURE_OUTPUT"'],
            "retry": {"max_attempts": 2, "initial_interval": 0.01},
        }
    )
    assert record["status"] == "succeeded"
    attempts = step_named(record, "a")["attempts"]
    assert [attempt["usage"] for attempt in attempts] == [
        {"cost": 1.75, "tokens": 120},  # spent all the same
        {"cost": 0.75, "tokens": 120},
    ]
    assert record["usage"] == {"cost": 2.5, "tokens": 240}


async def test_usage_that_is_no_amount_fails_its_step_and_what_was_counted_stays(
    here: Bench,
) -> None:
    record = await here.run(
        {"id": "a", "type": "kit-spend", "amounts": [{"cost": 2}, {"cost": -1, "tokens": 5}]}
    )
    assert (record["failure"]["type"], record["failure"]["kind"]) == ("BadUsage", "bad_input")
    assert record["failure"]["message"].startswith("add_usage: 'cost' is -1; give a finite number")
    assert record["usage"] == {"cost": 2}


async def test_custom_steps_write_the_context_and_see_what_came_before(here: Bench) -> None:
    record = await here.run(
        {"id": "a", "type": "kit-write", "key": "x", "value": {"deep": [1, 1]}},
        {"id": "b", "type": "kit-write", "key": "y", "value": None},
    )
    metadata = record["context"]["metadata"]
    assert metadata["x"] == {"deep": [1, 1]}
    assert metadata["y"] is None
    assert "x" in record["context"]["results"]["b"]["seen"]


async def test_a_custom_step_on_the_loop_has_a_context_of_its_own(here: Bench) -> None:
    record = await here.run(
        {"id": "a", "type": "kit-write", "key": "x", "value": {"deep": [1]}},
        {"id": "b", "type": "kit-spoil", "retry": {"max_attempts": 3, "initial_interval": 0.1}},
    )
    # Of each attempt that failed what it wrote counts once, and none has spoilt another's copy.
    assert [a["status"] for a in record["steps"][1]["attempts"]] == ["failed"] * 3
    assert record["context"]["metadata"]["x"] == {"deep": [1, True]}


@pytest.mark.parametrize(
    ("how", "type", "reason"),
    [
        ("raise", "ValueError", "a plain exception"),
        ("fail", "OwnType", "by its own word"),
        ("set", "BadResult", "metadata.half"),
        ("object", "BadResult", "not JSON"),
    ],
)
async def test_a_custom_step_that_misbehaves_is_a_failed_step(
    here: Bench, how: str, type: str, reason: str
) -> None:
    record = await here.run({"id": "a", "type": "kit-bad", "how": how})
    assert record["status"] == "failed"
    assert record["failure"]["type"] == type
    assert reason in record["failure"]["message"]
    if how in ("raise", "fail"):
        assert record["context"]["metadata"]["half"] == "written"
    if how == "fail":
        assert record["context"]["results"]["a"] == {"kept": 1}


async def test_a_custom_step_runs_processes_under_the_supervisor(here: Bench) -> None:
    record = await here.run({"id": "a", "type": "kit-process", "argv": ["echo", "hello"]})
    assert record["context"]["results"]["a"] == {"code": 0, "out": "hello\n"}


async def test_a_step_type_that_the_worker_does_not_know_is_named(
    here: Bench, temporal: WorkflowEnvironment
) -> None:
    step("kit-unknown")(misbehave)
    from perdure import steps

    handle = await here.start({"id": "a", "type": "kit-unknown"}, options=None)
    steps._registered.pop("kit-unknown")
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    # Whoever was quicker: an unknown type is named, a known one has failed in its own way.
    assert here.record(handle)["status"] == "failed"


# --- Time limits, cancelling ------------------------------------------------------------------


async def test_c17_a_cancel_ends_the_process_and_the_run_is_cancelled(here: Bench) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    command = ["sh", "-c", f": {mark}; (setsid sleep 600 &) ; sleep 600"]
    handle = await here.start({"id": "a", "type": "command", "command": command})
    await until(lambda: processes_with(mark))
    await handle.cancel()
    async with asyncio.timeout(15):
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert processes_with(mark) == []
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert "ActivityTaskTimedOut" not in await history_text(here, handle)
    assert step_named(here.record(handle), "a")["attempts"][0]["status"] == "cancelled"


async def test_c17_a_blocking_custom_step_starves_nobodys_heartbeat(here: Bench) -> None:
    noise = "head -c 50000000 /dev/zero | tr '\\0' 'x'"
    sleepers = [
        {"id": f"s{i}", "type": "command", "command": "sleep 4", "depends_on": [],
         "heartbeat_timeout": 3}
        for i in range(10)
    ]  # fmt: skip
    handle = await here.start(
        {
            "id": "block",
            "type": "kit-bad",
            "how": "block",
            "depends_on": [],
            "heartbeat_timeout": 3,
        },
        {"id": "noise", "type": "command", "command": noise, "depends_on": []},
        *sleepers,
    )
    await handle.result()
    record = here.record(handle)
    assert {len(s["attempts"]) for s in record["steps"]} == {1}
    log = here.results_of(handle) / "steps" / "noise.1" / "stdout.log"
    assert log.read_text().endswith("\n...(truncated at 1000000 characters)")


@pytest.mark.parametrize(
    ("limits", "type"),
    [({"timeout": 0.5}, "Timeout"), ({"idle_timeout": 0.5}, "IdleTimeout")],
)
async def test_a_process_over_a_limit_is_ended_and_the_failure_says_which(
    here: Bench, limits: dict[str, float], type: str
) -> None:
    """TD12."""
    mark = f"mark-{uuid.uuid4().hex}"
    record = await here.run(
        {"id": "a", "type": "command", "command": ["sh", "-c", f": {mark}; sleep 60"], **limits}
    )
    assert record["failure"]["type"] == type
    assert record["failure"]["kind"] == "timeout"
    assert processes_with(mark) == []


@step("kit-slow", keys=set())
async def slow(step: dict[str, Any], context: Any, host: Any) -> None:
    await asyncio.sleep(30)


async def test_an_in_process_step_over_its_limit_is_ended_too(here: Bench) -> None:
    """TD12."""
    record = await here.run({"id": "a", "type": "kit-slow", "timeout": 0.3})
    assert (record["failure"]["type"], record["failure"]["kind"]) == ("Timeout", "timeout")


async def test_a_retried_step_counts_its_attempts_in_the_environment(here: Bench) -> None:
    record = await here.run(
        {
            "id": "a",
            "type": "command",
            "command": 'test "$PERDURE_ATTEMPT" = 3 || { echo "not yet" >&2; exit 4; }',
            "retry": {"max_attempts": 3, "initial_interval": 0.05},
        }
    )
    assert record["status"] == "succeeded"
    assert [a["status"] for a in step_named(record, "a")["attempts"]] == [
        "failed", "failed", "succeeded",
    ]  # fmt: skip
    assert "not yet" in record["step_attempt_failures"][0]["error_message"]


# --- Secrets ----------------------------------------------------------------------------------


async def test_c49_a_secret_reaches_the_process_and_nothing_that_is_kept(here: Bench) -> None:
    handle = await here.start(
        {
            "id": "a",
            "type": "command",
            "command": 'test -n "$KEY" && echo "key=$KEY" && echo "key=$KEY" >&2; exit 3',
            "env": {"KEY": {"from_env": "TOKEN"}},
        }
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert CANARY not in await history_text(here, handle)
    kept = [p for p in here.results_of(handle).rglob("*") if p.is_file()]
    assert kept
    assert not [p for p in kept if CANARY in p.read_text()]
    assert here.record(handle)["context"]["results"]["a"]["stdout"] == "key=***\n"


async def test_c49_a_secret_that_a_step_makes_and_prints_is_kept_nowhere(here: Bench) -> None:
    say = f"echo '{{\"session_key\": \"{CANARY[:4]}''{CANARY[4:]}\"}}' | tee /dev/stderr"
    handle = await here.start(
        {"id": "a", "type": "command", "command": say, "json": True},
        {"id": "b", "type": "kit-tell", "key": "session_key"},
        redact=["session_key"],
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    record = here.record(handle)
    assert record["context"]["results"]["a"]["stdout"] == '{"session_key": "***"}\n'
    assert "***" in record["failure"]["message"]
    history = await history_text(here, handle)
    assert CANARY not in history
    assert CANARY[::-1] not in history
    logs = (here.results_of(handle) / "steps" / "a.1").iterdir()
    assert {log.name: log.read_text() for log in logs} == {
        "stdout.log": '{"session_key": "***"}\n',
        "stderr.log": '{"session_key": "***"}\n',
    }
    run = here.work_of(handle).parent
    kept = [p for top in (run, here.results_of(handle)) for p in top.rglob("*") if p.is_file()]
    texts = [path.read_text() for path in kept]
    assert not [text for text in texts if CANARY in text or CANARY[::-1] in text]


async def test_c49_a_secret_that_a_step_prints_is_masked_though_its_output_is_refused(
    here: Bench,
) -> None:
    say = f'echo \'{{"session_key": "{CANARY}"}}\'; echo no JSON > "$PERDURE_OUTPUT"'
    handle = await here.start(
        {"id": "a", "type": "command", "command": ["sh", "-c", say], "json": True},
        redact=["session_key"],
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert here.record(handle)["failure"]["type"] == "BadOutput"
    log = here.results_of(handle) / "steps" / "a.1" / "stdout.log"
    assert log.read_text() == '{"session_key": "***"}\n'


async def test_a_missing_secret_fails_once_and_names_the_reference(here: Bench) -> None:
    record = await here.run(
        {
            "id": "a",
            "type": "command",
            "command": "true",
            "env": {"KEY": {"from_env": "NOT_THERE"}},
            "retry": {"max_attempts": 5},
        }
    )
    assert record["failure"]["type"] == "MissingSecret"
    assert "NOT_THERE" in record["failure"]["message"]
    assert len(step_named(record, "a")["attempts"]) == 1


async def test_a_value_under_a_redacted_key_is_kept_on_the_host_only(here: Bench) -> None:
    handle = await here.start({"id": "a", "type": "kit-secret"}, {"id": "b", "type": "kit-secret"})
    await handle.result()
    record = here.record(handle)
    assert record["context"]["results"]["a"] == {"before": False}
    assert record["context"]["results"]["b"] == {"before": True}
    assert CANARY not in await history_text(here, handle)
    assert CANARY not in json.dumps(record)
    place = RunPlace.of(here.options.runs, here.ref_of(handle))
    assert not place.secrets.exists()


# --- Large values (C14) -----------------------------------------------------------------------


async def largest_payload(handle: WorkflowHandle[Any, Any]) -> int:
    sizes = [e.ByteSize() async for e in handle.fetch_history_events()]
    return max(sizes)


async def test_c14_a_large_value_goes_out_of_line_and_comes_back_whole(here: Bench) -> None:
    handle = await here.start(
        {
            "id": "a",
            "type": "python",
            "code": "def run(input):\n    return 'é' * 3_000_000",
        },
        {
            "id": "b",
            "type": "python",
            "code": "def run(input):\n    a = input['results']['a']\n    return [len(a), a[-1]]",
        },
    )
    await handle.result()
    assert here.record(handle)["context"]["results"]["b"] == [3_000_000, "é"]
    assert await largest_payload(handle) < 2_000_000
    assert "WorkflowTaskFailed" not in await history_text(here, handle)


async def test_c14_six_parallel_steps_of_a_mebibyte_each_end(here: Bench) -> None:
    code = "def run(input):\n    return 'x' * 2**20"
    steps = [{"id": f"s{i}", "type": "python", "code": code, "depends_on": []} for i in range(6)]
    handle = await here.start(*steps)
    await handle.result()
    results = here.record(handle)["context"]["results"]
    assert {len(v) for v in results.values()} == {2**20}
    assert await largest_payload(handle) < 2_000_000


async def test_c14_a_failed_step_with_a_large_result_ends_too(here: Bench) -> None:
    print_much = "import sys; t = 'é' * 999_999; print(t); print(t, file=sys.stderr); sys.exit(1)"
    handle = await here.start(
        {
            "id": "a",
            "type": "command",
            "command": ["python3", "-X", "utf8", "-c", print_much],
            "keep_output": 1_000_000,
        }
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert len(here.record(handle)["context"]["results"]["a"]["stderr"]) == 1_000_000
    assert await largest_payload(handle) < 2_000_000


@step("kit-grow", keys=set())
async def grow(step: dict[str, Any], context: Any, host: Any) -> str:
    return step["id"] + "x" * 20_000


async def test_c14_a_long_chain_that_grows_its_context_moves_the_diffs_only(here: Bench) -> None:
    handle = await here.start(*({"id": f"s{i}", "type": "kit-grow"} for i in range(100)))
    await handle.result()
    record = here.record(handle)
    assert len(record["context"]["results"]) == 100
    total = sum([e.ByteSize() async for e in handle.fetch_history_events()])
    assert total < 5_000_000
    assert "WorkflowTaskFailed" not in await history_text(here, handle)


async def test_c14_a_large_seed_is_carried(here: Bench) -> None:
    record = await here.run(
        {
            "id": "a",
            "type": "python",
            "code": "def run(input):\n    return len(input['context']['metadata']['seed']['big'])",
        },
        seed={"big": "s" * 5_000_000},
    )
    assert record["context"]["results"]["a"] == 5_000_000


# --- What an earlier attempt left ---------------------------------------------------------------


async def test_an_outcome_on_disk_is_adopted_after_a_lost_worker(
    here: Bench, on_disk: asyncio.Event
) -> None:
    handle = await here.start(
        {"id": "a", "type": "command", "command": "echo x >> ran; echo found"}
    )
    await on_disk.wait()
    await lose(here, handle, "a#0.1")
    await handle.result()
    record = here.record(handle)
    assert record["context"]["results"]["a"]["stdout"] == "found\n"
    attempts = step_named(record, "a")["attempts"]
    assert [a["status"] for a in attempts] == ["lost", "succeeded"]
    assert attempts[1]["adopted"]
    assert (here.work_of(handle) / "ran").read_text() == "x\n"


async def lose(here: Bench, handle: WorkflowHandle[Any, Any], activity_id: str) -> None:
    """Let an attempt's report get lost: to the server its worker is as good as dead."""
    from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
    from temporalio.api.workflowservice.v1 import RespondActivityTaskFailedByIdRequest

    lost = ApplicationFailureInfo(type="WorkerLost", non_retryable=True)
    await here.client.workflow_service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            namespace="default",
            workflow_id=handle.id,
            activity_id=activity_id,
            failure=Failure(message="lost", application_failure_info=lost),
        )
    )


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when an outcome was written; the attempt goes no further than that."""
    write, on_disk = Attempt.write, asyncio.Event()

    async def write_and_report_nothing(attempt: Attempt, outcome: StepOutcome) -> None:
        await write(attempt, outcome)
        on_disk.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Attempt, "write", write_and_report_nothing)
    return on_disk


async def test_a_step_that_ran_no_process_leaves_no_directory_and_is_adopted_as_well(
    here: Bench, on_disk: asyncio.Event
) -> None:
    handle = await here.start({"id": "a", "type": "kit-write", "key": "k", "value": "v"})
    await on_disk.wait()
    assert not (here.work_of(handle).parent / "steps").exists()
    await lose(here, handle, "a#0.1")
    await handle.result()
    record = here.record(handle)
    assert record["context"]["metadata"]["k"] == "v"
    attempts = step_named(record, "a")["attempts"]
    assert [(a["status"], a["adopted"]) for a in attempts] == [("lost", False), ("succeeded", True)]


async def test_a_new_attempt_first_ends_what_the_old_one_still_runs(here: Bench) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    handle = await here.start(
        {
            "id": "a",
            "type": "command",
            "command": [
                "sh",
                "-c",
                f": {mark}; echo $PERDURE_ATTEMPT >> ran; [ $PERDURE_ATTEMPT = 2 ] || sleep 600",
            ],
        }
    )
    await written(here.work_of(handle) / "ran")
    await lose(here, handle, "a#0.1")
    await handle.result()
    assert (here.work_of(handle) / "ran").read_text() == "1\n2\n"
    assert processes_with(mark) == []


async def test_c51_a_hostile_run_name_reaches_no_path_outside(here: Bench) -> None:
    from perdure.messages import TaskInput

    handle = await here.client.start_workflow(
        "TaskWorkflow",
        TaskInput(
            task={"id": "../../evil", "steps": [{"id": "a", "type": "command", "command": "true"}]},
            suite="..",
        ),
        id=f"task/evil/{uuid.uuid4().hex}",
        task_queue=here.options.queue,
    )
    with pytest.raises(WorkflowFailureError):
        async with asyncio.timeout(20):
            await handle.result()
    assert not list(here.options.runs.parent.parent.rglob("evil"))


def attempts_alive(mark: str) -> set[str]:
    """The attempts to which the living processes with `mark` belong."""
    found = set()
    for pid in processes_with(mark):
        with contextlib.suppress(psutil.Error):
            if variables := psutil.Process(pid).environ():  # none: it has just died
                found.add(variables["PERDURE_ATTEMPT"])
    return found


async def test_c33_a_process_over_its_limit_is_gone_before_the_retry_begins(here: Bench) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    command = f"(setsid sh -c ': {mark}; sleep 90' &); echo x >> n; sleep 90"
    handle = await here.start(
        {
            "id": "a",
            "type": "command",
            "command": ["sh", "-c", command],
            "timeout": 1,
            "retry": {"max_attempts": 3, "initial_interval": 0.05},
        }
    )
    ending = asyncio.create_task(handle.result())
    while not ending.done():
        assert len(attempts_alive(mark)) <= 1
        await asyncio.sleep(0.05)
    with pytest.raises(WorkflowFailureError):
        await ending
    assert processes_with(mark) == []
    assert len(step_named(here.record(handle), "a")["attempts"]) == 3
    assert (here.work_of(handle) / "n").read_text() == "x\n" * 3


async def test_half_a_character_of_a_step_is_replaced_or_refused(here: Bench) -> None:
    record = await here.run({"id": "a", "type": "kit-bad", "how": "half a character"})
    [attempt] = step_named(record, "a")["attempts"]
    assert attempt["failure"]["message"] == "ValueError: it is ?"
    record = await here.run({"id": "a", "type": "kit-bad", "how": "half a result"})
    [attempt] = step_named(record, "a")["attempts"]
    assert attempt["failure"]["type"] == "BadResult"
    assert "lone surrogate" in attempt["failure"]["message"]


# --- Two workers, and functions that do not stop ------------------------------------------------


async def test_what_another_worker_of_this_host_still_runs_is_killed_and_not_adopted(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    command = "echo $PERDURE_ATTEMPT >> ran; [ $PERDURE_ATTEMPT = 2 ] || sleep 600"
    # The first has no room for a second attempt beside the one that it does not give up.
    async with bench(temporal.client, tmp_path, step_slots=1) as first:
        handle = await first.start({"id": "a", "type": "command", "command": command})
        await written(first.work_of(handle) / "ran")
        # A connection of its own, as of another process: one serves a queue once.
        other = await Client.connect(
            temporal.client.service_client.config.target_host,
            data_converter=temporal.client.data_converter,
        )
        async with serving(other, replace(first.options, step_slots=5)):
            await lose(first, handle, "a#0.1")
            await handle.result()
        assert (first.work_of(handle) / "ran").read_text() == "1\n2\n"
        attempts = step_named(first.record(handle), "a")["attempts"]
        assert [(a["status"], a["adopted"]) for a in attempts] == [
            ("lost", False),
            ("succeeded", False),
        ]


async def test_a_function_that_ignores_its_timeout_does_not_run_beside_its_retry(
    here: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "CANCEL_GRACE_SECONDS", 0.2)
    handle = await here.start(
        {
            "id": "a",
            "type": "kit-stubborn",
            "seconds": 60,
            "timeout": 0.3,
            "retry": {"max_attempts": 3, "initial_interval": 0.05},
        }
    )
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    (here.work_of(handle) / "go").touch()
    record = here.record(handle)
    assert (record["failure"]["type"], record["failure"]["kind"]) == ("Timeout", "timeout")
    assert "did not stop within 0.2 s and still runs" in record["failure"]["message"]
    assert len(step_named(record, "a")["attempts"]) == 1


async def test_a_function_that_a_lost_attempt_still_runs_is_not_started_again(
    here: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "CANCEL_GRACE_SECONDS", 0.2)
    handle = await here.start({"id": "a", "type": "kit-stubborn", "seconds": 60})
    calls = here.work_of(handle) / "calls"
    await written(calls)
    await lose(here, handle, "a#0.1")
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    (here.work_of(handle) / "go").touch()
    assert here.record(handle)["failure"]["type"] == "StillRunning"
    assert calls.read_text() == "1\n"


async def test_an_attempt_beats_while_it_waits_for_the_one_before_it(here: Bench) -> None:
    handle = await here.start(
        {"id": "a", "type": "kit-stubborn", "seconds": 7, "heartbeat_timeout": 3}
    )
    await written(here.work_of(handle) / "calls")
    await lose(here, handle, "a#0.1")
    await handle.result()
    attempts = step_named(here.record(handle), "a")["attempts"]
    assert [a["status"] for a in attempts] == ["lost", "succeeded"]


async def test_a_crowd_does_not_slow_the_beats_below_a_steps_heartbeat_timeout(
    here: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_activity, "CROWD", 0)
    monkeypatch.setattr(step_activity, "CROWDED_BEAT_SECONDS", 60)
    record = await here.run(
        {"id": "a", "type": "command", "command": "sleep 5", "heartbeat_timeout": 3}
    )
    assert [a["status"] for a in step_named(record, "a")["attempts"]] == ["succeeded"]


@pytest.mark.parametrize(("size", "told"), [(1_000, True), (100_000, False)])
async def test_a_beat_tells_what_a_function_has_written_unless_that_is_large(
    here: Bench, size: int, told: bool
) -> None:
    handle = await here.start({"id": "a", "type": "kit-beaten", "size": size})
    beats: list[str] = []

    async def beaten() -> bool:
        for pending in (await handle.describe()).raw_description.pending_activities:
            for payload in pending.heartbeat_details.payloads:
                beats.append(payload.data.decode("utf-8", "replace"))
        return any("beaten" in beat for beat in beats) if told else len(beats) > 100

    await until(beaten)
    assert told or not any("beaten" in beat or len(beat) > 2_000 for beat in beats)
    (here.work_of(handle) / "go").touch()
    await handle.result()


async def test_c51_what_a_step_plants_in_a_later_ones_place_is_not_followed(
    here: Bench, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "stdout.log").write_text("precious")
    plant = f'ln -s {outside} "$PERDURE_WORKDIR/../steps/b.1"'
    record = await here.run(
        {"id": "a", "type": "command", "command": plant},
        {"id": "b", "type": "command", "command": "echo fine"},
    )
    assert record["status"] == "succeeded"
    assert [path.name for path in outside.iterdir()] == ["stdout.log"]
    assert (outside / "stdout.log").read_text() == "precious"


async def test_c51_an_artifact_whose_folder_a_later_step_made_a_link_is_not_kept(
    here: Bench, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("precious")
    artifacts = '"$PERDURE_WORKDIR/../steps/a.1/artifacts"'
    handle = await here.start(
        {"id": "a", "type": "command", "command": 'cd "$PERDURE_ARTIFACTS"; mkdir d; echo 1 > d/x'},
        {
            "id": "b",
            "type": "command",
            "command": f"cd {artifacts}; mv d e; ln -s {outside} d",
        },
    )
    await handle.result()
    kept = here.results_of(handle)
    assert (kept / "steps" / "a.1" / "stdout.log").exists()
    assert not (kept / "artifacts").exists() or not any((kept / "artifacts").rglob("x"))
