"""What each key of a step must look like, for every built-in type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.core.fields import (
    Check,
    any_text,
    anything,
    check_keys,
    choice,
    duration,
    env,
    flag,
    identifier,
    inner_path,
    list_of,
    mapping_of,
    meant,
    number,
    one_or_more,
    pause,
    read,
    record,
    text,
    variable,
    whole,
    word,
    word_or_secret,
)
from perdure.core.job_documents import ENDED, check_background
from perdure.core.problems import Place, kind, nearest, shown
from perdure.core.step_types import (
    BUILT_IN_TYPES,
    COMMON_KEYS,
    COMPENSATION_KEYS,
    NEVER_UNDO,
    TypeKeys,
)

_ids = list_of(identifier, what="ids")
_texts = list_of(text, what="texts")
_LONGEST_PATTERN = 1_000
SHORTEST_HEARTBEAT_SECONDS = 1.0
"""Two of a worker's beats, which the SDK sends every half second at most."""
_RESERVED_IDS = ("__seed__", "__scheduler__")


def _step_id(value: Any, at: Place) -> Any:
    if value in _RESERVED_IDS:
        at.refuse(f"{value!r} is a name that perdure's journal uses", "choose another id")
    return identifier(value, at)


def _depends_on(value: Any, at: Place) -> Any:
    """Ids, or `{task_step_id: id}`; returned as the latter, each once."""
    if not isinstance(value, list):
        return _ids(value, at)
    wanted: dict[str, None] = {}
    for position, entry in enumerate(value):
        here = at / position
        if isinstance(entry, dict):
            check_keys(entry, ("task_step_id",), here, "a dependency")
            if "task_step_id" not in entry:
                here.refuse("names no step", "write an id, or {task_step_id: ID}")
                continue
            here, entry = here / "task_step_id", entry["task_step_id"]
        if isinstance(identifier(entry, here), str):
            wanted.setdefault(entry)
    return [{"task_step_id": id} for id in wanted]


def _retry_config(value: Any, at: Place) -> Any:
    if not isinstance(value, dict):
        at.refuse(f"is {kind(value)}, not a mapping", "write {retry_from_step_id: ID}")
        return value
    fields: dict[str, Check] = {
        "retry_from_step_id": identifier,
        "go_to_step_id": identifier,
        "max_retries": whole(0),
        "environments": choice("reset", "keep"),
        "delay": pause,
    }
    check_keys(value, fields, at, "retry_config")
    checked = read(value, fields, at)
    alias = checked.pop("go_to_step_id", None)
    if alias is not None:
        checked.setdefault("retry_from_step_id", alias)
    if "retry_from_step_id" not in checked:
        at.refuse(
            "names no step to go back to",
            "add retry_from_step_id: the step's own id, or that of one it depends on",
        )
    return checked


def command(value: Any, at: Place) -> Any:
    """A list is an argv, a text is for the shell."""
    if not isinstance(value, list):
        return text(value, at) if isinstance(value, str) else list_of(word, what="words")(value, at)
    if value and value[0] == "":
        (at / 0).refuse("the program's name is empty", "name the program")
    return list_of(word, what="words", empty=False)(value, at)


def _mcp(value: Any, at: Place) -> Any:
    """The servers that the step's process starts, and the mcp.yaml that describes them."""
    checked = _MCP(value, at)
    for key, remedy in (("config", "name an mcp.yaml"), ("servers", "name at least one of it")):
        if isinstance(value, dict) and not value.get(key):
            at.refuse(f"has no {key}", remedy)
    return checked


_MCP = record({"config": text, "servers": list_of(text, what="servers")}, what="mcp")


def _keep_output(value: Any, at: Place) -> Any:
    return value if isinstance(value, bool) else whole(0, 1_000_000)(value, at)


def method(value: Any, at: Place) -> Any:
    """An HTTP method, in upper case."""
    if isinstance(value, str) and re.fullmatch("[A-Za-z]{1,20}", value):
        return value.upper()
    at.refuse(f"{shown(value)} is not an HTTP method", "write GET, POST, PUT, PATCH or DELETE")
    return value


def _header_name(value: Any, at: Place) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", value):
        at.refuse(f"{shown(value)} is not the name of a header", "use letters, digits and -")
    return value


def _url(value: Any, at: Place) -> Any:
    if not isinstance(value, str) or not re.match(r"https?://[^\s/]", value):
        at.refuse(f"{shown(value)} is not an address", "write http://HOST/... or https://HOST/...")
        return value
    return any_text(value, at)


def _url_path(value: Any, at: Place) -> Any:
    if isinstance(value, str) and not value.startswith("/"):
        at.refuse(f"{shown(value)} does not begin with /", f"write {shown('/' + value)}")
        return value
    return text(value, at)


def _pattern(value: Any, at: Place) -> Any:
    if isinstance(value, str):
        if len(value) > _LONGEST_PATTERN:
            at.refuse(f"has more than {_LONGEST_PATTERN:,} characters", "write a shorter pattern")
            return value
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as error:
            at.refuse(f"{shown(value)} is not a regular expression ({error})", "correct it")
        return value
    return text(value, at)


def _schema(value: Any, at: Place) -> Any:
    if not isinstance(value, dict | bool):
        at.refuse(f"is {kind(value)}, not a JSON schema", "write a mapping")
    return value


_OPERATORS: dict[str, Check] = {
    "equals": anything,
    "not_equals": anything,
    "contains": anything,
    "matches": _pattern,
    "exists": flag,
    "schema": _schema,
}


def _verification(value: Any, at: Place) -> Any:
    """One check of a verify step: a path, and one operator."""
    fields: dict[str, Check] = {"path": any_text, **_OPERATORS}
    checked = record(fields, what="a check")(value, at)
    if isinstance(value, dict):
        if "path" not in checked:
            at.refuse("has no path", "name the value to look at, such as results.STEP.exit_code")
        used = [name for name in _OPERATORS if name in checked]
        if len(used) != 1:
            found = f"has {' and '.join(used)}" if used else "compares with nothing"
            at.refuse(found, f"give exactly one of {', '.join(_OPERATORS)}")
    return checked


def _heartbeat_timeout(value: Any, at: Place) -> Any:
    seconds = duration(value, at)
    if isinstance(seconds, int | float) and 0 < seconds < SHORTEST_HEARTBEAT_SECONDS:
        at.refuse(
            f"is {seconds:g} s, and a worker sends a heartbeat every 0.5 s only",
            f"give at least {SHORTEST_HEARTBEAT_SECONDS:g} s",
        )
    return seconds


_COMMON_CHECKS: dict[str, Check] = {
    "id": _step_id,
    "type": text,
    "version": whole(0, 2**53),
    "depends_on": _depends_on,
    "env": env,
    "timeout": duration,
    "idle_timeout": duration,
    "heartbeat_timeout": _heartbeat_timeout,
    "retry": record(
        {
            "max_attempts": whole(1),
            "initial_interval": pause,
            "backoff": number(1, 1000),
            "non_retryable_errors": _texts,
        },
        what="retry",
    ),
    "max_worker_losses": whole(0),
    "fail_task_on_error": flag,
    "retry_config": _retry_config,
    "uses": _ids,
    "limit": identifier,
    "creates": list_of(inner_path, what="paths"),
    "keep_output": _keep_output,
}

_PROCESS_CHECKS: dict[str, Check] = {
    "command": command,
    "cwd": text,
    "stdin": any_text,
    "ok_exit_codes": list_of(whole(-255, 255), what="exit codes", empty=False),
    "json": flag,
}
_SCRIPT_CHECKS: dict[str, Check] = {
    "file": text,
    "file_name": text,
    "code": any_text,
    "entrypoint": text,
    "args": anything,
    "result_id": text,
}

OWN_CHECKS: dict[str, dict[str, Check]] = {
    "command": {**_PROCESS_CHECKS, "mcp": _mcp},
    "python": _SCRIPT_CHECKS,
    "http": {
        "url": _url,
        "environment": identifier,
        "port": variable,
        "path": _url_path,
        "method": method,
        "headers": mapping_of(word_or_secret, check_key=_header_name),
        "json": anything,
        "body": any_text,
        "expect": record(
            {
                "status": one_or_more(whole(100, 599)),
                "json": anything,
                "contains": one_or_more(text),
            },
            what="expect",
        ),
    },
    "exec": {
        "environment": identifier,
        "service": text,
        "command": command,
        "user": word,
        "workdir": text,
    },
    "reset": {"environment": identifier},
    "verify": {
        "verifier_id": text,
        "checks": list_of(_verification, what="checks", empty=False),
        "pass_score": number(0, 1),
    },
    "background": {
        **{key: _PROCESS_CHECKS[key] for key in ("command", "cwd", "stdin", "ok_exit_codes")},
        **{key: _SCRIPT_CHECKS[key] for key in ("file", "file_name", "code")},
        "entrypoint": text,
        "args": anything,
        "name": identifier,
        "restartable": flag,
        "time_limit": duration,
        "kill_after": pause,
        "environment": identifier,
        "service": text,
        "user": word,
        "workdir": text,
    },
    "await": {
        "job": text,
        "interrupt_after": duration,
        "kill_after": pause,
        "accept": list_of(choice(*ENDED), what="ends of a job", empty=False),
    },
    "agent": {
        "capability": text,
        "fallback_capability": text,
        "input": anything,
        "priority": anything,
        "preferred_agent_id": text,
        "excluded_agent_ids": _texts,
        "required_tags": _texts,
        "min_success_rate": number(0, 1),
        "max_cost_per_call": number(0),
        "max_latency_ms": number(0),
        "constraints": anything,
        "max_retries": whole(0),
        "backoff_base_ms": number(0),
        "unassigned_timeout": duration,
        "expected_output_schema": _schema,
        "rules": anything,
        "non_retryable_errors": _texts,
    },
}
"""By step type and key; the keys are those of `BUILT_IN_TYPES`."""


def check_step(
    document: Any, at: Place, custom_types: Mapping[str, frozenset[str]]
) -> dict[str, Any] | None:
    """Check a step by itself; returns its document in plain form, or None if it is no mapping."""
    return _check(document, at, COMMON_KEYS, custom_types)


def _check(
    document: Any, at: Place, common: frozenset[str], custom_types: Mapping[str, frozenset[str]]
) -> dict[str, Any] | None:
    if not isinstance(document, dict):
        at.refuse(f"is {kind(document)}, not a step", "write a mapping with id and type")
        return None
    for key in ("id", "type"):
        if key in common and document.get(key) is None:
            at.refuse(f"has no {key}", f"add {key}: ...")
    checks = {key: check for key, check in _COMMON_CHECKS.items() if key in common}
    if "compensate" in common:
        checks["compensate"] = lambda value, place: _check(
            value, place, COMPENSATION_KEYS, custom_types
        )
    type = document.get("type")
    keys = _keys_of(type, at / "type", custom_types)
    if keys is not None:
        assert isinstance(type, str)
        found_before = len(at.problems)
        if type in NEVER_UNDO and "id" not in common:
            (at / "type").refuse(f"nothing is undone by {type!r}", "use another type")
        check_keys(document, common | keys.keys, at, f"a step of type {shown(type)}")
        _check_presence(document, keys, at, type)
        own = OWN_CHECKS.get(type, dict.fromkeys(keys.keys, anything))
        checks = {**own, **checks}
        checked = read(document, checks, at)
        if type == "background" and len(at.problems) == found_before:
            check_background(checked, at)
        return checked
    # Of an unknown type, the other keys may be right.
    others = {key: anything for key in document if key not in checks}
    return read(document, {**checks, **others}, at)


def _keys_of(type: Any, at: Place, custom_types: Mapping[str, frozenset[str]]) -> TypeKeys | None:
    """The keys of a type; None, with a problem, if there is no such type (T3)."""
    if not isinstance(type, str) or type == "":
        return None
    if type in BUILT_IN_TYPES:
        return BUILT_IN_TYPES[type]
    if type in custom_types:
        return TypeKeys(custom_types[type])
    known = [*BUILT_IN_TYPES, *custom_types]
    remedy = meant(type, known)
    if nearest(type, known) is None:
        remedy += "; a type of your own is loaded by --steps MODULE"
    at.refuse(f"there is no step type {shown(type)}", remedy)
    return None


def _check_presence(document: dict[str, Any], keys: TypeKeys, at: Place, type: str) -> None:
    given = {key for key, value in document.items() if value is not None}
    for key in sorted(keys.required - given):
        at.refuse(f"a step of type {type!r} needs {key}", f"add {key}: ...")
    for key in sorted(keys.refused & given):
        (at / key).refuse(
            f"a step of type {type!r} takes no {key}", "it has max_retries and rules of its own"
        )
    if not keys.alternatives:
        return
    choices = "; or ".join(" and ".join(sorted(group)) for group in keys.alternatives)
    touched = [group for group in keys.alternatives if group & given]
    if not touched:
        at.refuse(f"a step of type {type!r} says not what to do", f"give {choices}")
    elif len(touched) > 1:
        both = ", ".join(sorted(frozenset().union(*touched) & given))
        at.refuse(f"{both} exclude each other", f"give {choices}")
    elif missing := touched[0] - given:
        at.refuse(f"lacks {', '.join(sorted(missing))}", f"give {choices}")
