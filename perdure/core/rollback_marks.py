"""What a rollback leaves in the context: which failures were answered, what was deployed and is not
known there any more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from typing import Any

from perdure.core.context import Json, Op, apply

_DEPLOYED: dict[str, dict[str, Any]] = {
    "deployed_envs": {"sandbox_id": None, "sandbox_type": None, "sandbox_ids": {}},
    "deployed_agents": {"sandbox_id": None, "sandbox_type": None},
    "deployed_sandboxes": {"sandbox_id": None, "sandbox_type": None},
}
"""By list of the context, what is told of its items, each with what stands for a missing one."""


def retried(base: dict[str, Json], span: Set[str]) -> list[Op]:
    """What marks the failures of the span's steps as answered (T31).

    `base` is the context without anything that steps wrote. Entries that are no objects are left
    alone.
    """
    metadata = base.get("metadata")
    entries = metadata.get("failed_steps") if isinstance(metadata, dict) else None
    if not isinstance(entries, list):
        return []
    marked = [
        {**entry, "retried": True}
        if isinstance(entry, dict) and _is_one_of(entry.get("step_id"), span)
        else entry
        for entry in entries
    ]
    if marked == entries:
        return []
    return [{"op": "set", "path": ["metadata", "failed_steps"], "value": marked}]


def retry_resets(entries: Sequence[dict[str, Any]]) -> list[Op]:
    """What adds to the list of retries (T32)."""
    path = ["metadata", "retry_resets"]
    return [{"op": "edit", "path": path, "remove": [], "append": list(entries)}]


def rolled_back_sandboxes(
    before: dict[str, Json], unrecorded: Iterable[list[Op]], after: dict[str, Json]
) -> dict[str, list[dict[str, Any]]]:
    """What had been deployed before and is not in the context after (T33).

    `unrecorded`: what attempts wrote that never was in the context, since they failed or were cut
    off: their sandboxes are the ones that would leak (TD4).
    """
    contexts = [before]
    contexts += [apply(before, ops) for ops in unrecorded if any(map(_is_deployment, ops))]
    gone: dict[str, list[dict[str, Any]]] = {}
    for name, fields in _DEPLOYED.items():
        kept = {_key(item) for item in _items(after, name)}
        gone[name] = []
        for item in (item for context in contexts for item in _items(context, name)):
            if _key(item) in kept:
                continue
            kept.add(_key(item))
            if name != "deployed_agents" or item.get("sandbox_id"):
                told = {field: item.get(field) or default for field, default in fields.items()}
                gone[name].append(told)
    return gone


def _is_one_of(step_id: Any, span: Set[str]) -> bool:
    return isinstance(step_id, str) and step_id in span


def _is_deployment(op: Op) -> bool:
    path = op["path"]
    return not path or path[0] in _DEPLOYED


def _items(context: dict[str, Json], name: str) -> list[dict[str, Any]]:
    items = context.get(name)
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []


def _key(item: Json) -> str:
    return json.dumps(item, sort_keys=True)
