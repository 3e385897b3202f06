"""Five hundred tasks of mixed outcomes, drawn from a seed, and an edit of some of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.crash.draw import BROKEN, DRAWN, KINDS, SHAKY, SLOW

TASKS = 500
EDITED = 25
REPEATED = 40
"""Tasks of three trials each."""

_MANNERS = [DRAWN] * 80 + [SHAKY] * 8 + [BROKEN] * 2 + [SLOW] * 2 + list(KINDS) * 4


class SuiteOfFiveHundred:
    """The documents, below `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.documents = folder / "tasks"
        self._marks = folder / "marks"
        self._chance = random.Random(seed)
        for directory in (self.documents, self._marks):
            directory.mkdir(parents=True)
        repeated = set(self._chance.sample(range(TASKS), REPEATED))
        self._tasks = [self._task(n, repeats=3 if n in repeated else 1) for n in range(TASKS)]
        self._edited = self._chance.sample(range(TASKS), EDITED)
        for task in self._tasks:
            self._write(task)

    def edit(self) -> None:
        """Change some documents; what they come to is drawn anew."""
        for number in self._edited:
            for step in self._tasks[number]["steps"]:
                if step["type"] == "draw":
                    step["salt"] += "*"
            self._write(self._tasks[number])

    @property
    def trials(self) -> int:
        """How many there are."""
        return sum(task["repeats"] for task in self._tasks)

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
            "depends_on": [],
        }
        if draw["manner"] == SLOW:
            draw["timeout"] = 0.3
        if chance.random() < 0.2:
            draw["limit"] = "openai"
        steps: list[dict[str, Any]] = [draw]
        if chance.random() < 0.1:
            usage = json.dumps({"usage": {"cost": chance.randint(1, 50), "tokens": number}})
            steps.insert(
                0,
                {
                    "id": "pay",
                    "type": "command",
                    "command": f"printf %s '{usage}' > $PERDURE_OUTPUT",
                    "limit": "openai",
                },
            )
            draw["depends_on"] = ["pay"]
        if chance.random() < 0.3:
            check = {"path": "results.draw", "exists": True}
            steps.append({"id": "check", "type": "verify", "checks": [check]})
        return {
            "id": f"t{number:03}",
            "priority": chance.choice(["critical", "high", "medium", "low"]),
            "repeats": repeats,
            "steps": steps,
        }
