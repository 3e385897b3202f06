"""Which tasks of a list are wanted, and what else a list needs beside the documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILTERS = {
    "domain": "--domain",
    "type": "--type",
    "threat_model": "--threat-model",
    "risk_category": "--risk-category",
}
"""The keys of a task's metadata that lists are filtered by, and the options that do it."""


@dataclass(frozen=True)
class ListOptions:
    """What the options of `run` and `validate` say about lists and tasks in the DTap layout."""

    env_config: Path | None = None
    """The env.yaml; None: `<root>/dt_arena/config/env.yaml`, if there are DTap tasks and it is
    there."""
    mcp_config: Path | None = None
    """The mcp.yaml; None: `<root>/dt_arena/config/mcp.yaml`, if it is there."""
    root: Path | None = None
    """The project's folder; None: it is looked for above each list and each DTap task."""
    task_command: str | None = None
    """What a DTap task runs, `{task_dir}` standing for its directory; over env.yaml's own."""
    domain: str | None = None
    """Keep only tasks with this `domain` in their metadata; the next three likewise."""
    type: str | None = None
    threat_model: str | None = None
    risk_category: str | None = None
    skip_existing: bool = False
    """Leave out DTap tasks that have been judged already."""
    agent_artifact_id: str | None = None
    """The agent whose judged tasks `skip_existing` looks for; None: see `perdure.judged`."""
    agent_model: str | None = None
    """The model whose judged tasks `skip_existing` looks for; None: likewise."""
    results: Path | None = None
    """Where the files of results are to lie: a tree passes over it."""
    validating: bool = False
    """True: env.yaml and mcp.yaml among the paths are checked, not refused, and a DTap task needs
    no command."""


@dataclass(frozen=True)
class SkippedTask:
    """A task that is left out, since it has been judged already."""

    id: str
    source: str
    """Its file, or `list.jsonl:3`."""
    judged: str
    """The file that holds its judgement."""
