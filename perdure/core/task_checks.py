"""Checks of a whole task's document: its own keys, and how its steps refer to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.core.fields import (
    Check,
    anything,
    choice,
    duration,
    identifier,
    list_of,
    mapping_of,
    meant,
    read,
    text,
    whole,
)
from perdure.core.graph import Graph
from perdure.core.job_documents import check_awaited
from perdure.core.json_values import check_json
from perdure.core.problems import Place, kind, listed, nearest, shown
from perdure.core.secret_references import literal_secrets
from perdure.core.step_checks import check_step
from perdure.core.step_types import BUILT_IN_TYPES, COMMON_KEYS
from perdure.core.suite_order import PRIORITIES

MAX_STEPS = 10_000

_FREE_PREFIX = "x-"
"""Keys of the task that begin so are left out: a place for what anchors repeat in the steps."""

_RESERVED_IDS = ("suite.json", "results.jsonl")
"""In lower case: some file systems take upper and lower case for the same."""

_NEEDS_STEPS = "list at least one step under steps"


def _seed_key(value: Any, at: Place) -> Any:
    if not isinstance(value, str) or not value or "<" in value or ">" in value:
        at.refuse(
            f"{shown(value)} cannot be a placeholder", "name seeds by text without angle brackets"
        )
    return value


def _task_id(value: Any, at: Place) -> Any:
    if isinstance(value, str) and value.lower() in _RESERVED_IDS:
        at.refuse(
            f"{shown(value)} is the name of a file in a suite's results, where each task has a "
            "directory",
            f"choose another id, such as {value.replace('.', '-')}",
        )
    return identifier(value, at)


MAX_REPEATS = 100_000
"""Trials of one task."""

_TASK_CHECKS: dict[str, Check] = {
    "id": _task_id,
    "type": choice("task"),
    "version": whole(0, 2**53),
    "project_id": text,
    "environments": list_of(identifier, what="names of environments"),
    "seed": mapping_of(anything, check_key=_seed_key),
    "repeats": whole(1, MAX_REPEATS),
    "timeout": duration,
    "priority": choice(*PRIORITIES),
    "on_instance_lost": choice("restart", "fail"),
    "max_rollbacks": whole(0),
    "redact": list_of(text, what="keys"),
    "metadata": mapping_of(anything),
}


def check_task(
    document: Any, at: Place, default_id: str | None, custom_types: Mapping[str, frozenset[str]]
) -> dict[str, Any] | None:
    """Report everything that is wrong; returns the document in plain form, if there is one."""
    if not check_json(document, at):
        return None
    if isinstance(document, list):
        document = {"steps": document}
    if not isinstance(document, dict):
        at.refuse(f"a task is a mapping or a list of steps, not {kind(document)}", _NEEDS_STEPS)
        return None
    _check_task_keys(document, at)
    checked = read(document, _TASK_CHECKS, at)
    if checked.get("id") is None:
        _take_default_id(checked, at, default_id)
    checked["steps"] = _check_steps(document.get("steps"), at / "steps", custom_types)
    if isinstance(checked.get("environments"), list):
        checked["environments"] = list(dict.fromkeys(map(str, checked["environments"])))
    _check_environments(checked, at)
    _check_secrets(checked, at)
    return checked


def _check_task_keys(document: dict[str, Any], at: Place) -> None:
    known = {*_TASK_CHECKS, "steps"}
    for key in document:
        if key in known or not isinstance(key, str) or key.startswith(_FREE_PREFIX):
            continue
        if key in COMMON_KEYS and nearest(key, known) is None:
            (at / key).refuse(f"a task has no key {key!r}", "it belongs to a step, under steps")
        else:
            remedy = meant(key, known)
            if nearest(key, known) is None:
                remedy += f"; keys that begin with {_FREE_PREFIX} are free"
            (at / key).refuse(f"a task has no key {shown(key)}", remedy)


def _take_default_id(checked: dict[str, Any], at: Place, default_id: str | None) -> None:
    if default_id is None:
        at.refuse("the task has no id", "add id: ...")
        return
    found: Place = Place([], at.path)
    _task_id(default_id, found)
    for problem in found.problems:
        at.refuse(
            f"the task has no id, and its file's name gives none: {problem.message}",
            f"add id: ...; {problem.remedy}",
        )
    checked["id"] = default_id


def _check_steps(
    document: Any, at: Place, custom_types: Mapping[str, frozenset[str]]
) -> list[dict[str, Any]]:
    if document is None:
        at.refuse("the task has no steps", _NEEDS_STEPS)
    elif not isinstance(document, list):
        at.refuse(f"is {kind(document)}, not a list", "put - before each step")
    elif not document:
        at.refuse("is an empty list", _NEEDS_STEPS)
    elif len(document) > MAX_STEPS:
        at.refuse(f"has {len(document):,} steps, and a task has at most {MAX_STEPS:,}", "split it")
    else:
        checked = [
            check_step(step, at / position, custom_types) for position, step in enumerate(document)
        ]
        _check_order(checked, at)
        return [step for step in checked if step is not None]
    return []


def _check_order(steps: list[dict[str, Any] | None], at: Place) -> None:
    """Ids are unique (T4), dependencies earlier steps (T5), retry targets ancestors (T7)."""
    found_before = len(at.problems)
    all_ids = {id for step in steps if (id := _id_of(step)) is not None}
    position_of: dict[str, int] = {}
    parents: list[tuple[int, ...] | None] = []
    for position, step in enumerate(steps):
        here = at / position
        id = _id_of(step)
        if id is not None and id in position_of:
            (here / "id").refuse(
                f"the id {shown(id)} at position {position} is already that of the step at "
                f"position {position_of[id]}",
                "give each step an id of its own",
            )
        wanted = step.get("depends_on") if step else None
        if isinstance(wanted, list):
            parents.append(
                tuple(
                    position_of[name]
                    for name in (dependency["task_step_id"] for dependency in wanted)
                    if _is_earlier(name, id, position, position_of, all_ids, here / "depends_on")
                )
            )
        else:
            parents.append(None)
        if id is not None:
            position_of.setdefault(id, position)
    if len(at.problems) == found_before:
        _check_retry_targets(steps, parents, position_of, at)
        check_awaited(steps, at)


def _id_of(step: dict[str, Any] | None) -> str | None:
    id = step.get("id") if step else None
    return id if isinstance(id, str) else None


def _is_earlier(
    name: str,
    id: str | None,
    position: int,
    earlier: Mapping[str, int],
    all_ids: set[str],
    at: Place,
) -> bool:
    if name in earlier:
        return True
    who = f"step {shown(id)} at position {position}"
    if name == id:
        at.refuse(f"{who} depends on itself", "remove it from its own depends_on")
        return False
    known = f"earlier steps: {listed(map(shown, earlier)) or 'none'}"
    if name in all_ids:
        at.refuse(
            f"{who} depends on {shown(name)}, which comes after it ({known})",
            "a dependency must be an earlier step: change the order, or break the cycle",
        )
    else:
        at.refuse(
            f"{who} depends on {shown(name)}, and there is no such step ({known})",
            meant(name, all_ids - {id}) if nearest(name, all_ids) else "correct the id",
        )
    return False


def _check_retry_targets(
    steps: list[dict[str, Any] | None],
    parents: list[tuple[int, ...] | None],
    position_of: Mapping[str, int],
    at: Place,
) -> None:
    graph: Graph | None = None
    for position, step in enumerate(steps):
        config = step.get("retry_config") if step else None
        target = config.get("retry_from_step_id") if isinstance(config, dict) else None
        id = _id_of(step)
        if not isinstance(target, str) or id is None or target == id:
            continue
        graph = graph or Graph([_id_of(step) or "" for step in steps], parents)
        if target not in position_of or not graph.needs(id, target):
            ancestors = sorted(graph.ancestors(id), key=graph.index)
            (at / position / "retry_config" / "retry_from_step_id").refuse(
                f"step {shown(id)} does not depend on {shown(target)} "
                f"(it depends on: {listed(map(shown, ancestors)) or 'none'})",
                "name the step itself, or one that it depends on",
            )


def _check_environments(checked: dict[str, Any], at: Place) -> None:
    """A step's environments are among the task's, which are acquired together at its start."""
    listed_names = checked.get("environments") or []
    for position, step in enumerate(checked["steps"]):
        here = at / "steps" / position
        compensate = step.get("compensate")
        named = [(here / "environment", step.get("environment"))]
        if isinstance(step.get("uses"), list):
            named += [(here / "uses" / i, name) for i, name in enumerate(step["uses"])]
        if isinstance(compensate, dict):
            named.append((here / "compensate" / "environment", compensate.get("environment")))
        for place, name in named:
            if isinstance(name, str) and name not in listed_names:
                near = nearest(name, listed_names)
                place.refuse(
                    f"{shown(name)} is not among the task's environments",
                    f"did you mean {near!r}?" if near else "add it to the task's environments",
                )


def _check_secrets(checked: dict[str, Any], at: Place) -> None:
    """Documents name secrets; they never hold them, wherever in a step."""
    redact = [key for key in checked.get("redact") or [] if isinstance(key, str)]
    places = [(checked.get(key), at / key) for key in ("seed", "metadata")]
    for position, step in enumerate(checked["steps"]):
        here = at / "steps" / position
        compensate = step.get("compensate")
        for part, place in ((step, here), (compensate, here / "compensate")):
            if isinstance(part, dict):
                places += _bodies(part, place)
    for value, place in places:
        for path in literal_secrets(value, redact):
            Place(at.problems, (*place.path, *path)).refuse(
                "the value of this key is a secret, and a document holds none",
                "write {from_env: NAME} or {from_file: PATH}",
            )


def _bodies(step: dict[str, Any], at: Place) -> list[tuple[Any, Place]]:
    """What of a step is its author's own, and may hold anything.

    Not the names of built-in keys, which mean what they always do, and no JSON schema: under a
    key's name it describes a value and holds none.
    """
    type = step.get("type")
    if not isinstance(type, str) or type not in BUILT_IN_TYPES:
        free = {key: value for key, value in step.items() if key not in COMMON_KEYS}
        return [(free, at), (step.get("env"), at / "env")]
    found = []
    for key, value in step.items():
        if key in ("compensate", "expected_output_schema"):
            continue
        if key == "checks" and isinstance(value, list):
            for number, check in enumerate(value):
                if isinstance(check, dict):
                    told = {name: part for name, part in check.items() if name != "schema"}
                    found.append((told, at / key / number))
            continue
        found.append((value, at / key))
    return found
