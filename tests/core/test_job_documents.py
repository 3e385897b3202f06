"""Steps that launch jobs and wait for them, as documents describe them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from perdure.core.job_documents import spec_of
from perdure.core.problems import Problem
from perdure.core.spans import used_environments
from perdure.core.task import InvalidTask, Task, parse_task
from perdure.job_messages import JobSpec


def task(*steps: dict[str, Any], **document: Any) -> Task:
    return parse_task({"id": "t", "environments": ["shop"], "steps": list(steps), **document})


def problems(*steps: dict[str, Any]) -> list[Problem]:
    with pytest.raises(InvalidTask) as refused:
        task(*steps)
    return refused.value.problems


def said(*steps: dict[str, Any]) -> str:
    (problem,) = problems(*steps)
    return str(problem)


def background(id: str = "launch", **keys: Any) -> dict[str, Any]:
    return {"id": id, "type": "background", **(keys or {"command": "true"})}


def awaiting(job: Any, id: str = "wait", **keys: Any) -> dict[str, Any]:
    return {"id": id, "type": "await", "job": job, **keys}


# --- background ----------------------------------------------------------------------------


def test_a_command_becomes_the_job_that_is_meant() -> None:
    keys: dict[str, Any] = {
        "command": ["python3", "train.py", 3],
        "cwd": "out",
        "stdin": "go\n",
        "ok_exit_codes": [0, 3],
        "env": {"N": 3, "KEY": {"from_env": "KEY"}},
        "name": "train",
        "restartable": True,
        "max_worker_losses": 5,
        "time_limit": "2h",
        "kill_after": "1m",
        "timeout": 30,
    }
    (step,) = task(background(**keys)).steps
    assert spec_of(step.body) == JobSpec(
        argv=["python3", "train.py", "3"],
        cwd="out",
        stdin="go\n",
        ok_exit_codes=[0, 3],
        env={"N": "3", "KEY": {"from_env": "KEY"}},
        name="train",
        restartable=True,
        max_worker_losses=5,
        time_limit_seconds=7200.0,
        kill_after_seconds=60.0,
    )
    assert step.timeout_seconds == 30.0


def test_a_text_is_for_the_shell_and_all_else_has_the_defaults_of_a_job() -> None:
    (step,) = task(background(command="sleep 300 & wait")).steps
    assert spec_of(step.body) == JobSpec(argv=["/bin/sh", "-c", "sleep 300 & wait"])


def test_a_cell_runs_where_the_document_says() -> None:
    inside: dict[str, Any] = {"environment": "shop", "service": "web", "user": 7, "workdir": "/srv"}
    (step,) = task(background(code="def f(i): 1", entrypoint="f", args=[1], **inside)).steps
    assert spec_of(step.body) == JobSpec(
        code="def f(i): 1", entrypoint="f", args=[1], environment="shop", service="web",
        user="7", workdir="/srv",
    )  # fmt: skip
    assert used_environments(task(step.to_dict()), step) == ("shop",)


@pytest.mark.parametrize(
    ("keys", "where", "words"),
    [
        ({"name": "n"}, "steps[0]", "give command; or file; or code"),
        ({"command": "x", "code": "y"}, "steps[0]", "exclude each other"),
        ({"command": "x", "kil_after": 3}, "steps[0].kil_after", "did you mean 'kill_after'?"),
        ({"command": "x", "json": True}, "steps[0].json", "has no key 'json'"),
        ({"code": "x", "result_id": "r"}, "steps[0].result_id", "has no key 'result_id'"),
        ({"command": "x", "args": [1]}, "steps[0].args", "belongs to a python cell"),
        ({"command": "x", "entrypoint": "f"}, "steps[0].entrypoint", "belongs to a python cell"),
        ({"code": "x", "args": [1]}, "steps[0].args", "name the function under entrypoint"),
        ({"code": "x", "entrypoint": "a b"}, "steps[0].entrypoint", "name of a variable"),
        ({"code": "x", "ok_exit_codes": [1]}, "steps[0].ok_exit_codes", "give command"),
        ({"code": "x" * 200_001}, "steps[0].code", "at most 200,000"),
        ({"code": "a\0b"}, "steps[0].code", "NUL"),
        ({"command": []}, "steps[0].command", "empty list"),
        ({"command": ["", "x"]}, "steps[0].command[0]", "name the program"),
        ({"command": ["x", "y" * 40_000]}, "steps[0].command", "give long texts as stdin"),
        ({"command": "x", "ok_exit_codes": [-999]}, "steps[0].ok_exit_codes[0]", "between"),
        ({"command": "x", "name": "a b"}, "steps[0].name", "nearest legal id"),
        ({"command": "x", "name": "exec-0123456789ab"}, "steps[0].name", "choose another name"),
        ({"command": "x", "time_limit": 0}, "steps[0].time_limit", "longer than nothing"),
        ({"command": "x", "kill_after": -1}, "steps[0].kill_after", "less than nothing"),
        ({"command": "x", "restartable": "yes"}, "steps[0].restartable", "true or false"),
        (
            {"command": "x", "env": {"PERDURE_JOBS": "a"}},
            "steps[0].env.PERDURE_JOBS",
            "itself sets",
        ),
        ({"command": "x", "environment": "shop"}, "steps[0]", "add service: ..."),
        ({"command": "x", "service": "web"}, "steps[0].service", "name the environment"),
        ({"command": "x", "user": "u"}, "steps[0].user", "name the environment"),
        (
            {"command": "x", "environment": "shop", "service": "web", "cwd": "d"},
            "steps[0].cwd",
            "write workdir",
        ),
        (
            {"command": "x", "environment": "shp", "service": "web"},
            "steps[0].environment",
            "did you mean 'shop'?",
        ),
    ],
)
def test_what_cannot_be_a_job_is_refused(keys: dict[str, Any], where: str, words: str) -> None:
    text = said(background(**keys))
    assert text.startswith(f"{where}: "), text
    assert words in text


# --- await ---------------------------------------------------------------------------------


def test_a_job_is_awaited_that_an_earlier_step_launches() -> None:
    whole = task(
        background(command="x", name="train"),
        awaiting("train", interrupt_after="10m", kill_after=2, accept=["done", "killed"]),
    )
    body = whole.steps[1].body
    assert (body["interrupt_after"], body["kill_after"], body["accept"]) == (
        600.0, 2.0, ["done", "killed"],
    )  # fmt: skip
    assert used_environments(whole, whole.steps[1]) == ()


@pytest.mark.parametrize("job", ["exec-0123456789ab", "<job>", "train-<number>"])
def test_nobody_knows_beforehand_of_an_exec_id_or_a_seed_that_is_not_given(job: str) -> None:
    task(awaiting(job))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([awaiting("train")], "(launched before: none); add a step of type background"),
        ([background(command="x", name="train"), awaiting("trian")], "did you mean 'train'?"),
        (
            [background(command="x", name="train"), awaiting("other")],
            "(launched before: 'train')",
        ),
        (
            [awaiting("train"), background(command="x", name="train")],
            "'train' is launched by 'launch', which comes after this step",
        ),
        ([background(command="x", name="train"), awaiting("launch")], "write train"),
        ([background(), awaiting("launch")], "give that step name: launch"),
        (
            [background(command="x", name="train"), awaiting("train", depends_on=[])],
            "step 'wait' does not depend on 'launch', which launches 'train'; add launch to its",
        ),
        ([awaiting("exec-0123456789AB")], "no earlier step launches"),
        ([awaiting(7)], "is not text"),
        ([awaiting("exec-0123456789ab", accept=["don"])], "did you mean 'done'?"),
        ([awaiting("exec-0123456789ab", accept=[])], "name at least one of the ends of a job"),
        ([awaiting("exec-0123456789ab", interrupt_after="soon")], "not a length of time"),
        ([awaiting("exec-0123456789ab", interupt_after=3)], "did you mean 'interrupt_after'?"),
    ],
)
def test_what_cannot_be_awaited_is_refused(steps: list[dict[str, Any]], words: str) -> None:
    assert words in said(*steps)


def test_one_of_several_launches_of_a_name_is_enough() -> None:
    task(
        background("one", command="x", name="train"),
        background("two", command="x", name="train", depends_on=["one"]),
        awaiting("train", depends_on=["one"]),
    )


def test_a_process_or_a_custom_step_may_launch_a_job_of_any_name() -> None:
    task({"id": "a", "type": "command", "command": "./agent"}, awaiting("train"))
    parse_task(
        {"id": "t", "steps": [{"id": "a", "type": "own"}, awaiting("train")]},
        custom_types={"own": frozenset()},
    )
    misspelt = [background(command="x", name="train"), {"id": "c", "type": "command",
                "command": "x"}, awaiting("trian")]  # fmt: skip
    assert "did you mean 'train'?" in said(*misspelt)


@pytest.mark.parametrize("type", ["background", "await"])
def test_nothing_is_undone_by_a_job(type: str) -> None:
    keys = {"command": "x"} if type == "background" else {"job": "exec-0123456789ab"}
    step = {"id": "a", "type": "command", "command": "x", "compensate": {"type": type, **keys}}
    assert (
        said(step) == f"steps[0].compensate.type: nothing is undone by {type!r}; use another type"
    )


def test_thousands_of_launches_and_awaits_are_checked_quickly() -> None:
    began = time.monotonic()
    steps = [background(f"l{n}", command="x", name=f"j{n}") for n in range(5_000)]
    steps += [awaiting(f"j{n}", f"w{n}") for n in range(5_000)]
    assert len(task(*steps).steps) == 10_000
    assert time.monotonic() - began < 20
