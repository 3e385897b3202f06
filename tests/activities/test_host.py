"""The host of an attempt: what its processes see, and what is adopted."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from activities.host import PRIVATE_FILES, forget
from activities.secrets import WorkerEnvironment
from activities.step_log import TRIAL_MARK
from activities.threads import ThreadHost
from perdure.steps import StepFailed
from tests.activities.steps_kit import Kit
from tests.waiting import written

SEES = "import json, os; print(json.dumps(dict(os.environ)))"


async def seen(kit: Kit, document: dict[str, Any] | None = None, **more: Any) -> dict[str, str]:
    """The environment of a process of a step."""
    host = kit.host({"id": "a-step", "type": "command", **(document or {})}, **more)
    ended = await host.run_process([sys.executable, "-c", SEES])
    variables: dict[str, str] = json.loads(ended.stdout_path.read_text())
    for added_by_python in ("LC_CTYPE",):
        variables.pop(added_by_python, None)
    return variables


# --- The environment of a process ----------------------------------------------------------


async def test_a_process_sees_its_attempt_and_next_to_nothing_of_the_worker(kit: Kit) -> None:
    kit.have("my-shop", "p1", SHOP_PORT=18080)
    variables = await seen(kit, {"env": {"MODE": "eval", "N": 3}})
    step_dir = kit.folder / "a-step.1"
    variables.pop("PERDURE_MARKER")
    assert variables == {
        "PATH": os.environ["PATH"],
        "HOME": "/nowhere/someone",
        "MODE": "eval",
        "N": "3",
        "SHOP_PORT": "18080",
        "MY_SHOP_PROJECT_NAME": "p1",
        "PERDURE_TASK_ID": "t",
        "PERDURE_STEP_ID": "a-step",
        "PERDURE_RUN_ID": "run-1",
        "PERDURE_TRIAL": "2",
        "PERDURE_ATTEMPT": "1",
        "PERDURE_WORKDIR": str(kit.workdir),
        "PERDURE_CONTEXT": str(step_dir / "context.json"),
        "PERDURE_OUTPUT": str(step_dir / "output.json"),
        "PERDURE_ARTIFACTS": str(step_dir / "artifacts"),
    }
    assert (await seen(kit))["PERDURE_ATTEMPT"] == "2"


async def test_pass_env_lets_single_variables_through_and_inherit_env_all(kit: Kit) -> None:
    own = {**kit.environment.variables, "A": "1", "B": "2", "PERDURE_STATE_DIR": "/x"}
    kit.environment = WorkerEnvironment(own, ("A", "C", "NOT_SET"), env_file={"C": "3", "D": "4"})
    variables = await seen(kit)
    assert {name: variables.get(name) for name in "ABCD"} == {
        "A": "1", "B": None, "C": "3", "D": None,
    }  # fmt: skip
    assert "NOT_SET" not in variables
    kit.environment = WorkerEnvironment(own, inherit_env=True, env_file={"B": "file"})
    variables = await seen(kit)
    assert (variables["A"], variables["B"], variables["OTHER"]) == ("1", "file", "hidden")
    assert "PERDURE_STATE_DIR" not in variables


async def test_a_step_cannot_take_perdure_s_own_variables_over(kit: Kit) -> None:
    assert (await seen(kit, {"env": {"PERDURE_RUN_ID": "mine"}}))["PERDURE_RUN_ID"] == "run-1"


async def test_c49_passed_variables_that_are_called_secret_are_masked(kit: Kit) -> None:
    own = {**kit.environment.variables, "OPENAI_API_KEY": "s3cr3t-CANARY", "DEBUG_KEY": "true"}
    kit.environment = WorkerEnvironment(own, ("OPENAI_API_KEY", "DEBUG_KEY"))
    variables = await seen(kit)
    assert (variables["OPENAI_API_KEY"], variables["DEBUG_KEY"]) == ("***", "true")


async def test_the_context_file_holds_the_context_for_its_owner_alone(kit: Kit) -> None:
    kit.context.metadata["litellm_api_key"] = "s3cr3t-CANARY"
    secrets = {"n": "s3cr3t-CANARY"}
    host = kit.host({"id": "s", "type": "command"}, secrets=secrets)
    ended = await host.run_process(["/bin/sh", "-c", 'cat "$PERDURE_CONTEXT"'])
    assert json.loads(ended.stdout_path.read_text())["metadata"] == {"litellm_api_key": "***"}
    assert host.context_path.stat().st_mode & 0o777 == 0o600
    host.close()
    assert not host.context_path.exists()


async def test_an_env_value_may_refer_to_what_an_earlier_step_kept_secret(kit: Kit) -> None:
    document = {"id": "s", "type": "command", "env": {"TOKEN": {"$secret": "a.1:metadata.k"}}}
    host = kit.host(document, secrets={"a.1:metadata.k": "s3cr3t-CANARY"})
    assert host.environ()["TOKEN"] == "s3cr3t-CANARY"
    assert host.secret_values == ["s3cr3t-CANARY"]


# --- Processes -----------------------------------------------------------------------------


async def test_each_process_of_an_attempt_has_files_of_its_own(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "custom"})
    first = await host.run_process(["echo", "one"])
    second = await host.run_process(["/bin/sh", "-c", "echo $EXTRA; exit 2"], env={"EXTRA": "two"})
    assert (first.stdout_path.name, first.stdout_path.read_text()) == ("stdout.log", "one\n")
    assert (second.stdout_path.name, second.stdout_path.read_text()) == ("stdout.2.log", "two\n")
    assert (second.stderr_path.name, second.exit_code) == ("stderr.2.log", 2)
    assert (host.step_dir / "exit.json").exists()
    assert (host.step_dir / "exit.2.json").exists()


async def test_a_finished_process_of_a_lost_attempt_is_never_run_again(kit: Kit) -> None:
    command = ["/bin/sh", "-c", "echo ran >> ran; echo out; exit 3"]
    lost = kit.host({"id": "s", "type": "custom"})
    await lost.run_process(command)
    again = kit.host({"id": "s", "type": "custom"}, step_dir=lost.step_dir)
    ended = await again.run_process(command)
    assert (ended.exit_code, ended.stdout_path.read_text()) == (3, "out\n")
    assert (kit.workdir / "ran").read_text() == "ran\n"
    await again.run_process(command)
    assert (kit.workdir / "ran").read_text() == "ran\nran\n"


async def test_a_python_step_is_adopted_with_what_it_returned(kit: Kit) -> None:
    code = "def run(input):\n    open('ran', 'a').write('x')\n    return 7"
    lost = kit.host({"id": "s", "type": "python"})
    assert await kit.run("python", lost, code=code) == 7
    again = kit.host({"id": "s", "type": "python"}, step_dir=lost.step_dir)
    assert await kit.run("python", again, code=code) == 7
    assert (kit.workdir / "ran").read_text() == "x"


async def test_a_process_that_was_ended_with_its_worker_is_run_again(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "custom"})
    command = ["/bin/sh", "-c", "echo ran >> ran; [ -e go ] || sleep 600"]
    running = asyncio.ensure_future(host.run_process(command))
    await written(kit.workdir / "ran")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (kit.workdir / "go").touch()
    again = kit.host({"id": "s", "type": "custom"}, step_dir=host.step_dir)
    assert (await again.run_process(command)).exit_code == 0
    assert (kit.workdir / "ran").read_text() == "ran\nran\n"


async def test_a_heartbeat_restarts_the_idle_clock_of_a_silent_process(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "custom", "idle_timeout": 3})
    running = asyncio.ensure_future(host.run_process(["sleep", "4"]))
    while not running.done():
        await asyncio.to_thread(host.heartbeat)
        await asyncio.sleep(0.05)
    assert (await running).ended_by == "exit"
    assert host.kill_slack_seconds > 0


# --- Usage ---------------------------------------------------------------------------------


async def test_usage_adds_up_by_name_and_with_what_processes_report(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "command"})
    host.add_usage(cost=0.5, tokens=100)
    host.add_usage(cost=0.25)
    assert host.collect_output(kit.context) == {"cost": 0.75, "tokens": 100}
    report = 'echo \'{"usage": {"cost": 1, "calls": 2}}\' > "$PERDURE_OUTPUT"'
    await host.run_process(["/bin/sh", "-c", report])
    assert host.collect_output(kit.context) == {"cost": 1.75, "tokens": 100, "calls": 2}
    assert host.usage == {"cost": 0.75, "tokens": 100}


async def test_usage_is_counted_on_any_thread(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "command"})
    apart = ThreadHost(host, asyncio.get_running_loop())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: apart.add_usage(calls=1), range(2000)))
    assert host.usage == {"calls": 2000}


@pytest.mark.parametrize(
    "amount", [-1, -0.01, float("nan"), float("inf"), 10**400, True, "5", None, [1]]
)
async def test_what_is_no_amount_is_refused_and_nothing_of_that_call_counts(
    kit: Kit, amount: Any
) -> None:
    host = kit.host({"id": "s", "type": "command"})
    with pytest.raises(StepFailed, match=r"^add_usage: 'tokens' is .*; give a finite") as refused:
        host.add_usage(cost=1, tokens=amount)
    assert (refused.value.type, refused.value.retryable) == ("BadUsage", False)
    assert host.usage == {}


async def test_a_usage_has_a_name_that_can_be_printed(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "command"})
    with pytest.raises(StepFailed, match=r"'\\ud800'"):
        host.add_usage(**{"\ud800": 1})


def test_what_held_secrets_is_removed_whatever_stands_there(tmp_path: Path) -> None:
    for name in PRIVATE_FILES[1:]:
        (tmp_path / name).touch()
    (tmp_path / PRIVATE_FILES[0]).mkdir()
    (tmp_path / "stdout.log").touch()
    forget(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [PRIVATE_FILES[0], "stdout.log"]


# --- The log ---------------------------------------------------------------------------------


def logged(kit: Kit, caplog: pytest.LogCaptureFixture, metadata: Any) -> list[str]:
    """What a step's lines look like, when its context has this metadata."""
    kit.context.metadata = metadata
    host = kit.host({"id": "a-step", "type": "custom"})
    caplog.clear()
    with caplog.at_level(logging.INFO, "perdure.steps"):
        host.log.info("100% done")
        host.log.warning("%s of %s", 3, "4%")
        host.log.info("%(share)s", {"share": "5%"})
        kit.context.metadata = {TRIAL_MARK: "later"}
        host.heartbeat("a note")
    assert {record.filename for record in caplog.records[:3]} == {Path(__file__).name}
    assert {vars(record)["step"] for record in caplog.records} == {f"s/t/2 a-step.{host.attempt}"}
    return caplog.messages


LINES = ["100% done", "3 of 4%", "5%", "a note"]


@pytest.mark.parametrize("metadata", [{}, {"seed": {"a": 1}}, {TRIAL_MARK: None}, None, "text"])
async def test_lines_of_a_trial_without_a_mark_have_no_prefix(
    kit: Kit, caplog: pytest.LogCaptureFixture, metadata: Any
) -> None:
    assert logged(kit, caplog, metadata) == LINES


@pytest.mark.parametrize(
    ("mark", "prefix"),
    [
        ("t/2", "[t/2] "),
        (7, "[7] "),
        ("50%s %(a)s", "[50%s %(a)s] "),
        ("two\nlines \x1b[31m", "[two lines \\x1b[31m] "),
        ("x" * 1000, f"[{'x' * 300}] "),
    ],
)
async def test_every_line_begins_with_the_mark_that_the_attempt_was_given(
    kit: Kit, caplog: pytest.LogCaptureFixture, mark: Any, prefix: str
) -> None:
    assert logged(kit, caplog, {TRIAL_MARK: mark}) == [prefix + line for line in LINES]
