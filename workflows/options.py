"""Every timeout and retry policy of the workflows, with the reason for each number."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from perdure.core.run import Dispatch
    from perdure.messages import SlotRelease, SlotRequest
    from perdure.names import control_queue

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

SLOT_REMINDER = timedelta(minutes=5)
"""How often a task that waits for slots makes sure that its limits know: one that is terminated by
hand has forgotten who waits."""

REMIND = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(seconds=60),  # a query for each limit, and what it lacks
    schedule_to_close_timeout=timedelta(minutes=5),  # then the next reminder is due
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
    summary="do the limits know who waits?",
)

LIMIT_PROBE_INTERVAL = timedelta(seconds=15)
"""How often a limit looks whether the tasks that hold its slots, or wait for them, still run: one
that is terminated gives nothing back."""

LIMIT_IDLE = timedelta(minutes=1)
"""How long a limit without a task stays; a start costs more than a signal does."""

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

WRITE_ON_HOST = workflow.ActivityConfig(
    # The same where the run lies on another host than the workflow's worker. A host that is gone
    # must not keep the task open: the record is then written elsewhere, without the logs.
    schedule_to_start_timeout=timedelta(minutes=1),
    start_to_close_timeout=timedelta(minutes=10),  # a copy of large artifacts
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


_BACKSTOP = timedelta(seconds=60)


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
        # The core counts: application failures, worker losses and rollbacks apart.
        retry_policy=RetryPolicy(maximum_attempts=1),
        # A cancelled step cleans up and answers with what it wrote.
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
