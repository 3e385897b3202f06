"""Runs that roll back, and who carries what they decide, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from perdure.core.rollback import Compensation
from perdure.core.run import Dispatch, TaskRun
from perdure.core.task import Task
from perdure.messages import Holder, RunRef, StepFailure, StepOutcome

REF = RunRef("task/s/t/1", "0f1e2d3c-0000-4000-8000-000000000000", "s", "t", 1)
HOLDER = Holder(REF.workflow_id, REF.run_id)

UNDO = {"compensate": {"type": "command", "command": "undo"}}


def task(*steps: dict[str, Any], **more: Any) -> Task:
    documents = [{"type": "command", "command": "true", **step} for step in steps]
    return Task.from_dict({"id": "t", "steps": documents, **more})


def step(id: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "depends_on": [{"task_step_id": name} for name in after], **more}


def back_to(resume: str, times: int = 1, **more: Any) -> dict[str, Any]:
    return {"retry_config": {"retry_from_step_id": resume, "max_retries": times, **more}}


def start(task: Task, **options: Any) -> TaskRun:
    return TaskRun(task, REF, now=0.0, **options)


def done(step_id: str, value: Any = 1, **more: Any) -> StepOutcome:
    written = {"op": "set", "path": ["results", step_id], "value": value}
    return StepOutcome("succeeded", [written], **more)


def failed(message: str = "no", **more: Any) -> StepOutcome:
    return StepOutcome("failed", failure=StepFailure(message), **more)


def deployed(name: str) -> list[dict[str, Any]]:
    item = {"sandbox_id": name, "sandbox_type": "vm"}
    return [{"op": "edit", "path": ["deployed_sandboxes"], "remove": [], "append": [item]}]


class Driver:
    """Carries what the run decides, as a workflow would."""

    def __init__(self, run: TaskRun) -> None:
        self.run = run
        self.now = 0.0
        self.flying: dict[str, Dispatch] = {}
        self.undone: list[Compensation] = []

    def go(self) -> list[str]:
        """Start what may start; its ids."""
        ready = self.run.take_ready(self.now)
        self.flying |= {dispatch.step.id: dispatch for dispatch in ready}
        return [dispatch.step.id for dispatch in ready]

    def end(self, step_id: str, outcome: StepOutcome | None = None) -> None:
        self.now += 1
        self.run.finish(self.flying.pop(step_id), outcome or done(step_id), self.now)

    def fail(self, step_id: str, message: str = "no", **more: Any) -> None:
        self.end(step_id, failed(message, **more))

    def stop(self) -> list[str]:
        """Cancel what the rollback wants stopped; its ids."""
        stopped = self.run.to_stop
        for step_id in stopped:
            self.end(step_id, StepOutcome("cancelled"))
        return stopped

    def undo(self, failing: Iterable[str] = ()) -> list[str]:
        """Carry every compensation that is due; their names."""
        names = []
        while compensation := self.run.take_compensation(self.now):
            assert self.run.take_compensation(self.now) is None, "one after another"
            self.now += 1
            self.undone.append(compensation)
            name = compensation.activity_id.removeprefix("undo ")
            broken = any(name.startswith(f"{step_id}#") for step_id in failing)
            failure = StepFailure("it will not", type="Broken") if broken else None
            self.run.compensated(compensation, failure, self.now)
            names.append(name)
        return names

    def carry_over(self) -> None:
        """Continue as new."""
        run = self.run
        state = json.loads(json.dumps(run.state()))
        self.run = start(run.task)
        self.run.restore(state)


def drive(*steps: dict[str, Any], **more: Any) -> Driver:
    return Driver(start(task(*steps, **more)))


def chain(times: int = 1, **failing: Any) -> Driver:
    """a -> b -> c, of which a and b have succeeded and c runs."""
    driver = drive(
        step("a", **UNDO),
        step("b", "a", **UNDO),
        step("c", "b", **UNDO, **back_to("b", times), **failing),
    )
    for step_id in "ab":
        driver.go()
        driver.end(step_id)
    driver.go()
    return driver


def kinds(run: TaskRun) -> list[str]:
    return [event["type"] for event in run.events]


def siblings(**more: Any) -> Driver:
    """a -> b, a -> c, and d beside them; a has succeeded, the others run."""
    driver = drive(
        step("a", **UNDO),
        step("b", "a", **UNDO, **back_to("a")),
        step("c", "a", **UNDO),
        step("d", **UNDO, **more),
    )
    driver.go()
    driver.end("a")
    driver.go()
    assert set(driver.flying) == {"b", "c", "d"}
    return driver


def two_branches(**more: Any) -> Driver:
    """a -> b and x -> y, both b and y running, each with a rollback of its own branch."""
    driver = drive(
        step("a", **UNDO),
        step("b", "a", **UNDO, **back_to("a")),
        step("x", **UNDO),
        step("y", "x", **UNDO, **back_to("x"), **more),
    )
    driver.go()
    driver.end("a")
    driver.end("x")
    driver.go()
    return driver
