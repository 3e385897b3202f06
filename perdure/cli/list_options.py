"""Options about lists of tasks, and about tasks in the DTap layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.options import FLAG, path_of

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        parser=path_of,
        help="The project's folder. By default looked for above each list and DTap task.",
        show_default=False,
    ),
]
EnvConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--env-config",
        metavar="FILE",
        parser=path_of,
        help="The env.yaml. By default the project's, dt_arena/config/env.yaml.",
        show_default=False,
    ),
]
McpConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--mcp-config",
        metavar="FILE",
        parser=path_of,
        help="The mcp.yaml. By default the project's, dt_arena/config/mcp.yaml.",
        show_default=False,
    ),
]
TaskCommandOption = Annotated[
    str | None,
    typer.Option(
        "--task-command",
        metavar="C",
        help="What a DTap task runs, {task_dir} standing for its directory. By default the "
        "task_command of env.yaml.",
        show_default=False,
    ),
]
DomainOption = Annotated[
    str | None,
    typer.Option(
        "--domain",
        metavar="D",
        help="Only tasks with this domain in their metadata.",
        show_default=False,
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="T",
        help="Only tasks with this type: benign or malicious.",
        show_default=False,
    ),
]
ThreatModelOption = Annotated[
    str | None,
    typer.Option(
        "--threat-model",
        metavar="T",
        help="Only tasks with this threat_model.",
        show_default=False,
    ),
]
RiskCategoryOption = Annotated[
    str | None,
    typer.Option(
        "--risk-category",
        metavar="R",
        help="Only tasks with this risk_category.",
        show_default=False,
    ),
]
SkipExistingOption = Annotated[
    bool,
    typer.Option(
        "--skip-existing",
        metavar=FLAG,
        help="Leave out DTap tasks that have been judged (judge_result.json).",
    ),
]
