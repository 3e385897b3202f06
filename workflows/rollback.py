"""What a run's rollbacks do to the world: compensations, one after another.

`perdure.core.run_rollback` says what is due and when; this carries it, on a queue of the host where
no step is in the way, and tells the run how it ended. (Jobs are stopped by way of their workflows,
from any host.) Nothing of it is cancelled with the task: what was planned is done. Environments are
reset by their pool (`workflows.lease`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from perdure.core.rollback import JOB_KINDS, Compensation
    from perdure.core.run import TaskRun
    from perdure.job_messages import JobEnd, StopJobs
    from perdure.messages import (
        CompensateStep,
        CompensationOutcome,
        RunRef,
        TaskInput,
    )
    from perdure.names import COMPENSATE_STEP, STOP_JOBS, undo_queue
    from perdure.undo_ends import undo_failure
    from workflows.options import (
        CONTEXT_INLINE_BYTES,
        JOB_GRACE,
        compensation_options,
        stop_for_rollback_options,
    )


class RollbackWork:
    """The work of one run's rollbacks."""

    def __init__(
        self,
        run: TaskRun,
        start: TaskInput,
        ref: RunRef,
        host: Callable[[], str | None],
        stir: Callable[[], None],
    ) -> None:
        """`host`: to which the task is bound, None where one serves its queue. `stir` is called
        when something has ended."""
        self._run = run
        self._start = start
        self._ref = ref
        self._host = host
        self._stir = stir
        self._handles: list[workflow.ActivityHandle[Any]] = []
        self._stopping = 0

    @property
    def under_way(self) -> bool:
        """Whether something goes on whose end the run has not heard of."""
        return bool(self._handles or self._stopping)

    def carry(self) -> None:
        """Begin what is due."""
        # Kept alive by the activities that they await.
        compensation = self._run.take_compensation(workflow.time())
        if compensation and compensation.kind in JOB_KINDS:
            self._stopping += 1
            asyncio.create_task(self._stop_jobs(compensation))  # noqa: RUF006
        elif compensation:
            undoing = workflow.start_activity(
                COMPENSATE_STEP,
                self._asked(compensation),
                result_type=CompensationOutcome,
                **compensation_options(
                    compensation, self._queue, in_doubt=self._run.is_parting and self._is_bound
                ),
            )
            self._handles.append(undoing)
            asyncio.create_task(self._await_undone(compensation, undoing))  # noqa: RUF006

    def doubt_host(self) -> None:
        """The instances are gone, and perhaps their host: what waits for it is given up.

        What is at work there is heard all the same: it takes no notice of a cancel.
        """
        if self._is_bound:
            for handle in self._handles:
                handle.cancel()

    @property
    def _is_bound(self) -> bool:
        return self._host() is not None

    @property
    def _queue(self) -> str:
        return undo_queue(workflow.info().task_queue, self._host())

    # --- Compensations ----------------------------------------------------------------------

    def _asked(self, compensation: Compensation) -> CompensateStep:
        run = self._run
        inline = run.context_bytes <= CONTEXT_INLINE_BYTES
        return CompensateStep(
            run=self._ref,
            step=compensation.step.to_dict(),
            number=compensation.number,
            kind=compensation.kind,
            attempt=compensation.attempt,
            epoch=compensation.epoch,
            status=compensation.status,
            diff=compensation.diff,
            is_written=compensation.is_written,
            creates=compensation.creates,
            context_epoch=run.epoch,
            version=run.version,
            context=run.context if inline else None,
            redact=list(run.task.redact),
            environments=list(run.task.environments),
            folder=self._start.folder,
            suite_workflow_id=self._start.suite_workflow_id,
            instances=run.instances,
            restarts=run.restarts,
        )

    async def _stop_jobs(self, compensation: Compensation) -> None:
        failure = None
        try:
            ends = await workflow.execute_activity(
                STOP_JOBS,
                StopJobs(compensation.exec_ids, JOB_GRACE.total_seconds()),
                result_type=list[JobEnd],
                **stop_for_rollback_options(compensation),
            )
        except ActivityError as error:
            failure = undo_failure(error.cause)
        else:
            self._run.jobs_gone(compensation.exec_ids, ends, workflow.time())
        self._run.compensated(compensation, failure, workflow.time())
        self._stopping -= 1
        self._stir()

    async def _await_undone(
        self, compensation: Compensation, undoing: workflow.ActivityHandle[CompensationOutcome]
    ) -> None:
        failure = None
        try:
            await undoing
        except ActivityError as error:
            failure = undo_failure(error.cause)
        self._run.compensated(compensation, failure, workflow.time())
        self._handles.remove(undoing)
        self._stir()
