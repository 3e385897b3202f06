"""What a failed step's `retry_config` would undo: its span, widened by the environments reset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from perdure.core.graph import Graph
from perdure.core.task import RetryConfig, Step, Task


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
    if step.type in ("verify", "await"):
        return ()
    named = step.body.get("environment")
    return (named,) if isinstance(named, str) else task.environments


def spans(task: Task) -> list[Span]:
    """The effective span of each `retry_config` of a task, in step order."""
    graph = Graph.of(task.steps)
    found = []
    for step in task.steps:
        if config := step.retry_config:
            # Whoever depends on the step does not start before it has succeeded.
            may_have_started = {*graph.ids}.difference(graph.span(step.id)) | {step.id}
            steps, environments = reach(task, graph, [config], may_have_started)
            found.append(
                Span(
                    step_id=step.id,
                    resume_id=config.retry_from_step_id,
                    steps=steps,
                    environments=environments,
                    max_retries=config.max_retries,
                )
            )
    return found


def reach(
    task: Task, graph: Graph, configs: Sequence[RetryConfig], started: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What one rollback undoes that answers several failures, and which environments it resets.

    Steps that are not among the `started` ones have nothing to be undone.
    """
    resetting = [c.retry_from_step_id for c in configs if c.environments == "reset"]
    keeping = [c.retry_from_step_id for c in configs if c.environments != "reset"]
    inside, reset = widened(task, graph, started.intersection(graph.span(*resetting)), started)
    inside |= started.intersection(graph.span(*keeping))
    return ordered(graph.ids, inside), ordered(task.environments, reset)


def widened(
    task: Task,
    graph: Graph,
    inside: set[str],
    started: set[str],
    environments: Iterable[str] = (),
) -> tuple[set[str], set[str]]:
    """The steps `inside` with all that used an environment that is reset, and those environments.

    Reset are the `environments`, and those that steps inside used; with whom that brings in come
    its dependents and its environments in turn. A world that was reset and a context that
    remembers what was done in it would not tell the same story.
    """
    inside, reset, growing = set(inside), set(environments), True
    used = {s.id: used_environments(task, s) for s in task.steps if s.id in started}
    while growing:
        for id in inside:
            reset.update(used[id])
        touched = [id for id, names in used.items() if not reset.isdisjoint(names)]
        grown = inside | started.intersection(graph.span(*touched))
        growing = len(grown) > len(inside)
        inside = grown
    return inside, reset


def ordered(order: Sequence[str], chosen: Set[str]) -> tuple[str, ...]:
    """Those chosen, in that order."""
    return tuple(name for name in order if name in chosen)
