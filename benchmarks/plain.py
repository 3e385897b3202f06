"""The baseline: a workflow written by hand, ten activities one after another."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def noop(number: int) -> int:
    """Do nothing."""
    return number


@activity.defn
async def run_true(number: int) -> int:
    """Run `true` as anybody would."""
    import asyncio

    process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.DEVNULL)
    return number + await process.wait()


@workflow.defn
class PlainWorkflow:
    """Runs one activity by its name, `count` times."""

    @workflow.run
    async def run(self, name: str, count: int, queue: str | None = None) -> int:
        """The sum of what the activities return; `queue`: theirs, if it is not the workflow's."""
        total = 0
        for number in range(count):
            total += await workflow.execute_activity(
                name,
                number,
                result_type=int,
                task_queue=queue,
                start_to_close_timeout=timedelta(minutes=1),
                heartbeat_timeout=timedelta(seconds=10),
            )
        return total
