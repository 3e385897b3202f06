"""A task's background jobs: how they are launched as workflows of their own, and stopped.

`perdure.core.run_jobs` says who may launch what, and when jobs are to be stopped; this carries it.
A job outlives the run of its task that continues as new, so its end is heard as a signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
)

with workflow.unsafe.imports_passed_through():
    from perdure.core.job_checks import is_exec_id, problems_of
    from perdure.core.problems import shown
    from perdure.core.run import TaskRun
    from perdure.core.run_jobs import TERMINATED
    from perdure.job_messages import JobEnd, JobInput, JobLaunch, JobLaunched, StopJobs
    from perdure.messages import RunRef, TaskInput
    from perdure.names import JOB_REFUSED, JOB_WORKFLOW, STOP_JOBS, job_workflow_id
    from perdure.search_attributes import attributes_of
    from workflows.options import JOB_GRACE, STOP_JOBS_AGAIN, stop_options


class TaskJobs:
    """The jobs of one run."""

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
        self._stopping = False

    @property
    def under_way(self) -> bool:
        """Whether something goes on whose end the run has not heard of."""
        return self._stopping or bool(self._run.jobs.starting)

    # --- Launching --------------------------------------------------------------------------

    def check(self, launch: JobLaunch) -> None:
        """Raises ApplicationError (JobRefused) if the job cannot be launched, with what to do."""
        if not is_exec_id(launch.exec_id):
            raise refusal(f"{shown(launch.exec_id)} is no id: write exec- and 12 hex digits")
        if problems := problems_of(launch.spec):
            raise refusal("; ".join(problems))
        if reason := self._run.job_refusal(launch):
            raise refusal(reason)

    async def launch(self, launch: JobLaunch) -> JobLaunched:
        """Start a job, unless it is there; returns when the server knows it.

        Raises as `check`.
        """
        self.check(launch)
        run = self._run
        if self._start.options.multi_host and self._host() is None:
            # It has just begun, and asks for a host: whoever started it need not know.
            await workflow.wait_condition(
                lambda: self._host() is not None or run.halted or run.over
            )
            self.check(launch)
        if job := run.jobs.get(launch.exec_id):
            await workflow.wait_condition(lambda: job not in run.jobs.starting)
            if run.jobs.get(launch.exec_id) is None:
                raise refusal(_taken(launch))
            return JobLaunched(job.exec_id, job.status)
        job = run.claim_job(launch, workflow.time())
        try:
            child = await self._start_child(launch)
        except FailureError as error:
            run.job_not_started(job.exec_id, workflow.time())
            self._stir()
            raise refusal(_taken(launch)) from error
        # Its end is heard as a signal; that of the handle comes in this run of the chain alone.
        child.add_done_callback(lambda ended: self._closed(launch.exec_id, ended))
        run.job_started(job.exec_id, workflow.time())
        self._stir()
        return JobLaunched(job.exec_id, job.status)

    def ended(self, end: JobEnd) -> None:
        """A job says that it has ended."""
        if self._run.job_ended(end, workflow.time()):
            self._stir()

    def _closed(self, exec_id: str, handle: asyncio.Task[JobEnd]) -> None:
        """The workflow of a job is closed; one that was terminated could not say so itself."""
        error = None if handle.cancelled() else handle.exception()
        cause = error.cause if isinstance(error, ChildWorkflowError) else None
        if isinstance(cause, TerminatedError):
            self.ended(JobEnd(exec_id, "lost", TERMINATED, ended_at=workflow.time()))

    async def _start_child(self, launch: JobLaunch) -> workflow.ChildWorkflowHandle[Any, JobEnd]:
        run, spec = self._run, launch.spec
        return await workflow.start_child_workflow(
            JOB_WORKFLOW,
            JobInput(
                exec_id=launch.exec_id,
                spec=spec,
                origin=launch.origin,
                run=self._ref,
                host=self._host(),
                folder=self._start.folder,
                results_dir=self._start.options.results_dir,
                suite_workflow_id=self._start.suite_workflow_id,
                instances=[asdict(instance) for instance in run.instances],
                environments=list(run.task.environments),
                redact=list(run.task.redact),
                context=run.context if spec.entrypoint else None,
                restarts=run.restarts,
            ),
            id=job_workflow_id(launch.exec_id),
            result_type=JobEnd,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            search_attributes=attributes_of(
                "job",
                self._ref.suite,
                self._ref.task_id,
                known=self._start.options.search_attributes,
            ),
            static_summary=f"job {spec.name or launch.exec_id}",
        )

    # --- Stopping ---------------------------------------------------------------------------

    def carry(self) -> None:
        """Begin to stop what the run wants stopped."""
        if exec_ids := self._run.take_jobs_to_stop():
            self._stopping = True
            # Kept alive by the activity that it awaits.
            asyncio.create_task(self._stop(exec_ids))  # noqa: RUF006

    async def stopped(self) -> None:
        """Return when the run, which is over, has no job any more."""
        run = self._run
        while run.has_jobs or self._stopping:
            self.carry()
            await workflow.wait_condition(
                lambda: not self._stopping and (not run.jobs.starting or not run.has_jobs)
            )

    async def _stop(self, exec_ids: list[str]) -> None:
        ends: list[JobEnd] = []
        for pause in STOP_JOBS_AGAIN:
            try:
                ends = await workflow.execute_activity(
                    STOP_JOBS,
                    StopJobs(exec_ids, JOB_GRACE.total_seconds()),
                    result_type=list[JobEnd],
                    **stop_options(len(exec_ids)),
                )
                break
            except ActivityError:  # not retried: a fault of perdure's, which a new worker may mend
                await workflow.sleep(pause, summary="then the jobs are stopped again")
        self._run.jobs_stopped(exec_ids, ends, workflow.time())
        self._stopping = False
        self._stir()


def refusal(reason: str) -> ApplicationError:
    """A job is not launched."""
    return ApplicationError(reason, type=JOB_REFUSED, non_retryable=True)


def _taken(launch: JobLaunch) -> str:
    return f"there is a job {launch.exec_id} already, of another task; draw another id"
