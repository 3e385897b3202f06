"""The effective span of a retry_config: what a rollback would undo."""

from __future__ import annotations

from typing import Any

from perdure.core.graph import Graph
from perdure.core.spans import reach, spans, used_environments
from perdure.core.task import RetryConfig, Task, parse_task


def task(*steps: dict[str, Any], environments: list[str] | None = None) -> Task:
    document = {"id": "t", "steps": [{"type": "command", "command": "true", **s} for s in steps]}
    return parse_task({**document, "environments": environments or []})


def test_without_environments_the_span_is_what_depends_on_the_resume_point() -> None:
    found = spans(
        task(
            {"id": "a"},
            {"id": "b", "depends_on": ["a"]},
            {"id": "aside", "depends_on": ["a"]},
            {"id": "c", "depends_on": ["b"], "retry_config": {"retry_from_step_id": "b"}},
        )
    )
    assert [(s.step_id, s.resume_id, s.steps, s.environments) for s in found] == [
        ("c", "b", ("b", "c"), ())
    ]


def test_a_reset_environment_widens_the_span_to_all_its_users_and_their_dependents() -> None:
    found = spans(
        task(
            {"id": "a", "uses": ["shop"]},
            {"id": "other", "uses": ["mail"], "depends_on": []},
            {"id": "after", "uses": [], "depends_on": ["a"]},
            {"id": "b", "uses": ["shop"], "depends_on": []},
            {
                "id": "c",
                "uses": [],
                "depends_on": ["b"],
                "retry_config": {"retry_from_step_id": "b"},
            },
            environments=["shop", "mail"],
        )
    )
    assert [(s.steps, s.environments) for s in found] == [(("a", "after", "b", "c"), ("shop",))]


def test_who_waits_for_the_step_has_nothing_to_be_undone_when_it_fails() -> None:
    found = spans(
        task(
            {"id": "a", "uses": ["shop"]},
            {"id": "b", "uses": [], "retry_config": {"retry_from_step_id": "a"}},
            {"id": "after", "uses": ["mail"]},
            {"id": "aside", "uses": ["mail"], "depends_on": []},
            environments=["shop", "mail"],
        )
    )
    assert [(s.steps, s.environments) for s in found] == [(("a", "b"), ("shop",))]


def test_widening_goes_on_while_new_steps_bring_new_environments() -> None:
    found = spans(
        task(
            {"id": "x", "uses": ["mail"], "depends_on": []},
            {"id": "y", "uses": ["shop", "mail"], "depends_on": []},
            {"id": "b", "uses": ["shop"], "depends_on": []},
            {
                "id": "c",
                "uses": [],
                "depends_on": ["b"],
                "retry_config": {"retry_from_step_id": "b"},
            },
            environments=["shop", "mail"],
        )
    )
    assert [(s.steps, s.environments) for s in found] == [(("x", "y", "b", "c"), ("shop", "mail"))]


def test_environments_that_are_kept_widen_nothing() -> None:
    config = {"retry_from_step_id": "b", "environments": "keep"}
    found = spans(
        task(
            {"id": "a", "uses": ["shop"]},
            {"id": "b", "uses": ["shop"], "depends_on": []},
            {"id": "c", "uses": [], "depends_on": ["b"], "retry_config": config},
            environments=["shop"],
        )
    )
    assert [(s.steps, s.environments) for s in found] == [(("b", "c"), ())]


def test_several_failures_reach_the_union_of_their_spans_among_the_started_steps() -> None:
    shop = task(
        {"id": "a", "uses": ["shop"], "depends_on": []},
        {"id": "b", "uses": ["shop"], "depends_on": []},
        {"id": "c", "uses": ["mail"], "depends_on": []},
        {"id": "d", "uses": ["mail"], "depends_on": []},
        {"id": "unborn", "uses": ["shop"], "depends_on": ["a"]},
        environments=["shop", "mail"],
    )
    resetting, keeping = RetryConfig("a"), RetryConfig("c", environments="keep")
    graph, started = Graph.of(shop.steps), set("abcd")
    found = reach(shop, graph, [resetting, keeping], started)
    assert found == (("a", "b", "c"), ("shop",)), "who keeps its environments draws nobody in"
    assert reach(shop, graph, [keeping], started) == (("c",), ())
    assert reach(shop, graph, [resetting], {"a"}) == (("a",), ("shop",))


def test_what_a_step_uses_follows_from_its_type_unless_it_says_so() -> None:
    shop = parse_task(
        {
            "id": "t",
            "environments": ["shop", "mail"],
            "steps": [
                {"id": "any", "type": "command", "command": "true"},
                {"id": "said", "type": "command", "command": "true", "uses": ["mail"]},
                {"id": "one", "type": "reset", "environment": "shop"},
                {"id": "v", "type": "verify", "checks": [{"path": "metadata", "exists": True}]},
            ],
        }
    )
    assert [used_environments(shop, step) for step in shop.steps] == [
        ("shop", "mail"),
        ("mail",),
        ("shop",),
        (),
    ]
