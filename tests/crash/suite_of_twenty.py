"""Twenty small tasks of every kind of step, drawn from a seed, that tell what they did."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash import work
from tests.crash.work import FAILS, FAILS_ONCE, PLAIN, STRAGGLER, WAITS, Line, ends_in, lines_of

TASKS = 20
HEARTBEAT_SECONDS = 1.5

_SCRIPT = """\
import runpy
def run(input):
    program = runpy.run_path(input["args"]["program"])
    assert program["main"](**input["args"]["work"]) == 0
    return input["args"]["name"]
"""


@dataclass(frozen=True)
class Work:
    """A step that leaves lines, and how it is to end."""

    task: str
    step: str
    type: str
    manner: str

    @property
    def name(self) -> str:
        """What its file of lines is called, and what it results in."""
        return f"{self.task}.{self.step}"

    @property
    def ends(self) -> int:
        """How many of its attempts come to an end of their own."""
        return 2 if self.manner == FAILS_ONCE else 1


class SuiteOfTwenty:
    """The documents, below `folder`, and what became of them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.documents = folder / "tasks"
        self.effects = folder / "effects"
        self.works: list[Work] = []
        for directory in (self.documents, self.effects / "lines", self.effects / "locks"):
            directory.mkdir(parents=True)
        for number in range(TASKS):
            document = self._task(f"t{number:02}", number, chance)
            (self.documents / f"{document['id']}.json").write_text(json.dumps(document))
        self._allowed = -1
        self.allow(0)

    def allow(self, ends: int) -> None:
        """Let so many more steps end: the suite must not be over before all is killed that is to
        be, however slow the machine makes the killer."""
        allowed = self.ends() + ends
        if allowed > self._allowed:
            self._allowed = allowed
            draft = self.effects / "draft"
            draft.write_text(str(allowed))
            draft.replace(self.effects / "allowed_ends")

    def let_it_end(self) -> None:
        """Let all steps end; until then, the last one of the last task does not in any case."""
        (self.effects / "may_end").touch()

    def lines(self, name: str) -> list[Line]:
        """What a step has left so far."""
        return lines_of(self.effects, name)

    def all_lines(self) -> dict[str, list[Line]]:
        """By the name of the step; of those that left some."""
        found = {file.name: self.lines(file.name) for file in (self.effects / "lines").iterdir()}
        return {name: lines for name, lines in found.items() if lines}

    def ends(self) -> int:
        """How many ends the steps have come to by now."""
        return ends_in(self.effects)

    # --- Documents --------------------------------------------------------------------------

    def _task(self, task: str, number: int, chance: random.Random) -> dict[str, Any]:
        length = chance.randint(3, 4)
        steps: list[dict[str, Any]] = []
        for at, manner in enumerate(_manners(number, length)):
            kind = chance.choice(("command", "command", "python", "crash_work"))
            if manner != PLAIN:
                kind = "command"
            steps.append(self._step(task, f"s{at}", kind, manner, chance))
        if number % 2:  # s1 and s2 side by side
            steps[2]["depends_on"] = ["s0"]
        if number % 5 == 1:
            equals = {"path": f"results.s{length - 1}", "exists": True}
            steps.append({"id": "check", "type": "verify", "checks": [equals]})
        return {"id": task, "steps": steps}

    def _step(
        self, task: str, id: str, kind: str, manner: str, chance: random.Random
    ) -> dict[str, Any]:
        made = Work(task, id, kind, manner)
        self.works.append(made)
        folder, seconds = str(self.effects), round(chance.uniform(0.1, 0.5), 2)
        step: dict[str, Any] = {
            "id": id,
            "type": kind,
            "heartbeat_timeout": HEARTBEAT_SECONDS,
            # One step may be hit again and again; its losses are not what is tested here.
            "max_worker_losses": 50,
        }
        if kind == "crash_work":
            return step | {"folder": folder, "seconds": seconds}
        if kind == "python":
            args = {
                "program": work.__file__,
                "name": made.name,
                "work": {"folder": folder, "seconds": str(seconds), "manner": manner},
            }
            return step | {"code": _SCRIPT, "args": args}
        # -I -S -E: the interpreter is up in 20 ms.
        argv = [sys.executable, "-ISE", work.__file__, folder, str(seconds), manner]
        step |= {"command": argv, "creates": []}
        if manner == FAILS:
            step["fail_task_on_error"] = False
        if manner == FAILS_ONCE:
            step["retry"] = {"max_attempts": 2, "initial_interval": 0.1}
        return step


def _manners(number: int, length: int) -> Iterator[str]:
    """How the steps of a task end: in five of the twenty tasks, one does so in another way."""
    special = {4: FAILS_ONCE, 9: FAILS, 13: STRAGGLER, 17: STRAGGLER, TASKS - 1: WAITS}
    at = length - 1 if number == TASKS - 1 else 1
    for step in range(length):
        yield special.get(number, PLAIN) if step == at else PLAIN
