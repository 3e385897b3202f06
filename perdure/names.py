"""Names that both sides of a server must agree on: workflows, activities, queues, ids."""

from __future__ import annotations

TASK_WORKFLOW = "TaskWorkflow"
SUITE_WORKFLOW = "SuiteWorkflow"

RUN_STEP = "run_step"
BIND_HOST = "bind_host"
FINISH_TASK = "finish_task"
WRITE_SUITE = "write_suite"
PROBE_TRIALS = "probe_trials"

# Types of the failures by which activities and workflows tell each other what happened.
WORKER_SHUTDOWN = "WorkerShutdown"
WORKER_LOST = "WorkerLost"
TASK_FAILED = "TaskFailed"
BAD_INPUT = "BadInput"

DEFAULT_QUEUE = "perdure"

KIND_ATTRIBUTE = "PerdureKind"
SUITE_ATTRIBUTE = "PerdureSuite"
TASK_ATTRIBUTE = "PerdureTask"


def task_workflow_id(suite: str, task: str, trial: int) -> str:
    """The workflow id of one trial of a task: readable, and derived so that it is unique."""
    return f"task/{suite}/{task}/{trial}"


def suite_workflow_id(suite: str) -> str:
    """The workflow id of a suite."""
    return f"suite/{suite}"


def steps_queue(queue: str, host: str) -> str:
    """Where a task of `queue` that is bound to `host` sends its steps."""
    return f"{queue}/{host}/steps"  # no id holds a slash


def control_queue(queue: str) -> str:
    """Short activities that must not wait behind hours of steps."""
    return f"{queue}/control"
