"""Task documents: what is taken, what is refused, and in which words."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.fields import identifier, nearest_id
from perdure.core.problems import Place, Problem
from perdure.core.step_checks import OWN_CHECKS
from perdure.core.step_types import BUILT_IN_TYPES, COMMON_KEYS, COMPENSATION_KEYS
from perdure.core.task import InvalidTask, Retry, RetryConfig, Step, Task, parse_task
from tests.core.strategies import JSON, KEYS

FULL: dict[str, Any] = {
    "id": "refund",
    "version": 3,
    "project_id": "shop",
    "environments": ["shop"],
    "seed": {"order": "1001"},
    "repeats": 2,
    "timeout": "2h",
    "priority": "high",
    "redact": ["session_key"],
    "metadata": {"domain": "crm", "session_key": {"from_env": "KEY"}},
    "steps": [
        {
            "id": "order",
            "type": "http",
            "environment": "shop",
            "port": "SHOP_PORT",
            "path": "/orders/1001",
            "expect": {"status": 200},
        },
        {
            "id": "agent",
            "type": "command",
            "depends_on": ["order"],
            "command": ["python3", "agent.py", "--order", 1001],
            "env": {
                "MODE": "eval",
                "N": 3,
                "KEY": {"from_env": "KEY"},
                "C": {"from_file": "c.pem"},
            },
            "timeout": 600,
            "idle_timeout": "5m",
            "heartbeat_timeout": 10,
            "retry": {"max_attempts": 3, "non_retryable_errors": ["BadPrompt"]},
            "max_worker_losses": 3,
            "fail_task_on_error": True,
            "retry_config": {"go_to_step_id": "order", "max_retries": 2},
            "uses": ["shop"],
            "limit": "openai",
            "creates": ["out/report.json"],
            "compensate": {
                "type": "http",
                "environment": "shop",
                "port": "SHOP_PORT",
                "method": "delete",
                "path": "/refunds/1001",
            },
        },
        {
            "id": "check",
            "type": "verify",
            "checks": [
                {"path": "results.agent.exit_code", "equals": 0},
                {"path": "results.agent.stdout", "contains": "refunded"},
            ],
        },
    ],
}


def command(id: str = "a", **keys: Any) -> dict[str, Any]:
    return {"id": id, "type": "command", "command": "true", **keys}


def task(*steps: Any, **keys: Any) -> dict[str, Any]:
    return {"id": "t", "steps": list(steps), **keys}


def problems_of(document: Any, **options: Any) -> list[Problem]:
    with pytest.raises(InvalidTask) as refused:
        parse_task(document, **options)
    return refused.value.problems


def the_problem(document: Any, **options: Any) -> Problem:
    (problem,) = problems_of(document, **options)
    assert problem.remedy
    return problem


def in_step(**keys: Any) -> Problem:
    problem = the_problem(task(command(**keys)))
    assert problem.path[:2] == ("steps", 0)
    return problem


# --- What is taken ----------------------------------------------------------------------------


def test_the_documented_example_is_read_whole() -> None:
    document = copy.deepcopy(FULL)
    parsed = parse_task(document)
    assert document == FULL
    assert (parsed.id, parsed.version, parsed.project_id) == ("refund", 3, "shop")
    assert (parsed.repeats, parsed.timeout_seconds, parsed.priority) == (2, 7200.0, "high")
    order, agent, check = parsed.steps
    assert order.depends_on is None
    assert agent.depends_on == ("order",)
    assert (agent.timeout_seconds, agent.idle_timeout_seconds) == (600.0, 300.0)
    assert agent.retry == Retry(max_attempts=3, non_retryable_errors=("BadPrompt",))
    assert agent.retry_config == RetryConfig("order", max_retries=2, environments="reset")
    assert agent.creates == ("out/report.json",)
    assert agent.body["command"] == ["python3", "agent.py", "--order", "1001"]
    assert agent.body["env"]["N"] == "3"
    assert agent.body["compensate"]["method"] == "DELETE"
    assert check.body["checks"][0] == {"path": "results.agent.exit_code", "equals": 0}


def test_a_task_survives_the_round_trip_through_json() -> None:
    parsed = parse_task(FULL)
    document = json.loads(json.dumps(parsed.to_dict()))
    assert Task.from_dict(document) == parsed
    assert parse_task(document) == parsed


def test_to_dict_has_the_shape_of_t1_and_t2() -> None:
    parsed = parse_task(task(command(), command("b", depends_on=["a"]), project_id="p"))
    assert parsed.to_dict() == {
        "id": "t",
        "type": "task",
        "version": None,
        "project_id": "p",
        "steps": [
            {
                "id": "a",
                "type": "command",
                "version": None,
                "fail_task_on_error": True,
                "command": "true",
            },
            {
                "id": "b",
                "type": "command",
                "version": None,
                "fail_task_on_error": True,
                "command": "true",
                "depends_on": [{"task_step_id": "a"}],
            },
        ],
    }
    assert "project_id" not in parse_task(task(command())).to_dict()


def test_a_default_that_is_spelled_out_makes_the_same_task() -> None:
    spelled = command(
        timeout="60m", retry={"max_attempts": 1}, heartbeat_timeout="10s", max_worker_losses=3
    )
    assert parse_task(task(spelled, repeats=1, priority="medium")) == parse_task(task(command()))


def test_a_step_made_in_code_has_a_document_too() -> None:
    step = Step("a", "command", (), timeout_seconds=5.0, body={"command": "true"})
    assert Step.from_dict(step.to_dict()).to_dict() == step.to_dict()
    assert step.to_dict()["timeout"] == 5.0


def test_a_bare_list_of_steps_is_a_task_with_the_default_id() -> None:
    assert parse_task([command()], default_id="from-file").id == "from-file"
    assert "has no id" in the_problem([command()]).message
    bad = the_problem([command()], default_id="a b")
    assert "file's name" in bad.message
    assert "'a-b'" in bad.remedy


def test_null_means_left_out() -> None:
    step = command(depends_on=None, retry_config=None, idle_timeout=None, version=None, env=None)
    assert parse_task(task(step)).steps[0] == parse_task(task(command())).steps[0]
    assert parse_task(
        task({"id": "v", "type": "verify", "checks": [{"path": "x", "equals": None}]})
    )


def test_retry_config_is_kept_on_custom_types() -> None:
    """T9."""
    step = {
        "id": "a",
        "type": "score",
        "rubric": {"x": [1]},
        "retry_config": {"go_to_step_id": "a"},
    }
    parsed = parse_task(task(step), custom_types={"score": frozenset({"rubric"})})
    assert parsed.steps[0].retry_config == RetryConfig("a")
    assert Task.from_dict(parsed.to_dict()).steps[0].retry_config == RetryConfig("a")
    assert parsed.steps[0].body["rubric"] == {"x": [1]}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (5, 5.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("1d", 86400.0),
        ("1.5h", 5400.0),
        ("45", 45.0),
    ],
)
def test_durations_are_seconds_or_texts_with_units(written: Any, seconds: float) -> None:
    assert parse_task(task(command(timeout=written))).steps[0].timeout_seconds == seconds


@pytest.mark.parametrize(
    "written", [0, -1, True, "5x", "", "m", "10 m", "-5s", "1e3", 1e300, "9" * 5000, [5], 10**300]
)
def test_other_durations_are_refused(written: Any) -> None:
    assert in_step(timeout=written).path == ("steps", 0, "timeout")


def test_a_retry_may_follow_at_once() -> None:
    step = parse_task(task(command(retry={"max_attempts": 2, "initial_interval": 0}))).steps[0]
    assert step.retry.initial_interval == 0


# --- Graphs (C40) -----------------------------------------------------------------------------


def test_c40_two_steps_with_one_id_are_refused_with_both_positions() -> None:
    problem = the_problem(task(command(), command("b"), command("a", depends_on=["b"])))
    assert problem.path == ("steps", 2, "id")
    assert "'a' at position 2" in problem.message
    assert "position 0" in problem.message


def test_c40_a_dependency_on_nothing_names_what_there_is() -> None:
    problem = the_problem(task(command("first"), command("b", depends_on=["frist"])))
    assert "'b' at position 1" in problem.message
    assert "'frist'" in problem.message
    assert "earlier steps: 'first'" in problem.message
    assert "did you mean 'first'?" in problem.remedy


def test_c40_a_self_loop_and_a_cycle_cannot_be_written() -> None:
    assert "depends on itself" in the_problem(task(command(depends_on=["a"]))).message
    loop = the_problem(task(command(depends_on=["b"]), command("b", depends_on=["a"])))
    assert "comes after it" in loop.message
    assert "earlier" in loop.remedy


def test_c40_a_repeated_dependency_counts_once() -> None:
    repeated = ["a", {"task_step_id": "a"}, "a"]
    parsed = parse_task(task(command(), command("b", depends_on=repeated)))
    assert parsed.steps[1].depends_on == ("a",)


def test_c40_a_dependency_that_is_a_text_says_to_write_a_list() -> None:
    problem = the_problem(task(command(), command("b", depends_on="a")))
    assert problem.path == ("steps", 1, "depends_on")
    assert problem.remedy == "write a list: [a]"


@pytest.mark.parametrize("wrong", [{}, {"task_step": "a"}, {"task_step_id": 1}, 1, None, ["a"]])
def test_c40_other_dependencies_are_refused(wrong: Any) -> None:
    assert problems_of(task(command(), command("b", depends_on=[wrong])))


@pytest.mark.parametrize("document", [{"id": "t"}, task(), task(steps=None), task(steps={}), []])
def test_c40_no_steps_are_refused(document: Any) -> None:
    assert "step" in str(the_problem(document, default_id="t"))


@pytest.mark.parametrize("document", [None, 3, "text", True, {"id": "t", "steps": [None]}])
def test_what_is_no_task_is_refused(document: Any) -> None:
    assert problems_of(document, default_id="t")


def test_c40_all_problems_come_at_once_each_with_its_path() -> None:
    document = task(
        command(1),
        command("b", depends_on=["nope"], timeout="soon"),
        {"id": "c", "type": "comand"},
        {"id": "d", "type": "http", "urll": "http://x/"},
        versoin=1,
    )
    paths = {problem.path for problem in problems_of(document)}
    assert paths == {
        ("versoin",),
        ("steps", 0, "id"),
        ("steps", 1, "depends_on"),
        ("steps", 1, "timeout"),
        ("steps", 2, "type"),
        ("steps", 3, "urll"),
        ("steps", 3),
    }


def test_a_thousand_mistakes_are_cut_short() -> None:
    problems = problems_of(task(*({"id": f"s{i}"} for i in range(5000))))
    assert 100 < len(problems) < 300
    assert "more problems" in problems[-1].message


def test_thousands_of_steps_with_retry_targets_are_checked() -> None:
    steps = [command("s0", depends_on=[])]
    steps += [
        command(f"s{i}", depends_on=[f"s{i - 1}"], retry_config={"retry_from_step_id": "s0"})
        for i in range(1, 3000)
    ]
    assert len(parse_task(task(*steps)).steps) == 3000
    assert "at most" in the_problem(task(*(command(f"s{i}") for i in range(10_001)))).message


def test_a_retry_target_must_be_the_step_or_an_ancestor() -> None:
    """T7."""
    steps = [command("a"), command("b", depends_on=[]), command("c", depends_on=["a"])]
    steps.append(command("d", depends_on=["c"], retry_config={"retry_from_step_id": "b"}))
    problem = the_problem(task(*steps))
    assert problem.path == ("steps", 3, "retry_config", "retry_from_step_id")
    assert "(it depends on: 'a', 'c')" in problem.message
    steps[3]["retry_config"] = {"retry_from_step_id": "a"}
    assert parse_task(task(*steps))


def test_of_two_retry_targets_the_proper_name_wins() -> None:
    """T8."""
    config = {"go_to_step_id": "nope", "retry_from_step_id": "a"}
    assert parse_task(task(command(retry_config=config))).steps[0].retry_config == RetryConfig("a")
    assert "retry_from_step_id" in in_step(retry_config={}).remedy


@pytest.mark.parametrize("max_retries", [True, "1", -1, 1.5])
def test_max_retries_is_a_whole_number(max_retries: Any) -> None:
    """T8."""
    problem = in_step(retry_config={"retry_from_step_id": "a", "max_retries": max_retries})
    assert problem.path[-1] == "max_retries"


def test_a_rollback_may_be_followed_by_a_delay() -> None:
    """TD15."""
    config = {"retry_from_step_id": "a", "delay": "10m"}
    (step,) = parse_task(task(command(retry_config=config))).steps
    assert step.retry_config == RetryConfig("a", delay=600)
    assert step.to_dict()["retry_config"]["delay"] == 600
    usual = RetryConfig("a")
    assert (usual.delay, "delay" in usual.to_dict()) == (0, False)
    problem = in_step(retry_config={"retry_from_step_id": "a", "delay": "-1s"})
    assert problem.path[-1] == "delay"


def test_a_task_bounds_its_rollbacks() -> None:
    """TD15."""
    parsed = parse_task({**task(command()), "max_rollbacks": 3})
    assert parsed.max_rollbacks == 3
    assert Task.from_dict(parsed.to_dict()).max_rollbacks == 3
    usual = parse_task({**task(command()), "max_rollbacks": 20})
    assert "max_rollbacks" not in usual.to_dict(), "it is the default"
    with pytest.raises(InvalidTask, match="max_rollbacks"):
        parse_task({**task(command()), "max_rollbacks": -1})


# --- Ids (C40, C51) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("../../evil", "evil"),
        ("/tmp/evil", "tmp-evil"),
        ("a/../../b", "a-..-..-b"),
        ("..", "unnamed"),
        (".", "unnamed"),
        ("a\\b", "a-b"),
        ("a%2f..", "a-2f"),
        ("a\0b", "a-b"),
        ("a\nb", "a-b"),
        ("a\n", "a"),
        ("a b", "a-b"),
        ("caf\u00e9", "cafe"),
        ("cafe\u0301", "cafe"),
        ("Ünï", "Uni"),
        ("\N{GRINNING FACE}", "unnamed"),
        ("\u0661", "unnamed"),
        ("x" * 300, "x" * 128),
    ],
)
def test_c51_ids_that_are_no_file_names_are_refused_with_the_nearest_legal_one(
    written: str, nearest: str
) -> None:
    for document in (task(command(written)), {"id": written, "steps": [command()]}):
        problem = the_problem(document)
        assert problem.path[-1] == "id"
        assert problem.remedy.endswith(repr(nearest))
        assert "\n" not in str(problem)
        assert "\0" not in str(problem)


@pytest.mark.parametrize("id", ["con", "a", "-lead", "_lead", "A.b", "x" * 128, "...", "1"])
def test_c51_harmless_ids_are_taken(id: str) -> None:
    assert parse_task({"id": id, "steps": [command(id)]}).id == id


@pytest.mark.parametrize("id", [1, True, False, 1.5, ["a"]])
def test_c40_ids_that_yaml_made_something_else_say_to_quote_them(id: Any) -> None:
    problem = the_problem(task(command(id)))
    assert "ids are text" in problem.message
    assert "quote it" in problem.remedy
    assert "empty" in the_problem(task(command(""))).message


def test_names_of_the_journal_are_no_step_ids() -> None:
    assert "journal" in the_problem(task(command("__seed__"))).message


@settings(deadline=None)
@given(st.text(max_size=200))
def test_the_nearest_id_is_legal(name: str) -> None:
    found: list[Problem] = []
    identifier(nearest_id(name), Place(found))
    assert found == []


# --- Keys and types ---------------------------------------------------------------------------


def test_every_key_of_every_built_in_type_has_a_check() -> None:
    assert OWN_CHECKS.keys() == BUILT_IN_TYPES.keys()
    for name, keys in BUILT_IN_TYPES.items():
        assert OWN_CHECKS[name].keys() == keys.keys
        assert keys.required <= keys.keys
        assert frozenset().union(*keys.alternatives) <= keys.keys
    assert COMPENSATION_KEYS <= COMMON_KEYS


def test_an_unknown_type_names_the_nearest() -> None:
    """T3."""
    problem = the_problem(task({"id": "a", "type": "comand", "command": "x"}))
    assert "'comand'" in problem.message
    assert problem.remedy == "did you mean 'command'?"
    custom = the_problem(task({"id": "a", "type": "zzz"}), custom_types={"score": frozenset()})
    assert "score" in custom.remedy
    assert "--steps" in custom.remedy


def test_an_unknown_key_names_the_nearest() -> None:
    assert in_step(timout=5).remedy == "did you mean 'timeout'?"
    assert "did you mean 'metadata'?" in the_problem(task(command(), meta_data={})).remedy
    assert "belongs to a step" in the_problem(task(command(), retry_config={})).remedy
    retry = in_step(retry={"max_attempt": 3})
    assert retry.path == ("steps", 0, "retry", "max_attempt")
    custom = task({"id": "a", "type": "score", "rubrik": 1})
    assert "rubric" in the_problem(custom, custom_types={"score": frozenset({"rubric"})}).remedy


def test_keys_of_a_task_that_begin_with_x_are_free_and_not_kept() -> None:
    parsed = parse_task(task(command(), **{"x-defaults": {"a": 1}}))
    assert parsed == parse_task(task(command()))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"type": "command"}, "needs command"),
        ({"type": "command", "command": []}, "empty list"),
        ({"type": "command", "command": ""}, "empty"),
        ({"type": "command", "command": ["", "x"]}, "name is empty"),
        ({"type": "command", "command": ["a\0b"]}, "NUL"),
        ({"type": "command", "command": ["echo", True]}, "quote it"),
        ({"type": "command", "command": {"a": 1}}, "not a list"),
        ({"type": "command", "command": "x", "ok_exit_codes": ["0"]}, "whole number"),
        ({"type": "python"}, "give file; or code"),
        ({"type": "python", "file": "a.py", "code": "x"}, "exclude each other"),
        ({"type": "http"}, "give url; or environment and path and port"),
        ({"type": "http", "url": "ftp://x"}, "http://"),
        ({"type": "http", "url": "http://x/", "path": "/a"}, "exclude each other"),
        ({"type": "http", "port": "P", "path": "/a"}, "lacks environment"),
        ({"type": "http", "url": "http://x/", "method": "GET /"}, "HTTP method"),
        ({"type": "http", "url": "http://x/", "headers": {"a:b": "c"}}, "name of a header"),
        ({"type": "http", "url": "http://x/", "expect": {"status": "200"}}, "whole number"),
        ({"type": "http", "url": "http://x/", "expect": {"stats": 200}}, "'status'"),
        ({"type": "verify"}, "needs checks"),
        ({"type": "verify", "checks": []}, "empty list"),
        ({"type": "verify", "checks": [{"path": "a"}]}, "exactly one of"),
        ({"type": "verify", "checks": [{"path": "a", "equals": 1, "exists": True}]}, "exactly one"),
        ({"type": "verify", "checks": [{"equals": 1}]}, "no path"),
        ({"type": "verify", "checks": [{"path": "a", "matches": "("}]}, "regular expression"),
        ({"type": "verify", "checks": [{"path": "a", "exists": "yes"}]}, "true or false"),
        ({"type": "verify", "checks": [{"path": "a", "equals": 1}], "pass_score": 2}, "between"),
        ({"type": "agent", "capability": "c", "retry": {}}, "takes no retry"),
        ({"type": "background", "command": "x", "code": "y"}, "exclude each other"),
        ({"type": "await"}, "needs job"),
        ({"type": "reset"}, "needs environment"),
    ],
)
def test_types_say_what_they_need(step: dict[str, Any], said: str) -> None:
    assert said in str(the_problem(task({"id": "a", **step})))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("env", {"A": True}, "quote it"),
        ("env", {"A": 1.5}, "quote it"),
        ("env", {"A": {"from_env": "X", "from_file": "y"}}, "exactly one"),
        ("env", {"A": {"from_evn": "X"}}, "exactly one"),
        ("env", {"A": {"from_env": ""}}, "name of a variable"),
        ("env", {"A-B": "x"}, "name of a variable"),
        ("env", {"PERDURE_RUN_ID": "x"}, "itself sets"),
        ("env", ["A=1"], "not a mapping"),
        ("retry", {"max_attempts": 0}, "between"),
        ("retry", {"max_attempts": True}, "whole number"),
        ("retry", {"backoff": 0.5}, "between"),
        ("retry", 3, "not a mapping"),
        ("fail_task_on_error", "false", "without quotes"),
        ("creates", ["../x"], "below the run's directory"),
        ("creates", ["/etc/x"], "below the run's directory"),
        ("creates", ["."], "below the run's directory"),
        ("creates", "out", "write a list: [out]"),
        ("keep_output", -1, "between"),
        ("compensate", {"type": "command"}, "needs command"),
        ("compensate", {"type": "command", "command": "x", "id": "a"}, "has no key 'id'"),
        ("compensate", {"type": "command", "command": "x", "timout": 1}, "'timeout'"),
        ("uses", ["shop"], "task's environments"),
    ],
)
def test_keys_of_every_step_are_checked(key: str, value: Any, said: str) -> None:
    assert said in str(in_step(**{key: value}))


def test_an_environment_must_be_among_the_tasks_own() -> None:
    step = {"id": "a", "type": "reset", "environment": "shpo"}
    problem = the_problem(task(step, environments=["shop"]))
    assert problem.remedy == "did you mean 'shop'?"


# --- Secrets and JSON -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"seed": {"litellm_api_key": "sk-1"}},
        {"metadata": {"deep": [{"remote_tokens": {"a": "t"}}]}},
        {"metadata": {"session_key": 7}, "redact": ["session_key"]},
    ],
)
def test_a_document_never_holds_a_secret(keys: dict[str, Any]) -> None:
    """T42."""
    problem = the_problem(task(command(), **keys))
    assert "secret" in problem.message
    assert "from_env" in problem.remedy
    assert "sk-1" not in str(problem)


def test_a_secret_in_a_steps_variables_is_refused_too() -> None:
    assert "secret" in in_step(env={"litellm_api_key": "sk-1"}).message
    assert parse_task(task(command(env={"litellm_api_key": {"from_env": "K"}})))


@pytest.mark.parametrize(
    "step",
    [
        {"type": "python", "code": "", "args": {"deep": [{"litellm_api_key": "sk-1"}]}},
        {"type": "http", "url": "http://h/", "json": {"remote_tokens": {"a": "sk-1"}}},
        {"type": "http", "url": "http://h/", "expect": {"json": {"usersim_api_key": "sk-1"}}},
        {"type": "verify", "checks": [{"path": "x", "equals": {"litellm_api_key": "sk-1"}}]},
        {"type": "agent", "capability": "c", "input": {"litellm_api_key": "sk-1"}},
        {"type": "own", "litellm_api_key": "sk-1"},
        {"type": "own", "settings": {"litellm_api_key": "sk-1"}},
        {
            "type": "command",
            "command": "true",
            "compensate": {"type": "python", "code": "", "args": {"litellm_api_key": "sk-1"}},
        },
    ],
)
def test_a_secret_anywhere_in_a_steps_body_is_refused(step: dict[str, Any]) -> None:
    """T42."""
    types = {"own": frozenset({"litellm_api_key", "settings"})}
    with pytest.raises(InvalidTask) as caught:
        parse_task(task({"id": "s", **step}), custom_types=types)
    assert [("secret" in p.message, "from_env" in p.remedy) for p in caught.value.problems] == [
        (True, True)
    ]
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize("value", [{"from_env": "K"}, {"from_file": "k"}, "<key>", "", None])
def test_references_and_placeholders_may_stand_for_a_secret(value: Any) -> None:
    args = {"litellm_api_key": value}
    assert parse_task(task({"id": "s", "type": "python", "code": "", "args": args}))


def test_a_schema_that_describes_a_secret_holds_none() -> None:
    schema = {"properties": {"litellm_api_key": {"type": "string"}}}
    checks = [{"path": "metadata", "schema": schema}]
    assert parse_task(task({"id": "s", "type": "verify", "checks": checks}))


@pytest.mark.parametrize("id", ["suite.json", "results.jsonl", "Suite.JSON"])
def test_a_task_is_not_named_like_a_file_of_its_suite(id: str) -> None:
    problem = the_problem({**task(command()), "id": id})
    assert problem.path == ("id",)
    assert "another id" in problem.remedy


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), b"x", {1: "x"}, {None: 1}, "\ud800", {"\ud800": 1}, {1}, 10**400],
)
def test_what_is_not_json_is_refused_with_its_path(value: Any) -> None:
    problem = the_problem(task(command(), metadata={"deep": [0, value]}))
    assert problem.path[:2] == ("metadata", "deep")
    str(problem).encode()


def test_c53_values_that_contain_or_multiply_themselves_are_refused_quickly() -> None:
    own: list[Any] = []
    own.append(own)
    assert "contain themselves" in the_problem(task(command(), metadata={"x": own})).message
    bomb: Any = ["x"] * 10
    for _ in range(9):
        bomb = [bomb] * 10
    for keys in ({"seed": {"a": bomb}}, {"metadata": {"a": bomb}}):
        assert "too large" in the_problem(task(command("<a>"), **keys)).message
    assert "too large" in the_problem(task(command(args=bomb))).message


def test_c42_deep_nesting_is_refused_without_recursion() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = {"a": deep}
    assert "nested" in the_problem(task(command(), metadata=deep)).message


def check_outcome(document: Any) -> None:
    try:
        parsed: Task | list[Problem] = parse_task(document)
    except InvalidTask as refused:
        parsed = refused.problems
    if isinstance(parsed, Task):
        assert parse_task(parsed.to_dict()) == parsed
        assert Task.from_dict(json.loads(json.dumps(parsed.to_dict()))) == parsed
    else:
        assert parsed
        assert all(str(problem).isprintable() for problem in parsed)


WILD = st.recursive(
    JSON | st.floats() | st.just("true") | st.sampled_from(sorted(BUILT_IN_TYPES)),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(sorted(COMMON_KEYS | {"command", "checks", "steps", "url"})) | KEYS,
            inner,
        )
        | st.lists(inner, max_size=3)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.lists(WILD, max_size=4) | WILD, WILD)
def test_whatever_a_document_holds_it_is_a_task_or_a_list_of_problems(
    steps: Any, metadata: Any
) -> None:
    check_outcome({"id": "t", "steps": steps, "metadata": metadata})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(COMMON_KEYS - {"id"})), JSON), st.booleans())
def test_whatever_a_step_holds_it_is_a_step_or_a_list_of_problems(
    keys: dict[str, Any], known: bool
) -> None:
    check_outcome(
        task({"id": "a", **({"type": "command", "command": "x"} if known else {}), **keys})
    )


@pytest.mark.parametrize("value", [0.3, "400ms", 0.999])
def test_a_heartbeat_timeout_below_what_a_worker_beats_is_refused(value: Any) -> None:
    problem = in_step(heartbeat_timeout=value)
    assert problem.path[-1] == "heartbeat_timeout"
    assert "at least 1 s" in problem.remedy
    parse_task(task(command(heartbeat_timeout=1)))


def test_a_task_says_what_is_done_when_an_instance_is_lost_under_it() -> None:
    parsed = parse_task({**task(command()), "on_instance_lost": "fail"})
    assert parsed.on_instance_lost == "fail"
    assert parsed.to_dict()["on_instance_lost"] == "fail"
    usual = parse_task({**task(command()), "on_instance_lost": "restart"})
    assert "on_instance_lost" not in usual.to_dict(), "it is the default"
    with pytest.raises(InvalidTask, match="on_instance_lost"):
        parse_task({**task(command()), "on_instance_lost": "retry"})
