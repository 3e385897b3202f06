"""Step type `command`: real processes, hostile output, and what is said about failures."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.steps.streams import KEPT_BYTES
from tests.activities.living import pid_of
from tests.activities.steps_kit import Kit
from tests.waiting import written


async def test_a_text_is_run_by_the_shell_and_its_output_is_the_result(kit: Kit) -> None:
    result = await kit.run("command", command="echo out; echo err >&2; exit 0")
    assert result.pop("duration") >= 0
    assert result == {"exit_code": 0, "stdout": "out\n", "stderr": "err\n", "json": None}


async def test_a_list_is_an_argv_of_which_nothing_is_expanded(kit: Kit) -> None:
    result = await kit.run("command", command=["printf", "%s|", "$HOME", "*", "a b", ""])
    assert result["stdout"] == "$HOME|*|a b||"


async def test_a_failing_exit_code_fails_the_step_with_the_last_lines_and_keeps_the_result(
    kit: Kit,
) -> None:
    """P53."""
    script = "echo kept; for i in 1 2 3 4 5 6 7 8; do echo line $i >&2; done; exit 3"
    failed = await kit.fail("command", command=script)
    assert failed.type == "ExitCode"
    assert failed.kind == "task"
    assert str(failed).startswith("exit code 3; stderr ends with:\nline 4\n")
    assert failed.result["stdout"] == "kept\n"
    assert failed.result["exit_code"] == 3


async def test_exit_codes_can_be_declared_good(kit: Kit) -> None:
    result = await kit.run("command", command="exit 4", ok_exit_codes=[0, 4])
    assert result["exit_code"] == 4
    assert (await kit.fail("command", command="exit 0", ok_exit_codes=[4])).type == "ExitCode"


async def test_a_process_that_a_signal_ended_says_so(kit: Kit) -> None:
    failed = await kit.fail("command", command="kill -KILL $$")
    assert "ended by signal 9" in str(failed)
    assert failed.result["exit_code"] == -9


async def test_stdin_is_fed_and_closed(kit: Kit) -> None:
    result = await kit.run("command", command=["cat"], stdin="grüße\n")
    assert result["stdout"] == "grüße\n"


@pytest.mark.parametrize(
    "command",
    ["cat", "read x; echo read: $?", "read x < /dev/tty; exit 0", [sys.executable], ["cat", "-"]],
)
async def test_c31_without_stdin_a_process_reads_end_of_file(kit: Kit, command: Any) -> None:
    result = await asyncio.wait_for(kit.run("command", command=command), timeout=60)
    assert result["exit_code"] == 0


async def test_json_is_parsed_from_standard_output(kit: Kit) -> None:
    result = await kit.run("command", command="""echo '{"a": [1, 2.5, null]}'""", json=True)
    assert result["json"] == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("output", ["not json", "", "{} {}", "[NaN]", '"\\\\ud800"', "[1,"])
async def test_output_that_is_not_json_fails_the_step_and_keeps_the_result(
    kit: Kit, output: str
) -> None:
    failed = await kit.fail("command", command=["printf", output], json=True)
    assert failed.type == "BadJson"
    assert failed.result["exit_code"] == 0


async def test_the_timeout_ends_the_process_and_the_output_so_far_is_kept(kit: Kit) -> None:
    failed = await kit.fail("command", command="echo so far; sleep 600", timeout=2)
    assert (failed.type, failed.kind) == ("Timeout", "timeout")
    assert failed.result["stdout"] == "so far\n"


async def test_a_process_without_output_is_ended_at_the_idle_timeout(kit: Kit) -> None:
    failed = await kit.fail("command", command="echo once; sleep 600", idle_timeout=0.5)
    assert (failed.type, failed.kind) == ("IdleTimeout", "timeout")


async def test_output_that_is_not_utf_8_is_replaced(kit: Kit) -> None:
    result = await kit.run("command", command=r"printf 'a\377\376b\303'")
    assert result["stdout"] == "a��b�"
    json.dumps(result, ensure_ascii=False).encode()


async def test_three_mebibytes_of_output_are_clipped_with_a_mark(kit: Kit) -> None:
    code = "import sys; sys.stdout.write('A' + 'é' * (3 << 20) + 'Z'); sys.stderr.write('e')"
    result = await kit.run("command", command=[sys.executable, "-c", code])
    assert result["stdout"].startswith("Aé")
    assert "bytes left out)...\n" in result["stdout"]
    assert result["stdout"].endswith("...(truncated at 1000000 characters)")
    assert len(result["stdout"].encode()) < 2 * KEPT_BYTES + 100
    assert "�" not in result["stdout"]


@pytest.mark.parametrize(("keep", "length"), [(False, 0), (0, 0), (10, 20), (True, 5000)])
async def test_keep_output_says_how_much_the_context_keeps(
    kit: Kit, keep: Any, length: int
) -> None:
    result = await kit.run("command", command=["printf", "x" * 5000], keep_output=keep)
    assert result["stdout"].count("x") == length
    assert ("bytes left out" in result["stdout"]) is (keep == 10)
    assert (kit.folder / "s.1" / "stdout.log").read_text() == "x" * 5000


async def test_the_current_directory_is_the_run_s_and_cwd_lies_in_it(kit: Kit) -> None:
    (kit.workdir / "deep" / "er").mkdir(parents=True)
    assert (await kit.run("command", command="pwd"))["stdout"] == f"{kit.workdir}\n"
    result = await kit.run("command", command="pwd", cwd="deep/er")
    assert result["stdout"] == f"{kit.workdir}/deep/er\n"
    assert (await kit.run("command", command="pwd", cwd="/"))["stdout"] == "/\n"


@pytest.mark.parametrize("cwd", ["..", "a/../../..", "../work2", "link", "link/../..", "a\0b"])
async def test_c51_a_relative_cwd_does_not_lead_out_of_the_working_directory(
    kit: Kit, cwd: str
) -> None:
    kit.workdir.mkdir()
    (kit.workdir / "link").symlink_to("/")
    failed = await kit.fail("command", command="pwd", cwd=cwd)
    assert (failed.type, failed.retryable) == ("BadPath", False)


@pytest.mark.parametrize(
    ("command", "cwd"), [(["no-such-program-here"], None), (["true"], "missing"), (["/"], None)]
)
async def test_what_cannot_be_started_is_not_retried(kit: Kit, command: Any, cwd: Any) -> None:
    """P53."""
    failed = await kit.fail("command", command=command, **({"cwd": cwd} if cwd else {}))
    assert (failed.type, failed.retryable) == ("SpawnFailed", False)


async def test_c49_a_secret_reaches_the_process_and_is_masked_in_what_it_prints(
    kit: Kit, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("file-CANARY\n")
    kit.environment.variables["TOKEN_SOURCE"] = "s3cr3t-CANARY-9f"  # type: ignore[index]
    result = await kit.run(
        "command",
        command='echo "$TOKEN ${#CERT}"; echo "$CERT" >&2; printf %s "$TOKEN" | base64',
        env={
            "TOKEN": {"from_env": "TOKEN_SOURCE"},
            "CERT": {"from_file": str(tmp_path / "ca.pem")},
        },
    )
    assert result["stdout"] == "*** 11\n***\n"
    assert result["stderr"] == "***\n"
    assert "CANARY" not in (kit.folder / "s.1" / "stdout.log").read_text()


async def test_c49_a_missing_secret_fails_once_and_names_the_reference(kit: Kit) -> None:
    for reference in ({"from_env": "NOT_SET"}, {"from_file": "/no/such/file"}):
        failed = await kit.fail("command", command="true", env={"K": reference})
        assert (failed.type, failed.retryable) == ("MissingSecret", False)
        assert next(iter(reference.values())) in str(failed)


async def test_a_cancelled_step_ends_its_process(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "command"})
    running = asyncio.ensure_future(kit.run("command", host, command="echo > up; sleep 600"))
    await written(kit.workdir / "up")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert pid_of(kit.supervisor, host._key) is None
