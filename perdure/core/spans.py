"""What a failed step's `retry_config` would undo: its span, widened by the environments reset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.core.graph import Graph
from perdure.core.task import Step, Task


@dataclass(frozen=True)
class Span:
    """The steps that one rollback undoes at most."""

    step_id: str
    """The step whose failure rolls back."""
    resume_id: str
    steps: tuple[str, ...]
    """In step order; those among them that have not run when it happens are not concerned."""
    environments: tuple[str, ...]
    """Reset by the rollback, in the task's order."""
    max_retries: int


def used_environments(task: Task, step: Step) -> tuple[str, ...]:
    """The environments whose state a step changes, by its `uses` or by its type's own rule."""
    if step.uses is not None:
        return step.uses
    if step.type == "verify":
        return ()
    named = step.body.get("environment")
    return (named,) if isinstance(named, str) else task.environments


def spans(task: Task) -> list[Span]:
    """The effective span of each `retry_config` of a task, in step order."""
    graph = Graph.of(task.steps)
    return [_span(task, graph, step) for step in task.steps if step.retry_config]


def _span(task: Task, graph: Graph, step: Step) -> Span:
    config = step.retry_config
    assert config
    inside = set(graph.span(config.retry_from_step_id))
    reset: set[str] = set()
    if config.environments == "reset":
        reset = _widen(task, graph, inside)
    return Span(
        step_id=step.id,
        resume_id=config.retry_from_step_id,
        steps=_ordered(graph.ids, inside),
        environments=_ordered(task.environments, reset),
        max_retries=config.max_retries,
    )


def _widen(task: Task, graph: Graph, inside: set[str]) -> set[str]:
    """Add to `inside` whoever used an environment that is reset, until nothing is left to add.

    A world that was reset and a context that remembers what was done in it would not tell the
    same story.
    """
    reset: set[str] = set()
    growing = True
    while growing:
        for step in task.steps:
            if step.id in inside:
                reset.update(used_environments(task, step))
        touched = [s.id for s in task.steps if reset.intersection(used_environments(task, s))]
        grown = inside.union(*(graph.span(id) for id in touched if id not in inside))
        growing = len(grown) > len(inside)
        inside |= grown
    return reset


def _ordered(order: Sequence[str], chosen: set[str]) -> tuple[str, ...]:
    return tuple(name for name in order if name in chosen)
