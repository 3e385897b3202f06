"""A step type of the crash test: the same work, in the worker's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.steps import Context, Host, step
from tests.crash.work import PLAIN, work


@step("crash_work", keys={"folder", "seconds"})
def crash_work(document: dict[str, Any], context: Context, host: Host) -> str:
    """Do the work of a step; the result is its name."""
    name = f"{host.task_id}.{document['id']}"
    work(Path(document["folder"]), name, host.attempt, document["seconds"], PLAIN)
    context.metadata[f"done_{document['id']}"] = True
    return name
