"""Step type `background`: launches a job, and does not wait for it."""

from __future__ import annotations

from typing import Any

from activities.host import StepHost
from perdure.core.job_documents import spec_of
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.messages import Json
from perdure.steps import Context, step


@step("background", keys=BUILT_IN_TYPES["background"].keys, on_loop=True)
async def launch(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Launch the job that the document describes; the result is `exec_id` and `status`.

    The job goes on beside the steps that follow, and ends with the task at the latest. An attempt
    that comes after a lost worker takes its job over, if that is `restartable`; another one is
    killed before the new one is launched.

    Raises StepFailed:
        JobRefused: the task has too many jobs, or one of this name that runs.
        BadJob: it cannot be launched as it is.
    """
    launched = await host.jobs.start(spec_of(document))
    return {"exec_id": launched.exec_id, "status": launched.status}
