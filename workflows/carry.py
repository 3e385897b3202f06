"""How a run that goes on from an earlier one gets that one's files, before its first step."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from perdure.carry_ends import NOT_COPIED
    from perdure.core.run import TaskRun
    from perdure.messages import CarriedWork, CarryWork
    from perdure.names import CARRY_WORK
    from workflows.options import carry_options


async def carry_work(run: TaskRun, queue: str | None) -> None:
    """Have the files copied that are due, on the host of the run's steps, which has `queue`.

    A run whose files cannot be had begins without them, and says so. Raises what a cancel raises.
    """
    earlier = run.resumed
    if earlier is None or not run.work_due:
        return
    source = earlier.files_of or earlier.run_id
    asked = CarryWork(run.run, source, earlier.restarts, earlier.hosts, run.earlier_creates)
    try:
        end: CarriedWork = await workflow.execute_activity(
            CARRY_WORK, asked, result_type=CarriedWork, **carry_options(queue)
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        end = NOT_COPIED
    run.work_carried(end, workflow.time())
