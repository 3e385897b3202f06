"""Names that both sides of a server must agree on: workflows, activities, queues, ids."""

from __future__ import annotations

TASK_WORKFLOW = "TaskWorkflow"
SUITE_WORKFLOW = "SuiteWorkflow"
LIMIT_WORKFLOW = "LimitWorkflow"
POOL_WORKFLOW = "PoolWorkflow"
INSTANCE_WORKFLOW = "InstanceWorkflow"
JOB_WORKFLOW = "JobWorkflow"

RUN_STEP = "run_step"
COMPENSATE_STEP = "compensate_step"
BIND_HOST = "bind_host"
CARRY_WORK = "carry_work"
FINISH_TASK = "finish_task"
WRITE_SUITE = "write_suite"
WRITE_MISSING = "write_missing"
PROBE_TRIALS = "probe_trials"
ASK_SLOT = "ask_slot"
RELEASE_SLOT = "release_slot"
REMIND_LIMITS = "remind_limits"
PROBE_HOLDERS = "probe_holders"
ACQUIRE_LEASE = "acquire_lease"
RELEASE_LEASE = "release_lease"
SEE_LEASE = "see_lease"
RESET_LEASE = "reset_lease"
ANSWER_POOL = "answer_pool"
REMIND_POOL = "remind_pool"
SET_DEMAND = "set_demand"
END_INSTANCES = "end_instances"
PREPARE_ENVIRONMENT = "prepare_environment"
START_INSTANCE = "start_instance"
RESET_INSTANCE = "reset_instance"
CHECK_INSTANCE = "check_instance"
WATCH_INSTANCE = "watch_instance"
STOP_INSTANCE = "stop_instance"
SWEEP_HOST = "sweep_host"
RUN_JOB = "run_job"
INTERRUPT_JOB = "interrupt_job"
STOP_JOBS = "stop_jobs"

SLOT_GRANTED = "slot_granted"
REQUEST_SLOT = "request_slot"
SLOT_RELEASED = "slot_released"
"""Signals: of a limit to the task that holds a slot, of the task to the limit."""

REQUEST_LEASE = "request_lease"
LEASE_RELEASED = "lease_released"
LEASE_SEEN = "lease_seen"
RESET_ASKED = "reset_asked"
DEMAND_SET = "demand_set"
HOST_BEAT = "host_beat"
INSTANCE_ANSWERED = "instance_answered"
"""Signals to a pool."""

LEASE_GRANTED = "lease_granted"
LEASE_REFUSED = "lease_refused"
LEASE_RENEWED = "lease_renewed"
LEASE_LOST = "lease_lost"
"""Signals of a pool to the holder of a lease."""

ORDER = "order"
"""Signal of a pool to an instance."""

WISH = "wish"
"""Update of a pool: what people ask for."""

WITHDRAW = "withdraw"
"""Signal of a suite to a task: do not begin, if you still wait for environments."""

TIME_LIMIT_TIMER = "time limit of the task"
"""The summary by which a task's history tells this timer from others."""

TRIAL_ENDED = "trial_ended"
"""Signal: of a task to its suite."""

LAUNCH_JOB = "launch_job"
"""Update of a task."""

JOB_ENDED = "job_ended"
"""Signal of a job to its task."""

JOB_OUTPUT = "job_output"
INTERRUPT = "interrupt"
"""Signals to a job: of its worker, and of whoever wants it to stop."""

PEEK = "peek"
"""Query of a job."""

# Updates of a suite: what people ask for while it runs. Each answers with a sentence for them.
SET_MAX_PARALLEL = "set_max_parallel"
PAUSE = "pause"
RESUME = "resume"
REQUEUE = "requeue"
PRIORITISE = "prioritise"

# Types of the failures by which activities and workflows tell each other what happened.
WORKER_SHUTDOWN = "WorkerShutdown"
WORKER_LOST = "WorkerLost"
TASK_FAILED = "TaskFailed"
BAD_INPUT = "BadInput"
JOB_REFUSED = "JobRefused"
JOB_FAILED = "JobFailed"
REFUSED = "Refused"
"""Of an update that makes no sense as the suite is now; its message says why."""

SUITE_CANCELLED = "its suite was cancelled"
"""The reason for which a suite cancels its tasks."""

DEFAULT_QUEUE = "perdure"

KIND_ATTRIBUTE = "PerdureKind"
SUITE_ATTRIBUTE = "PerdureSuite"
TASK_ATTRIBUTE = "PerdureTask"


def task_workflow_id(suite: str, task: str, trial: int) -> str:
    """The workflow id of one trial of a task: readable, and derived so that it is unique."""
    return f"task/{suite}/{task}/{trial}"


def trial_name(task: str, trial: int, *, several: bool) -> str:
    """What people call a trial: `t3/1`, or `t3` where it is the only one of its task."""
    return f"{task}/{trial}" if several or trial != 1 else task


def suite_workflow_id(suite: str) -> str:
    """The workflow id of a suite."""
    return f"suite/{suite}"


def limit_workflow_id(limit: str) -> str:
    """The workflow id of a named limit: one for all suites of a server."""
    return f"limit/{limit}"


def pool_workflow_id(pool: str) -> str:
    """The workflow id of a pool."""
    return f"pool/{pool}"


def instance_workflow_id(pool: str, environment: str, number: int) -> str:
    """The workflow id of an instance of a pool."""
    return f"instance/{pool}/{environment}/{number}"


def instances_queue(shared: str, host: str) -> str:
    """Where the instances of a host are looked after; `shared` is the queue that all workers of a
    server share."""
    return f"{shared}/{host}/instances"


def steps_queue(queue: str, host: str) -> str:
    """Where a task of `queue` that is bound to `host` sends its steps."""
    return f"{queue}/{host}/steps"  # no id holds a slash


def control_queue(queue: str) -> str:
    """Short activities that must not wait behind hours of steps."""
    return f"{queue}/control"


def undo_queue(queue: str, host: str | None) -> str:
    """Where what a task of `queue` did on a host is undone; None: one host serves the queue.

    No step is in the way there, and what is undone is in no step's way.
    """
    return control_queue(queue if host is None else steps_queue(queue, host))


def job_workflow_id(exec_id: str) -> str:
    """The workflow id of a background job."""
    return f"job/{exec_id}"


def jobs_queue(queue: str, host: str | None) -> str:
    """Where the jobs of a task of `queue` run that is bound to `host`; None: one host serves it."""
    return f"{queue if host is None else steps_queue(queue, host)}/jobs"


def shared_queue(queue: str) -> str:
    """Work for all suites of a server; `perdure worker` polls that of DEFAULT_QUEUE, whichever
    queue it serves."""
    return f"{queue}/shared"
