"""How a pool's orders reach the workflows of its instances, and what it makes of their ends."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from perdure.core import pool_decisions as told
    from perdure.core.pool import Pool
    from perdure.core.pool_fleet import Failure
    from perdure.core.pool_instances import Instance
    from perdure.names import INSTANCE_WORKFLOW, ORDER, instance_workflow_id, instances_queue
    from perdure.pool_messages import InstanceInput, InstanceOrder, PoolInput

Order = told.StartInstance | told.ResetInstance | told.CheckInstance | told.StopInstance

ENDED = Failure("its workflow was ended by hand")

STARTS_AT_ONCE = 4
"""Workflows of instances that are being started: the server starts those that are told together in
any order, and those that are waited for come first on a machine with few cores."""


def in_words(decision: Order) -> InstanceOrder:
    """An order as its instance gets it."""
    match decision:
        case told.StartInstance():
            return InstanceOrder(
                "start",
                decision.order,
                ports=decision.ports,
                reset=decision.reset,
                task=decision.task,
            )
        case told.ResetInstance():
            return InstanceOrder("reset", decision.order)
        case told.CheckInstance():
            return InstanceOrder("check", decision.order)
        case told.StopInstance():
            return InstanceOrder("stop", decision.order, reason=decision.reason)


class InstanceOrders:
    """Hands on orders, and starts the workflows of instances for that."""

    def __init__(self, pool: Pool, start: PoolInput) -> None:
        self._pool = pool
        self._start = start
        self._children: set[asyncio.Task[None]] = set()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)

    async def hand_on(self, number: int, order: InstanceOrder) -> None:
        """Bring an order to its instance, whose workflow starts if it is not there."""
        instance = self._pool.instances.get(number)
        if instance is None or instance.order != order.order:
            return  # a newer order follows
        is_new = order.order == 1
        if not is_new and await self._is_told(instance, order):
            return
        if order.kind in ("reset", "check"):  # there is nobody left to be told
            self.ended(number)
            return
        # What nobody looks after any more is started, or stopped, by a new workflow.
        has_begun = await self._begin_in_turn(instance, order)
        if not has_begun and is_new:
            self._pool.answers.never_began(number, order.order, workflow.time())
        elif has_begun and self._start.early:
            return  # it has the order from its start
        elif not await self._is_told(instance, order):
            self.ended(number)

    def ended(self, number: int) -> None:
        """The workflow of an instance is closed; if the instance is not gone, that is a failure."""
        instance, now = self._pool.instances.get(number), workflow.time()
        if instance and instance.state == "stopping":
            self._pool.answers.stop_failed(number, instance.order, ENDED.reason, now)
        elif instance:
            self._pool.answers.lost(number, ENDED, now)

    def workflow_id(self, number: int, environment: str) -> str:
        """Of an instance of this pool."""
        return instance_workflow_id(self._start.pool, environment, number)

    async def _is_told(self, instance: Instance, order: InstanceOrder) -> bool:
        # By its id alone: it may have continued as new.
        workflow_id = self.workflow_id(instance.number, instance.environment)
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal(ORDER, order)
        except FailureError:  # it is closed
            return False
        return True

    async def _begin_in_turn(self, instance: Instance, order: InstanceOrder) -> bool:
        if not self._start.early:
            return await self._begin(instance, order)
        async with self._starts:
            return await self._begin(instance, order)

    async def _begin(self, instance: Instance, order: InstanceOrder) -> bool:
        """Start the workflow of an instance; False: there is one of that id."""
        start, info = self._start, workflow.info()
        try:
            child = await workflow.start_child_workflow(
                INSTANCE_WORKFLOW,
                InstanceInput(
                    pool=start.pool,
                    pool_uuid=start.uuid,
                    number=instance.number,
                    environment=instance.environment,
                    project=instance.project,
                    definition=self._pool.definition(instance.key).to_json(),
                    pool_workflow_id=info.workflow_id,
                    pool_run_id=info.first_execution_run_id,
                    history_limit_events=start.options.history_limit_events,
                    order=order if start.early else None,
                    local_words=start.early,
                ),
                id=self.workflow_id(instance.number, instance.environment),
                task_queue=instances_queue(info.task_queue, instance.host),
                # It outlives the runs of this workflow, and stops by itself if that is gone.
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary=f"{instance.environment} {instance.number} on {instance.host}",
            )
        except WorkflowAlreadyStartedError:
            return False
        except FailureError:
            return False
        # If it is ended by hand, this run of the pool hears of it at once, later ones by probes.
        watch = asyncio.create_task(self._until_closed(child, instance.number))
        self._children.add(watch)
        watch.add_done_callback(self._children.discard)
        return True

    async def _until_closed(
        self, child: workflow.ChildWorkflowHandle[object, object], number: int
    ) -> None:
        try:
            await child
        except FailureError:
            self.ended(number)
