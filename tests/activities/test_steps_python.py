"""Step type `python`: functions of scripts, their results and their tracebacks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.activities.steps_kit import Kit


async def test_what_the_function_returns_is_the_result_and_stands_in_the_metadata(kit: Kit) -> None:
    kit.context.results["before"] = {"n": 20}
    code = """
def run(input):
    return {"sum": input["args"]["n"] + input["results"]["before"]["n"],
            "model": input["context"]["agent_model"]}
"""
    assert await kit.run("python", code=code, args={"n": 1}) == {"sum": 21, "model": None}
    assert kit.context.metadata["script_results"] == {"s": {"sum": 21, "model": None}}


async def test_an_async_entry_point_is_awaited_and_may_have_a_name_of_its_own(kit: Kit) -> None:
    code = "import asyncio\nasync def go(input):\n    await asyncio.sleep(0)\n    return (1, [2])"
    assert await kit.run("python", code=code, entrypoint="go", result_id="mine") == [1, [2]]
    assert kit.context.metadata["script_results"] == {"mine": [1, [2]]}


async def test_results_of_other_scripts_stay(kit: Kit) -> None:
    held = kit.context.metadata["script_results"] = {"other": 1}
    await kit.run("python", code="def run(input): return None")
    assert kit.context.metadata["script_results"] == {"other": 1, "s": None}
    assert held == {"other": 1}


async def test_an_exception_fails_the_step_with_its_class_and_the_script_s_own_lines(
    kit: Kit,
) -> None:
    code = """class Odd(Exception): pass

def run(input):
    helper()

def helper():
    raise Odd('no luck')
"""
    failed = await kit.fail("python", code=code, file_name="checks/score.py")
    assert failed.type == "Odd"
    assert 'File "checks/score.py", line 4, in run\n    helper()' in str(failed)
    assert 'File "checks/score.py", line 7, in helper' in str(failed)
    assert str(failed).startswith("Odd: no luck\nits traceback ends with:\n")
    assert str(failed).endswith("Odd: no luck")
    assert "python_runner" not in str(failed)
    assert "Odd: no luck" in (kit.folder / "s.1" / "stderr.log").read_text()


@pytest.mark.parametrize(
    ("code", "type"),
    [
        ("def run(input:", "SyntaxError"),
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("x = 1", "NoEntrypoint"),
        ("run = 5", "NoEntrypoint"),
        ("def run(): pass", "TypeError"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("def run(input): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os\ndef run(input): os._exit(7)", "ExitCode"),
        ("import os\ndef run(input): os.kill(os.getpid(), 9)", "ExitCode"),
        ("def run(input): return run(input)", "RecursionError"),
        ("class E(Exception):\n def __str__(self): raise self\ndef run(input): raise E", "E"),
    ],
)
async def test_a_script_that_goes_wrong_fails_its_step_only(kit: Kit, code: str, type: str) -> None:
    failed = await kit.fail("python", code=code)
    assert failed.type == type
    assert str(failed)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{1, 2}", "the result is of type set"),
        ("{'a': [b'x']}", "the result['a'][0] is of type bytes"),
        ("{1: 2}", "a key of type int"),
        ("float('nan')", "nan"),
        ("'\\ud800'", "lone surrogate"),
        ("10 ** 5000", "digits"),
        ("loop", "levels deep"),
    ],
)
async def test_a_result_that_is_not_json_is_named_by_its_place(
    kit: Kit, value: str, words: str
) -> None:
    code = f"loop = []\nloop.append(loop)\ndef run(input): return {value}"
    failed = await kit.fail("python", code=code)
    assert failed.type == "BadResult"
    assert words in str(failed)
    assert "script_results" not in kit.context.metadata


async def test_subclasses_come_back_as_plain_values(kit: Kit) -> None:
    code = """
import enum
class Colour(str, enum.Enum): RED = "red"
class Level(enum.IntEnum): LOW = 1
def run(input): return [Colour.RED, Level.LOW, True, 1.5, -0.0]
"""
    result = await kit.run("python", code=code)
    assert [type(item) for item in result] == [str, int, bool, float, float]
    assert math.copysign(1, result[4]) == -1


async def test_a_script_prints_as_it_likes_and_sees_the_run_s_directory(kit: Kit) -> None:
    kit.workdir.mkdir()
    (kit.workdir / "beside.py").write_text("NAME = 'beside'")
    code = """
import beside, os
def run(input):
    print('{"value": 1}')
    return [beside.NAME, os.getcwd(), __name__ != '__main__']
"""
    assert await kit.run("python", code=code) == ["beside", str(kit.workdir), True]


async def test_the_limits_hold_for_scripts_too(kit: Kit) -> None:
    code = "import time\ndef run(input): time.sleep(600)"
    assert (await kit.fail("python", code=code, timeout=1)).type == "Timeout"
    assert (await kit.fail("python", code=code, idle_timeout=1)).type == "IdleTimeout"


async def test_printing_keeps_a_script_from_being_idle(kit: Kit) -> None:
    code = """
import time
def run(input):
    for i in range(12):
        print(i)
        time.sleep(0.3)
    return 1
"""
    assert await kit.run("python", code=code, idle_timeout=3) == 1


async def test_what_a_script_was_given_and_returned_does_not_stay(kit: Kit) -> None:
    kit.environment.variables["SOURCE"] = "s3cr3t-CANARY"  # type: ignore[index]
    args: Any = {"token": {"from_env": "SOURCE"}}
    host = kit.host({"id": "s", "type": "python"})
    result = await kit.run("python", host, code="def run(input): return input['args']", args=args)
    assert result == {"token": "s3cr3t-CANARY"}
    assert host.secret_values == ["s3cr3t-CANARY"]
    assert ((host.step_dir / "answer.json").stat().st_mode & 0o777) == 0o600
    host.close()
    host.close()
    for path in host.step_dir.rglob("*"):
        assert path.is_dir() or b"CANARY" not in path.read_bytes()


async def test_a_script_that_was_not_embedded_is_refused(kit: Kit) -> None:
    failed = await kit.fail("python", file="score.py")
    assert (failed.kind, failed.retryable) == ("bad_input", False)
