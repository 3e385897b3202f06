"""A step type whose end is drawn: the same seed, task and trial always come to the same."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from perdure.messages import FailureKind
from perdure.steps import Context, Host, StepFailed, step

DRAWN = "drawn"
"""Succeeds with the document's chance, else fails as a task does."""
SHAKY = "shaky"
"""The first run of each trial fails for infrastructure's sake, the next is drawn."""
BROKEN = "broken"
"""Every run fails for infrastructure's sake."""
SLOW = "slow"
"""Meets the step's time limit."""
KINDS: dict[str, FailureKind] = {"environment": "environment", "bad_input": "bad_input"}
"""Manners that end in a failure of that kind."""


@step("draw", keys={"salt", "chance", "folder", "manner"})
def draw(document: dict[str, Any], context: Context, host: Host) -> float:
    """Come to the end that is drawn for this trial."""
    manner = document["manner"]
    if manner == SLOW:
        time.sleep(document["timeout"] + 5)
    if manner in KINDS:
        raise StepFailed(f"drawn: {manner}", kind=KINDS[manner])
    if manner == BROKEN or (manner == SHAKY and _is_first(Path(document["folder"]), host)):
        raise StepFailed("the ground shook", type="Shaken", kind="infrastructure")
    drawn = share(document["salt"], host.task_id, host.trial)
    if drawn >= document["chance"]:
        raise StepFailed(f"drew {drawn:.4f}, needed less than {document['chance']:.4f}")
    return drawn


def share(salt: str, task: str, trial: int) -> float:
    """Between 0 and 1, as good as random, the same each time."""
    digest = hashlib.sha256(f"{salt}/{task}/{trial}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _is_first(folder: Path, host: Host) -> bool:
    """Whether this is the first run of its trial, however often its worker is lost."""
    mark = folder / f"{host.task_id}.{host.trial}"
    try:
        file = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return mark.read_text() in (host.run_id, "")
    with os.fdopen(file, "w") as opened:
        opened.write(host.run_id)
    return True
