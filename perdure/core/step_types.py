"""The built-in step types by their document keys: what each takes, and what it must be given.

Types of plugins declare their own keys (`perdure.steps.step`). How a key's value must look is
said in `perdure.core.step_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON_KEYS = frozenset(
    {
        "id",
        "type",
        "version",
        "depends_on",
        "env",
        "timeout",
        "idle_timeout",
        "heartbeat_timeout",
        "retry",
        "max_worker_losses",
        "fail_task_on_error",
        "retry_config",
        "uses",
        "limit",
        "creates",
        "compensate",
        "keep_output",
    }
)
"""Keys that a step of any type may have, custom types included."""

COMPENSATION_KEYS = frozenset(
    {
        "type",
        "env",
        "timeout",
        "idle_timeout",
        "heartbeat_timeout",
        "retry",
        "max_worker_losses",
        "keep_output",
    }
)
"""Those of `COMMON_KEYS` that the step under `compensate` may have."""


@dataclass(frozen=True)
class TypeKeys:
    """The keys of one step type's own."""

    keys: frozenset[str]
    required: frozenset[str] = frozenset()
    alternatives: tuple[frozenset[str], ...] = ()
    """Groups of keys, of which exactly one must be there, and whole."""
    refused: frozenset[str] = frozenset()
    """Common keys that this type does not take."""


_PROCESS = frozenset({"command", "cwd", "stdin", "ok_exit_codes", "json"})
_SCRIPT = frozenset({"file", "file_name", "code", "entrypoint", "args", "result_id"})
"""`file_name` is written by perdure when it embeds `file` as `code`; tracebacks show it."""

TRACEBACK_ENDS_WITH = "\nits traceback ends with:\n"
"""In the message of a script's failure: between what was raised and the lines that led there."""

NEVER_UNDO = frozenset({"background", "await"})
"""Types that a `compensate` cannot have: what undoes a step launches nothing that outlives it."""

BUILT_IN_TYPES: dict[str, TypeKeys] = {
    "command": TypeKeys(_PROCESS | {"mcp"}, required=frozenset({"command"})),
    "python": TypeKeys(_SCRIPT, alternatives=(frozenset({"file"}), frozenset({"code"}))),
    "http": TypeKeys(
        frozenset(
            {"url", "environment", "port", "path", "method", "headers", "json", "body", "expect"}
        ),
        alternatives=(frozenset({"url"}), frozenset({"environment", "port", "path"})),
    ),
    "exec": TypeKeys(
        frozenset({"environment", "service", "command", "user", "workdir"}),
        required=frozenset({"environment", "service", "command"}),
    ),
    "reset": TypeKeys(frozenset({"environment"}), required=frozenset({"environment"})),
    "verify": TypeKeys(
        frozenset({"verifier_id", "checks", "pass_score"}), required=frozenset({"checks"})
    ),
    "background": TypeKeys(
        frozenset(
            {
                *("command", "cwd", "stdin", "ok_exit_codes"),
                *("file", "file_name", "code", "entrypoint", "args"),
                *("name", "restartable", "time_limit", "kill_after"),
                *("environment", "service", "user", "workdir"),
            }
        ),
        alternatives=(frozenset({"command"}), frozenset({"file"}), frozenset({"code"})),
    ),
    "await": TypeKeys(
        frozenset({"job", "interrupt_after", "kill_after", "accept"}), required=frozenset({"job"})
    ),
    "agent": TypeKeys(
        frozenset(
            {
                "capability",
                "fallback_capability",
                "input",
                "priority",
                "preferred_agent_id",
                "excluded_agent_ids",
                "required_tags",
                "min_success_rate",
                "max_cost_per_call",
                "max_latency_ms",
                "constraints",
                "max_retries",
                "backoff_base_ms",
                "unassigned_timeout",
                "expected_output_schema",
                "rules",
                "non_retryable_errors",
            }
        ),
        required=frozenset({"capability"}),
        # An agent step is retried by replanning (`max_retries`, `rules`); two counters would lie.
        refused=frozenset({"retry"}),
    ),
}
"""By name; every built-in type of the contract."""


@dataclass(frozen=True)
class NotYetRun:
    """What documents may say and this version validates, but cannot run."""

    types: frozenset[str] = frozenset()
    step_keys: frozenset[str] = frozenset()
    type_keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Keys by step type."""
    task_keys: frozenset[str] = frozenset()
    """Keys of the task, when they are not empty."""


NOT_YET_RUN = NotYetRun(types=frozenset({"agent"}))
