"""From loaded tasks to the start of a suite: its id, its digests, its queue."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from perdure import bounds
from perdure.core.fields import identifier, nearest_id
from perdure.core.pool_definitions import Definition
from perdure.core.problems import Place, Problem, listed, shown
from perdure.core.run import BadRange, check_range
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.core.task_checks import MAX_REPEATS
from perdure.documents import LoadedTask
from perdure.errors import PerdureError
from perdure.messages import Json, PoolUse, SuiteInput, SuiteTask, TaskOptions
from perdure.steps import custom_types
from perdure.task_store import PREFIX, is_stored_name

MAX_TRIALS = 100_000
"""Of a suite."""

_MAX_STEM_CHARACTERS = 100
"""Of a default id, so that time and chance fit behind it."""


class BadId(PerdureError):
    """A suite, task or trial has a name that it cannot have."""


def check_id(what: str, id: str) -> str:
    """The id, if it is one.

    Raises BadId with the nearest legal id.
    """
    problems: list[Problem] = []
    identifier(id, Place(problems))
    for problem in problems:
        raise BadId(f"{what} {shown(id)}: {problem}")
    return id


def check_text(what: str, text: str | None) -> None:
    """Refuse a text that no message can carry: of a path or an argument that is not UTF-8.

    Raises PerdureError.
    """
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise PerdureError(
            f"{what} {text!a} is not UTF-8 text; write it with whole characters, or rename it"
        ) from None


def default_suite_id(stem: str, moment: datetime, token: str) -> str:
    """A readable id that no other suite has: `stem`, the time, and `token`, drawn by chance."""
    return f"{nearest_id(stem)[:_MAX_STEM_CHARACTERS]}-{moment:%Y%m%d-%H%M%S}-{token}"


def suite_queue(queue: str, suite: str) -> str:
    """The queue of an embedded suite's own worker.

    So that step modules and variables of one run never serve the steps of another.
    """
    return f"{queue}.{suite}"


def work_options(options: TaskOptions) -> dict[str, Json]:
    """The options that change what a task does, by the name that people know."""
    return {
        "start_step": options.start_step,
        "end_step": options.end_step,
        "agent_model": options.agent_model,
        "agent_artifact_id": options.agent_artifact_id,
    }


def work_digest(digest: str, options: TaskOptions, environments: str = "") -> str:
    """The digest of a task's document together with what else changes what it does.

    That is some of the options, and what its `environments` are. Equal digests, equal work: what
    was done under one need not be done again.
    """
    chosen = work_options(options)
    if environments:
        return _sha256([digest, chosen, environments])
    if chosen == work_options(TaskOptions()):
        return digest
    return _sha256([digest, chosen])


def suite_task(loaded: LoadedTask, options: TaskOptions, repeats: int | None = None) -> SuiteTask:
    """A loaded task as part of a suite; `repeats` goes over the document's own.

    Raises PerdureError if it lies in a folder whose name is not UTF-8.
    """
    folder = folder_of(loaded)
    check_text("the document's folder", folder)
    return SuiteTask(
        task=loaded.task.to_dict(),
        digest=work_digest(loaded.digest, options, loaded.environments_digest),
        seed=loaded.seed,
        repeats=loaded.task.repeats if repeats is None else repeats,
        folder=folder,
    )


def folder_of(loaded: LoadedTask) -> str | None:
    """Where the task's document lies, and relative paths of `from_file` start.

    None for a document that is no file: they start at the current directory.
    """
    file, _, line = loaded.source.rpartition(":")
    source = file if file and line.isdigit() else loaded.source
    return os.path.dirname(os.path.abspath(source)) if os.path.exists(source) else None


def suite_input(
    suite: str,
    tasks: Sequence[SuiteTask],
    *,
    max_parallel: int,
    options: TaskOptions,
    max_failures: int | str | None = None,
    max_cost: float | None = None,
    retry_infrastructure: int = 0,
    pool: PoolUse | None = None,
    environments: Mapping[str, dict[str, Any]] | None = None,
) -> SuiteInput:
    """The start of a suite.

    `max_failures`: a number of trials, or a share of them all such as `"10%"`. `environments` are
    the definitions of all that the tasks name; a suite without any uses no `pool`.

    Raises BadId, BadBound, and PerdureError for numbers below 1, for a range outside a task, and
    for a step whose limit the suite does not name.
    """
    check_id("suite", suite)
    bounds.count("max_parallel", max_parallel)
    for task in tasks:
        bounds.count("repeats", task.repeats, high=MAX_REPEATS)
    trials = sum(task.repeats for task in tasks)
    check_trials(f"suite {suite!r}", trials)
    twice = [id for id, count in Counter(task.task["id"] for task in tasks).items() if count > 1]
    if twice:
        raise BadId(f"the task id {twice[0]!r} is there twice; give each task an id of its own")
    bounds.slots("limits", options.limits)
    bounds.seconds("task_timeout", options.task_timeout_seconds)
    for task in tasks:
        check_steps(task, options)
    return SuiteInput(
        suite=suite,
        tasks=list(tasks),
        max_parallel=max_parallel,
        options=options,
        digest=_sha256([[task.digest, task.repeats] for task in tasks]),
        max_failures=parse_max_failures(max_failures, trials),
        max_failures_share=share_of(max_failures),
        max_cost=bounds.cost("max_cost", max_cost),
        retry_infrastructure=bounds.count("retry_infrastructure", retry_infrastructure, low=0),
        by_priority=True,
        pool=replace(pool or PoolUse(), max_parallel=max_parallel, local_words=True)
        if environments
        else None,
        environments=dict(environments or {}),
    )


def definitions_of(tasks: Iterable[LoadedTask]) -> dict[str, dict[str, Any]]:
    """The definitions of all environments that tasks name, as JSON by name.

    Raises PerdureError if two projects mean different things by one name.
    """
    found: dict[str, Definition] = {}
    for loaded in tasks:
        for definition in loaded.definitions:
            known = found.setdefault(definition.name, definition)
            if known != definition:
                raise PerdureError(
                    f"{loaded.source}: the environment {definition.name!r} of {definition.root} "
                    f"is another one than that of {known.root}; run them as two suites, or name "
                    "one env.yaml for all by --env-config"
                )
    return {name: definition.to_json() for name, definition in found.items()}


def check_trials(what: str, trials: int) -> None:
    """Refuse more trials than a suite may have. Raises PerdureError."""
    if trials > MAX_TRIALS:
        raise PerdureError(
            f"{what}: repeats times tasks make {trials:,} trials, and a suite has at most "
            f"{MAX_TRIALS:,}; split it, or lower the repeats"
        )


def parse_max_failures(value: int | str | None, trials: int) -> int | None:
    """How many failures stop a suite of so many trials: `3`, `"3"`, or a share such as `"10%"`.

    Raises BadBound.
    """
    allowed = bounds.failures("max_failures", value)
    return None if allowed is None else allowed.of(trials)


def share_of(value: int | str | None) -> str | None:
    """A bound on failures that is a share of all, as it was written; None for a number."""
    return value.replace(" ", "") if isinstance(value, str) and "%" in value else None


def check_steps(task: SuiteTask, options: TaskOptions) -> None:
    """Refuse a range of steps that a task does not have (T14), and limits that nobody named.

    Raises PerdureError with the task, the value and what is allowed.
    """
    for step in task.task["steps"]:
        limit = step.get("limit")
        if limit is not None and limit not in options.limits:
            known = f"named are {listed(options.limits)}" if options.limits else "none is named"
            raise PerdureError(
                f"task {task.task['id']!r}: step {step['id']!r} takes the limit {shown(limit)}, "
                f"and {known}; say how many slots it has by `--limit {limit}=N` (in Python, "
                "`limits={...}`)"
            )
    try:
        check_range(len(task.task["steps"]), options.start_step, options.end_step)
    except BadRange as error:
        raise PerdureError(f"task {task.task['id']!r}: {error}") from error


def missing_types(tasks: Sequence[SuiteTask]) -> list[str]:
    """A line for each task with steps of types that no module has been loaded for."""
    known = {*BUILT_IN_TYPES, *custom_types()}
    lines = []
    for task in tasks:
        types = dict.fromkeys(step["type"] for step in task.task["steps"])
        if unknown := [type for type in types if type not in known]:
            lines.append(
                f"task {task.task['id']!r}: there is no step type {listed(map(shown, unknown))}; "
                "name the module that it comes from by --steps MODULE (in Python, `steps=[...]`)"
            )
    return lines


def stem_of(source: str | Path) -> str:
    """What a suite is called after that runs this path."""
    if is_stored_name(source):
        return str(source).removeprefix(PREFIX).partition("@")[0]
    path = Path(os.path.abspath(source))
    return path.name if path.is_dir() else path.stem


def _sha256(value: Json) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
