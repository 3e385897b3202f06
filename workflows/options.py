"""Every timeout and retry policy of the workflows, with the reason for each number."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from perdure.core.pool_definitions import Definition
    from perdure.core.rollback import Compensation
    from perdure.core.run import Dispatch
    from perdure.core.undo_step import longest_pause_seconds, undo_step
    from perdure.job_messages import JobInput
    from perdure.messages import SlotRelease, SlotRequest
    from perdure.names import control_queue, jobs_queue, undo_queue
    from perdure.pool_messages import (
        LeaseRelease,
        LeaseRequest,
        LeaseReset,
        LeaseSeen,
        SetDemand,
    )

CONTEXT_INLINE_BYTES = 32 * 1024
"""A larger context is named by its version: 300 steps that each add 20 kB would otherwise put
900 MB into the history in place of 6."""

PROBE_INTERVAL = timedelta(seconds=20)
"""How often a suite looks after the tasks that an earlier run of it started: such a task sends no
signal if it is terminated by hand, or ends in the moment of the continue-as-new."""

FIRST_PROBE = timedelta(seconds=1)
"""Soon after a continue-as-new, for those that ended in its moment."""

PROBE = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(seconds=60),  # a batch of describe calls
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
)

SLOT = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),  # one signal
    # Tried for ever: a request that is lost is never granted, a slot that is not given back is
    # missed by everybody. Both are idempotent.
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
    ),
)

LOCAL_WORD = workflow.LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),  # one signal
    retry_policy=SLOT["retry_policy"],  # for ever, for the same reasons
)
"""A word by a local activity: one event and no round trip for some milliseconds."""

SLOT_REMINDER = timedelta(minutes=5)
"""How often a task that waits for slots makes sure that its limits know: one that is terminated by
hand has forgotten who waits."""

REMIND = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(seconds=60),  # a query for each limit, and what it lacks
    schedule_to_close_timeout=timedelta(minutes=5),  # then the next reminder is due
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
    summary="do the limits know who waits?",
)

LEASE_REMINDER = SLOT_REMINDER
"""How often a task that waits for its environments makes sure that its pool knows."""

REMIND_OF_LEASE = REMIND | workflow.ActivityConfig(summary="does the pool know who waits?")

REMIND_OF_RESET = REMIND | workflow.ActivityConfig(summary="does the pool reset the lease?")

LIMIT_PROBE_INTERVAL = timedelta(seconds=15)
"""How often a limit looks whether the tasks that hold its slots, or wait for them, still run: one
that is terminated gives nothing back."""

LIMIT_IDLE = timedelta(minutes=1)
"""How long a limit without a task stays; a start costs more than a signal does."""

POOL_PROBE_INTERVAL = timedelta(seconds=15)
"""How often a pool looks whether those who hold leases, or wait for them, still run, and whether
its instances are looked after: whoever is terminated gives nothing back, and says nothing."""

POOL_IDLE = timedelta(minutes=1)
"""How long a pool without instances stays that nobody asks anything."""

END = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(seconds=60),  # a batch of calls to the server
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
    summary="end the instances of a host that is gone",
)

WRITE = workflow.LocalActivityConfig(
    # Local: one event and no round trip, for a file write and a signal of some milliseconds.
    # Both are idempotent, so the repeat after a crash before the workflow task's end is harmless.
    start_to_close_timeout=timedelta(minutes=10),  # a copy of large artifacts
    schedule_to_close_timeout=timedelta(minutes=30),  # a server that comes back is waited for
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
    ),
)

BIND = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),  # it answers with a name
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),
)

CARRY = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),  # a copy of a large working directory
    heartbeat_timeout=timedelta(seconds=15),  # a worker that is killed is not waited for
    # A worker that is away is waited for, as its steps would; one that is lost each time is not.
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=10),
    summary="the files of the earlier run",
)


def carry_options(queue: str | None) -> workflow.ActivityConfig:
    """How a run gets an earlier one's files, on `queue` or on the workflow's own."""
    return CARRY | workflow.ActivityConfig(task_queue=queue)


WRITE_ON_HOST = workflow.ActivityConfig(
    # The same where the run lies on another host than the workflow's worker. A host that is gone
    # must not keep the task open: the record is then written elsewhere, without the logs.
    schedule_to_start_timeout=timedelta(minutes=1),
    start_to_close_timeout=timedelta(minutes=10),  # a copy of large artifacts
    heartbeat_timeout=timedelta(seconds=15),  # a worker that is killed is not waited for
    schedule_to_close_timeout=timedelta(minutes=30),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
    summary="write the record",
)

WRITE_AGAIN = workflow.ActivityConfig(
    # Records that could not be written, all at once, at the end of a suite.
    start_to_close_timeout=timedelta(minutes=10),  # copies of large artifacts
    heartbeat_timeout=timedelta(seconds=15),  # a worker that is killed is not waited for
    schedule_to_close_timeout=timedelta(minutes=30),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=3),
    summary="write what is missing",
)

WRITE_AGAIN_AFTER = tuple(timedelta(seconds=seconds) for seconds in (1, 3, 6, 10))
"""Pauses before the tries: twenty seconds in all, for a disk that was full for a moment."""

START_TRIAL_AGAIN = timedelta(seconds=2)
"""Between tries to start a task whose id an older run still holds while it is being cancelled."""


def slot_options(what: str, word: SlotRequest | SlotRelease) -> workflow.ActivityConfig:
    """How a word to a limit is sent: on the control queue, where no step is in its way."""
    attempt = word.request_id.partition(":")[2]
    return SLOT | workflow.ActivityConfig(
        task_queue=control_queue(workflow.info().task_queue),
        summary=f"{what} · {word.limit} · {attempt}",
    )


LeaseWord = LeaseRequest | LeaseSeen | LeaseReset | LeaseRelease


def lease_options(word: LeaseWord) -> workflow.ActivityConfig:
    """How a word to a pool is sent: as one to a limit is, for the same reasons."""
    return SLOT | workflow.ActivityConfig(
        task_queue=control_queue(workflow.info().task_queue), summary=_lease_summary(word)
    )


def local_lease_options(word: LeaseWord) -> workflow.LocalActivityConfig:
    """The same without a way through the server."""
    return LOCAL_WORD | workflow.LocalActivityConfig(summary=_lease_summary(word))


def _lease_summary(word: LeaseWord) -> str:
    what = {
        "LeaseRequest": "ask",
        "LeaseSeen": "heard of",
        "LeaseReset": "reset",
        "LeaseRelease": "give back",
    }
    number = word.request_id.rpartition(":")[2]
    return f"{what[type(word).__name__]} · {word.pool} · lease {number}"


DEMAND_INTERVAL = timedelta(seconds=2)
"""How long a suite gathers counts of its tasks before it tells its pool: a task that was started
has asked by then, and a suite of many short tasks does not fill its history with counts."""


def demand_options(demand: SetDemand) -> workflow.ActivityConfig:
    """How a suite's word reaches its pool: as one to a limit does, for the same reasons."""
    return SLOT | workflow.ActivityConfig(
        task_queue=control_queue(workflow.info().task_queue), summary=_demand_summary(demand)
    )


def local_demand_options(demand: SetDemand) -> workflow.LocalActivityConfig:
    """The same without a way through the server."""
    return LOCAL_WORD | workflow.LocalActivityConfig(summary=_demand_summary(demand))


def _demand_summary(demand: SetDemand) -> str:
    what = "needs nothing more" if demand.over else f"at most {demand.max_parallel}"
    return f"{demand.pool} · {what}"


_BACKSTOP = timedelta(seconds=60)


_ONCE = RetryPolicy(maximum_attempts=1)
"""The core counts: application failures, worker losses and rollbacks apart."""


def step_options(dispatch: Dispatch, queue: str | None) -> workflow.ActivityConfig:
    """How one attempt of a step is scheduled, on `queue` or on the workflow's own."""
    step = dispatch.step
    again = f" · attempt {dispatch.attempt}" if dispatch.attempt > 1 else ""
    return workflow.ActivityConfig(
        task_queue=queue,
        activity_id=f"{step.id}#{dispatch.epoch}.{dispatch.attempt}",
        summary=f"{step.id} · {step.type}{again}",
        # The worker ends a step at its own limit and says so; this only catches one that cannot.
        start_to_close_timeout=timedelta(seconds=step.timeout_seconds) + _BACKSTOP,
        heartbeat_timeout=timedelta(seconds=step.heartbeat_timeout_seconds),
        retry_policy=_ONCE,
        # A cancelled step cleans up and answers with what it wrote.
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


HOST_IN_DOUBT = timedelta(minutes=1)
"""How long something waits for a host that may be gone, since the instances there are."""


def compensation_options(
    compensation: Compensation, queue: str, *, in_doubt: bool
) -> workflow.ActivityConfig:
    """How one attempt of a step is undone: with limits and retries of its own.

    `in_doubt`: the host may be gone for good.
    """
    how = undo_step(compensation.step.to_dict(), compensation.kind)
    return workflow.ActivityConfig(
        task_queue=queue,
        activity_id=compensation.activity_id,
        summary=f"undo {compensation.step.id} · attempt {compensation.attempt}"
        f" · {compensation.kind}",
        # The worker ends it at its own limit and says so; this only catches one that cannot.
        start_to_close_timeout=timedelta(seconds=how.timeout_seconds) + _BACKSTOP,
        schedule_to_start_timeout=HOST_IN_DOUBT if in_doubt else None,
        heartbeat_timeout=timedelta(seconds=how.heartbeat_timeout_seconds),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=max(0.001, how.retry.initial_interval)),
            backoff_coefficient=how.retry.backoff,
            maximum_interval=timedelta(seconds=longest_pause_seconds(how)),
            # The worker counts the failures among them, and says which is the last.
            maximum_attempts=how.retry.max_attempts + how.max_worker_losses,
        ),
        # What comes after it must not begin beside it.
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


# --- Background jobs --------------------------------------------------------------------------

JOB_GRACE = timedelta(seconds=5)
"""Between the interrupt and the kill of jobs that are stopped with their task."""

KILL_PATIENCE = timedelta(seconds=10)
"""For the end of a job that was killed; then its worker is told by a cancel, too."""

_UNLIMITED = timedelta(days=3650)
"""Of a job without a limit of its own: it is watched by its heartbeats."""


def job_options(job: JobInput, attempt: int) -> workflow.ActivityConfig:
    """How one start of a job is scheduled: on the queue of jobs, in no step's way."""
    limit = job.spec.time_limit_seconds
    again = f" · start {attempt}" if attempt > 1 else ""
    return workflow.ActivityConfig(
        task_queue=jobs_queue(workflow.info().task_queue, job.host),
        activity_id=f"{job.exec_id}.{attempt}",
        summary=f"job {job.spec.name or job.exec_id}{again}",
        # The worker ends it at its limit and says so; this only catches one that cannot.
        start_to_close_timeout=timedelta(seconds=limit) + _BACKSTOP if limit else _UNLIMITED,
        # It beats five times a second. A worker that is gone has taken the job's processes along.
        heartbeat_timeout=timedelta(seconds=5),
        retry_policy=_ONCE,  # the core counts
        # Nothing else may begin before the process is gone; it answers with what it had printed.
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def interrupt_options(job: JobInput, *, kill: bool) -> workflow.ActivityConfig:
    """How a signal gets to a job's process: to its host, and soon or not at all."""
    return workflow.ActivityConfig(
        task_queue=undo_queue(workflow.info().task_queue, job.host),
        schedule_to_start_timeout=timedelta(seconds=5),  # nobody is there, and that is an answer
        start_to_close_timeout=timedelta(seconds=5),  # a signal, or `docker exec` of one
        retry_policy=_ONCE,
        summary="kill" if kill else "interrupt",
    )


_STOP_JOBS = workflow.ActivityConfig(
    # The grace, and what it takes to find that a worker is gone.
    start_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=timedelta(seconds=15),  # a worker that is killed is not waited for
    # Tried for ever: the lease must not be given back under a job. It is idempotent.
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
    ),
    cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)


STOP_JOBS_AGAIN = (
    *(timedelta(seconds=seconds) for seconds in (1, 2, 5, 10, 30)),
    *(timedelta(minutes=1),) * 60 * 24,
)
"""Pauses after the tries to stop jobs that failed for good: a day in all. Then the task ends, and
what is left of its jobs finds that it is closed."""


def stop_options(count: int) -> workflow.ActivityConfig:
    """How jobs are stopped that would outlive their task."""
    return _STOP_JOBS | workflow.ActivityConfig(
        task_queue=control_queue(workflow.info().task_queue), summary=f"stop {_jobs(count)}"
    )


def stop_for_rollback_options(compensation: Compensation) -> workflow.ActivityConfig:
    """How jobs are stopped that a rollback takes back: it does not try for ever."""
    step, count = compensation.step.id, _jobs(len(compensation.exec_ids))
    what = f"undo {step} · attempt {compensation.attempt} · {count}"
    if compensation.kind == "guests":
        what = f"stop {count} inside what is reset"
    return _STOP_JOBS | workflow.ActivityConfig(
        task_queue=control_queue(workflow.info().task_queue),
        activity_id=compensation.activity_id,
        summary=what,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(milliseconds=200),
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=5,
        ),
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def sweep_options(queue: str) -> workflow.ActivityConfig:
    """How a host is swept, on the queue of its instances."""
    return workflow.ActivityConfig(
        task_queue=queue,
        schedule_to_start_timeout=timedelta(seconds=30),  # its worker has just been heard of
        start_to_close_timeout=timedelta(minutes=10),  # dozens of projects may have to go
        heartbeat_timeout=timedelta(seconds=15),
        # A worker that joins anew causes another sweep.
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=3),
        summary="sweep",
    )


# --- Instances of environments ----------------------------------------------------------------

_WORKER_LOST_WITHIN = timedelta(seconds=15)
"""A worker beats every second; what a dead one did is taken up by the next."""

_ON_HOST = workflow.ActivityConfig(
    heartbeat_timeout=_WORKER_LOST_WITHIN,
    # A failure is an answer; only the loss of a worker is tried again, and not for ever, since
    # the work itself may be what kills it.
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=200),
        maximum_interval=timedelta(seconds=10),
        maximum_attempts=10,
    ),
    # Nothing else may begin with the instance before this has let go of it.
    cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)

STOP = _ON_HOST | workflow.ActivityConfig(
    # `down` has a minute (P49), and its stragglers another; an engine that restarts is waited for.
    start_to_close_timeout=timedelta(minutes=5),
    summary="stop",
)

CHECK = workflow.LocalActivityConfig(
    # Local: one event, and no way through the server before a grant. A look takes 2 s at most.
    start_to_close_timeout=timedelta(seconds=8),
    retry_policy=RetryPolicy(maximum_attempts=1),
)

WATCH = workflow.ActivityConfig(
    # As long as the instance lives: it is looked at by one attempt, without an event.
    start_to_close_timeout=timedelta(days=7),
    heartbeat_timeout=timedelta(seconds=40),  # it beats every 10 s: there are hundreds
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
    ),
    # It only looks, so nobody waits for its end.
    cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
    summary="watch",
)

ANSWER_AGAIN = timedelta(minutes=5)
"""An instance that is not up and gets no order tells its pool again how it is: a pool that was
terminated gives no orders."""

STOP_AGAIN = (timedelta(seconds=5), timedelta(seconds=30), *(timedelta(minutes=5),) * 12)
"""Pauses after the tries to stop an instance whose pool is gone: an hour in all."""


def prepare_options(definition: Definition) -> workflow.ActivityConfig:
    """How images are pulled or built: with the environment's own limit."""
    limit = timedelta(seconds=definition.environment.prepare_timeout_seconds)
    return _ON_HOST | workflow.ActivityConfig(
        start_to_close_timeout=limit + _BACKSTOP, summary=f"prepare {definition.name}"
    )


def start_options(definition: Definition, *, reset: bool = False) -> workflow.ActivityConfig:
    """How an instance is brought up: `up`, then its health, each with its limit, twice at most;
    and then it may be reset."""
    environment = definition.environment
    limit = environment.start_timeout_seconds + environment.health_timeout_seconds
    if environment.process and environment.process.ready:
        limit += environment.process.ready.timeout_seconds
    # The worker keeps the limits; what an earlier attempt left may have to be taken down before.
    down = STOP["start_to_close_timeout"] or _BACKSTOP
    limit += _reset_seconds(definition) if reset else 0
    return _ON_HOST | workflow.ActivityConfig(
        start_to_close_timeout=timedelta(seconds=limit) + down + _BACKSTOP,
        summary=f"start {definition.name}",
    )


def reset_options(definition: Definition) -> workflow.ActivityConfig:
    """How an instance is reset: all tries of all endpoints and scripts fit in."""
    return _ON_HOST | workflow.ActivityConfig(
        start_to_close_timeout=timedelta(seconds=_reset_seconds(definition)) + _BACKSTOP,
        summary=f"reset {definition.name}",
    )


def _reset_seconds(definition: Definition) -> float:
    environment = definition.environment
    endpoints = len(environment.reset_endpoints) * RESET_ENDPOINT_SECONDS
    scripts = len(environment.reset_scripts) * environment.reset_script_timeout_seconds
    tries = environment.reset_retries + 1
    return tries * (endpoints + scripts + environment.reset_retry_delay_seconds)


RESET_ENDPOINT_SECONDS = 10 * (30 + 30)
"""Ten tries (P42), each with an answer and a pause that take as long as they may."""
