"""Five hundred tasks of mixed outcomes, drawn from a seed; an edit of some; what they come to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.messages import SuiteTask
from perdure.outcome import Trials, outcome
from tests.crash.draw import BROKEN, DRAWN, KINDS, SHAKY, SLOW, share

TASKS = 500
EDITED = 25
REPEATED = 12
"""Tasks of three trials each."""
SLOW_SECONDS = 0.3
HEARTBEAT_SECONDS = 4.0
"""Less than the usual: a step whose worker was killed goes on so much sooner."""

_MANNERS = [DRAWN] * 80 + [SHAKY] * 5 + [BROKEN] * 2 + [SLOW] * 2 + list(KINDS) * 4


class SuiteOfFiveHundred:
    """The documents, below `folder`."""

    def __init__(self, folder: Path, seed: int, *, every: int = 1) -> None:
        """With `every`, only every so many-th of the five hundred is there."""
        self.documents = folder / "tasks"
        self._marks = folder / "marks"
        self._chance = random.Random(seed)
        for directory in (self.documents, self._marks):
            directory.mkdir(parents=True)
        repeated = set(self._chance.sample(range(TASKS), REPEATED))
        drawn = [self._task(n, repeats=3 if n in repeated else 1) for n in range(TASKS)]
        edited = self._chance.sample(drawn, EDITED)
        self._tasks = drawn[::every]
        self._edited = [task for task in self._tasks if task in edited]
        for task in self._tasks:
            self._write(task)

    def edit(self) -> None:
        """Change some documents; what they come to is drawn anew."""
        for task in self._edited:
            _step(task, "draw")["salt"] += "*"
            self._write(task)

    @property
    def trials(self) -> int:
        """How many there are."""
        return sum(task["repeats"] for task in self._tasks)

    def expected(self) -> dict[str, Any]:
        """What `perdure run --json` is to print of it, as far as that is drawn."""
        tasks = [SuiteTask(task, "", repeats=task["repeats"]) for task in self._tasks]
        lines = [line for task in self._tasks for line in _lines(task)]
        return outcome("", "", tasks, Trials(ended=lines))

    def _write(self, task: dict[str, Any]) -> None:
        (self.documents / f"{task['id']}.json").write_text(json.dumps(task))

    def _task(self, number: int, repeats: int) -> dict[str, Any]:
        chance = self._chance
        draw = {
            "id": "draw",
            "type": "draw",
            "salt": str(chance.random()),
            "chance": chance.choice([0.3, 0.6, 0.9, 1.0]),
            "folder": str(self._marks),
            "manner": chance.choice(_MANNERS),
            "heartbeat_timeout": HEARTBEAT_SECONDS,
            "depends_on": [],
        }
        if draw["manner"] == SLOW:
            draw["timeout"] = SLOW_SECONDS
        if chance.random() < 0.08:
            draw["limit"] = "openai"
        steps: list[dict[str, Any]] = [draw]
        if chance.random() < 0.06:
            usage = json.dumps({"usage": {"cost": chance.randint(1, 50), "tokens": number}})
            steps.insert(
                0,
                {
                    "id": "pay",
                    "type": "command",
                    "command": f"printf %s '{usage}' > $PERDURE_OUTPUT",
                    "limit": "openai",
                    "heartbeat_timeout": HEARTBEAT_SECONDS,
                },
            )
            draw["depends_on"] = ["pay"]
        if chance.random() < 0.15:
            check = {"path": "results.draw", "exists": True}
            steps.append({"id": "check", "type": "verify", "checks": [check]})
        return {
            "id": f"t{number:03}",
            "priority": chance.choice(["critical", "high", "medium", "low"]),
            "repeats": repeats,
            "steps": steps,
        }


def _step(task: dict[str, Any], id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in task["steps"] if step["id"] == id)
    return found


def _lines(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is to become of each trial of a task, as a line of its results."""
    unknown = dict.fromkeys(("run_id", "retry_resets", "instances", "started_at", "duration"))
    for trial in range(1, task["repeats"] + 1):
        failure = _failure(_step(task, "draw"), task["id"], trial)
        steps, usage = [], dict[str, float]()
        for step in task["steps"]:
            status = "succeeded"
            if step["id"] == "pay":
                usage = json.loads(step["command"].split("'")[1])["usage"]
            elif failure:
                status = "failed" if step["id"] == "draw" else "not_run"
            steps.append({"id": step["id"], "status": status})
        yield unknown | {
            "task": task["id"],
            "trial": trial,
            "status": "failed" if failure else "succeeded",
            "failure": failure,
            "steps": steps,
            "usage": usage,
        }


def _failure(step: dict[str, Any], task: str, trial: int) -> dict[str, str] | None:
    """How a trial is to fail; None: not at all. What shakes it once is made good by a retry."""
    manner, drawn = step["manner"], share(step["salt"], task, trial)
    kind, reason = "task", f"drew {drawn:.4f}, needed less than {step['chance']:.4f}"
    if manner == SLOW:
        kind, reason = "timeout", f"the step ran longer than its timeout of {SLOW_SECONDS} s"
    elif manner == BROKEN:
        kind, reason = "infrastructure", "the ground shook"
    elif manner in KINDS:
        kind, reason = manner, f"drawn: {manner}"
    elif drawn < step["chance"]:
        return None
    return {"kind": kind, "step": "draw", "reason": reason}
