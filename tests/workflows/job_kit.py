"""How tests of workflows launch jobs, look at them and stop them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError

from perdure.job_messages import (
    InterruptJob,
    JobEnd,
    JobLaunch,
    JobLaunched,
    JobOrigin,
    JobSpec,
    JobStatus,
    PeekPage,
    PeekRequest,
)
from perdure.names import INTERRUPT, JOB_FAILED, JOB_REFUSED, LAUNCH_JOB, PEEK, job_workflow_id
from perdure.payloads import adapter
from tests.waiting import until

Handle = WorkflowHandle[Any, Any]


def drawn() -> str:
    """The id of a job that nobody has launched."""
    return f"exec-{uuid.uuid4().hex[:12]}"


async def launch(
    task: Handle, *script: str, exec_id: str | None = None, origin: Any = None, **spec: Any
) -> str:
    """Launch a job that plays a script (`tests.workflows.fake_jobs`); returns its id."""
    made = JobLaunch(
        exec_id or drawn(), JobSpec(argv=[*script], **spec), origin or JobOrigin("person")
    )
    launched = await task.execute_update(LAUNCH_JOB, made, result_type=JobLaunched)
    assert launched.exec_id == made.exec_id
    return made.exec_id


async def refused(task: Handle, *script: str, **more: Any) -> str:
    """Why the task refuses a job."""
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await launch(task, *(script or ("wait",)), **more)
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == JOB_REFUSED
    return cause.message


def of(client: Client, exec_id: str) -> Handle:
    """The workflow of a job."""
    return client.get_workflow_handle(job_workflow_id(exec_id), result_type=JobEnd)


async def peek(client: Client, exec_id: str, *at: int) -> PeekPage:
    """What the job says of itself, by a query."""
    page: PeekPage = await of(client, exec_id).query(PEEK, PeekRequest(*at), result_type=PeekPage)
    return page


async def interrupt(client: Client, exec_id: str, kill_after: float | None = None) -> None:
    await of(client, exec_id).signal(INTERRUPT, InterruptJob(kill_after))


async def begun(client: Client, *exec_ids: str) -> None:
    """Wait until a worker has taken them up."""
    for exec_id in exec_ids:

        async def runs(exec_id: str = exec_id) -> bool:
            return not (await peek(client, exec_id)).waiting

        await until(runs, f"{exec_id} runs")


async def end_of(client: Client, exec_id: str) -> JobEnd:
    """How the job ended, once it has."""
    cause, end = None, JobEnd(exec_id, "running")
    try:
        end = await of(client, exec_id).result()
    except WorkflowFailureError as error:
        cause = error.cause
    if isinstance(cause, ApplicationError):
        end = adapter(JobEnd).validate_python(cause.details[0])
        assert cause.type == JOB_FAILED
    assert end.status in (("failed", "killed", "lost") if cause else ("done", "interrupted"))
    page = await peek(client, exec_id)
    told = (page.status, page.error, page.exit_code, page.interrupted, page.usage, page.attempts)
    assert told == (
        end.status, end.error, end.exit_code, end.interrupted, end.usage, end.attempts
    )  # fmt: skip
    return end


async def jobs_of(task: Handle) -> dict[str, JobStatus]:
    """The jobs of a task, as the task knows them."""
    return {job["exec_id"]: job["status"] for job in await task.query("jobs")}
