"""The context that a task's steps share: its fields, and diffs between two of its states.

A context is a JSON object. A step works on a copy of its own; `diff` says what it wrote, `apply`
puts that onto whatever the context has become since, and neither changes its arguments. Contexts
share what they have in common, so one may be held per step at little cost.

A diff is a list of operations, JSON objects themselves:

    {"op": "set", "path": [...], "value": v}     this value stands here
    {"op": "merge", "path": [...], "value": {}}  a new object stands here, joined key by key with
                                                 one that another branch may have put there
    {"op": "edit", "path": [...], "remove": [...], "append": [...]}
                                                 a list lost these items and gained those at its end
    {"op": "unset", "path": [...]}               the key is gone

`merge` and `edit` are what lets parallel branches create one object, or add to one list, and both
keep what they wrote. A path is a list of keys, so keys may hold dots or be empty.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from math import copysign, isfinite
from typing import Any

from perdure.errors import PerdureError

Json = Any
Op = dict[str, Any]

LIST_FIELDS = ("deployed_envs", "deployed_agents", "deployed_sandboxes", "prompt_responses")
SCALAR_FIELDS = (
    "agent_model",
    "default_agent_model",
    "agent_artifact_id",
    "agent_harness",
    "instance_id",
)
FIELDS = ("metadata", "results", *LIST_FIELDS, *SCALAR_FIELDS)
"""Every key of a context, at the top level."""

MAX_DEPTH = 128
"""Levels of nesting that a value may have; JSON codecs on its way give up at a few hundred."""
MAX_VALUES = 2_000_000
"""Values in one context; what is shared counts each time, so an alias bomb meets it early."""
MAX_INTEGER_BITS = 14_000
"""Python refuses to write integers of more than 4,300 digits."""


class NotJson(PerdureError):
    """A value that JSON cannot carry; `path` leads to it, `reason` says why."""

    def __init__(self, path: Iterable[str | int], reason: str) -> None:
        self.path = list(path)
        self.reason = reason
        super().__init__(f"{_dotted(self.path)}: {reason}")


def new_context(
    *,
    metadata: dict[str, Json] | None = None,
    agent_model: str | None = None,
    default_agent_model: str | None = None,
    agent_artifact_id: str | None = None,
    agent_harness: str | None = None,
    instance_id: str | None = None,
) -> dict[str, Json]:
    """The context that a task starts with: every field of it, the lists and `results` empty."""
    context: dict[str, Json] = {"metadata": dict(metadata or {}), "results": {}}
    for name in LIST_FIELDS:
        context[name] = []
    context["agent_model"] = agent_model
    context["default_agent_model"] = default_agent_model
    context["agent_artifact_id"] = agent_artifact_id
    context["agent_harness"] = agent_harness
    context["instance_id"] = instance_id
    return context


def size_bytes(context: Json) -> int:
    """Length of the value as compact JSON in UTF-8."""
    text = json.dumps(context, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "surrogatepass"))


# --- Equality ---------------------------------------------------------------------------------


def same(a: Json, b: Json) -> bool:
    """Whether two JSON values are equal, types included.

    1, 1.0 and True differ, and so do 0.0 and -0.0; the order of an object's keys does not count.
    """
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if a is b:
            continue
        kind = type(a)
        if kind is not type(b):
            return False
        if kind is dict:
            if len(a) != len(b):
                return False
            for key, value in a.items():
                if key not in b:
                    return False
                pairs.append((value, b[key]))
        elif kind is list:
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif a != b or (kind is float and copysign(1.0, a) != copysign(1.0, b)):
            return False
    return True


def _fingerprint(value: Json) -> str:
    """A text that two values share exactly if they are the `same`."""
    parts: list[str] = []
    stack: list[tuple[bool, Any]] = [(False, value)]
    while stack:
        verbatim, item = stack.pop()
        if verbatim:
            parts.append(item)
        elif type(item) is dict:
            stack.append((True, "}"))
            for key in sorted(item, reverse=True):
                stack.append((False, item[key]))
                stack.append((True, json.dumps(key) + ":"))
            stack.append((True, "{"))
        elif type(item) is list:
            stack.append((True, "]"))
            for element in reversed(item):
                stack.append((True, ","))
                stack.append((False, element))
            stack.append((True, "["))
        else:
            parts.append(json.dumps(item))
    return "".join(parts)


# --- Diff -------------------------------------------------------------------------------------


def diff(before: Json, after: Json) -> list[Op]:
    """What turns `before` into `after`: `apply(before, diff(before, after))` is the `same` as it.

    A key that both have and neither changed is not named, so a step's diff is what the step
    wrote. Both must be JSON (`check_json`).
    """
    ops: list[Op] = []
    stack: list[tuple[list[str], Json, Json]] = [([], before, after)]
    while stack:
        path, old, new = stack.pop()
        if old is new:
            continue
        if type(old) is dict and type(new) is dict:
            ops.extend({"op": "unset", "path": [*path, key]} for key in old if key not in new)
            for key, value in new.items():
                if key in old:
                    stack.append(([*path, key], old[key], value))
                else:
                    ops.append(_added([*path, key], value))
        elif type(old) is list and type(new) is list:
            if not same(old, new):
                ops.append(_list_op(path, old, new))
        elif not same(old, new):
            ops.append({"op": "set", "path": path, "value": new})
    return ops


def _added(path: list[str], value: Json) -> Op:
    if type(value) is dict:
        return {"op": "merge", "path": path, "value": value}
    if type(value) is list:
        return {"op": "edit", "path": path, "remove": [], "append": value}
    return {"op": "set", "path": path, "value": value}


def _list_op(path: list[str], old: list[Json], new: list[Json]) -> Op:
    """An `edit` if items only went away and came at the end, a `set` for anything else."""
    removed: list[Json] = []
    position = kept = 0
    while position < len(old):
        if kept < len(new) and same(old[position], new[kept]):
            kept += 1
        else:
            removed.append(old[position])
        position += 1
    appended = new[kept:]
    if removed and appended:
        gone = {_fingerprint(item) for item in removed}
        if any(_fingerprint(item) in gone for item in appended):  # moved: the order was the point
            return {"op": "set", "path": path, "value": new}
    # Equal items: which of them went is not told by value, so the outcome decides.
    if removed and not same(_edited(old, removed, appended), new):
        return {"op": "set", "path": path, "value": new}
    return {"op": "edit", "path": path, "remove": removed, "append": appended}


def _edited(items: list[Json], remove: list[Json], append: list[Json]) -> list[Json]:
    """A new list: without the first occurrence of each item of `remove`, then `append`."""
    if not remove:
        return [*items, *append]
    going = Counter(_fingerprint(item) for item in remove)
    kept = []
    for item in items:
        print_ = _fingerprint(item)
        if going[print_] > 0:
            going[print_] -= 1
        else:
            kept.append(item)
    return [*kept, *append]


# --- Apply ------------------------------------------------------------------------------------


def apply(context: Json, ops: Iterable[Op]) -> Json:
    """A new context with the operations done, in order; the old one is left as it was.

    Total: whatever the context holds, nothing raises. A missing parent is made, one that is not
    an object is replaced by one, and taking away what is not there does nothing. Diffs that
    touch different paths may be applied in any order.
    """
    draft = _Draft(context)
    for op in ops:
        draft.do(op)
    return draft.root


class _Draft:
    """A context being written: copies an object the first time it is written to."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self._own: dict[int, dict[str, Json]] = {}  # the copies, by id; held, so ids stay theirs

    def do(self, op: Op) -> None:
        path: list[str] = op["path"]
        if not path:
            self.root = self._changed(op, True, self.root)
            return
        if op["op"] == "unset" and not _leads_to_object(self.root, path[:-1]):
            return
        node = self.root = self._writable(self.root)
        for key in path[:-1]:
            child = self._writable(node.get(key))
            node[key] = child
            node = child
        key = path[-1]
        if op["op"] == "unset":
            node.pop(key, None)
        else:
            node[key] = self._changed(op, key in node, node.get(key))

    def _writable(self, value: Json) -> dict[str, Json]:
        if id(value) in self._own:
            return self._own[id(value)]
        copy = dict(value) if type(value) is dict else {}
        self._own[id(copy)] = copy
        return copy

    def _changed(self, op: Op, present: bool, old: Json) -> Json:
        if op["op"] == "edit":
            return _edited(old if type(old) is list else [], op["remove"], op["append"])
        if op["op"] == "merge" and present:
            return self._merged(old, op["value"])
        return op.get("value")

    def _merged(self, old: Json, new: Json) -> Json:
        """Objects joined at every depth, lists one after the other, else the new value."""
        if type(old) is list and type(new) is list:
            return [*old, *new]
        if type(old) is not dict or type(new) is not dict:
            return new
        top = self._writable(old)
        stack = [(top, new)]
        while stack:
            target, source = stack.pop()
            for key, value in source.items():
                there = target.get(key)
                if type(there) is dict and type(value) is dict:
                    target[key] = child = self._writable(there)
                    stack.append((child, value))
                elif type(there) is list and type(value) is list:
                    target[key] = [*there, *value]
                else:
                    target[key] = value
        return top


def _leads_to_object(node: Json, path: list[str]) -> bool:
    for key in path:
        if type(node) is not dict:
            return False
        node = node.get(key)
    return type(node) is dict


# --- What JSON can carry ----------------------------------------------------------------------


def check_json(value: Json) -> None:
    """Refuse what JSON cannot carry exactly, naming the place.

    Raises NotJson: NaN or infinity, keys that are not texts, lone surrogates, integers of more
    than about 4,200 digits, types other than None, bool, int, float, str, list and dict
    (subclasses too: they would not come back), more than MAX_DEPTH levels, a value inside itself,
    more than MAX_VALUES values.
    """
    seen = 0
    # A link is (parent link, key): paths are spelled out only when something is wrong.
    stack: list[tuple[Json, int, Any]] = [(value, 0, None)]
    while stack:
        item, depth, link = stack.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise NotJson([], f"holds more than {MAX_VALUES:,} values; keep large data in a file")
        kind = type(item)
        if kind is str:
            _check_text(item, link)
        elif kind is dict or kind is list:
            if depth == MAX_DEPTH:
                raise NotJson(
                    _path(link)[:8], f"is nested more than {MAX_DEPTH} levels deep, or holds itself"
                )
            if kind is list:
                stack.extend((child, depth + 1, (link, i)) for i, child in enumerate(item))
                continue
            for key, child in item.items():
                if type(key) is not str:
                    reason = (
                        f"the key {_shown(key)} is of type {_type_name(key)}; keys must be texts"
                    )
                    raise NotJson(_path(link), reason)
                _check_text(key, link)
                stack.append((child, depth + 1, (link, key)))
        elif kind is float:
            if not isfinite(item):
                raise NotJson(_path(link), f"{item} is not a JSON number")
        elif kind is int:
            if item.bit_length() > MAX_INTEGER_BITS:
                raise NotJson(_path(link), "the integer has more than 4,200 digits")
        elif item is not None and kind is not bool:
            reason = f"{_type_name(item)} is not JSON; use null, bool, number, text, list or dict"
            raise NotJson(_path(link), reason)


def _check_text(text: str, link: Any) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        reason = f"the text holds a lone surrogate (at character {error.start})"
        raise NotJson(_path(link), reason) from None


def _path(link: Any) -> list[str | int]:
    path: list[str | int] = []
    while link is not None:
        link, key = link
        path.append(key)
    return path[::-1]


def _dotted(path: list[str | int]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f"[{_shown(part)}]"
    return text or "the value"


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except Exception:  # a repr of the user's own may do anything
        return f"<{_type_name(value)}>"
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
