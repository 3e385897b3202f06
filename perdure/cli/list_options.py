"""Options about lists of tasks, and about tasks in the DTap layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perdure.cli.options import flag_option, path_option, value_option

RootOption = Annotated[
    Path | None,
    path_option(
        "--root",
        "DIR",
        "The project's folder. By default looked for above each list and DTap task.",
    ),
]
EnvConfigOption = Annotated[
    Path | None,
    path_option(
        "--env-config", "FILE", "The env.yaml. By default the project's, dt_arena/config/env.yaml."
    ),
]
McpConfigOption = Annotated[
    Path | None,
    path_option(
        "--mcp-config", "FILE", "The mcp.yaml. By default the project's, dt_arena/config/mcp.yaml."
    ),
]
TaskCommandOption = Annotated[
    str | None,
    value_option(
        "--task-command",
        "C",
        "What a DTap task runs, {task_dir} standing for its directory. By default the "
        "task_command of env.yaml.",
    ),
]
DomainOption = Annotated[
    str | None, value_option("--domain", "D", "Only tasks with this domain in their metadata.")
]
TypeOption = Annotated[
    str | None, value_option("--type", "T", "Only tasks with this type: benign or malicious.")
]
ThreatModelOption = Annotated[
    str | None, value_option("--threat-model", "T", "Only tasks with this threat_model.")
]
RiskCategoryOption = Annotated[
    str | None, value_option("--risk-category", "R", "Only tasks with this risk_category.")
]
SkipExistingOption = Annotated[
    bool,
    flag_option(
        "--skip-existing", "Leave out DTap tasks that have been judged (judge_result.json)."
    ),
]
