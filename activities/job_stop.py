"""Stopping jobs from outside: interrupted all at once, killed after a while, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import time

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.job_messages import InterruptJob, JobEnd, StopJobs
from perdure.names import INTERRUPT, JOB_FAILED, job_workflow_id
from perdure.payloads import adapter

TERMINATED = "its workflow was terminated"
UNKNOWN = "its workflow is unknown to the server"


async def stop_all(client: Client, stop: StopJobs) -> list[JobEnd]:
    """Stop jobs; how each of them ended, in the order of their ids. Raises RPCError."""
    ends = await asyncio.gather(*(_stop(client, e, stop.grace_seconds) for e in stop.exec_ids))
    return list(ends)


async def _stop(client: Client, exec_id: str, grace_seconds: float) -> JobEnd:
    job = client.get_workflow_handle(job_workflow_id(exec_id), result_type=JobEnd)
    try:
        await job.signal(INTERRUPT, InterruptJob(kill_after_seconds=grace_seconds))
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            await _cancel(job)  # somebody sent it so many signals that the server takes no more
        elif error.status is not RPCStatusCode.NOT_FOUND:  # it has ended, or never was
            raise
    return await end_of(job, exec_id)


async def _cancel(job: WorkflowHandle[object, JobEnd]) -> None:
    """What a job takes for an interrupt that is followed by a kill."""
    try:
        await job.cancel()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


async def end_of(job: WorkflowHandle[object, JobEnd], exec_id: str) -> JobEnd:
    """How a job ends, once it has; it is waited for without polling. Raises RPCError.

    One whose workflow was terminated, or is unknown, is lost.
    """
    reason = TERMINATED
    try:
        return await job.result()
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == JOB_FAILED and cause.details:
            with contextlib.suppress(ValueError):
                end: JobEnd = adapter(JobEnd).validate_python(cause.details[0])
                return end
        reason = TERMINATED if cause is None else str(cause) or TERMINATED
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        reason = UNKNOWN
    return JobEnd(exec_id, "lost", error=reason, ended_at=time.time())
