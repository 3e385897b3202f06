"""The graph of steps: ancestors, spans and readiness, against a naive model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.graph import Frontier, Graph
from perdure.core.task import Step


@st.composite
def dags(draw: st.DrawFn) -> list[Step]:
    steps: list[Step] = []
    for position in range(draw(st.integers(1, 9))):
        earlier = [step.id for step in steps]
        wanted = (
            draw(st.none() | st.lists(st.sampled_from(earlier), unique=True)) if earlier else ()
        )
        depends_on = None if wanted is None else tuple(wanted)
        steps.append(Step(f"s{position}", "command", depends_on))
    return steps


def naive_parents(steps: Sequence[Step], step: Step) -> set[str]:
    if step.depends_on is None:
        return {s.id for s in itertools.takewhile(lambda s: s.id != step.id, steps)}
    return set(step.depends_on)


def naive_ancestors(steps: Sequence[Step], step: Step) -> set[str]:
    by_id = {s.id: s for s in steps}
    parents = naive_parents(steps, step)
    return parents.union(*(naive_ancestors(steps, by_id[parent]) for parent in parents))


@settings(deadline=None)
@given(dags())
def test_ancestors_are_all_that_a_step_waits_for(steps: list[Step]) -> None:
    graph = Graph.of(steps)
    for step in steps:
        expected = naive_ancestors(steps, step)
        assert graph.ancestors(step.id) == expected
        assert {s.id for s in steps if graph.needs(step.id, s.id)} == expected


@settings(deadline=None)
@given(dags(), st.data())
def test_a_span_is_the_step_and_all_that_depend_on_it_in_step_order(
    steps: list[Step], data: st.DataObject
) -> None:
    """T26."""
    first = data.draw(st.sampled_from(steps))
    span = [s.id for s in steps if s is first or first.id in naive_ancestors(steps, s)]
    assert Graph.of(steps).span(first.id) == span


@settings(deadline=None)
@given(dags(), st.data())
def test_the_frontier_hands_out_exactly_what_is_ready_whatever_ends_and_is_reopened(
    steps: list[Step], data: st.DataObject
) -> None:
    ids = [step.id for step in steps]
    start = data.draw(st.integers(0, len(ids) - 1))
    end = data.draw(st.none() | st.integers(start + 1, len(ids)))
    frontier = Frontier(Graph.of(steps), ids[:start], end)
    done, taken = set(ids[:start]), set[str]()
    for _ in range(data.draw(st.integers(1, 25))):
        ready = [
            step.id
            for step in steps[:end]
            if step.id not in done | taken and naive_parents(steps, step) <= done
        ]
        assert frontier.take_ready() == ready
        assert frontier.take_ready() == []
        taken.update(ready)
        if data.draw(st.integers(0, 4)) == 0:
            reopened = data.draw(st.sets(st.sampled_from(ids)))
            frontier.reopen(reopened)
            done -= reopened
            taken -= reopened
        elif running := sorted(taken - done):
            ended = data.draw(st.sampled_from(running))
            frontier.finish(ended)
            done.add(ended)
        assert frontier.finished == done.issuperset(ids[:end])


@settings(deadline=None)
@given(dags())
def test_every_step_is_handed_out_once_and_after_its_dependencies(steps: list[Step]) -> None:
    frontier = Frontier(Graph.of(steps))
    order: list[str] = []
    while not frontier.finished:
        ready = frontier.take_ready()
        assert ready
        for id in ready:
            frontier.finish(id)
        order += ready
    assert sorted(order) == sorted(step.id for step in steps)
    for step in steps:
        assert all(order.index(p) < order.index(step.id) for p in naive_parents(steps, step))


@settings(deadline=None)
@given(dags(), st.data())
def test_the_span_of_several_steps_is_the_union_of_theirs(
    steps: list[Step], data: st.DataObject
) -> None:
    graph = Graph.of(steps)
    chosen = data.draw(st.lists(st.sampled_from(graph.ids)))
    union = {id for resume_id in chosen for id in graph.span(resume_id)}
    assert graph.span(*chosen) == [id for id in graph.ids if id in union]


def test_a_step_that_finished_without_being_handed_out_is_not_handed_out() -> None:
    frontier = Frontier(Graph.of([Step("a", "x"), Step("b", "x")]))
    frontier.finish("a")
    frontier.finish("a")
    assert frontier.take_ready() == ["b"]


def test_thousands_of_steps_in_a_chain_cost_what_they_are() -> None:
    """Quadratic work would be 450 million comparisons here, and the test's time limit."""
    for depends_on in (None, ()):
        steps = [
            Step(f"s{i}", "x", depends_on if depends_on is None or i == 0 else (f"s{i - 1}",))
            for i in range(30_000)
        ]
        graph = Graph.of(steps)
        frontier = Frontier(graph)
        for step in steps:
            assert frontier.take_ready() == [step.id]
            frontier.finish(step.id)
        assert frontier.finished
        assert len(graph.span("s0")) == len(steps)
        assert len(graph.ancestors("s29999")) == len(steps) - 1
