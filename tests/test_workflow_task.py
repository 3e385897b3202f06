"""How long a dead worker may hold a task's workflow up."""

from __future__ import annotations

from datetime import timedelta

from perdure.workflow_task import LONGEST, workflow_task_timeout


def test_a_dead_worker_holds_a_task_up_for_less_than_its_steps_are_promised() -> None:
    steps = [{"heartbeat_timeout": 30.0}, {"heartbeat_timeout": 1.5}, {}]
    assert workflow_task_timeout({"steps": steps}) == timedelta(seconds=2.5)


def test_a_task_with_usual_heartbeats_keeps_the_usual_patience() -> None:
    assert workflow_task_timeout({"steps": [{}, {"heartbeat_timeout": 60.0}]}) == LONGEST
    assert workflow_task_timeout({"steps": []}) == LONGEST
